"""S3, validate: one pilot before the batch, recorded as it is, sane, and cured where it was ill."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
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
    shown,
)
from bat_env.stages import Stage
from bat_env.tasks.spec import TaskSpec

RECORD: Final[str] = "validation/pilot.json"

PLAUSIBLE_RATIO: Final[float] = 3.0
"""The pilot's sanity value may differ from the true one by this factor, either way."""
CURED_SCORE: Final[float] = 0.72
"""Case score from which the pilot of a recovery state counts as cured, whatever it was before."""
CURED_LEAST: Final[float] = 0.5
CURED_GAIN: Final[float] = 0.1
"""So does one of at least CURED_LEAST that beats the ill pipeline on the same case by this much."""


def pilot_pattern(spec: TaskSpec) -> str:
    """Pattern of pilot outputs, for example ``validation/pilot/*/dseg.nii.gz``."""
    return f"validation/pilot/*/{PurePosixPath(spec.output.path).name}"


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


def first_batch_call(episode: Episode) -> int | None:
    """The batch: the first cell that writes predictions under outputs/."""
    for call, paths in _written(episode):
        if any(len(p.split("/")) > 2 and p.startswith("outputs/") for p in paths):
            return call
    return None


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
    batch = first_batch_call(episode)
    if batch is not None and (first is None or first >= batch):
        raise Fail("The batch was started before a pilot.")
    stale = [out for out in matching(own, output_pattern(ctx.spec)) if own[out] <= own[path]]
    if stale:
        raise Fail(f"The pilot was redone later than the batch: {stale[0]} is older than it.")
    return "One pilot case, before the batch."


def _host(episode: Episode, ctx: Context) -> tuple[str, Mapping[str, Any]]:
    """Pilot case and the host's properties of the pilot output."""
    path = pilot_path(episode, ctx.spec)
    if path is None:
        raise Fail(f"Expected one file {pilot_pattern(ctx.spec)} written in this episode.")
    properties = episode.evidence.pilot
    if properties is None:
        raise Lost(episode.evidence.lost.get("pilot", "The pilot output was not inspected."))
    if not properties.get("readable"):
        raise Fail(f"{path} cannot be read: {properties.get('message', 'unknown format')}")
    return path.split("/")[2], properties


def recorded(episode: Episode, ctx: Context) -> str:
    """Case, shape, dtype and labels are recorded and true of the file."""
    record = Record.own(episode, RECORD)
    name, dtype = record.text("case"), record.text("dtype")
    shape = record.vector("shape", 3)
    labels = [as_number(v) for v in record.items("labels")]
    case, host = _host(episode, ctx)
    false = []
    if name != case:
        false.append(f"case is {case}, not {shown(name)}")
    if list(shape) != [float(v) for v in host["shape"]]:
        false.append(f"shape is {list(host['shape'])}, not {list(shape)}")
    if dtype != host["dtype"]:
        false.append(f"dtype is {host['dtype']}, not {shown(dtype)}")
    if None in labels or sorted({v for v in labels if v is not None}) != sorted(host["labels"]):
        false.append(f"labels are {list(host['labels'])}, not {shown(record.items('labels'))}")
    return judge(false, "Case, shape, dtype and labels are recorded and true.")


def geometry(episode: Episode, ctx: Context) -> str:
    """The output keeps the input's grid and the contract's dtype and labels."""
    _, host = _host(episode, ctx)
    if not host.get("valid"):
        raise Fail(f"The pilot output breaks the contract: {host.get('message', '')}")
    return "The pilot output keeps grid, dtype and labels of the contract."


def sanity_value(episode: Episode, ctx: Context) -> str:
    """The sanity value is recorded and true of the file."""
    pilot = ctx.spec.pilot
    claimed = Record.own(episode, RECORD).number(pilot.quantity)
    _, host = _host(episode, ctx)
    value = as_number(host.get("quantity"))
    if value is None:
        raise Fail(f"{pilot.quantity} cannot be computed from the pilot output.")
    false = []
    if not close(claimed, value, rel_tol=pilot.rel_tolerance, abs_tol=1e-3):
        false.append(f"{pilot.quantity} is {value:.4g} {pilot.unit}, not {claimed:.4g}")
    return judge(false, f"{pilot.quantity} is recorded and true of the file.")


def plausible(episode: Episode, ctx: Context) -> str:
    """The output is not degenerate: its sanity value is near the true one."""
    case, host = _host(episode, ctx)
    value = as_number(host.get("quantity")) or 0.0
    truth = ctx.instance.facts["pilot_truth"].get(case)
    if truth is None:
        raise Fail(f"{shown(case)} is not a case of this task.")
    if not float(truth) / PLAUSIBLE_RATIO <= value <= float(truth) * PLAUSIBLE_RATIO:
        raise Fail(f"The pilot output is degenerate: {ctx.spec.pilot.quantity} is {value:.4g}.")
    return "The pilot output is not degenerate."


def fault_gone(episode: Episode, ctx: Context) -> str:
    """Recovery states: the injected fault no longer shows in the pilot."""
    if episode.outcome != "recovery" or episode.focus is not Stage.S3:
        raise NotApplicable("Only recovery states carry a fault that was exposed.")
    _, host = _host(episode, ctx)
    score = as_number(host.get("case_score"))
    if score is None:
        raise Lost(episode.evidence.lost.get("pilot", "The pilot output was not scored."))
    before = as_number(host.get("score_before"))
    better = before is not None and score >= max(CURED_LEAST, before + CURED_GAIN)
    if score >= CURED_SCORE or better:
        return "The exposed fault is gone from the pilot."
    raise Fail("The exposed fault still shows in the pilot.")


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
            "Case, shape, dtype and labels are recorded and true of the file",
            recorded,
            evidence=(RECORD,),
        ),
        make_item("S3.geometry", "The pilot output keeps grid, dtype and labels", geometry),
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
