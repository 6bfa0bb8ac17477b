"""S3, validate: one pilot before the batch, recorded as it is, sane, and cured where it was ill."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bat_env.episode import Episode
from bat_env.rubric.base import Context, Item
from bat_env.rubric.build import make_item
from bat_env.rubric.claims import (
    Fail,
    Lost,
    NotApplicable,
    Record,
    as_number,
    close,
    judge,
    matching,
    own_paths,
    same,
    shown,
)
from bat_env.stages import Stage
from bat_env.tasks.spec import TaskSpec

RECORD: Final[str] = "validation/pilot.json"

CURED_LEAST: Final[float] = 0.5
CURED_GAIN: Final[float] = 0.1
"""A recovered score counts as cured from CURED_LEAST, if it beats the ill pipeline's this much,"""
CURED_STEP: Final[float] = 0.01
"""or from the task's ``pilot.cured_score``, if it beats the ill pipeline's by this much."""
UNORDERED: Final[tuple[str, ...]] = ("labels", "classes")
"""Recorded lists whose order says nothing."""


def pilot_pattern(spec: TaskSpec) -> str:
    """Pattern of pilot outputs, for example ``validation/pilot/*/dseg.nii.gz``."""
    return f"validation/pilot/*/{spec.output.name}"


def output_pattern(spec: TaskSpec) -> str:
    """Pattern of batch outputs, for example ``outputs/*/dseg.nii.gz``."""
    return spec.output.path.replace("{case}", "*")


def _written(episode: Episode) -> Iterable[tuple[int, list[str]]]:
    for cell in episode.cells:
        delta = cell.result.delta
        yield cell.call, list(itertools.chain(delta.created, delta.changed))


def _pilot_cases(paths: Iterable[str]) -> set[str]:
    parts = (path.split("/") for path in paths)
    return {p[2] for p in parts if len(p) > 3 and p[:2] == ["validation", "pilot"]}


def first_pilot_call(episode: Episode, ctx: Context) -> int | None:
    """The pilot cell: the first whose delta adds exactly one case under validation/pilot."""
    for call, paths in _written(episode):
        if len(_pilot_cases(paths)) == 1:
            return call
    return None


def first_batch_call(episode: Episode, spec: TaskSpec) -> int | None:
    """The batch: the first cell that writes predictions under outputs/."""
    for call, paths in _written(episode):
        if any(is_prediction(path, spec) for path in paths):
            return call
    return None


def is_prediction(path: str, spec: TaskSpec) -> bool:
    """Whether a file holds predictions: the task's table, or anything in a folder of outputs/."""
    nested = len(path.split("/")) > 2 and path.startswith("outputs/")
    return nested or path == spec.output.path


def pilot_path(episode: Episode, spec: TaskSpec) -> str | None:
    """The one own pilot output, or ``None`` when there is none or more than one."""
    found = matching(own_paths(episode), pilot_pattern(spec))
    return found[0] if len(found) == 1 else None


def pilot_first(episode: Episode, ctx: Context) -> str:
    """Exactly one pilot case, in an earlier cell than the batch that it is to protect."""
    own = own_paths(episode)
    cases = _pilot_cases(own)
    if len(cases) != 1:
        raise Fail(f"Expected one pilot case written in this episode, found {len(cases)}.")
    path = pilot_path(episode, ctx.spec)
    if path is None:
        raise Fail(f"Expected one file {pilot_pattern(ctx.spec)}.")
    if path.split("/")[2] not in ctx.instance.cases:
        raise Fail(f"{shown(path.split('/')[2])} is not a case of this task.")
    for call, paths in _written(episode):
        if call == own[path] and len(_pilot_cases(paths)) != 1:
            raise Fail("The pilot cell wrote more than one case.")
    first = first_pilot_call(episode, ctx)
    batch = first_batch_call(episode, ctx.spec)
    if batch is not None and (first is None or first >= batch):
        raise Fail("The batch was started before a pilot.")
    stale = [out for out in matching(own, output_pattern(ctx.spec)) if own[out] <= own[path]]
    if stale:
        raise Fail(f"The pilot was redone later than the batch: {stale[0]} is older than it.")
    return "One pilot case, before the batch."


def _host(episode: Episode, ctx: Context) -> tuple[str, Mapping[str, Any]]:
    """Pilot case and the host's properties of the pilot output.

    Nothing that is recorded of an output counts unless it is the one pilot before the batch, and
    the pipeline makes it, with a look at its input: what was written by hand validates nothing.
    """
    pilot_first(episode, ctx)
    path = pilot_path(episode, ctx.spec)
    assert path is not None
    properties = episode.evidence.pilot
    if properties is None:
        raise Lost(episode.evidence.lost.get("pilot", "The pilot output was not inspected."))
    if not properties.get("readable"):
        raise Fail(f"{path} cannot be read: {properties.get('message', 'unknown format')}")
    if properties.get("trivial"):
        raise Fail(f"The pilot output is degenerate: it is {properties['trivial']}.")
    if properties.get("worthless"):
        raise Fail(f"The pilot output is degenerate: {properties['worthless']}.")
    agreement = as_number(properties.get("agreement"))
    if agreement is not None and agreement < 1.0 - ctx.spec.metric.rerun_tolerance:
        why = properties.get("rerun") or f"a clean run on that case agrees to {agreement:.3f} only"
        raise Fail(f"The pilot output is not what pipeline/predict.py gives: {why}.")
    return path.split("/")[2], properties


