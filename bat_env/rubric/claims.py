"""How predicates read what an agent recorded: bounded, typed, and never raising anything else.

An agent may write any bytes into its JSON files. Every reader here either returns a value of the
asked type or raises :class:`Fail` with a message that names the file and the key.
"""

from __future__ import annotations

import functools
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from bat_env.episode import Episode

MAX_JSON_BYTES: Final[int] = 256 * 1024
"""A recorded JSON file that is larger is not read."""

_SHOWN_CHARS: Final[int] = 60
_BRIEF: Final[reprlib.Repr] = reprlib.Repr()
_BRIEF.maxlevel = 3


class Fail(Exception):
    """The item is not met. ``false_claim``: the agent recorded something that is not true."""

    def __init__(self, message: str, *, false_claim: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.false_claim = false_claim


class NotApplicable(Exception):
    """The item does not apply to this episode and drops out."""


class Lost(Exception):
    """Infrastructure lost the evidence: the item is null, never 0."""


def shown(value: object) -> str:
    """A value for a message, on one line and clipped."""
    text = _BRIEF.repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."


def own_paths(episode: Episode) -> dict[str, int]:
    """Regular workspace files that are this episode's own work -> call that last wrote them.

    A file that only exists from a bank state is absent, also when a cell moved it away and back:
    content that equals the state's own at the same path is not work.
    """
    own: dict[str, int] = {}
    for path, call in episode.written().items():
        entry = episode.current.get(path)
        if entry is None or entry.kind != "file":
            continue
        before = episode.initial.get(path)
        if before is not None and before.kind == "file" and before.sha256 == entry.sha256:
            continue
        own[path] = call
    return own


def matching(paths: Sequence[str] | Mapping[str, int], pattern: str) -> list[str]:
    """Paths that match a pattern whose ``*`` stands for exactly one path component."""
    parts = pattern.split("/")
    found = []
    for path in paths:
        have = path.split("/")
        if len(have) == len(parts) and all(map(fnmatchcase, have, parts)):
            found.append(path)
    return sorted(found)


def own_bytes(episode: Episode, path: str) -> bytes:
    """Content of a file that is this episode's own work, as the host read it back."""
    if path not in own_paths(episode):
        state = "is not this episode's own work" if path in episode.current else "is missing"
        raise Fail(f"{path} {state}.")
    if "files" in episode.evidence.lost:
        raise Lost(episode.evidence.lost["files"])
    data = episode.evidence.files.get(path)
    if data is None:
        raise Fail(f"{path} could not be read back: too large or not a regular file.")
    return data


def own_text(episode: Episode, path: str) -> str:
    """Text of an own file, decoded with replacement."""
    return own_bytes(episode, path)[:MAX_JSON_BYTES].decode("utf-8", "replace")


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@functools.lru_cache(maxsize=64)
def _parse(data: bytes) -> Any:
    return json.loads(data.decode("utf-8"), parse_constant=_no_constant)


def own_json(episode: Episode, path: str) -> Mapping[str, Any]:
    """The JSON object in an own file. Callers must not change it: parses are shared."""
    data = own_bytes(episode, path)
    if len(data) > MAX_JSON_BYTES:
        raise Fail(f"{path} has {len(data)} bytes; at most {MAX_JSON_BYTES} are read.")
    try:
        value = _parse(data)
    except (ValueError, RecursionError) as error:
        raise Fail(f"{path} is not valid JSON: {str(error)[:120]}.") from None
    if not isinstance(value, dict):
        raise Fail(f"{path} must hold a JSON object, got {type(value).__name__}.")
    return value


class Record:
    """A recorded JSON object whose keys are read by dotted name."""

    def __init__(self, path: str, data: Mapping[str, Any]) -> None:
        self.path = path
        self.data = data

    @classmethod
    def own(cls, episode: Episode, path: str) -> Record:
        """The record at ``path``, which must be this episode's own work."""
        return cls(path, own_json(episode, path))

    def _wrong(self, key: str, want: str, value: object) -> Fail:
        return Fail(f"{self.path}: key {key!r} must be {want}, got {shown(value)}.")

    def get(self, key: str) -> Any:
        """The value at a dotted key; a missing key fails by name."""
        value: Any = self.data
        for part in key.split("."):
            if not isinstance(value, dict) or part not in value:
                raise Fail(f"{self.path}: key {key!r} is missing.")
            value = value[part]
        return value

    def text(self, key: str) -> str:
        """A string."""
        value = self.get(key)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def flag(self, key: str) -> bool:
        """A boolean."""
        value = self.get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def integer(self, key: str) -> int:
        """An integer; a boolean is none."""
        value = self.get(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong(key, "an integer", value)
        return value

    def number(self, key: str) -> float:
        """A finite number."""
        number = as_number(self.get(key))
        if number is None:
            raise self._wrong(key, "a finite number", self.get(key))
        return number

    def vector(self, key: str, size: int) -> tuple[float, ...]:
        """A list of ``size`` finite numbers."""
        value = self.get(key)
        numbers = [as_number(v) for v in value] if isinstance(value, list) else []
        if len(numbers) != size or any(n is None for n in numbers):
            raise self._wrong(key, f"a list of {size} finite numbers", value)
        return tuple(n for n in numbers if n is not None)

    def table(self, key: str) -> Mapping[str, Any]:
        """An object."""
        value = self.get(key)
        if not isinstance(value, dict):
            raise self._wrong(key, "an object", value)
        return value

    def items(self, key: str) -> list[Any]:
        """A list."""
        value = self.get(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return value


def as_number(value: object) -> float | None:
    """A finite float, or ``None`` for everything else (booleans and huge integers included)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def close(a: float, b: float, *, abs_tol: float = 0.0, rel_tol: float = 0.0) -> bool:
    """Whether ``a`` is within ``max(abs_tol, rel_tol * |b|)`` of the true ``b``."""
    return abs(a - b) <= max(abs_tol, rel_tol * abs(b))


def same(
    claimed: object,
    true: object,
    *,
    abs_tol: float = 0.0,
    rel_tol: float = 0.0,
    ordered: bool = True,
) -> bool:
    """Whether a recorded JSON value equals the true one.

    Args:
        claimed: Anything that JSON can hold.
        true: Truth or booleans, strings (letter case does not count), numbers, and lists of them.
        abs_tol: For numbers, see :func:`close`.
        rel_tol: For numbers, see :func:`close`.
        ordered: Whether the order of a list counts, and how often a value stands in it.
    """
    if isinstance(true, bool) or isinstance(claimed, bool):
        return isinstance(true, bool) and isinstance(claimed, bool) and claimed == true
    if isinstance(true, str):
        return isinstance(claimed, str) and claimed.casefold() == true.casefold()
    if isinstance(true, (list, tuple)):
        if not isinstance(claimed, list):
            return False
        rows, wanted = claimed, list(true)
        if not ordered:
            rows, wanted = _distinct(rows), _distinct(wanted)
        return len(rows) == len(wanted) and all(
            same(c, t, abs_tol=abs_tol, rel_tol=rel_tol) for c, t in zip(rows, wanted, strict=True)
        )
    value, number = as_number(claimed), as_number(true)
    if value is None or number is None:
        return claimed is None and true is None
    return close(value, number, abs_tol=abs_tol, rel_tol=rel_tol)


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Sorted distinct values; 1 and 1.0 are one value."""
    return sorted({as_number(v) if as_number(v) is not None else str(v) for v in values}, key=str)


def judge(false: Sequence[str], ok: str) -> str:
    """``ok`` when nothing was found false, else a :class:`Fail` that is a false claim."""
    if false:
        raise Fail("; ".join(false[:4]) + ".", false_claim=True)
    return ok
