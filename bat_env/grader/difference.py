"""How far two files of one kind lie apart: numbers by their size, all else to the letter."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bat_env.metrics.arrays import read_picture
from bat_env.metrics.base import UnreadableError

MACHINE_KEYS: Final = frozenset({"versions"})
"""Keys of JSON files that tell of the machine, not of the work: they may differ."""
_PICTURES: Final = (".npy", ".nii", ".nii.gz")
_MAX_LEAVES: Final = 1_000_000


def difference(name: str, a: bytes, b: bytes) -> tuple[float, str]:
    """The largest difference of two files, relative to the size of what is compared.

    Args:
        name: File name; images, JSON and CSV are compared number by number.
        a: One content.
        b: The other.

    Returns:
        The difference (0 for equal files, infinity where no number can tell), and what differs.
        Numbers below 1 count as they are, larger ones relative to the largest of the file.
    """
    if a == b:
        return 0.0, ""
    try:
        if name.endswith(_PICTURES):
            return _pictures(name, a, b)
        if name.endswith(".json"):
            return _leaves(list(_walk(json.loads(a))), list(_walk(json.loads(b))))
        if name.endswith(".csv"):
            return _leaves(list(_cells(a)), list(_cells(b)))
    except (UnreadableError, ValueError, RecursionError) as error:
        return float("inf"), f"cannot be read: {str(error)[:200]}"
    return float("inf"), "differs"


def _pictures(name: str, a: bytes, b: bytes) -> tuple[float, str]:
    one = read_picture(name, a)
    two = read_picture(name, b, one.values.size)
    if (one.values.shape, one.dtype) != (two.values.shape, two.dtype):
        kinds = [f"{p.values.shape} {p.dtype}" for p in (one, two)]
        return float("inf"), f"has another form: {kinds[0]} and {kinds[1]}"
    if (one.affine is None) != (two.affine is None):
        return float("inf"), "has another affine"
    worst = _apart(one.values, two.values)
    if one.affine is not None and two.affine is not None:
        worst = max(worst, _apart(one.affine, two.affine))
    return worst, "values differ"


def _apart(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(np.abs(a - b).max() / max(1.0, float(np.abs(a).max())))


def _walk(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a JSON value with their places, in a fixed order."""
    if isinstance(value, dict):
        yield place, sorted(value)
        for key in sorted(value):
            if key not in MACHINE_KEYS:
                yield from _walk(value[key], f"{place}/{key}")
    elif isinstance(value, list):
        yield place, len(value)
        for number, part in enumerate(value):
            yield from _walk(part, f"{place}/{number}")
    else:
        yield place, value


def _cells(data: bytes) -> Iterator[tuple[str, Any]]:
    for number, row in enumerate(csv.reader(io.StringIO(data.decode()))):
        for column, text in enumerate(row):
            try:
                yield f"{number}/{column}", float(text)
            except ValueError:
                yield f"{number}/{column}", text


def _leaves(one: list[tuple[str, Any]], two: list[tuple[str, Any]]) -> tuple[float, str]:
    if len(one) != len(two) or len(one) > _MAX_LEAVES:
        return float("inf"), "has another form"
    worst, where = 0.0, ""
    for (place, a), (other, b) in zip(one, two, strict=True):
        if place != other:
            return float("inf"), f"has another form at {place}"
        if a == b:
            continue
        if not _number(a) or not _number(b):
            return float("inf"), f"differs at {place}"
        apart = abs(a - b) / max(1.0, abs(a))
        if not apart <= worst:
            worst, where = apart, place
    return worst, f"differs at {where}"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
