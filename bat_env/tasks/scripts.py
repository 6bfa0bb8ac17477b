"""Scripted workflows as data: cells with named decision points.

A task folder writes its expert workflow once, as cells whose lines depend on *decisions*. The
oracle takes the good option everywhere, the naive script a fixed set of listed mistakes, and
demonstrations a mixture drawn per decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bat_env.sandbox.base import Language
from bat_env.stages import Stage


@dataclass(frozen=True, slots=True)
class ScriptCell:
    """One cell of a script: the stage whose work it does, and its code."""

    stage: Stage
    code: str
    language: Language = "python"


@dataclass(frozen=True, slots=True)
class Decision:
    """A named choice in a script.

    Attributes:
        id: For example ``"reorient"``.
        stage: The stage whose cell carries the choice.
        options: Option names; the first is the good one, the others are mistakes or omissions.
    """

    id: str
    stage: Stage
    options: tuple[str, ...]

    @property
    def good(self) -> str:
        """The careful option."""
        return self.options[0]


@dataclass(frozen=True, slots=True)
class Mistake:
    """A known real-world mistake as a variant of the oracle script.

    Attributes:
        id: Unique in the task, for example ``"no_reorientation"``.
        title: One sentence for people.
        source: Where people met it: a public thread (``"nnUNet#2768"``) or ``"common"``.
        choices: Decision id -> option that makes the mistake.
        costs: What it must cost in an E2E episode: ``"task"``, ``"S1"`` .. ``"S5"`` -> least loss.
        check: Python cell whose output exposes the mistake in a workspace (recovery states), or "".
        tier: The lowest tier in which the mistake can be made.
        outcome: ``""``, or the Bank outcome from which alone the mistake shows (``costs`` then
            means the focused stage, started from a workspace with a faulty pipeline).
    """

    id: str
    title: str
    source: str
    choices: Mapping[str, str]
    costs: Mapping[str, float] = field(default_factory=dict)
    check: str = ""
    tier: str = "lite"
    outcome: str = ""
