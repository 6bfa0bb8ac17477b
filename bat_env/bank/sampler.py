"""Which state next: deterministic, balanced over cells, without replacement inside a round."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np


class HasCell(Protocol):
    """Anything that knows its grid cell and its id."""

    @property
    def cell(self) -> tuple[str, str, str]:
        """(track, focus name, outcome)."""

    @property
    def state_id(self) -> str:
        """Orders members of a cell, so that the order of the input does not matter."""


StateT = TypeVar("StateT", bound=HasCell)


def balanced_order(rng: np.random.Generator, states: Iterable[StateT]) -> list[StateT]:
    """Order states so that every prefix is as even over cells as the states allow.

    Each state comes exactly once. Passes go over the cells in a fresh random order and take one
    random state from each that has any left: a round that draws without replacement reads a prefix.

    Args:
        rng: Source of randomness; equal generators and equal sets of states give equal orders.
        states: Candidates, in any order.

    Returns:
        All of them, ordered.
    """
    cells = _by_cell(states)
    stacks = {}
    for cell in sorted(cells):
        members = cells[cell]
        stacks[cell] = [members[i] for i in rng.permutation(len(members))]
    ordered: list[StateT] = []
    while stacks:
        names = sorted(stacks)
        for position in rng.permutation(len(names)):
            stack = stacks[names[position]]
            ordered.append(stack.pop())
            if not stack:
                del stacks[names[position]]
    return ordered


def _by_cell(states: Iterable[StateT]) -> dict[tuple[str, str, str], Sequence[StateT]]:
    cells: dict[tuple[str, str, str], list[StateT]] = {}
    seen: set[Hashable] = set()
    for state in sorted(states, key=lambda s: s.state_id):
        if state.state_id not in seen:
            seen.add(state.state_id)
            cells.setdefault(state.cell, []).append(state)
    return dict(cells)
