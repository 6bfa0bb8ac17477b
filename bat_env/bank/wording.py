"""Other words for a brief: the fictional task writer, and the check that no fact got lost.

The plain brief of a task is made of short, mostly constant lines, which a policy could learn by
heart. A worded brief says the same in other words, another order and the style of another
institution. Only states of the bank, and so only training material, are ever worded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import TaskSpec

PLAIN: Final = "plain"
VARIED: Final = "varied"
TEACHER: Final = "teacher"
BRIEFS: Final = (PLAIN, VARIED, TEACHER)
"""The brief as the task words it; worded by rule; worded by an LLM where its text passes."""

_KEPT: Final = ("## Files to write", "## Files in /workspace", "## Output of the check")
"""Sections that are data or schema: they stay as they are, to the letter."""

_SENTENCES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        r"Tier: (\w+)\. Focus: (\w+) \(([\w ]+)\)\.": (
            r"Focus: \2 (\3). Tier: \1.",
            r"This is \2 (\3), tier \1.",
            r"Tier \1, focus \2: \3.",
        ),
        r"Aim: (.+)": (r"Purpose: \1", r"What it is for: \1", r"Clinical aim: \1"),
        r"Data: (.+), one file a case: (.+)": (
            r"Data: \1. Each case has one file: \2",
            r"Inputs: \2, one for every case (\1)",
            r"Every case comes as \2. Data: \1",
        ),
        r"Model: (\S+) \(a MONAI bundle, read-only\)\.": (
            r"Use the MONAI bundle in \1; it is read-only.",
            r"The given model is the MONAI bundle \1 (read-only).",
            r"Network: \1, a read-only MONAI bundle.",
        ),
        r"Output of a case: (\S+)": (
            r"For each case write \1",
            r"Result of a case: \1",
            r"Each case ends up in \1",
        ),
        r"Output: (\S+)": (r"Result: \1", r"Write all results to \1", r"Results go to \1"),
        r"## This study": ("## The study", "## Where the data comes from", "## Request"),
        r"## Stages": ("## What is to be done", "## Course of the work", "## The five stages"),
        r"## Budget": ("## Limits", "## What may be spent"),
        r"## To hand in: (\w+) \(([\w ]+)\)": (
            r"## Your part: \1 (\2)",
            r"## \1 (\2) is to be handed in",
        ),
        r"Only the work of (\w+) is scored\.": (
            r"Nothing but the work of \1 counts.",
            r"Scored is the work of \1 alone.",
        ),
        r"What came before is consistent\.": (
            "The earlier work is consistent.",
            "All that was done before is consistent.",
        ),
        r"A check has exposed an inconsistency\. Correct it first\.": (
            "A check found an inconsistency. First correct it.",
            "An inconsistency was exposed by a check: correct it before you go on.",
        ),
        r"Nothing that came before has been verified\.": (
            "None of the earlier work has been verified.",
            "The earlier work was not verified by anybody.",
        ),
        r"Work exists already, and a check has exposed an inconsistency in it\.": (
            "A check has exposed an inconsistency in work that exists already.",
            "Somebody has begun; a check exposed an inconsistency in that work.",
        ),
        r"Work exists already\. Nothing of it has been verified\.": (
            "Somebody has begun. Nothing of that work has been verified.",
            "There is earlier work; none of it has been verified.",
        ),
        r"The plan exists\. Write setup/setup\.json and pipeline/predict\.py\.": (
            "There is a plan. Write setup/setup.json and pipeline/predict.py.",
            "Write setup/setup.json and pipeline/predict.py; the plan exists.",
        ),
        r"Write the plan: plan/plan\.md and plan/facts\.json\.": (
            "The plan is yours to write: plan/plan.md and plan/facts.json.",
            "Write plan/plan.md and plan/facts.json: that is the plan.",
        ),
        r"The pilot is one case, in a cell before the batch\.": (
            "One case is the pilot; it has a cell of its own before the batch.",
            "Run the pilot on one case, in a cell before the batch.",
        ),
        r"predict\.py must also run alone, on a case that is not here\.": (
            "On a case that is not here, predict.py must run alone too.",
            "predict.py is also run by itself, on a case that is not here.",
        ),
        r"What you record is compared with the files and the data\.": (
            "All that you record is compared with files and data.",
            "Files and data are compared with what you record.",
        ),
        r"(\d+) turns, (\d+) cells, (\d+) s a cell\.": (
            r"\1 turns and \2 cells; a cell may take \3 s.",
            r"Turns: \1. Cells: \2. Time of a cell: \3 seconds.",
            r"A cell has \3 s; there are \2 cells and \1 turns.",
        ),
        r"Cells are fresh processes in /workspace: keep state in files\.": (
            "Every cell is a fresh process in /workspace, so keep state in files.",
            "Keep state in files: each cell is a fresh process in /workspace.",
        ),
        r"End with submit_results\.": ("Finish with submit_results.", "submit_results ends it."),
        r"End with submit_results; it hands in (\w+)\.": (
            r"Finish with submit_results, which hands in \1.",
            r"submit_results hands in \1 and ends it.",
        ),
        r"S1 Plan: (.+); write plan and facts\.": (
            r"S1 Plan: write plan and facts, after a look: \1.",
            r"S1 (Plan): \1. Then write plan and facts.",
        ),
        r"S2 Setup: record versions and inputs, run the model on its probe, write predict\.py\.": (
            "S2 (Setup): run the model on its probe, record versions and inputs, write predict.py.",
            "S2 Setup: versions and inputs are recorded, the probe is run, predict.py is written.",
        ),
        r"S3 Validate: predict one pilot case and record what its file holds\.": (
            "S3 (Validate): one pilot case is predicted; record what its file holds.",
            "S3 Validate: record what the file of one predicted pilot case holds.",
        ),
        r"S4 Infer: predict every case with predict\.py(; one row a case)?\.": (
            r"S4 (Infer): use predict.py on every case\1.",
            r"S4 Infer: every case is predicted with predict.py\1.",
        ),
        r"S5 Submit: write the manifest with the sha256 of every output\.": (
            "S5 (Submit): the manifest lists every output with its sha256.",
            "S5 Submit: the sha256 of every output goes into the manifest.",
        ),
    }
)
_TABLE: Final = tuple((re.compile(rf"{p}\Z"), said) for p, said in _SENTENCES.items())
_DESKS: Final = (
    "Requested by the imaging desk",
    "Requested by the reading room",
    "Asked for by the tumour board",
    "Asked for by the trial office",
    "From the physics group",
)
_FACTS: Final = re.compile(
    r"[\w<>{}.*-]*/[\w<>{}/.*-]*\w"  # a path
    r"|\b\w[\w{}<>-]*\.(?:py|json|md|csv|txt|png|npy|nii\.gz)\b"  # a file
    r"|\bS[1-5]\b|\bE2E\b|\bsubmit_results\b"
    r"|(?<![\w.])-?\d+(?:\.\d+)?(?![\w.]*\w)"  # a number
)
_MEANING: Final[Mapping[str, re.Pattern[str]]] = MappingProxyType(
    {
        "consistent": re.compile(r"(?<!in)(?<!not )\bconsistent\b", re.IGNORECASE),
        "inconsistency": re.compile(r"\binconsisten", re.IGNORECASE),
        "unverified": re.compile(
            r"\b(?:not|none|nothing|nobody|never|no)\b[^.\n]*\bverified\b|\bunverified\b",
            re.IGNORECASE,
        ),
    }
)


@dataclass(frozen=True)
class Section:
    """A heading with its lines; the first section has none."""

    heading: str
    lines: tuple[str, ...]

    @property
    def kept(self) -> bool:
        """Whether it stays as it is, to the letter."""
        return self.heading.startswith(_KEPT)

    def __str__(self) -> str:
        return "\n".join(([self.heading] if self.heading else []) + list(self.lines))


def sections(brief: str) -> list[Section]:
    """A brief cut at its headings; joined with newlines they give it again."""
    found: list[tuple[str, list[str]]] = [("", [])]
    for line in brief.split("\n"):
        if line.startswith("## "):
            found.append((line, []))
        else:
            found[-1][1].append(line)
    return [Section(heading, tuple(lines)) for heading, lines in found]


def worded(brief: str, rng: np.random.Generator) -> str:
    """The same brief in other words.

    Args:
        brief: As the task words it.
        rng: Equal generators give equal words.
    """

    def pick(options: Sequence[str]) -> str:
        return options[int(rng.integers(len(options)))]

    def say(line: str) -> str:
        for pattern, options in _TABLE:
            match = pattern.match(line)
            # Its own wording is one of the options.
            if match and (number := int(rng.integers(len(options) + 1))):
                return match.expand(options[number - 1])
        return line

    bullet, colon = pick(("-", "*", "+")), pick((": ", " = ", " - "))
    desk = f"{pick(_DESKS)}."
    parts: list[str] = []
    for section in sections(brief):
        if section.kept:
            parts.append(str(section))
        elif section.heading == "## This study":
            lines = _study(section.lines, rng, bullet, colon, desk)
            parts.append("\n".join([say(section.heading), *lines]))
        else:
            lines = [say(line) for line in section.lines]
            if section.heading == "" and rng.random() < 0.5:
                lines = _shuffled(lines, rng)
            parts.append("\n".join(([say(section.heading)] if section.heading else []) + lines))
    return "\n".join(parts)


def _shuffled(lines: list[str], rng: np.random.Generator) -> list[str]:
    """The lines between the title and the first that belongs to a list, in another order."""
    first = next(
        (i for i, line in enumerate(lines) if i and (not line or line.endswith(":"))), len(lines)
    )
    if any(line.startswith(("-", " ")) for line in lines[:first]) or "Files of a case" in str(
        lines
    ):
        return lines
    return [lines[0], *(lines[1:first][i] for i in rng.permutation(first - 1)), *lines[first:]]


def _study(
    lines: Sequence[str], rng: np.random.Generator, bullet: str, colon: str, desk: str
) -> list[str]:
    """Facts of the study in another order, cases in another list."""
    at = lines.index("Cases:") if "Cases:" in lines else len(lines)
    facts = [line for line in lines[:at] if line]
    facts = [facts[i].replace(": ", colon, 1) for i in rng.permutation(len(facts))]
    rows = list(lines[at:])
    cases = [case for line in rows[1:] if line.startswith("- ") for case in line[2:].split()]
    rest = [line for line in rows[1:] if not line.startswith("- ")]
    if rows and rng.random() < 0.5:
        rows = [f"Cases: {', '.join(cases)}", *rest]
    elif rows:
        rows = ["Cases:", *(f"{bullet} {line[2:]}" for line in rows[1:] if line[:2] == "- "), *rest]
    return [*([desk] if rng.random() < 0.5 else []), *facts, *rows]


# ---------------------------------------------------------------------------------------- the check


def facts_of(text: str) -> set[str]:
    """Paths, files, numbers, stages and tool names that a text holds."""
    return {match.group(0) for match in _FACTS.finditer(text)}


def names_of(spec: TaskSpec, instance: Instance) -> set[str]:
    """Names that a brief of this instance may hold: of its world, its cases and its contract."""
    fiction = {value for key, value in instance.fiction.items() if key != "prefix"}
    said = {spec.title, spec.clinical_goal, spec.modality, spec.model.name}
    return {*fiction, *instance.cases, *said, *spec.output.labels.values(), "MONAI"}


def problems(plain: str, other: str, spec: TaskSpec, instance: Instance) -> list[str]:
    """Why a worded brief may not stand for the plain one; empty if it may.

    Every name, path, file, number and stage of the plain brief must be in the other, nothing of
    that kind may be new, what is data or schema must be there to the letter, and what is said of
    the earlier work must mean the same.

    Args:
        plain: As the task words it.
        other: The same in other words.
        spec: The task's contract.
        instance: What was drawn of it.
    """
    found: list[str] = []
    for name in sorted(names_of(spec, instance)):
        if name in plain and name not in other:
            found.append(f"lost the name {name!r}")
    before, after = facts_of(plain), facts_of(other)
    found += [f"lost {fact!r}" for fact in sorted(before - after)]
    found += [f"made up {fact!r}" for fact in sorted(after - before)]
    for section in sections(plain):
        if section.kept and str(section).strip() not in other:
            found.append(f"changed the section {section.heading!r}")
    head, told = _prose(plain), _prose(other)
    for meaning, pattern in _MEANING.items():
        if bool(pattern.search(head)) != bool(pattern.search(told)):
            found.append(f"says something else about earlier work ({meaning})")
    if len(other) > 1.5 * len(plain):
        found.append(f"is too long: {len(other)} characters instead of {len(plain)}")
    return found


def _prose(brief: str) -> str:
    return "\n".join(str(section) for section in sections(brief) if not section.kept)


Writer = Callable[[str, Instance, int], tuple[str, dict[str, object]]]
"""``(plain brief, instance, seed) -> (brief, what provenance says of it)``."""
