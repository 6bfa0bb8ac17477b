"""Whether a run was told to stop, and who has to hear of it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final

WAITING: Final = "what still runs: a start of a sandbox, a score, or the agent's own code"
"""What is waited for after Ctrl-C, in words."""


class Stop:
    """Whether a run was told to stop, and the agents that are to hear of it. Thread-safe."""

    def __init__(self) -> None:
        self._told = threading.Event()
        self._lock = threading.Lock()
        self._agents: list[Any] = []

    @property
    def told(self) -> bool:
        """Whether no further action is wanted."""
        return self._told.is_set()

    def enter(self, agent: Any) -> None:
        """An agent begins an episode."""
        with self._lock:
            self._agents.append(agent)

    def leave(self, agent: Any) -> None:
        """It has ended."""
        with self._lock:
            self._agents = [other for other in self._agents if other is not agent]

    def now(self) -> None:
        """Ask everybody to stop: an agent's ``interrupt()``, if it has one, ends its waiting."""
        self._told.set()
        with self._lock:
            agents = list(self._agents)
        for agent in agents:
            interrupt = getattr(agent, "interrupt", None)
            if callable(interrupt):
                with contextlib.suppress(Exception):
                    interrupt()
