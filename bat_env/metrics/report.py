"""Radiology reports: findings with side and negation, and wording, against the best constant.

A case with findings scores .8 F1 of claimed (finding, side) pairs + .2 ROUGE-L, and nothing for
wording alone. A case without findings scores 1 if none is claimed, else 0. The mean over cases is
rescaled so that the best report that is the same for every case scores 0.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bat_env.errors import TaskError
from bat_env.metrics.base import (
    TRUTH_JSON,
    Case,
    MetricParams,
    UnreadableError,
    parse_params,
    unreadable_facts,
    with_quantity,
)
from bat_env.metrics.findings import FindingSpec, Key, claimed, claims, f1
from bat_env.metrics.records import truth_of
from bat_env.metrics.rouge import rouge_l, words_of
from bat_env.metrics.rule import (
    CaseScore,
    TaskScore,
    bootstrap_ci,
    clip,
    missing_case,
    rescale,
)
from bat_env.tasks.spec import TaskSpec

MAX_BYTES: Final = 1 << 15
MIN_LETTERS: Final = 20
FINDING_WEIGHT: Final = 0.8
TEXT_WEIGHT: Final = 0.2
_SIDES: Final[Mapping[str, tuple[str, ...]]] = {
    "left": ("left",),
    "right": ("right",),
    "bilateral": ("left", "right"),
    "": ("",),
}


class ReportParams(MetricParams):
    """The vocabulary of the report score."""

    findings: dict[str, FindingSpec] = Field(
        min_length=1, description="Finding name -> how it is written."
    )


def read_report(data: bytes) -> str:
    """The text of a report file.

    Raises:
        UnreadableError: If it is no UTF-8 text of at most 32 KiB and at least 20 letters.
    """
    if len(data) > MAX_BYTES:
        raise UnreadableError(f"holds {len(data)} bytes, expected at most {MAX_BYTES}")
    try:
        # By hand: the codec that skips the mark would be imported where no import is possible.
        text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"is not UTF-8: {error.reason}") from error
    if re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", text):
        raise UnreadableError("holds control characters")
    if sum(character.isalpha() for character in text) < MIN_LETTERS:
        raise UnreadableError(f"has fewer than {MIN_LETTERS} letters")
    return text


def case_value(said: Mapping[Key, float], real: Sequence[Key], similarity: float) -> float:
    """Score of one report.

    Args:
        said: What is claimed, with the worth of each claim.
        real: True findings with their sides.
        similarity: ROUGE-L against the true report.
    """
    if not real:
        return float(not said)
    found = f1(said, real) or 0.0
    return FINDING_WEIGHT * found + TEXT_WEIGHT * similarity if found > 0.0 else 0.0


def best_constant(real: Sequence[Sequence[Key]], similarity: NDArray[np.float64]) -> float:
    """What the best report that is the same for every case reaches.

    Args:
        real: True findings of every case.
        similarity: ROUGE-L of every true report against every other, shape (cases, cases).

    Returns:
        The highest mean score over sets of claims (none, each case's, and those that grow from
        the empty set by the best single addition), each with the wording of the true report that
        serves it best.
    """
    if not real:
        return 0.0
    keys = sorted({key for truth in real for key in truth})

    filled = np.array([bool(truth) for truth in real])

    def value(chosen: frozenset[Key]) -> float:
        said = dict.fromkeys(chosen, 1.0)
        scores = np.array([case_value(said, truth, 0.0) for truth in real])
        credit = filled & (scores > 0)
        text = (similarity * credit[None]).mean(axis=1).max()
        return float(scores.mean() + TEXT_WEIGHT * text)

    best = max(value(chosen) for chosen in {frozenset(), *map(frozenset, real)})
    grown: frozenset[Key] = frozenset()
    while len(grown) < len(keys):
        grown = max((grown | {key} for key in keys if key not in grown), key=value)
        best = max(best, value(grown))
    return best


def _truth(params: ReportParams, case: Case) -> tuple[list[Key], str]:
    """True (finding, side) pairs and the true text of a case."""
    truth = truth_of(case)
    keys: list[Key] = []
    try:
        for entry in truth["findings"]:
            name, side = entry["finding"], entry.get("side", "")
            if bool(side) != params.findings[name].lateral:
                raise ValueError(f"{name} with the side {side!r}")
            keys += [(name, one) for one in _SIDES[side]]
        text = str(truth["report"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TaskError(
            f"Expected findings of the vocabulary, with a side where they have one, and a report "
            f"in {case.id}/{TRUTH_JSON}: {error!r}. Correct the task's generate.py."
        ) from error
    return sorted(set(keys)), text


def misread(spec: TaskSpec, cases: Sequence[Case]) -> dict[str, str]:
    """Cases whose true report the labeler does not read as their true findings.

    Returns:
        Case id -> what was read instead. A task with such cases punishes perfect reports.
    """
    params = parse_params(ReportParams, spec)
    wrong = {}
    for case in cases:
        keys, text = _truth(params, case)
        said = claimed(claims(text, params.findings))
        if said != dict.fromkeys(keys, 1.0):
            wrong[case.id] = f"expected {keys}, read {said} in {text!r}"
    return wrong


def _properties(spec: TaskSpec, text: str, said: Mapping[Key, float]) -> dict[str, Any]:
    values = {
        "finding_count": len(said),
        "words": len(words_of(text)),
        "characters": len(text.strip()),
    }
    labels = [f"{side} {name}".strip() for name, side in sorted(said)]
    facts = {"shape": [len(text)], "dtype": "text", "labels": labels, "values": values}
    return with_quantity(spec, {"readable": True, "affine_ok": True, **facts})


class ReportFindings:
    """See the module."""

    name: Final = "report_findings"
    shared_output: Final = False
    needs_input: Final = False

    def truth_names(self, spec: TaskSpec) -> tuple[str, ...]:
        """``truth.json``: ``{"findings": [{"finding", "side"}], "report": text}``."""
        return (TRUTH_JSON,)

    def check(self, spec: TaskSpec) -> None:
        """Raise if the parameters do not fit, or two findings share a term."""
        params = parse_params(ReportParams, spec)
        terms = [term.lower() for f in params.findings.values() for term in f.terms]
        twice = sorted({term for term in terms if terms.count(term) > 1})
        if twice or not all(words_of(term) for term in terms):
            raise TaskError(f"Expected each term of {spec.id} once and with words: {twice}.")

    def prepare(self, spec: TaskSpec, cases: Sequence[Case]) -> dict[str, Any]:
        """Number of true findings by case, and the score of the best constant report."""
        params = parse_params(ReportParams, spec)
        truths = {case.id: _truth(params, case) for case in cases}
        texts = [words_of(text) for _, text in truths.values()]
        similarity = np.array([[rouge_l(a, b) for b in texts] for a in texts], float)
        return {
            "real": {case: len(keys) for case, (keys, _) in truths.items()},
            "constant": best_constant([keys for keys, _ in truths.values()], similarity),
        }

    def score(
        self, spec: TaskSpec, cases: Sequence[Case], known: Mapping[str, Any]
    ) -> dict[str, CaseScore]:
        """Score every case's report, before the rescaling."""
        params = parse_params(ReportParams, spec)
        rows: dict[str, CaseScore] = {}
        for case in cases:
            if case.output is None:
                rows[case.id] = missing_case()
                continue
            real, wanted = _truth(params, case)
            try:
                text = read_report(case.output)
            except UnreadableError as error:
                facts = {"readable": False}
                rows[case.id] = CaseScore(0.0, False, f"the file {error}", properties=facts)
                continue
            said = claimed(claims(text, params.findings))
            similarity = rouge_l(words_of(text), words_of(wanted))
            hits = sum(worth for key, worth in said.items() if key in real)
            rows[case.id] = CaseScore(
                score=clip(case_value(said, real, similarity)),
                valid=True,
                secondary={"finding_f1": f1(said, real), "rouge_l": similarity},
                properties=_properties(spec, text, said),
                parts={"hits": hits, "claimed": len(said), "similarity": similarity},
                answer=", ".join(sorted(" ".join(key).strip() for key in said)) or "no findings",
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
        """The rescaled mean over cases of ``known``; the best constant is held fixed."""
        table = {case: rows.get(case) or missing_case() for case in known["real"]}
        per_case = {case: clip(row.score) for case, row in table.items()}
        constant = float(known["constant"])
        mean = sum(per_case.values()) / len(per_case) if per_case else 0.0
        low, high = bootstrap_ci(per_case.values(), seed=seed)
        parts = [row.parts for row in table.values()]
        hits, said = (sum(float(p.get(key, 0)) for p in parts) for key in ("hits", "claimed"))
        real = sum(known["real"].values())
        similarity = [float(p.get("similarity", 0.0)) for p in parts]
        return TaskScore(
            score=rescale(mean, constant, 1.0),
            per_case=per_case,
            valid={case: row.valid for case, row in table.items()},
            messages={case: row.message for case, row in table.items() if row.message},
            secondary={
                "mean_case_score": mean,
                "constant_score": constant,
                "micro_f1": 2 * hits / (said + real) if said + real else None,
                "precision": hits / said if said else None,
                "recall": hits / real if real else None,
                "rouge_l": float(np.mean(similarity)) if similarity else None,
            },
            ci95=(rescale(low, constant, 1.0), rescale(high, constant, 1.0)),
            properties={case: row.properties for case, row in table.items()},
        )

    def inspect(self, spec: TaskSpec, case: Case) -> dict[str, Any]:
        """Facts of a report: what it claims."""
        if case.output is None:
            return unreadable_facts(missing_case().message)
        try:
            text = read_report(case.output)
        except UnreadableError as error:
            return unreadable_facts(f"the file {error}")
        said = claimed(claims(text, parse_params(ReportParams, spec).findings))
        return {**_properties(spec, text, said), "valid": True, "message": ""}

    def agreement(self, spec: TaskSpec, case: str, a: bytes, b: bytes) -> float:
        """The lesser of the likeness in words and that in claims."""
        vocabulary = parse_params(ReportParams, spec).findings
        try:
            one, two = read_report(a), read_report(b)
        except UnreadableError:
            return 0.0
        sets = [set(claimed(claims(text, vocabulary)).items()) for text in (one, two)]
        same = 2 * len(sets[0] & sets[1]) / (len(sets[0]) + len(sets[1])) if any(sets) else 1.0
        return clip(min(same, rouge_l(words_of(one), words_of(two))))