def recorded(episode: Episode, ctx: Context) -> str:
    """The case, and what the task asks to record of the file, are recorded and true of it."""
    record = Record.own(episode, RECORD)
    name = record.text("case")
    claimed = {key: record.get(key) for key in ctx.spec.pilot.record}
    case, host = _host(episode, ctx)
    false = [] if name == case else [f"case is {case}, not {shown(name)}"]
    for key, value in claimed.items():
        true = measured(host, key)
        if true is None:
            raise Fail(f"{key} cannot be measured on the pilot output.")
        if not same(value, true, abs_tol=1e-3, rel_tol=1e-3, ordered=key not in UNORDERED):
            false.append(f"{key} is {shown(true)}, not {shown(value)}")
    return judge(false, f"case, {', '.join(claimed)} are recorded and true.")


def measured(host: Mapping[str, Any], key: str) -> Any:
    """What the host measured of an output under this name, or ``None``."""
    if key in host:
        return host[key]
    values = host.get("values")
    return values.get(key) if isinstance(values, dict) else None


def geometry(episode: Episode, ctx: Context) -> str:
    """The output keeps the contract: grid, type and labels, or columns and classes."""
    _, host = _host(episode, ctx)
    if not host.get("valid"):
        raise Fail(f"The pilot output breaks the contract: {host.get('message', '')}")
    return "The pilot output keeps the contract of an output."


def sanity_value(episode: Episode, ctx: Context) -> str:
    """The sanity value is recorded and true of the file."""
    pilot = ctx.spec.pilot
    claimed = Record.own(episode, RECORD).number(pilot.quantity)
    _, host = _host(episode, ctx)
    value = as_number(host.get("quantity"))
    if value is None:
        raise Fail(f"{pilot.quantity} cannot be computed from the pilot output.")
    false = []
    if not close(claimed, value, rel_tol=pilot.rel_tolerance, abs_tol=pilot.abs_tolerance):
        false.append(f"{pilot.quantity} is {value:.4g} {pilot.unit}, not {claimed:.4g}")
    return judge(false, f"{pilot.quantity} is recorded and true of the file.")


def plausible(episode: Episode, ctx: Context) -> str:
    """The output is not degenerate: its sanity value is near the true one."""
    case, host = _host(episode, ctx)
    value = as_number(host.get("quantity")) or 0.0
    truth = ctx.instance.facts["pilot_truth"].get(case)
    if truth is None:
        raise Fail(f"{shown(case)} is not a case of this task.")
    pilot = ctx.spec.pilot
    near = close(value, float(truth), abs_tol=pilot.plausible_abs)
    ratio = pilot.plausible_ratio
    if not near and not float(truth) / ratio <= value <= float(truth) * ratio:
        raise Fail(f"The pilot output is degenerate: {ctx.spec.pilot.quantity} is {value:.4g}.")
    return "The pilot output is not degenerate."


def fault_gone(episode: Episode, ctx: Context) -> str:
    """Recovery states: the injected fault showed on the pilot case and is gone from it.

    Where it does not show on that case, clean runs of the pipeline before and now on several cases
    decide: a pilot that the fault never touched proves nothing.
    """
    if episode.outcome != "recovery" or episode.focus is not Stage.S3:
        raise NotApplicable("Only recovery states carry a fault that was exposed.")
    _, host = _host(episode, ctx)
    score, before = as_number(host.get("case_score")), as_number(host.get("score_before"))
    if score is None or before is None:
        raise Lost(episode.evidence.lost.get("pilot", "The pilot was not compared."))
    good = ctx.spec.pilot.cured_score
    if cured(score, before, good):
        return "The exposed fault is gone from the pilot."
    if score < before - CURED_STEP:
        raise Fail("The pilot is worse than what the exposed pipeline gave.")
    pairs = [as_number(host.get(key)) for key in ("rerun_score", "rerun_before")]
    if pairs[0] is not None and pairs[1] is not None and cured(pairs[0], pairs[1], good):
        return "The exposed fault is gone in clean runs on several cases."
    raise Fail("The exposed fault still shows, or the pilot is of a case that it does not touch.")


def cured(score: float, before: float, good: float) -> bool:
    """Whether a score is that of a cured pipeline, ``before`` being the ill one's on the same."""
    return (score >= good and score >= before + CURED_STEP) or (
        score >= CURED_LEAST and score >= before + CURED_GAIN
    )


def items(spec: TaskSpec, *, recovery: bool) -> tuple[Item, ...]:
    """The items of S3; ``recovery`` adds the one on the exposed fault."""
    found = [
        make_item(
            "S3.pilot_first",
            "Exactly one pilot case, before the batch",
            pilot_first,
            evidence=(pilot_pattern(spec),),
            at_hand_in=False,
        ),
        make_item(
            "S3.recorded",
            f"case, {', '.join(spec.pilot.record)} are recorded and true of the file",
            recorded,
            evidence=(RECORD,),
        ),
        make_item("S3.geometry", "The pilot output keeps the contract of an output", geometry),
        make_item(
            "S3.sanity_value",
            f"{spec.pilot.quantity} is recorded and true of the file",
            sanity_value,
        ),
        make_item("S3.plausible", "The pilot output is not degenerate", plausible),
    ]
    if recovery:
        found.append(
            make_item("S3.fault_gone", "The exposed fault is gone from the pilot", fault_gone)
        )
    return tuple(found)
