"""Start states in memory, in the place of a Stage Bank: for candidates, checks and tests."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from bat_env.bank.distribution import Cell
from bat_env.bank.state import StageState
from bat_env.errors import BankError


class States:
    """States by id, with their workspaces. They are named, never drawn."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[StageState, dict[str, bytes]]] = {}

    def add(self, state: StageState, files: Mapping[str, bytes]) -> None:
        """Keep a state with its workspace."""
        self._states[state.state_id] = (state, dict(files))

    def get(self, state_id: str) -> StageState:
        """The state with this id.

        Raises:
            BankError: If there is none.
        """
        return self._row(state_id)[0]

    def files(self, state_id: str) -> dict[str, bytes]:
        """Its files, workspace-relative.

        Raises:
            BankError: If there is no such state.
        """
        return dict(self._row(state_id)[1])

    def cells(self, **query: Any) -> Collection[Cell]:
        """None: nothing here can be drawn."""
        return ()

    def sample(self, rng: np.random.Generator, **query: Any) -> StageState:
        """Refused.

        Raises:
            BankError: Always.
        """
        raise BankError("These states are taken by their id only; name a state_id.")

    def close(self) -> None:
        """There is nothing to free."""

    def _row(self, state_id: str) -> tuple[StageState, dict[str, bytes]]:
        if state_id not in self._states:
            raise BankError(f"There is no state {state_id!r} here.")
        return self._states[state_id]
