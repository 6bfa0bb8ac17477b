"""S4, inference: every case that was open is done validly, and the pipeline can do it again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from bat_env.episode import Episode, GradeResult
from bat_env.rubric.base import Context, Item
from bat_env.rubric.build import make_item
from bat_env.rubric.claims import Fail, Lost, NotApplicable, matching, own_paths, shown
from bat_env.rubric.validate import output_pattern
from bat_env.tasks.spec import TaskSpec

HALF: Final[float] = 0.5
LUCK_OF_ROWS: Final[float] = 0.6
LUCK_OF_TEXT: Final[float] = 0.3
"""Standard deviation of the task score of one answer, or report, drawn by lot."""


def grade_of(episode: Episode) -> GradeResult:
    """The grading of the outputs, or :class:`Lost`."""
    grade = episode.evidence.grade
    if grade is None:
        raise Lost(episode.evidence.lost.get("grade", "The outputs were not graded."))
    return grade


def inherited_outputs(episode: Episode, spec: TaskSpec) -> GradeResult | None:
    """Grading of the outputs that were there at reset; ``None`` when there were none."""
    found = [p for p, e in episode.initial.items() if e.kind == "file"]
    if not matching(found, output_pattern(spec)):
        return None
    if episode.evidence.inherited is None:
        raise Lost(episode.evidence.lost.get("inherited", "The inherited outputs were not graded."))
    return episode.evidence.inherited


def open_cases(episode: Episode, ctx: Context) -> tuple[str, ...]:
    """Cases that were missing or invalid at reset."""
    inherited = inherited_outputs(episode, ctx.spec)
    if inherited is None:
        return ctx.instance.cases
    return tuple(c for c in ctx.instance.cases if not inherited.valid.get(c, False))


def without_a_look(grade: GradeResult, cases: Sequence[str]) -> str:
    """How outputs were made without a look at the inputs, or ``""``.

    Every one is that of a trivial method, or all say the same, as no real inputs do.
    """
    methods = {grade.trivial.get(case, "") for case in cases}
    if methods and "" not in methods:
        return f"every output is {' or '.join(sorted(methods))}"
    same = same_answer([grade.answers.get(case, "") for case in cases], sure=False)
    return f"every case has the same answer ({shown(same)})" if same else ""


def no_result(episode: Episode, ctx: Context, cases: Sequence[str]) -> str:
    """Why the outputs of some cases are no result of an inference, or ``""``.

    Whatever a pipeline makes of its inputs, outputs that are worth no more than the best trivial
    answer are none: a draw of lots that the input seeds is a look at it by name only.
    """
    grade = grade_of(episode)
    said = without_a_look(grade, cases)
    if said or not cases:
        return said
    inherited = inherited_outputs(episode, ctx.spec)
    score, share = grade.score, 1.0
    if inherited is not None and (opened := open_cases(episode, ctx)):
        score, share = score - inherited.score, len(opened) / len(ctx.instance.cases)
    if score <= nothing(ctx) * share:
        by_lot = f"; lots bring up to {nothing(ctx):.3f}" if luck(ctx) else ""
        return (
            f"the outputs are worth no more than a trivial answer (Task {grade.score:.3f}{by_lot})"
        )
    return ""


def nothing(ctx: Context) -> float:
    """Task score up to which outputs are worth nothing: in S4, in the manifest and in S5 alike.

    It is the best trivial answer's; of answers and reports, what lots can be expected to bring.
    """
    return ctx.spec.floor + luck(ctx)


def luck(ctx: Context) -> float:
    """How far lots drawn for answers or reports can be expected above a trivial answer."""
    output = ctx.spec.output
    deviation = (
        LUCK_OF_ROWS if output.is_table else LUCK_OF_TEXT if output.format == "text" else 0.0
    )
    return deviation / math.sqrt(max(1, len(ctx.instance.cases)))


def same_answer(answers: Sequence[str], *, sure: bool) -> str:
    """The answer that several cases have in common in one of its forms, or ``""``.

    Args:
        answers: As :class:`~bat_env.metrics.CaseScore` describes them; empty ones have none.
        sure: Whether they must be as sure of it, too.
    """
    if len(answers) < 2 or not all(answers):
        return ""
    columns: list[tuple[str, ...]] = list(zip(*(a.split("\n") for a in answers), strict=False))
    for forms in columns:
        said = set(forms if sure else (form.partition("\t")[0] for form in forms))
        if len(said) == 1:
            return said.pop()
    return ""


def agrees(episode: Episode, ctx: Context) -> None:
    """Raise unless a clean re-run on a random one of the valid cases agrees with its output."""
    rerun = episode.evidence.batch_rerun
    path = ctx.spec.output.path
    if not any(path.format(case=case) in own_paths(episode) for case in ctx.instance.cases):
        raise Fail("No output is this episode's own work.")
    if rerun is None:
        raise Lost(episode.evidence.lost.get("batch_rerun", "predict.py was not re-run."))
    if not rerun.ok:
        raise Fail(f"Clean re-run of a batch case: {rerun.message}")
    agreement = episode.evidence.batch_agreement
    if agreement is None:
        raise Lost(episode.evidence.lost.get("batch_rerun", "The re-run was not compared."))
    if agreement < 1.0 - ctx.spec.metric.rerun_tolerance:
        raise Fail(
            f"The re-run of {episode.evidence.batch_rerun_case} agrees to {agreement:.3f} only."
        )


def completed(episode: Episode, ctx: Context) -> tuple[float, str]:
    """Share of the open cases that are valid now, through this episode's work and pipeline."""
    cases = open_cases(episode, ctx)
    if not cases:
        raise NotApplicable("Every output was there and valid at reset.")
    own = own_paths(episode)
    grade = grade_of(episode)
    done = [c for c in cases if grade.valid.get(c) and ctx.spec.output.path.format(case=c) in own]
    said = no_result(episode, ctx, done)
    if said:
        raise Fail(f"Nothing was inferred: {said}.")
    if done:
        agrees(episode, ctx)
    done = [c for c in done if c not in grade.trivial]
    bad = next((f" {c}: {m}" for c, m in grade.messages.items() if c in cases), "")
    return len(done) / len(cases), f"{len(done)} of {len(cases)} cases are done validly.{bad}"


def reproducible(episode: Episode, ctx: Context) -> str:
    """All outputs are valid, and a clean re-run on one random case agrees with its output."""
    grade = grade_of(episode)
    invalid = [c for c in ctx.instance.cases if not grade.valid.get(c, False)]
    if invalid:
        why = grade.messages.get(invalid[0], "missing")
        raise Fail(f"Not all outputs are valid: {invalid[0]}: {why}")
    said = no_result(episode, ctx, ctx.instance.cases)
    if said:
        raise Fail(f"Nothing was inferred: {said}.")
    trivial = next((case for case in ctx.instance.cases if grade.trivial.get(case)), None)
    if trivial is not None:
        raise Fail(f"Not all outputs are inferred: {trivial} is {grade.trivial[trivial]}.")
    agrees(episode, ctx)
    return "All outputs are valid and a clean re-run agrees."


def items(spec: TaskSpec) -> tuple[Item, ...]:
    """The two halves of S4."""
    return (
        make_item(
            "S4.completed",
            "Share of the open cases done validly",
            completed,
            evidence=(output_pattern(spec),),
            weight=HALF,
        ),
        make_item(
            "S4.reproducible",
            "All outputs valid, and a clean re-run of a random case agrees",
            reproducible,
            evidence=(output_pattern(spec),),
            weight=HALF,
        ),
    )
