"""Strict, bounded reading of JSON files."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from bat_env.errors import TaskError
from bat_env.metrics.base import TRUTH_JSON, Case, UnreadableError

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 16


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key is given twice")
    return table


def _depth(text: str) -> int:
    """An upper bound of the nesting, found without recursion."""
    depth = deepest = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def read_json(data: bytes) -> Any:
    """Parse UTF-8 JSON: no NaN or infinity, no repeated keys, little nesting, at most 1 MiB.

    Raises:
        UnreadableError: If it is not.
    """
    if len(data) > MAX_BYTES:
        raise UnreadableError(f"holds {len(data)} bytes, expected at most {MAX_BYTES}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"is not UTF-8: {error.reason}") from error
    if _depth(text) > MAX_DEPTH:
        raise UnreadableError(f"is nested deeper than {MAX_DEPTH}")
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise UnreadableError(f"is no JSON: {error}") from error


def finite(value: object) -> float | None:
    """A JSON number as a finite float; ``None`` for anything else, booleans included."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def truth_of(case: Case) -> dict[str, Any]:
    """The private JSON truth of a case.

    Raises:
        TaskError: If there is none: the task's generator is at fault.
    """
    try:
        truth = read_json(case.truth[TRUTH_JSON])
    except (KeyError, UnreadableError) as error:
        raise TaskError(
            f"Expected the private file {case.id}/{TRUTH_JSON} with a JSON object: {error}. "
            "Correct the task's generate.py."
        ) from error
    if not isinstance(truth, dict):
        raise TaskError(f"Expected a JSON object in {case.id}/{TRUTH_JSON}, got {truth!r:.80}.")
    return truth
