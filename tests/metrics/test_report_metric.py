"""The finding labeler on sentences, ROUGE-L against two formulas, and the best constant report."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.errors import TaskError
from bat_env.metrics import Case, TaskScore
from bat_env.metrics.findings import FindingSpec, claimed, claims, f1
from bat_env.metrics.report import (
    ReportFindings,
    best_constant,
    case_value,
    misread,
    read_report,
)
from bat_env.metrics.rouge import common_length, rouge_l, words_of
from bat_env.tasks.spec import TaskSpec

METRIC = ReportFindings()
FINDINGS: dict[str, Any] = {
    "effusion": {"terms": ["pleural effusion", "effusion"], "lateral": True},
    "pneumothorax": {"terms": ["pneumothorax"], "lateral": True},
    "consolidation": {"terms": ["consolidation", "airspace opacity"], "lateral": True},
    "cardiomegaly": {"terms": ["cardiomegaly", "enlarged heart", "heart is enlarged"]},
}
VOCABULARY = {name: FindingSpec.model_validate(entry) for name, entry in FINDINGS.items()}


@pytest.fixture(scope="module")
def spec(spec_of: Callable[..., TaskSpec]) -> TaskSpec:
    return spec_of(
        "report_findings",
        "outputs/{case}/report.txt",
        {"findings": FINDINGS},
        quantity="finding_count",
    )


def said(text: str) -> set[str]:
    """Claims in words: ``left effusion``; ``?`` for doubt, ``!`` for a contradiction."""
    marks = {1.0: "", 0.5: "?", 0.0: "!"}
    found = claimed(claims(text, VOCABULARY))
    return {marks[worth] + f"{side} {name}".strip() for (name, side), worth in found.items()}


# -------------------------------------------------------------------------------------- labeler


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("There is a left pleural effusion. No pneumothorax.", {"left effusion"}),
        ("No effusion, consolidation or pneumothorax is seen.", set()),
        ("No pneumothorax, but there is a small right effusion.", {"right effusion"}),
        ("No effusion, a left pneumothorax is present.", {"left pneumothorax"}),
        ("No right effusion but left effusion present.", {"left effusion"}),
        ("Effusion and pneumothorax are absent.", set()),
        ("Neither effusion nor pneumothorax.", set()),
        ("Lungs are clear, without effusion or consolidation.", set()),
        ("Negative for effusion. Free of consolidation.", set()),
        ("Right pneumothorax has resolved.", set()),
        ("The pneumothorax is no longer seen.", set()),
        ("A left effusion is unlikely.", set()),
        ("The heart is not enlarged.", set()),
        ("The heart is enlarged.", {"cardiomegaly"}),
        ("Pleural effusion: none. Pneumothorax: right.", {"right pneumothorax"}),
        (
            "Consolidation in the left lower lobe, without effusion or pneumothorax.",
            {"left consolidation"},
        ),
        ("There's no effusion; consolidation on the right.", {"right consolidation"}),
        ("No focal airspace opacity. Cardiomegaly.", {"cardiomegaly"}),
        ("Left effusion present, right effusion absent.", {"left effusion"}),
        ("Effusion: left; pneumothorax: no; consolidation: none", {"left effusion"}),
        ("Pneumothorax is seen neither on the left nor on the right.", set()),
        ("Consolidation on the right rather than effusion.", {"right consolidation"}),
        (
            "No left or right effusion. Consolidation in the right lung, not in the left.",
            {"right consolidation"},
        ),
    ],
)
def test_negation(text: str, want: set[str]) -> None:
    assert said(text) == want


@pytest.mark.parametrize(
    "text",
    [
        "No change in the left effusion.",
        "No significant interval change in left effusion.",
        "The left effusion is not significantly changed.",
        "Left effusion has not increased.",
        "Left effusion, without change.",
        "No doubt there is a left effusion.",
        "LEFT PLEURAL EFFUSIONS",
        "Left-sided effusion.",
        "A moderate left-sided\npleural effusion is seen.",
        "Effusion, left.",
        "There is 1.5 cm of left effusion.",
        "Left effusion.\nINDICATION: right pneumothorax?\nFINDINGS: As above.",
    ],
)
def test_statements_that_negate_nothing(text: str) -> None:
    assert said(text) == {"left effusion"}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("Left and right effusions.", {"left effusion", "right effusion"}),
        ("Bilateral effusions.", {"left effusion", "right effusion"}),
        ("Effusions on both sides.", {"left effusion", "right effusion"}),
        ("Left effusion and pneumothorax.", {"left effusion", "left pneumothorax"}),
        ("Effusion and consolidation on the left.", {"left effusion", "left consolidation"}),
        (
            "Effusion on the left and a pneumothorax on the right.",
            {"left effusion", "right pneumothorax"},
        ),
        (
            "Effusion on the left, pneumothorax on the right.",
            {"left effusion", "right pneumothorax"},
        ),
        (
            "Left upper and right lower lobe consolidation.",
            {"left consolidation", "right consolidation"},
        ),
        ("On the right there is consolidation.", {"right consolidation"}),
        ("Left-sided effusion, right-sided pneumothorax.", {"left effusion", "right pneumothorax"}),
        ("Left lung is clear. Effusion on the right.", {"right effusion"}),
        ("Effusion.", {"effusion"}),
        (
            "- Effusion, left side\n- Consolidation (right)",
            {"left effusion", "right consolidation"},
        ),
        ("Blunting of the left angle compatible with an effusion.", {"left effusion"}),
        ("Bilateral effusions, right greater than left.", {"left effusion", "right effusion"}),
        (
            "The right side shows a pneumothorax, the left shows an effusion.",
            {"right pneumothorax", "left effusion"},
        ),
        ("Cardiomegaly with left effusion.", {"cardiomegaly", "left effusion"}),
        ("Effusion is seen. The left effusion is small.", {"left effusion"}),
    ],
)
def test_sides(text: str, want: set[str]) -> None:
    assert said(text) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("Possible left consolidation.", {"?left consolidation"}),
        ("Cannot exclude a right pneumothorax.", {"?right pneumothorax"}),
        ("Right pneumothorax cannot be excluded.", {"?right pneumothorax"}),
        ("Effusion is not ruled out on the left.", {"?left effusion"}),
        ("Right pneumothorax is suspected.", {"?right pneumothorax"}),
        ("Possible left effusion. Left effusion is confirmed.", {"left effusion"}),
        ("No pleural effusion. Left effusion.", {"!left effusion"}),
        ("Left effusion. No left effusion.", {"!left effusion"}),
        ("Left effusion. No right effusion.", {"left effusion"}),
        ("No large effusion. Small left effusion.", {"left effusion"}),
        ("No cardiomegaly. Cardiomegaly.", {"!cardiomegaly"}),
    ],
)
def test_doubt_and_contradiction(text: str, want: set[str]) -> None:
    assert said(text) == want


SIDES = ("left", "right")
STATEMENTS = [
    *((f"There is a {s} {{}}.", [s], True) for s in SIDES),
    *((f"A {{}} is seen on the {s}.", [s], True) for s in SIDES),
    ("Bilateral {}.", ["left", "right"], True),
    ("No {}.", [], False),
    ("There is no evidence of {}.", [], False),
    ("The {} has resolved.", [], False),
]


@given(st.lists(st.sampled_from(STATEMENTS), min_size=3, max_size=3), st.permutations(range(3)))
@settings(max_examples=80, deadline=None)
def test_statements_combine(chosen: list[Any], order: list[int]) -> None:
    names = ["effusion", "pneumothorax", "consolidation"]
    text = " ".join(chosen[n][0].format(names[n]) for n in order)
    want = {f"{s} {names[n]}" for n in range(3) if chosen[n][2] for s in chosen[n][1]}
    assert said(text) == want


@given(st.text(max_size=300))
@settings(max_examples=60, deadline=None)
def test_any_text_can_be_read(text: str) -> None:
    said = claims(text, VOCABULARY)
    assert {finding for finding, _ in said} <= set(VOCABULARY)
    assert set(said.values()) <= {"present", "uncertain", "absent", "contradicted"}


@given(
    st.lists(
        st.sampled_from(
            [
                "no",
                "left",
                "right",
                "effusion",
                "pneumothorax",
                "and",
                ",",
                ".",
                "but",
                "is",
                "absent",
                "possible",
            ]
        ),
        max_size=40,
    )
)
@settings(max_examples=60, deadline=None)
def test_word_salad_can_be_read(words: list[str]) -> None:
    statements = claims(" ".join(words), VOCABULARY)
    assert {name for name, _ in statements} <= {"effusion", "pneumothorax"}


# --------------------------------------------------------------------------------------- formulas


@given(
    st.lists(st.sampled_from("abcd"), max_size=14), st.lists(st.sampled_from("abcd"), max_size=14)
)
@settings(max_examples=100, deadline=None)
def test_common_length_equals_the_table(a: list[str], b: list[str]) -> None:
    rows = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, j in itertools.product(range(len(a)), range(len(b))):
        rows[i + 1][j + 1] = rows[i][j] + 1 if a[i] == b[j] else max(rows[i][j + 1], rows[i + 1][j])
    assert common_length(a, b) == rows[-1][-1]


def test_rouge_equals_torchmetrics() -> None:
    pytest.importorskip("torchmetrics")
    try:
        from torchmetrics.functional.text.rouge import _rouge_l_score
    except ImportError:
        pytest.skip("this torchmetrics keeps its ROUGE-L elsewhere")
    rng = np.random.default_rng(0)
    words = ["left", "right", "effusion", "no", "heart", "lung", "small", "seen"]
    for _ in range(20):
        a, b = (rng.choice(words, int(rng.integers(1, 25))).tolist() for _ in range(2))
        assert rouge_l(a, b) == pytest.approx(float(_rouge_l_score(a, b)["fmeasure"]), abs=1e-6)
    assert rouge_l([], ["a"]) == 0.0


def test_f1_and_case_value() -> None:
    left, right = ("effusion", "left"), ("effusion", "right")
    assert f1({}, []) is None and f1({left: 1.0}, []) == 0.0
    assert f1({left: 1.0}, [left]) == 1.0 and f1({left: 0.5}, [left]) == 0.5
    assert f1({left: 1.0, right: 1.0}, [left]) == pytest.approx(2 / 3)
    assert f1({right: 1.0}, [left]) == 0.0
    assert case_value({}, [], 0.0) == 1.0 and case_value({left: 0.5}, [], 1.0) == 0.0
    assert case_value({left: 1.0}, [left], 0.5) == pytest.approx(0.9)
    # Wording alone earns nothing.
    assert case_value({right: 1.0}, [left], 1.0) == 0.0


@given(st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_no_constant_report_beats_the_best_constant(seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = [("effusion", "left"), ("effusion", "right"), ("cardiomegaly", "")]
    real = [[k for k in keys if rng.random() < 0.45] for _ in range(6)]
    best = best_constant(real, np.zeros((6, 6)))
    for count in range(len(keys) + 1):
        for chosen in itertools.combinations(keys, count):
            claims_made = dict.fromkeys(chosen, 1.0)
            mean = np.mean([case_value(claims_made, truth, 0.0) for truth in real])
            assert mean <= best + 1e-9


# ----------------------------------------------------------------------------------------- scores

TRUTHS: list[tuple[list[dict[str, str]], str]] = [
    ([{"finding": "effusion", "side": "left"}], "There is a left pleural effusion."),
    ([{"finding": "pneumothorax", "side": "right"}], "A right pneumothorax is seen. No effusion."),
    ([{"finding": "cardiomegaly"}], "The heart is enlarged. The lungs are clear."),
    ([], "No effusion, pneumothorax or consolidation."),
    ([{"finding": "consolidation", "side": "bilateral"}], "Bilateral airspace opacity is present."),
    ([], "The heart and the lungs are normal."),
]


def report_cases(outputs: Sequence[str | bytes | None]) -> list[Case]:
    return [
        Case(
            f"c{n}",
            {"truth.json": json.dumps({"findings": findings, "report": text}).encode()},
            output=out.encode() if isinstance(out, str) else out,
        )
        for n, ((findings, text), out) in enumerate(zip(TRUTHS, outputs, strict=True))
    ]


def graded(spec: TaskSpec, outputs: Sequence[str | bytes | None]) -> TaskScore:
    cases = report_cases(outputs)
    known = json.loads(json.dumps(METRIC.prepare(spec, cases)))
    return METRIC.total(spec, METRIC.score(spec, cases, known), known)


def test_true_reports_score_one_and_are_read_as_meant(spec: TaskSpec) -> None:
    texts = [text for _, text in TRUTHS]
    total = graded(spec, texts)
    assert total.score == pytest.approx(1.0) and total.ci95 == pytest.approx((1.0, 1.0))
    assert total.secondary["micro_f1"] == 1.0 and total.secondary["rouge_l"] == pytest.approx(1.0)
    assert misread(spec, report_cases(texts)) == {}


def test_a_true_report_that_is_read_otherwise_is_found(spec: TaskSpec) -> None:
    truth = {
        "findings": [{"finding": "effusion", "side": "left"}],
        "report": "Right effusion seen.",
    }
    assert "right" in misread(spec, [Case("c", {"truth.json": json.dumps(truth).encode()})])["c"]


@pytest.mark.parametrize(
    "text",
    [
        "The heart and the lungs are normal.",
        "There is a left pleural effusion.",
        "Bilateral effusion, pneumothorax and consolidation. Cardiomegaly.",
        "Possible left effusion, possible cardiomegaly.",
        "The quick brown fox jumps over the lazy dog.",
    ],
)
def test_constant_reports_score_about_zero(spec: TaskSpec, text: str) -> None:
    assert graded(spec, [text] * len(TRUTHS)).score <= 0.02


def test_swapped_sides_and_shifted_reports_lose(spec: TaskSpec) -> None:
    texts = [text for _, text in TRUTHS]
    swapped = [t.replace("left", "#").replace("right", "left").replace("#", "right") for t in texts]
    assert graded(spec, swapped).score < 0.6
    assert graded(spec, texts[1:] + texts[:1]).score < 0.2
    ignored = [t.replace("No ", "").replace("no ", "") for t in texts]
    assert graded(spec, ignored).score < 0.75


def test_a_missing_report_of_a_normal_case_costs(spec: TaskSpec) -> None:
    texts: list[str | bytes | None] = [text for _, text in TRUTHS]
    for broken, word in (
        (None, "missing"),
        (b"", "letters"),
        (b"1234567890 " * 9, "letters"),
        (b"\xff" * 40, "UTF-8"),
        (b"normal heart and lungs\x00\x1b[2J", "control"),
        (b"normal " * 10_000, "bytes"),
    ):
        total = graded(spec, [*texts[:5], broken])
        assert total.per_case["c5"] == 0.0 and not total.valid["c5"] and total.score < 1.0
        assert word in total.messages["c5"]
    assert graded(spec, [None] * 6).score == 0.0


def test_reports_may_carry_marks_and_line_ends() -> None:
    assert read_report("\ufeffNormal heart and\r\n\tnormal lungs.".encode()).startswith("Normal")
    assert words_of("It's 2 cm – Große") == ["it", "s", "2", "cm", "gro", "e"]


def test_report_inspection_and_agreement(spec: TaskSpec) -> None:
    one = b"There is a left pleural effusion. Cardiomegaly."
    facts = METRIC.inspect(spec, Case("c", output=one))
    assert facts["valid"] and facts["quantity"] == 2
    assert facts["labels"] == ["cardiomegaly", "left effusion"]
    assert not METRIC.inspect(spec, Case("c", output=b"x"))["readable"]
    assert METRIC.agreement(spec, "c", one, one) == 1.0
    other = one.replace(b"left", b"right")
    assert METRIC.agreement(spec, "c", one, other) == pytest.approx(0.5)
    assert METRIC.agreement(spec, "c", one, b"") == 0.0


def test_report_faults_of_a_task(spec: TaskSpec, spec_of: Callable[..., TaskSpec]) -> None:
    METRIC.check(spec)
    twice = {"a": {"terms": ["mass"]}, "b": {"terms": ["Mass"]}}
    for params in (
        {},
        {"findings": {}},
        {"findings": twice},
        {"findings": {"a": {"terms": ["-"]}}},
    ):
        with pytest.raises(TaskError):
            METRIC.check(spec_of("report_findings", "r.txt", params))
    bad: list[Any] = [
        {"findings": [{"finding": "wart"}], "report": ""},
        {"findings": [{"finding": "effusion"}], "report": ""},
        {"findings": [{"finding": "cardiomegaly", "side": "left"}], "report": ""},
        {"findings": [{"finding": "effusion", "side": "up"}], "report": ""},
        {"findings": ["effusion"], "report": ""},
        {"findings": []},
    ]
    for truth in bad:
        with pytest.raises(TaskError):
            METRIC.prepare(spec, [Case("c", {"truth.json": json.dumps(truth).encode()})])
