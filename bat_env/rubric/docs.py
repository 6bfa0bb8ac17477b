"""``docs/rubric.md``, generated from the contract so that the page cannot drift from the code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from bat_env.rubric import build, claims, infer, plan, setup, submit, validate
from bat_env.rubric.base import CONTRACT_VERSION, Item
from bat_env.rubric.contract import compile_contract
from bat_env.stages import STAGE_WEIGHTS, WORK_STAGES, Stage
from bat_env.tasks.spec import TaskSpec

_HEAD: Final[str] = """\
# The rubric

Contract version {version}. This page is generated from the contract of `{task}`
(`python -m bat_env.rubric.docs`); a test keeps it up to date.

An item is decided from what the host saw: the cells that ran, the files they changed, the files
that the host read back, and the private truth. What an agent says about itself earns nothing
unless it is found true.

## From items to the score

- Stage score: weighted mean of the stage's items. In S1-S3 items are binary with equal weight; S4
  and S5 have two halves each.
- Evidence share (eta): share of the stage's required files that exist at the end, are regular, and
  are this episode's own work. A file that was there at reset, or that equals what was there at
  reset at the same path, is not.
- Stage reward = eta x stage score. Agentic = {weights}.
- Episode score: at stage focus that stage's reward; end to end .5 agentic + .5 task. Scores are
  multiples of 2^-20.
- Nothing earns before one successful cell has changed the workspace. A disqualified episode is 0.
- An item that does not apply drops out. An item whose evidence infrastructure lost is null, and so
  is the score: it is never turned into 0.
- Items of order (decided at every step) count at the end only where an item that rests on truth
  holds in the same stage: files of any content in the right order earn nothing.
- Nothing that is recorded of a pilot counts unless it is the one before the batch, and `predict.py`
  makes that output in a clean run, with a look at its input. No output of a batch counts unless a
  clean run on a random one of them agrees. Outputs of a trivial method, or one answer for every
  case, are no inference: no stage pays for them. Neither does one for a pipeline or a batch that is
  worth no more than a trivial answer, whatever it computes: clean runs on several cases say so of a
  pipeline, the Task score of a batch (rows and reports: above what lots bring by chance).
- Where a bank state hands over files of the focused stage itself (a plan or a set-up with a fault),
  items of S1 and S2 that those files met already drop out: to write them again is no work. A
  pipeline that gave valid outputs before counts where clean runs show it cured.
- While an episode runs, items marked *hand-in* count as 0. They are decided once, at the end, on
  the last version of every file.
- A recorded fact that the host finds false fails its item and is counted as a false claim.
"""

_TAIL: Final[str] = """\
## Constants

| what | value |
|---|---|
{constants}

## Words

- Pilot cell: the first cell whose changes hold exactly one case under `validation/pilot/`. Batch:
  the first cell that writes predictions under `outputs/`. Set-up cells: those before the pilot.
  "Before" means in an earlier cell.
- Clean run: `pipeline/` alone (at most 256 kB), the model, and one case under a name that nobody
  has seen, in a wiped sandbox.
"""


def _weights() -> str:
    return " + ".join(f"{STAGE_WEIGHTS[s]:.2f} {s.name}".lstrip("0") for s in WORK_STAGES)


def _why(item: Item) -> str:
    predicate = item.predicate
    assert isinstance(predicate, build.CheckPredicate)
    return (
        (predicate.check.__doc__ or "")
        .strip()
        .split("\n\n", 1)[0]
        .replace("\n", " ")
        .replace("``", "`")
    )


def _rows(items: Iterable[Item], notes: Mapping[str, str]) -> str:
    lines = ["| item | asked | weight | required files | decided |", "|---|---|---|---|---|"]
    for item in items:
        files = ", ".join(f"`{path}`" for path in item.evidence) or "-"
        when = "hand-in" if item.at_hand_in else "every step"
        note = f" ({notes[item.id]})" if item.id in notes else ""
        lines.append(f"| `{item.id}`{note} | {_why(item)} | {item.weight:g} | {files} | {when} |")
    return "\n".join(lines)


def _constants(spec: TaskSpec) -> str:
    pilot = spec.pilot
    facts = {
        f"fact {key}": f"within {fact.abs_tol:g} or {fact.rel_tol:.0%}"
        + (" of the range" if fact.kind == "range" else "")
        for key, fact in spec.facts.items()
        if fact.abs_tol or fact.rel_tol
    }
    rows = {
        **facts,
        "declared pilot check": f"upper bound at most {pilot.max_range_ratio:g} x the lower one",
        "plan picture": f"PNG, at least {plan.MIN_IMAGE_SIDE} pixels a side, more than one colour",
        "probe statistics": f"within {setup.PROBE_TOLERANCE:g}",
        "failed set-up cells": f"{spec.budgets.failed_setup_cells} are free",
        "recorded sanity value": f"within {pilot.rel_tolerance:.0%} of the file's",
        "plausible pilot": f"sanity value within {pilot.plausible_ratio:g} x of the truth",
        "cured pilot": f"case score of at least {pilot.cured_score:g} and {validate.CURED_STEP:g} "
        f"above the ill pipeline's on the same case; or of {validate.CURED_LEAST:g} and "
        f"{validate.CURED_GAIN:g} above it; or the same of the mean over clean runs",
        "pilot and clean run of predict.py on its case": "agree at least as the batch does",
        "re-run agreement": f"at least {1 - spec.metric.rerun_tolerance:g}",
        "outputs worth nothing": "task score up to the best trivial answer; of rows "
        f"+ {infer.LUCK_OF_ROWS:g}, of reports + {infer.LUCK_OF_TEXT:g} over the root of the "
        "number of cases, as lots bring by chance",
        "task margin": f"task score at least the best trivial answer + {submit.MARGIN:g}, and of "
        "outputs worth more than nothing",
        "recorded JSON": f"at most {claims.MAX_JSON_BYTES // 1024} kB",
    }
    return "\n".join(f"| {name} | {value} |" for name, value in rows.items())


def rubric_page(spec: TaskSpec) -> str:
    """The page as Markdown.

    Args:
        spec: A task of the track whose contract is described; its widest tier is shown.
    """
    richest = max(spec.tiers, key=lambda name: spec.tiers[name].candidates)
    everything = {
        item.id: item
        for focus, outcome in ((Stage.E2E, None), (Stage.S3, "recovery"))
        for item in compile_contract(spec, tier=richest, focus=focus, outcome=outcome).items
    }
    asking = [name for name, tier in spec.tiers.items() if tier.candidates]
    notes = dict.fromkeys(("S1.candidates", "S1.plan_image"), f"{', '.join(asking)} only")
    notes["S3.fault_gone"] = "recovery states only"
    notes["S4.completed"] = "drops out where every output was valid at reset"
    notes["S5.task_margin"] = "S5 focus: drops out where the outputs at reset already pass"
    parts = [_HEAD.format(version=CONTRACT_VERSION, task=spec.id, weights=_weights())]
    for stage in WORK_STAGES:
        rows = [item for item in everything.values() if item.stage is stage]
        parts.append(f"## {stage.name}: {stage.title}\n\n{_rows(rows, notes)}\n")
    parts.append(_TAIL.format(constants=_constants(spec)))
    return "\n".join(parts)


if __name__ == "__main__":
    from bat_env.tasks import load_task

    print(rubric_page(load_task("seg/kidney_tumor").spec), end="")
