"""How work in threads ends when somebody asks to stop: at once, and with nothing left running."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from concurrent.futures import Future, wait
from typing import Any, Final

from .pool import interrupt_cells

_EVERY_S: Final = 0.1
_TELL_S: Final = 1.5

_logger = logging.getLogger(__name__)


def end_work(futures: Collection[Future[Any]], waiting: str) -> None:
    """Start none of ``futures`` that has not begun, and wait for the others without their cells.

    A cell may begin, or be tried again, while others end: all that run are ended until nothing
    does. What runs in this process cannot be ended; it is waited for.

    Args:
        futures: The work.
        waiting: What a wait may be for, to tell somebody who waits too.
    """
    for future in futures:
        future.cancel()
    began, told = time.monotonic(), False
    while wait(futures, timeout=_EVERY_S).not_done:
        interrupt_cells()
        if not told and time.monotonic() - began > _TELL_S:
            told = True
            _logger.warning("Waiting for %s; Ctrl-C again leaves at once.", waiting)
