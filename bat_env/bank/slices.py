"""SFT rows: single responses of demonstrations, each with the history that it answers.

A row carries loss on its one response, never on an observation. A row that does not fit is left
out, never clipped, and counted with its reason; as history only grows, so are all after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from bat_env.bank.state import Demonstration, canonical

MAX_CHARS: Final = 24_576
"""Longest row. Code has about three characters a token: 8,192 tokens, the method's bound."""


@dataclass(frozen=True, slots=True)
class SftSlice:
    """One response and what came before it.

    Attributes:
        source: Source trajectory; splits into training and validation keep its rows together.
        turn: Which response of the episode it is, from 0.
        history: Observations and calls in turn, the brief first, the last observation last.
        response: The tool call to learn.
    """

    source: str
    turn: int
    history: tuple[Any, ...]
    response: dict[str, Any]

    @property
    def chars(self) -> int:
        """Characters of the whole row."""
        calls = sum(len(canonical(part)) for part in (*self.history[1::2], self.response))
        return calls + sum(len(text) for text in self.history[::2])


@dataclass
class SliceCount:
    """Rows that demonstrations give.

    Attributes:
        rows: Rows that fit.
        refused: Reason -> rows left out.
        sources: Source trajectories with at least one row.
    """

    rows: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    sources: set[str] = field(default_factory=set)


def slices(demo: Demonstration) -> Iterator[SftSlice]:
    """Every row of a demonstration, in the order of its turns."""
    history: list[Any] = []
    for number, turn in enumerate(demo.turns):
        history.append(turn.observation)
        yield SftSlice(demo.source_trajectory, number, tuple(history), turn.action)
        history.append(turn.action)


def count_slices(demos: Iterable[Demonstration], max_chars: int = MAX_CHARS) -> SliceCount:
    """Count the rows that fit, and why others do not.

    Args:
        demos: Demonstrations.
        max_chars: Longest row, characters.
    """
    found = SliceCount()
    for demo in demos:
        for row in slices(demo):
            if row.chars > max_chars:
                found.refused["longer than the row limit"] += 1
            elif not row.history[-1]:
                found.refused["nothing to answer"] += 1
            else:
                found.rows += 1
                found.sources.add(row.source)
    return found
