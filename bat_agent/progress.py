"""Progress of a long run on stderr: phase, share done, and the time left for the whole run."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.text import Text

from bat_agent.files import read_json, write_json
from bat_env.errors import ConfigError
from bat_env.plain import visible
from bat_env.terminal import Terminal

Advance: TypeAlias = Callable[[float, float, str], None]
"""``(done, total, note)`` of the running phase."""

PLAIN_EVERY_S: Final = 15.0
"""Without a terminal, at most one line a phase in this time."""

JOBS_SCHEMA: Final = 1

_FROM_DISK: Final = 0.05
"""A phase that took less than this share of what was expected had been done before."""


_RECENT: Final = 60.0
"""Expected seconds of finished work that a pace is measured over: load comes and goes."""

_ENOUGH: Final = 5.0
"""Expected seconds of finished work from which on a pace means something."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a run.

    Attributes:
        key: Its name.
        title: For people.
        seconds: What it is expected to take on the reference machine: until it is measured.
        kind: Phases of one kind do the same work: what one took is what the next is expected to.
        known: Whether ``seconds`` says anything before something was measured; else no time is
            shown until then.
    """

    key: str
    title: str
    seconds: float
    kind: str = ""
    known: bool = True


class Pace:
    """Seconds that an expected second takes here, over the work that was finished last."""

    def __init__(self) -> None:
        self._spent = self._earned = 0.0
        self._points: deque[tuple[float, float]] = deque([(0.0, 0.0)])

    def add(self, spent: float, earned: float) -> None:
        """Count finished work.

        Args:
            spent: Seconds that it took.
            earned: Seconds that it was expected to take.
        """
        self._spent, self._earned = self._spent + spent, self._earned + earned
        self._points.append((self._spent, self._earned))
        while len(self._points) > 2 and self._earned - self._points[1][1] >= _RECENT:
            self._points.popleft()

    @property
    def value(self) -> float | None:
        """The pace; ``None`` before enough work was finished."""
        spent, earned = self._points[0]
        if self._earned - earned < _ENOUGH:
            return None
        return (self._spent - spent) / (self._earned - earned)


class RunProgress:
    """Shows phases; estimates the time left from the pace of the work that was finished last.

    What is left of a phase goes by the pace of its own kind once that was measured, before that by
    the pace of the run as a whole.

    Args:
        phases: All phases in order.
        quiet: Print nothing.
    """

    def __init__(self, phases: Sequence[Phase], *, quiet: bool = False) -> None:
        self._phases = {phase.key: phase for phase in phases}
        self._left = {phase.key: phase.seconds for phase in phases}
        self._quiet = quiet
        self._pace = Pace()
        self._kinds: dict[str, Pace] = {}
        self._console = Terminal(stderr=True)
        self._bar: Progress | None = None
        if not quiet and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", justify="left"),
                BarColumn(bar_width=28),
                TextColumn("{task.percentage:>3.0f} %"),
                _LeftColumn(self),
                TextColumn("[dim]{task.fields[note]}"),
                console=self._console,
            )
            self._total = self._bar.add_task("whole run", total=1.0, note="")

    def __enter__(self) -> RunProgress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def seconds_left(self) -> float | None:
        """Expected seconds until the end, by how fast this machine has been lately.

        ``None`` where a phase is open of which nothing is known yet.
        """
        whole = self._pace.value
        if whole is None:
            if any(left and not self._phases[key].known for key, left in self._left.items()):
                return None
            whole = 1.0
        total = 0.0
        for key, left in self._left.items():
            kind = self._kinds.get(self._kind(key))
            total += left * ((kind.value if kind is not None else None) or whole)
        return total

    def _kind(self, key: str) -> str:
        return self._phases[key].kind or key

    def _count(self, key: str, spent: float, earned: float) -> None:
        self._pace.add(spent, earned)
        self._kinds.setdefault(self._kind(key), Pace()).add(spent, earned)

    def skip(self, key: str) -> None:
        """A phase whose result is on disk already."""
        self._left[key] = 0.0
        self._say(f"{self._phases[key].title}: done before")
        self._refresh()

    @contextlib.contextmanager
    def phase(self, key: str) -> Iterator[Advance]:
        """Run a phase; yields the function that reports its progress."""
        phase = self._phases[key]
        started = last_line = counted = time.monotonic()
        before = 0.0
        kind = ""
        task = None
        if self._bar is not None:
            task = self._bar.add_task(phase.title, total=1.0, note="")
        else:
            left = self._time_left("about ")
            self._say(f"{phase.title} ...{left and f' ({left})'}")

        def advance(done: float, total: float, note: str = "") -> None:
            nonlocal last_line, counted, before, kind
            now = time.monotonic()
            share = min(1.0, done / total) if total else 0.0
            self._left[key] = phase.seconds * (1.0 - share)
            earned = phase.seconds * (share - before)
            if earned > 0:
                # What comes within no time was on disk: it says nothing about the pace.
                if now - counted >= _FROM_DISK * earned:
                    self._count(key, now - counted, earned)
                counted, before = now, share
            if self._bar is not None and task is not None:
                self._bar.update(task, completed=share, note=note)
            elif now - last_line > PLAIN_EVERY_S or _kind_of(note) not in ("", kind):
                last_line, kind = now, _kind_of(note) or kind
                left = self._time_left()
                shown = f" {note}" if note else ""
                self._say(f"  {phase.title}: {100 * share:.0f} %{shown}{left and f' ({left})'}")
            self._refresh()

        try:
            yield advance
            advance(1.0, 1.0)
            if self._bar is None:
                self._say(f"  {phase.title}: done in {_clock(time.monotonic() - started)}")
        finally:
            if self._bar is not None and task is not None:
                self._bar.stop_task(task)

    def _time_left(self, about: str = "") -> str:
        seconds = self.seconds_left()
        return "" if seconds is None else f"{about}{_clock(seconds)} left in all"

    def _refresh(self) -> None:
        if self._bar is not None:
            whole = sum(phase.seconds for phase in self._phases.values()) or 1.0
            self._bar.update(self._total, completed=1.0 - sum(self._left.values()) / whole)

    def _say(self, line: str) -> None:
        if not self._quiet and self._bar is None:
            print(visible(line), file=sys.stderr, flush=True)


class JobCount:
    """Counts jobs over restarts: a resumed build reports only those that are left.

    The first call for a kind of job names all of them; that number is kept in a file.

    Args:
        file: Where the numbers are kept.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._totals: dict[str, int] = {}
        with contextlib.suppress(ConfigError, TypeError, ValueError, AttributeError):
            kept = read_json(file, schema_version=JOBS_SCHEMA)["jobs"]
            self._totals = {str(what): int(total) for what, total in kept.items()}

    def __call__(self, what: str, done: int, left: int) -> tuple[int, int]:
        """``(done, total)`` over all starts, from those of this one."""
        total = max(self._totals.get(what, 0), left)
        if self._totals.get(what) != total:
            self._totals[what] = total
            write_json(self._file, {"schema_version": JOBS_SCHEMA, "jobs": self._totals})
        return total - left + done, total


class _LeftColumn(ProgressColumn):
    def __init__(self, progress: RunProgress) -> None:
        super().__init__()
        self._progress = progress

    def render(self, task: object) -> Text:
        if getattr(task, "id", 1) != 0:
            return Text("")
        seconds = self._progress.seconds_left()
        return Text("" if seconds is None else f"{_clock(seconds)} left", style="cyan")


def _kind_of(note: str) -> str:
    """What a note is about: work of a new kind is told at once, its numbers now and then."""
    return re.sub(r"[\d.,/+-]+", "", note).strip()


def _clock(seconds: float) -> str:
    whole = int(seconds + 0.5)
    return f"{whole // 60}:{whole % 60:02d}"
