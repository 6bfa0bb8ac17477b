"""What a person sees while the sandbox image is being built."""

from __future__ import annotations

import re
import time
from types import TracebackType

from rich.console import Console
from rich.status import Status


class BuildProgress:
    """A spinner on a terminal, one line a step elsewhere. Writes to standard error.

    Args:
        tag: Name of the image.
    """

    def __init__(self, tag: str) -> None:
        self._tag = tag
        self._console = Console(stderr=True)
        self._status = Status("", console=self._console)
        self._start = time.monotonic()

    def __enter__(self) -> BuildProgress:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._status.stop()

    def step(self, text: str) -> None:
        """Say what is being done now; the builder's ``Step i/n : ...`` is shortened."""
        match = re.match(r"Step (\d+/\d+) : (\S+)", text)
        short = f"step {match[1]} {match[2]}" if match else text
        line = f"{self._tag}: {short} ({time.monotonic() - self._start:.0f} s)"
        if self._console.is_terminal:
            self._status.update(line)
        else:
            self._console.print(line, highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(f"{self._tag}: {text}", highlight=False, soft_wrap=True)

    def done(self, text: str) -> None:
        """Print the last line, with the time taken."""
        self.note(f"{text} ({time.monotonic() - self._start:.0f} s)")
