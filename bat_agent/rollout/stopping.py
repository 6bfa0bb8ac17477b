"""How work in threads ends when somebody asks to stop: at once, and with nothing left running."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection
from concurrent.futures import Future, wait
from typing import Any, Final

from bat_env.sandbox import interrupt_cells

_EVERY_S: Final = 0.1
_TELL_S: Final = 3.0

_logger = logging.getLogger(__name__)


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


def end(futures: Collection[Future[Any]]) -> None:
    """Start none of ``futures`` that has not begun, and wait for the others without their cells.

    A cell may begin, or be tried again, while others end: all that run are ended until nothing
    does. Code of an agent in this process cannot be ended; it is waited for.
    """
    for future in futures:
        future.cancel()
    began, told = time.monotonic(), False
    while wait(futures, timeout=_EVERY_S).not_done:
        interrupt_cells()
        if not told and time.monotonic() - began > _TELL_S:
            told = True
            _logger.warning("Waiting for the agent's own code; Ctrl-C again leaves at once.")
