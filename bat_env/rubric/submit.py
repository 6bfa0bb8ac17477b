"""S5, submit: outputs better than a trivial answer, and a manifest that says what was submitted."""

from __future__ import annotations

from typing import Any, Final

from bat_env.episode import Episode
from bat_env.rubric.base import Context, Item
from bat_env.rubric.build import make_item
from bat_env.rubric.claims import Fail, NotApplicable, Record, judge, matching, shown
from bat_env.rubric.infer import HALF, grade_of, inherited_outputs, no_result, nothing
from bat_env.rubric.validate import output_pattern
from bat_env.stages import Stage
from bat_env.tasks.spec import TaskSpec

MANIFEST: Final[str] = "outputs/manifest.json"
MARGIN: Final[float] = 0.05
"""A submission must beat the best trivial answer by this much, and be worth more than nothing."""


def passes(ctx: Context, score: float) -> bool:
    """Whether a task score is one that a submission needs."""
    return score >= ctx.spec.floor + MARGIN and score > nothing(ctx)


def task_margin(episode: Episode, ctx: Context) -> str:
    """The task score beats every trivial answer, and what lots bring."""
    if episode.focus is Stage.S5:
        inherited = inherited_outputs(episode, ctx.spec)
        if inherited is not None and passes(ctx, inherited.score):
            raise NotApplicable("The inherited outputs already beat every trivial answer.")
    score = grade_of(episode).score
    said = no_result(episode, ctx, ctx.instance.cases)
    if said:
        raise Fail(f"There is no result to submit: {said}.")
    if not passes(ctx, score):
        bar = ctx.spec.floor + MARGIN
        raise Fail(
            f"Task score {score:.3f} is below {bar:.3f}, the best trivial answer + {MARGIN}."
        )
    return "The task score beats every trivial answer."


def _listed(record: Record) -> dict[str, Any]:
    listed: dict[str, Any] = {}
    for number, entry in enumerate(record.items("files")):
        row = Record(f"{record.path} files[{number}]", entry if isinstance(entry, dict) else {})
        path = row.text("path").removeprefix("/workspace/")
        if path in listed:
            raise Fail(f"{record.path} lists {shown(path)} twice.")
        listed[path] = row.text("sha256")
    return listed


def manifest(episode: Episode, ctx: Context) -> str:
    """The manifest lists every output, with true digests and the contract's format."""
    record = Record.own(episode, MANIFEST)
    kind = record.text("format")
    if kind != ctx.spec.output.format:
        raise Fail(f"{MANIFEST}: format is {shown(kind)}, expected {ctx.spec.output.format}.")
    listed = _listed(record)
    files = {p: e.sha256 for p, e in episode.current.items() if e.kind == "file"}
    outputs = matching(tuple(files), output_pattern(ctx.spec))
    if not outputs:
        raise Fail("There is no output to list.")
    said = no_result(episode, ctx, ctx.instance.cases)
    if said:
        raise Fail(f"There is no result to list: {said}.")
    absent = [path for path in outputs if path not in listed]
    if absent:
        raise Fail(f"{MANIFEST} does not list {absent[0]}.")
    false = [f"there is no file {shown(path)}" for path in listed if path not in files]
    false += [
        f"sha256 of {path} is not {shown(digest)}"
        for path, digest in listed.items()
        if path in files and digest.lower() != files[path]
    ]
    return judge(false, f"All {len(outputs)} outputs are listed with true digests.")


def items(spec: TaskSpec) -> tuple[Item, ...]:
    """The two halves of S5."""
    return (
        make_item(
            "S5.task_margin",
            f"Task score beats the best trivial answer by {MARGIN}",
            task_margin,
            weight=HALF,
        ),
        make_item(
            "S5.manifest",
            "The manifest lists every output with its true sha256 and format",
            manifest,
            evidence=(MANIFEST,),
            weight=HALF,
        ),
    )
