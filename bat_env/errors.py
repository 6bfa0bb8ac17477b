"""Typed errors of the suite, rooted in :class:`BatError`.

A message says what was expected, what came, and what to do next. Bad *actions* never raise: they
become observations.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Final, Protocol

_SHOWN_FAULTS: Final = 5


class _Faulty(Protocol):
    def errors(self) -> list[Any]: ...


def faults_of(error: _Faulty, *within: str) -> str:
    """What a pydantic ``ValidationError`` found, a clause a fault, without its links and codes.

    Args:
        error: The error; this module does not import pydantic.
        within: Where the checked value lies in the file that people edit.
    """
    found = error.errors()
    clauses = [
        f"{'.'.join(str(part) for part in (*within, *fault['loc'])) or 'the whole'}: "
        f"{fault['msg'].removeprefix('Value error, ').rstrip('.')}"
        for fault in found[:_SHOWN_FAULTS]
    ]
    more = len(found) - _SHOWN_FAULTS
    return "; ".join(clauses) + (f"; and {more} more" if more > 0 else "")


class BatError(Exception):
    """Root of every error that this project raises on purpose."""


class ConfigError(BatError):
    """A configuration value that cannot work; raised before any work starts."""


class UnknownNameError(ConfigError):
    """A name that is not registered; the message suggests the nearest ones."""


class DiskFullError(BatError):
    """A disk is full.

    Args:
        path: What could not be written; its disk is the full one.
    """

    def __init__(self, path: object) -> None:
        super().__init__(
            f"The disk that holds {path} is full; free space there and run the same command again."
        )


class TaskError(BatError):
    """A task folder or a task instance that breaks the task contract."""


class DataError(BatError):
    """A data set of the user, or a staged folder, that is not what it should be."""


class BankError(BatError):
    """A Stage Bank that is missing, corrupt, or has no admissible state for a query."""


class LeakageError(BankError):
    """Held-out material was found in training material. Training must not start."""


class CheckpointError(BatError):
    """A checkpoint that is missing, incomplete, or does not match its digest."""


class GraderError(BatError):
    """The grader process failed for a reason that is not the agent's: the score is null."""


class JudgeError(BatError):
    """The judge gave no usable answer: its items are null, and the score is that of the rules.

    Attributes:
        retry: Whether asking again may help.
        wait_s: How long the server asked to wait, seconds, or ``None``.
    """

    def __init__(self, message: str, *, retry: bool = True, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.retry, self.wait_s = retry, wait_s


class SandboxError(BatError):
    """The sandbox failed for a reason that is not the agent's: the episode is invalid (null)."""


class SandboxDiedError(SandboxError):
    """The sandbox ended during a request.

    Attributes:
        evidence: What the host itself saw that lays the death on the running cell: ``"oom"`` (its
            memory cgroup killed), ``"frame"`` (bytes that no worker writes), or ``""``.
    """

    def __init__(self, message: str, evidence: str = "") -> None:
        super().__init__(message)
        self.evidence = evidence


class SandboxInterruptedError(SandboxError):
    """The host itself ended what ran in the sandbox, because somebody asked to stop."""


class SandboxUnavailableError(SandboxError):
    """No sandbox backend can run on this machine; the message names what to install."""


def shown(value: object) -> str:
    """``value`` for a message: clipped, and never an error itself, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a number of too many digits, or a hostile object
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 200 else text[:197] + "..."


def unknown_name(kind: str, name: object, known: Iterable[str], hint: str = "") -> UnknownNameError:
    """Build the error for a name that is not known, with a did-you-mean.

    Args:
        kind: What the name names, for example ``"task"``.
        name: The value that came.
        known: The names that exist.
        hint: A further sentence for the reader, for example where names come from.

    Returns:
        An :class:`UnknownNameError`, to be raised by the caller.
    """
    names = sorted(known)
    text = name[:200] if isinstance(name, str) else shown(name)
    close = difflib.get_close_matches(text, names, n=3, cutoff=0.5)
    parts = [f"Unknown {kind} {text!r}."]
    if close:
        parts.append("Did you mean " + " or ".join(repr(c) for c in close) + "?")
    parts.append(f"Known: {', '.join(names) if names else 'none'}.")
    if hint:
        parts.append(hint)
    return UnknownNameError(" ".join(parts))
