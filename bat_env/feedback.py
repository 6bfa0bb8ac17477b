"""What the agent reads after a step. Feedback is separate from scoring: no score appears here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bat_env.sandbox.base import CellResult, Delta, FileEntry
from bat_env.spaces import clean_text

LIMIT_TEXT: Final[Mapping[str, str]] = {
    "timeout": "the cell ran out of time and was stopped",
    "memory": "the cell ran out of memory and was stopped",
    "pids": "the cell reached its limit of processes and threads",
    "disk": "the cell filled /workspace or /tmp",
    "output": "the cell printed more than is kept",
}
"""Sentence for each limit that a cell can meet."""

_CUT: Final = "\n[... {} characters cut ...]\n"
_FILES_SHARE: Final = 4
_STDERR_SHARE: Final = 3


def clip(text: str, limit: int, dropped: int = 0) -> str:
    """Keep head and tail of ``text`` within ``limit`` characters and say how much was cut.

    Args:
        text: The text.
        limit: Most characters of the result. Below the length of the announcement itself the
            announcement alone is cut to fit.
        dropped: Characters that were already cut out of the middle before.

    Returns:
        ``text`` itself, or head + ``[... N characters cut ...]`` + tail.
    """
    if len(text) <= limit and not dropped:
        return text
    room = limit - len(_CUT.format(dropped + len(text)))
    if room <= 0:
        return _CUT.format(dropped + len(text)).strip()[: max(0, limit)]
    head = min((room + 1) // 2, (len(text) + 1) // 2)
    tail = min(room - head, len(text) - head)
    cut = dropped + len(text) - head - tail
    return text[:head] + _CUT.format(cut) + (text[-tail:] if tail else "")


def show_path(path: str) -> str:
    """A workspace path on one line, with everything unprintable escaped."""
    if path.isprintable():
        return path
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)


def _describe(path: str, entry: FileEntry) -> str:
    if entry.kind == "file":
        return f"{show_path(path)} ({entry.size} B)"
    suffix = "/" if entry.kind == "dir" else f" ({entry.kind})"
    return show_path(path) + suffix


def _listing(title: str, names: Sequence[str], limit: int) -> str:
    """``title: a, b, ... and N more`` within about ``limit`` characters."""
    shown: list[str] = []
    room = limit - len(title) - 2
    for name in names:
        if len(name) + 2 > room - (16 if len(shown) + 1 < len(names) else 0):
            break
        shown.append(name)
        room -= len(name) + 2
    rest = len(names) - len(shown)
    if rest:
        shown.append(f"... and {rest} more" if shown else f"{rest} paths")
    return f"{title}: {', '.join(shown)}"


def delta_text(delta: Delta, limit: int = 600) -> str:
    """Created, changed and deleted paths, one line each, bounded; folders only when new and empty.

    Args:
        delta: Workspace changes of a cell.
        limit: Most characters in all.
    """
    created = {p: e for p, e in delta.created.items() if not _implied(p, e, delta.created)}
    groups = [
        ("created", [_describe(p, e) for p, e in created.items()]),
        ("changed", [_describe(p, e) for p, e in delta.changed.items() if e.kind != "dir"]),
        ("deleted", [show_path(p) for p in delta.deleted]),
    ]
    groups = [(title, names) for title, names in groups if names]
    if not groups:
        return "files: unchanged"
    share = limit // len(groups) - 1
    return "\n".join(_listing(title, names, share) for title, names in groups)


def _implied(path: str, entry: FileEntry, created: Mapping[str, FileEntry]) -> bool:
    """Whether a new folder is named anyway by a new path below it."""
    return entry.kind == "dir" and any(other.startswith(path + "/") for other in created)


def budget_text(turns_left: int, calls_left: int) -> str:
    """The budget line that ends every observation."""
    line = f"left: {_count(turns_left, 'turn')}, {_count(calls_left, 'call')}"
    if calls_left <= 0 < turns_left:
        line += "; only submit_results remains"
    return line


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def cell_text(
    result: CellResult, *, turns_left: int, calls_left: int, limit: int, notes: Sequence[str] = ()
) -> str:
    """The observation after a cell.

    Args:
        result: What the host saw.
        turns_left: Turns after this step.
        calls_left: Calls after this step.
        limit: Most characters of the whole text.
        notes: Sentences of the host, for example a warning.

    Returns:
        Exit code, stdout, stderr, files and budget, at most ``limit`` characters.
    """
    head = [f"exit code: {result.exit_code}"]
    if result.limit is not None:
        head.append(f"limit: {result.limit} - {LIMIT_TEXT[result.limit]}")
    head += notes
    tail = [
        delta_text(result.delta, max(96, limit // _FILES_SHARE)),
        budget_text(turns_left, calls_left),
    ]
    fixed = sum(len(line) + 1 for line in (*head, *tail)) + len("stdout:\n\nstderr:\n\n")
    room = max(0, limit - fixed)
    out, err = clean_text(result.stdout).rstrip("\n"), clean_text(result.stderr).rstrip("\n")
    out_need = room if result.stdout_dropped else len(out)
    err_need = room if result.stderr_dropped else len(err)
    err_room = min(err_need, max(room // _STDERR_SHARE, room - out_need))
    err = clip(err, err_room, result.stderr_dropped)
    out = clip(out, room - len(err), result.stdout_dropped)
    body = [f"{name}:\n{text}" for name, text in (("stdout", out), ("stderr", err)) if text]
    return "\n".join([*head, *body, *tail])[:limit]


def notice_text(message: str, *, turns_left: int, calls_left: int, limit: int) -> str:
    """The observation of a step that ran nothing: one message and the budget."""
    budget = budget_text(turns_left, calls_left)
    return clip(clean_text(message), limit - len(budget) - 1) + "\n" + budget
