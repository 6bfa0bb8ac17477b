"""Balanced accuracy and AUROC against scikit-learn and torchmetrics, and the strict table."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.errors import TaskError
from bat_env.metrics import Case, TaskScore
from bat_env.metrics.cls import (
    ClsBalancedAccuracy,
    auroc,
    balanced_accuracy,
    bootstrap_balanced,
    macro_auroc,
)
from bat_env.tasks.spec import TaskSpec

METRIC = ClsBalancedAccuracy()
NAMES = ["naevus", "melanoma", "keratosis"]


@pytest.fixture(scope="module")
def spec(spec_of: Callable[..., TaskSpec]) -> TaskSpec:
    return spec_of("cls_balanced_accuracy", "outputs/predictions.csv", labels=NAMES)


def graded(spec: TaskSpec, truth: Sequence[str], text: str | bytes | None) -> TaskScore:
    data = text.encode() if isinstance(text, str) else text
    cases = [
        Case(f"c{n}", {"truth.json": json.dumps({"label": label}).encode()}, output=data)
        for n, label in enumerate(truth)
    ]
    known = json.loads(json.dumps(METRIC.prepare(spec, cases)))
    return METRIC.total(spec, METRIC.score(spec, cases, known), known)


def table(labels: Sequence[str]) -> str:
    return "case,label\n" + "".join(f"c{n},{label}\n" for n, label in enumerate(labels))


@given(st.integers(2, 6), st.data())
@settings(max_examples=60, deadline=None)
def test_balanced_accuracy_equals_scikit_learn(classes: int, data: st.DataObject) -> None:
    from sklearn.metrics import balanced_accuracy_score

    truth = data.draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=30))
    said = data.draw(
        st.lists(st.integers(0, classes - 1), min_size=len(truth), max_size=len(truth))
    )
    mine, present = balanced_accuracy(truth, said, classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert mine == pytest.approx(balanced_accuracy_score(truth, said))
    assert present == len(set(truth))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=40))
@settings(max_examples=60, deadline=None)
def test_auroc_equals_scikit_learn_with_ties(pairs: list[tuple[bool, int]]) -> None:
    from sklearn.metrics import roc_auc_score

    positive = np.array([p for p, _ in pairs])
    scores = np.array([s / 5 for _, s in pairs])
    if positive.all() or not positive.any():
        assert auroc(positive, scores) is None
    else:
        assert auroc(positive, scores) == pytest.approx(roc_auc_score(positive, scores))


def test_macro_auroc_equals_torchmetrics() -> None:
    torch = pytest.importorskip("torch")
    from torchmetrics.functional.classification import multiclass_auroc

    rng = np.random.default_rng(3)
    for _ in range(5):
        truth = rng.permutation(np.arange(40) % 4)
        shares = rng.dirichlet(np.ones(4), 40)
        want = multiclass_auroc(
            torch.from_numpy(shares), torch.from_numpy(truth), num_classes=4, average="macro"
        )
        assert macro_auroc(truth.tolist(), shares.tolist()) == pytest.approx(float(want), abs=1e-6)


def test_a_case_without_probabilities_ranks_worst() -> None:
    shares = [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8]]
    assert macro_auroc([0, 0, 1, 1], shares) == 1.0
    assert macro_auroc([0, 0, 1, 1], [*shares[:3], None]) == pytest.approx(0.5)
    assert macro_auroc([0, 1], [None, None]) is None
    assert macro_auroc([1, 1], [[0.5, 0.5]] * 2) is None


def test_bootstrap_equals_resampling_one_by_one() -> None:
    rng = np.random.default_rng(5)
    truth, said = rng.integers(0, 3, 14).tolist(), rng.integers(-1, 3, 14).tolist()
    mine = bootstrap_balanced(truth, said, 3, seed=9, draws=60)
    picks = np.random.default_rng(9).integers(0, 14, (60, 14))
    for value, pick in zip(mine, picks, strict=True):
        t, p = [truth[n] for n in pick], [said[n] for n in pick]
        balanced, present = balanced_accuracy(t, p, 3)
        zero = 1 / (present if present > 1 else 3)
        assert value == pytest.approx(max(0.0, (balanced - zero) / (1 - zero)))


def test_perfect_and_constant_answers(spec: TaskSpec) -> None:
    truth = ["naevus", "naevus", "melanoma", "keratosis", "naevus"]
    best = graded(spec, truth, table(truth))
    assert best.score == 1.0 and best.ci95 == (1.0, 1.0) and all(best.valid.values())
    for name in NAMES:
        total = graded(spec, truth, table([name] * 5))
        assert total.score == pytest.approx(0.0, abs=1e-12)
        assert total.secondary["accuracy"] == pytest.approx(truth.count(name) / 5)
    assert graded(spec, truth, None).score == 0.0


def test_classes_absent_from_the_truth_do_not_move_chance(spec: TaskSpec) -> None:
    truth = ["naevus", "melanoma"]
    assert graded(spec, truth, table(["naevus", "naevus"])).score == 0.0
    assert graded(spec, truth, table(["naevus", "keratosis"])).score == 0.0
    assert graded(spec, truth, table(truth)).score == 1.0
    alone = graded(spec, ["naevus", "naevus"], table(["naevus", "melanoma"]))
    assert alone.score == pytest.approx((0.5 - 1 / 3) / (2 / 3))


def test_missing_rows_stay_in_the_denominator(spec: TaskSpec) -> None:
    truth = ["naevus", "naevus", "melanoma", "melanoma"]
    total = graded(spec, truth, "case,label\nc0,naevus\nc2,melanoma\n")
    assert total.score == 0.0 and total.secondary["balanced_accuracy"] == 0.5
    assert total.valid == {"c0": True, "c1": False, "c2": True, "c3": False}
    assert set(total.messages) == {"c1", "c3"}


def test_probabilities(spec: TaskSpec) -> None:
    head = "case,label,p_naevus,p_melanoma,p_keratosis\n"
    truth = ["naevus", "melanoma", "keratosis"]
    good = "c0,naevus,.8,.1,.1\nc1,melanoma,.1,.8,.1\nc2,keratosis,.2,.2,.6\n"
    assert graded(spec, truth, head + good).secondary["auroc"] == 1.0
    assert graded(spec, truth, table(truth)).secondary["auroc"] is None
    for row in ("c0,naevus,nan,.5,.5", "c0,naevus,2,-1,0", "c0,naevus,.1,.1,.1", "c0,naevus,x,1,0"):
        total = graded(spec, truth, head + row + "\n")
        assert not total.valid["c0"] and "probab" in total.messages["c0"]
    partial = graded(spec, truth, "case,label,p_naevus\nc0,naevus,1\n")
    assert "lacks" in partial.messages["c0"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"", "empty"),
        (b"\xff\xfe", "UTF-8"),
        (b"case,label\nc0,na\0evus\n", "NUL"),
        (b"id,label\nc0,naevus\n", "header"),
        (b"case,label,label\nc0,naevus,naevus\n", "header"),
        (b"case,label\nc0\n", "fields"),
        (b'case,label\nc0,"naevus\n', "CSV"),
        (b"case,label\nc0,naevus\nc0,naevus\n", "several"),
        (b"case,label\nc1,naevus\n", "no row"),
        (b"case,label\nc0,Naevus\n", "label"),
        (b"case,label\nc0,=1+1\n", "label"),
        (b"case,label\n" + b"c0," + b"x" * 300 + b"\n", "characters"),
        (b"case,label\n" + b"c1,naevus\n" * 30_000, "rows"),
        (b"case,label\n" + b" " * (1 << 20), "bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_table_is_strict(spec: TaskSpec, text: bytes, word: str) -> None:
    total = graded(spec, ["naevus", "melanoma"], text)
    assert total.score == 0.0 and not total.valid["c0"]
    assert word in total.messages["c0"]


def test_line_ends_marks_and_blanks_are_accepted(spec: TaskSpec) -> None:
    text = "\ufeffcase , label\r\n\r\n c0 , naevus \r\nc1,melanoma\r\n"
    assert graded(spec, ["naevus", "melanoma"], text).score == 1.0


def test_inspection_and_agreement(spec: TaskSpec) -> None:
    one, other = b"case,label\nc0,naevus\n", b"case,label\nc0,melanoma\nc1,naevus\n"
    facts = METRIC.inspect(spec, Case("c0", output=other))
    assert facts["valid"] and facts["readable"] and facts["quantity"] == 2
    assert facts["values"]["naevus_count"] == 1
    shares = b"case,label,p_naevus,p_melanoma,p_keratosis\nc0,naevus,.7,.2,.1\nc1,naevus,.5,.4,.1\n"
    sure = METRIC.inspect(spec, Case("c0", output=shares))["values"]
    assert sure["top_probability"] == pytest.approx(0.6)
    absent = METRIC.inspect(spec, Case("c9", output=one))
    assert absent["readable"] and not absent["valid"]
    assert not METRIC.inspect(spec, Case("c0", output=None))["readable"]
    assert METRIC.agreement(spec, "c0", one, one) == 1.0
    assert METRIC.agreement(spec, "c0", one, other) == 0.0
    assert METRIC.agreement(spec, "c1", one, other) == 0.0


def test_bad_truth_and_parameters_are_the_tasks_fault(
    spec: TaskSpec, spec_of: Callable[..., TaskSpec]
) -> None:
    METRIC.check(spec)
    bad: list[Any] = [{}, {"label": "wart"}, []]
    for truth in bad:
        with pytest.raises(TaskError):
            METRIC.prepare(spec, [Case("c0", {"truth.json": json.dumps(truth).encode()})])
    with pytest.raises(TaskError):
        METRIC.check(spec_of("cls_balanced_accuracy", "x.csv", {"a": 1}, labels=NAMES))
    with pytest.raises(TaskError):
        METRIC.check(spec_of("cls_balanced_accuracy", "x.csv", labels=["one"]))
