"""Accuracy above the best constant answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.errors import TaskError
from bat_env.metrics import Case, TaskScore
from bat_env.metrics.vqa import VqaAccuracy, constant_accuracy
from bat_env.tasks.spec import TaskSpec

METRIC = VqaAccuracy()
OPTIONS = {"A": "left lung", "B": "right lung", "C": "heart"}


@pytest.fixture(scope="module")
def spec(spec_of: Callable[..., TaskSpec]) -> TaskSpec:
    return spec_of("vqa_accuracy", "outputs/answers.csv", labels=["A", "B", "C", "D"])


def questions(answers: Sequence[str], data: bytes | None) -> list[Case]:
    return [
        Case(
            f"q{n}",
            {"truth.json": json.dumps({"answer": answer, "options": OPTIONS}).encode()},
            output=data,
        )
        for n, answer in enumerate(answers)
    ]


def graded(spec: TaskSpec, answers: Sequence[str], said: Sequence[str] | bytes | None) -> TaskScore:
    data = said
    if said is not None and not isinstance(said, bytes):
        data = ("case,answer\n" + "".join(f"q{n},{a}\n" for n, a in enumerate(said))).encode()
    cases = questions(answers, data)
    known = json.loads(json.dumps(METRIC.prepare(spec, cases)))
    return METRIC.total(spec, METRIC.score(spec, cases, known), known)


@given(st.lists(st.sampled_from("ABC"), min_size=1, max_size=20), st.data())
@settings(max_examples=50, deadline=None)
def test_score_equals_a_second_formula(
    spec: TaskSpec, answers: list[str], data: st.DataObject
) -> None:
    said = data.draw(st.lists(st.sampled_from("ABC"), min_size=len(answers), max_size=len(answers)))
    right = sum(a == b for a, b in zip(answers, said, strict=True)) / len(answers)
    best = max(answers.count(letter) for letter in "ABC") / len(answers)
    total = graded(spec, answers, said)
    want = max(0.0, (right - best) / (1 - best)) if best < 1 else 0.0
    assert total.score == pytest.approx(want)
    assert total.secondary == {"accuracy": right, "constant_accuracy": best}
    assert total.ci95[0] <= total.score <= total.ci95[1]


def test_constants_score_zero_and_perfect_scores_one(spec: TaskSpec) -> None:
    answers = list("AABCABBC")
    for letter in "ABC":
        assert graded(spec, answers, letter * 8).score == 0.0
    assert graded(spec, answers, answers).score == 1.0
    assert graded(spec, answers, [a.lower() for a in answers]).score == 1.0
    assert graded(spec, answers, None).score == 0.0


def test_a_constant_text_under_moving_letters_is_found() -> None:
    moving = [("A", {"A": "Heart", "B": "lung"}), ("B", {"A": "lung", "B": " heart"})] * 3
    assert constant_accuracy(moving) == 1.0
    assert constant_accuracy([]) == 0.0
    even = [("A", {"A": "x", "B": "y"}), ("B", {"A": "x", "B": "y"})]
    assert constant_accuracy(even) == 0.5


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"case,answer\nq0,D\nq1,B\n", "option"),
        (b"case,answer\nq0,left lung\nq1,B\n", "option"),
        (b"case,answer\nq0,A\nq0,A\nq1,B\n", "several"),
        (b"case,answer\nq1,B\n", "no row"),
        (b"case,answer\nq0,\nq1,B\n", "option"),
    ],
)
def test_unusable_answers_are_wrong_and_counted(spec: TaskSpec, data: bytes, word: str) -> None:
    total = graded(spec, ["A", "B"], data)
    assert total.per_case == {"q0": 0.0, "q1": 1.0} and total.secondary["accuracy"] == 0.5
    assert total.valid == {"q0": False, "q1": True} and word in total.messages["q0"]


def test_vqa_inspection_and_agreement(spec: TaskSpec) -> None:
    a, b = b"case,answer\nq0,a\n", b"case,answer\nq0,A\nq1,C\n"
    facts = METRIC.inspect(spec, Case("q1", output=b))
    assert facts["valid"] and facts["quantity"] == 2 and facts["labels"] == ["A", "C"]
    assert not METRIC.inspect(spec, Case("q5", output=b))["valid"]
    for share, want in ((b".25", 0.25), (b"1.5", None), (b"nan", None), (b"", None)):
        table = b"case,answer,confidence\nq0,A," + share + b"\n"
        assert METRIC.inspect(spec, Case("q0", output=table))["values"].get("confidence") == want
    assert METRIC.agreement(spec, "q0", a, b) == 1.0
    assert METRIC.agreement(spec, "q1", a, b) == 0.0


def test_vqa_faults_of_a_task(spec: TaskSpec, spec_of: Callable[..., TaskSpec]) -> None:
    METRIC.check(spec)
    for truth in ({"answer": "A"}, {"answer": "E", "options": OPTIONS}, {"options": OPTIONS}):
        with pytest.raises(TaskError):
            METRIC.prepare(spec, [Case("q0", {"truth.json": json.dumps(truth).encode()})])
    with pytest.raises(TaskError):
        METRIC.prepare(spec, [Case("q0")])
    with pytest.raises(TaskError):
        METRIC.check(spec_of("vqa_accuracy", "a.csv", labels=["a", "b"]))
