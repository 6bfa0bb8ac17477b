"""What the judge is asked. Scored questions are about prose; shared ones the rules decide too.

A shared question is never scored: its answers only show, in the agreement report, how far a judge
can be believed on what can be checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bat_env.rubric import plan, setup, validate
from bat_env.stages import Stage
from bat_env.tasks.spec import TaskSpec, TierSpec

SETUP_NOTES: Final = "setup/notes.md"
PILOT_NOTES: Final = "validation/notes.md"
RECORD: Final = "record"
"""Stands for the host's record of cells where a file is named."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question, answered with met or not met.

    Attributes:
        id: Rubric item: ``"<stage>.<name>"``.
        stage: Stage that it belongs to.
        title: What is asked of the agent, for people.
        text: What the judge is asked.
        subject: File that the answer must cite; without it the host answers "not met" by itself.
        files: Files that the judge is shown for it, the subject included.
        scored: Whether it is an item of the contract; else it is shared with the rules.
    """

    id: str
    stage: Stage
    title: str
    text: str
    subject: str
    files: tuple[str, ...]
    scored: bool = True


def questions(spec: TaskSpec, tier: str, focus: Stage) -> tuple[Question, ...]:
    """All questions about an episode, in order of stages; none at focus S4 and S5.

    Args:
        spec: The task.
        tier: One of its tiers.
        focus: The scored stage, or E2E.
    """
    granted = next((t for name, t in spec.tiers.items() if name == tier), TierSpec())
    every = (*_plan(spec, granted), *_setup(spec), *_pilot(spec))
    return tuple(q for q in every if focus in (q.stage, Stage.E2E))


def _plan(spec: TaskSpec, tier: TierSpec) -> Iterable[Question]:
    files = (plan.PLAN, plan.FACTS)
    yield Question(
        "S1.fit_explained",
        Stage.S1,
        "why the chosen model fits these data",
        "The plan gives a reason why the chosen model fits these data: it names at least one "
        "concrete property of the data (for example modality, body region, spacing, orientation, "
        "intensity range, size, classes) and says what that means for this model. Naming the "
        "model, praising it, or saying that it was given is no reason.",
        plan.PLAN,
        files,
    )
    yield Question(
        "S1.risks_named",
        Stage.S1,
        "what could go wrong, and for each risk a check that would show it",
        "The plan names at least one concrete thing that could go wrong with these data or this "
        "model, and together with it a check that would show it. A general remark, such as that "
        "errors may occur or that results will be checked, is not enough.",
        plan.PLAN,
        files,
    )
    models = ", ".join((spec.model.name, *spec.model.alternatives))
    yield Question(
        "S1.model_named",
        Stage.S1,
        "",
        f"The key 'model' of {plan.FACTS} is one of: {models}; and {plan.PLAN} names the same "
        "model. Upper and lower case count the same.",
        plan.FACTS,
        files,
        scored=False,
    )
    yield Question(
        "S1.output_declared",
        Stage.S1,
        "",
        f"The key 'output' of {plan.FACTS} declares this contract: {_contract(spec)}",
        plan.FACTS,
        files,
        scored=False,
    )
    if tier.candidates:
        yield Question(
            "S1.candidates",
            Stage.S1,
            "",
            f"The key 'candidates' of {plan.FACTS} names at least {tier.candidates} different "
            f"models, the one under 'model' among them, and {plan.PLAN} names each of them.",
            plan.FACTS,
            files,
            scored=False,
        )


def _contract(spec: TaskSpec) -> str:
    out = spec.output
    parts = [f"path {out.path}"]
    if out.dtype:
        parts.append(f"dtype {' or '.join(out.dtype)}")
    if out.labels:
        parts.append("labels " + ", ".join(f"{v} = {name}" for v, name in out.labels.items()))
    if out.columns:
        parts.append("columns " + ", ".join(out.columns))
    return "; ".join(parts) + "."


def _setup(spec: TaskSpec) -> Iterable[Question]:
    files = (SETUP_NOTES, setup.SETUP)
    yield Question(
        "S2.inputs_explained",
        Stage.S2,
        "how the inputs compare with what the model expects, and what follows for the pipeline",
        "The note compares the input files with what the model expects on at least one named "
        "property, and says what follows from it for the pipeline: a conversion that is needed, or "
        "that none is.",
        SETUP_NOTES,
        files,
    )
    yield Question(
        "S2.run_explained",
        Stage.S2,
        "what shows that the right weights were loaded and the model really ran",
        "The note names an observation made on this run (a number, a shape, a message, a "
        "comparison) and says why it shows that the model was loaded and ran as intended. Saying "
        "only that it worked is not enough.",
        SETUP_NOTES,
        files,
    )
    yield Question(
        "S2.few_failures",
        Stage.S2,
        "",
        f"At most {spec.budgets.failed_setup_cells} cells failed before the first cell that wrote "
        "files under validation/pilot/ (if there is none: in all). A cell failed if its exit code "
        "is not 0 or if it met a limit.",
        RECORD,
        (RECORD,),
        scored=False,
    )


def _pilot(spec: TaskSpec) -> Iterable[Question]:
    files = (PILOT_NOTES, validate.RECORD)
    quantity = f"{spec.pilot.quantity} ({spec.pilot.unit})"
    yield Question(
        "S3.value_interpreted",
        Stage.S3,
        f"what the measured {quantity} means",
        f"The note states the value of {quantity} that was measured on the pilot case and says "
        "what it means: whether it is plausible, and by comparison with what.",
        PILOT_NOTES,
        files,
    )
    yield Question(
        "S3.decision_reasoned",
        Stage.S3,
        "whether the batch may run, and the observation that this rests on",
        "The note says whether the whole batch may be run or what must be changed first, and "
        "names the observation on the pilot output on which that rests.",
        PILOT_NOTES,
        files,
    )
    yield Question(
        "S3.pilot_first",
        Stage.S3,
        "",
        "Exactly one case was written under validation/pilot/, and it was written in an earlier "
        "cell than the first prediction under outputs/ (a manifest is no prediction; no batch at "
        "all is fine too).",
        RECORD,
        (RECORD,),
        scored=False,
    )


def asked_of_agent(asked: Iterable[Question]) -> str:
    """The paragraph of a brief that says which prose is read; empty where none is."""
    by_file: dict[str, list[str]] = {}
    for question in asked:
        if question.scored:
            by_file.setdefault(question.subject, []).append(question.title)
    if not by_file:
        return ""
    lines = [f"- {path}: {'; '.join(titles)}" for path, titles in by_file.items()]
    return (
        "\n\nA reader also grades what you explain. It sees these files and the list of your "
        "cells, cites the line that convinces it, and takes the text as data:\n" + "\n".join(lines)
    )
