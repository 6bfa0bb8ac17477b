"""Classification: balanced accuracy rescaled so that chance is 0, with AUROC beside it.

The output is one table, ``case,label``, with optional probability columns ``p_<label>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bat_env.errors import TaskError
from bat_env.metrics.base import (
    TRUTH_JSON,
    Case,
    MetricParams,
    UnreadableError,
    class_names,
    parse_params,
    unreadable_facts,
    with_quantity,
)
from bat_env.metrics.records import truth_of
from bat_env.metrics.rule import (
    BOOTSTRAP_DRAWS,
    CaseScore,
    TaskScore,
    clip,
    missing_case,
    percentiles,
    resamples,
    rescale,
)
from bat_env.metrics.table import ID_COLUMN, Table, read_each, read_table, row_of
from bat_env.tasks.spec import TaskSpec

LABEL_COLUMN: Final = "label"
PROBABILITY_PREFIX: Final = "p_"
_SUM_TOLERANCE: Final = 0.05

Floats = NDArray[np.float64]


class ClsParams(MetricParams):
    """The metric has no constants: the classes are ``output.labels``."""


# ------------------------------------------------------------------------------------- formulas


def balanced_accuracy(
    truth: Sequence[int], predicted: Sequence[int], classes: int
) -> tuple[float, int]:
    """Mean recall over the classes that the truth holds, and how many these are.

    Args:
        truth: Class index of every case.
        predicted: Predicted index; -1 for no usable prediction.
        classes: Number of classes.
    """
    real = np.bincount(truth, minlength=classes)
    right = np.bincount([t for t, p in zip(truth, predicted, strict=True) if t == p], None, classes)
    present = real > 0
    if not present.any():
        return 0.0, 0
    return float((right[present] / real[present]).mean()), int(present.sum())


def _chance(present: int | NDArray[np.int64], classes: int) -> Floats:
    """What a constant answer gets; with one class left in the truth, that of all classes."""
    return np.asarray(1.0 / np.where(np.asarray(present) > 1, present, max(classes, 2)))


def bootstrap_balanced(
    truth: Sequence[int],
    predicted: Sequence[int],
    classes: int,
    *,
    seed: int = 0,
    draws: int = BOOTSTRAP_DRAWS,
) -> Floats:
    """Rescaled balanced accuracy of resampled cases, shape (draws,)."""
    weights = resamples(len(truth), seed=seed, draws=draws)
    real = np.eye(classes)[np.asarray(truth)]
    right = real * np.asarray([[t == p] for t, p in zip(truth, predicted, strict=True)])
    counts = weights @ real
    with np.errstate(invalid="ignore"):
        recall = np.where(counts > 0, (weights @ right) / np.maximum(counts, 1), 0.0)
    present = (counts > 0).sum(axis=1)
    zero = _chance(present, classes)
    balanced = recall.sum(axis=1) / np.maximum(present, 1)
    return np.asarray(np.clip((balanced - zero) / (1 - zero), 0.0, 1.0))


def auroc(positive: NDArray[np.bool_], scores: Floats) -> float | None:
    """Area under the ROC curve, ties counted half; ``None`` if a side is empty."""
    n, m = int(positive.sum()), int((~positive).sum())
    if not n or not m:
        return None
    _, place, ties = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]
    return float((ranks[positive].sum() - n * (n + 1) / 2) / (n * m))


def macro_auroc(truth: Sequence[int], scores: Sequence[Sequence[float] | None]) -> float | None:
    """Mean one-against-rest AUROC over the classes in the truth.

    A case without probabilities ranks worst: below all where it is positive, above all where it
    is negative. ``None`` if no case has any, or no class can be ranked.
    """
    known = [row for row in scores if row is not None]
    if not known:
        return None
    areas = []
    for value in sorted(set(truth)):
        positive = np.asarray([t == value for t in truth])
        column = [
            row[value] if row is not None else (-np.inf if t == value else np.inf)
            for t, row in zip(truth, scores, strict=True)
        ]
        areas.append(auroc(positive, np.asarray(column, float)))
    defined = [area for area in areas if area is not None]
    return float(np.mean(defined)) if defined else None


# --------------------------------------------------------------------------------------- metric


def _probabilities(
    table: Table, row: Mapping[str, str], names: Sequence[str]
) -> list[float] | None:
    """Probabilities of all classes, or ``None`` where the table has no such columns."""
    columns = [PROBABILITY_PREFIX + name for name in names]
    if not any(column in table.columns for column in columns):
        return None
    absent = [column for column in columns if column not in table.columns]
    if absent:
        raise UnreadableError(f"lacks the probability columns {', '.join(absent[:5])}")
    try:
        values = [float(row[column]) for column in columns]
    except ValueError as error:
        raise UnreadableError(f"has a probability that is no number: {error}") from error
    if not all(0.0 <= v <= 1.0 for v in values) or abs(sum(values) - 1.0) > _SUM_TOLERANCE:
        raise UnreadableError("has probabilities that are not in [0, 1] with the sum 1")
    return values


def _answer(label: str, shares: Sequence[float] | None) -> str:
    return label if shares is None else f"{label}\t" + " ".join(f"{p:.2f}" for p in shares)


def _top_probability(table: Table, names: Sequence[str]) -> dict[str, float]:
    """Mean over rows of the largest probability, where every row has usable ones."""
    try:
        shares = [_probabilities(table, row, names) for row in table.rows.values()]
    except UnreadableError:
        return {}
    tops = [max(row) for row in shares if row is not None]
    return {"top_probability": sum(tops) / len(tops)} if tops else {}


def _properties(spec: TaskSpec, table: Table) -> dict[str, Any]:
    said = [row[LABEL_COLUMN] for row in table.rows.values()]
    names = class_names(spec)
    values: dict[str, float] = {f"{name}_count": said.count(name) for name in names}
    values |= {"rows": len(said), "class_count": len(set(said) & set(names))}
    values |= _top_probability(table, names)
    facts = {"shape": [len(said)], "dtype": "text", "labels": sorted(set(said) & set(names))}
    return with_quantity(spec, {"readable": True, "affine_ok": True, **facts, "values": values})


class ClsBalancedAccuracy:
    """See the module."""

    name: Final = "cls_balanced_accuracy"
    shared_output: Final = True
    needs_input: Final = False

    def truth_names(self, spec: TaskSpec) -> tuple[str, ...]:
        """``truth.json``: ``{"label": name}``."""
        return (TRUTH_JSON,)

    def check(self, spec: TaskSpec) -> None:
        """Raise if the parameters do not fit, or there are no classes."""
        parse_params(ClsParams, spec)
        names = class_names(spec)
        if len(names) < 2 or len(set(names)) != len(names):
            raise TaskError(f"Expected two or more classes in output.labels, got {names}.")

    def prepare(self, spec: TaskSpec, cases: Sequence[Case]) -> dict[str, Any]:
        """The true class index of every case."""
        names = class_names(spec)
        truth = {case.id: truth_of(case).get("label") for case in cases}
        wrong = [case for case, label in truth.items() if label not in names]
        if wrong:
            raise TaskError(f"Expected true labels among {names}, got {truth[wrong[0]]!r}.")
        return {"truth": {case: names.index(str(label)) for case, label in truth.items()}}

    def score(
        self, spec: TaskSpec, cases: Sequence[Case], known: Mapping[str, Any]
    ) -> dict[str, CaseScore]:
        """1 for a right label, 0 else."""
        names = class_names(spec)
        table_of = read_each(cases, [LABEL_COLUMN])
        rows: dict[str, CaseScore] = {}
        facts: dict[bytes, dict[str, Any]] = {}
        for case in cases:
            if case.output is None:
                rows[case.id] = missing_case()
                continue
            try:
                table = table_of(case)
                if case.output not in facts:
                    facts[case.output] = _properties(spec, table)
                row = row_of(table, case.id)
                if row[LABEL_COLUMN] not in names:
                    raise UnreadableError(f"has a label that is not among {', '.join(names)}")
                shares = _probabilities(table, row, names)
            except UnreadableError as error:
                found = facts.get(case.output, {"readable": False})
                rows[case.id] = CaseScore(0.0, False, f"the file {error}", properties=found)
                continue
            index = names.index(row[LABEL_COLUMN])
            rows[case.id] = CaseScore(
                score=float(index == known["truth"][case.id]),
                valid=True,
                properties=facts[case.output],
                parts={"predicted": index, "probabilities": shares},
                answer=_answer(names[index], shares),
            )
        return rows

    def total(
        self,
        spec: TaskSpec,
        rows: Mapping[str, CaseScore],
        known: Mapping[str, Any],
        *,
        seed: int = 0,
    ) -> TaskScore:
        """Balanced accuracy over all cases of ``known``, rescaled; accuracy and AUROC beside."""
        classes = len(class_names(spec))
        table = {case: rows.get(case) or missing_case() for case in known["truth"]}
        truth = [int(known["truth"][case]) for case in table]
        predicted = [int(row.parts.get("predicted", -1)) for row in table.values()]
        balanced, present = balanced_accuracy(truth, predicted, classes)
        shares = [row.parts.get("probabilities") for row in table.values()]
        draws = bootstrap_balanced(truth, predicted, classes, seed=seed) if truth else np.zeros(1)
        return TaskScore(
            score=rescale(balanced, float(_chance(present, classes)), 1.0),
            per_case={case: clip(row.score) for case, row in table.items()},
            valid={case: row.valid for case, row in table.items()},
            messages={case: row.message for case, row in table.items() if row.message},
            secondary={
                "balanced_accuracy": balanced,
                "accuracy": float(np.mean([t == p for t, p in zip(truth, predicted, strict=True)]))
                if truth
                else None,
                "auroc": macro_auroc(truth, shares),
            },
            ci95=percentiles(draws),
            properties={case: row.properties for case, row in table.items()},
        )

    def inspect(self, spec: TaskSpec, case: Case) -> dict[str, Any]:
        """Facts of the table; valid if it holds a usable row for the case."""
        names = class_names(spec)
        facts: dict[str, Any] = {}
        try:
            table = read_table(case.output or b"", [LABEL_COLUMN])
            facts = _properties(spec, table)
            row = row_of(table, case.id)
            if row[LABEL_COLUMN] not in names:
                raise UnreadableError(f"has a label that is not among {', '.join(names)}")
            _probabilities(table, row, names)
        except UnreadableError as error:
            return {**unreadable_facts(f"the file {error}"), **facts}
        return {**facts, "valid": True, "message": ""}

    def agreement(self, spec: TaskSpec, case: str, a: bytes, b: bytes) -> float:
        """1 if both tables give the case the same label."""
        try:
            one, two = (row_of(read_table(data, [LABEL_COLUMN]), case) for data in (a, b))
        except UnreadableError:
            return 0.0
        return float(one[LABEL_COLUMN] == two[LABEL_COLUMN])


__all__ = [
    "ID_COLUMN",
    "LABEL_COLUMN",
    "ClsBalancedAccuracy",
    "auroc",
    "balanced_accuracy",
    "bootstrap_balanced",
    "macro_auroc",
]
