"""Progress of a build for people: one line, with the time left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

ProgressFn: TypeAlias = Callable[[str, int, int], None]
"""``(what, done, total)``; called from the thread that builds."""


@contextlib.contextmanager
def reporter(progress: bool | ProgressFn | None) -> Iterator[ProgressFn]:
    """A progress function: the caller's, a bar on stderr for ``True``, or silence."""
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("time left"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        rows: dict[str, int] = {}

        def show(what: str, done: int, total: int) -> None:
            if what not in rows:
                rows[what] = int(bar.add_task(what, total=total))
            bar.update(rows[what], completed=done, total=total)  # type: ignore[arg-type]

        yield show
