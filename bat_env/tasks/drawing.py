"""What generators of every kind draw from a seed: numbers, case names, noise, smooth fields.

Arrays meet only operations that IEEE 754 rounds exactly (no transcendental functions, no BLAS), so
that the same seed gives the same bytes on every machine.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bat_env.tasks.discovery import task_of
from bat_env.tasks.instance import Size
from bat_env.tasks.naming import case_name

Rng: TypeAlias = np.random.Generator

_ALPHABET: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
_TAIL: Final = 4
_BYTES: Final = 4
_DEVIATION: Final = 147.8
"""Standard deviation of the sum of four bytes."""


def generator(seed: int) -> Rng:
    """The random generator of an instance."""
    return np.random.default_rng(np.random.PCG64(seed))


def sizes_of(file: str, size: Size | str) -> Mapping[str, Any]:
    """What ``sizes`` in task.yaml says of a size.

    Args:
        file: ``__file__`` of the caller, a module of a task folder.
        size: ``full`` or ``mini``.
    """
    return task_of(file).spec.sizes[size]  # type: ignore[index]


def between(rng: Rng, low: float, high: float) -> float:
    """A number from [low, high)."""
    return float(low + (high - low) * rng.random())


def case_names(rng: Rng, prefix: str, count: int) -> list[str]:
    """Different random case ids: ``<prefix>-<4 letters or digits>``, or in the scheme given.

    Args:
        rng: Random generator; a scheme changes nothing of what is drawn.
        prefix: ``fiction["prefix"]``: an institution's prefix, or its whole naming scheme.
        count: How many.
    """
    names: dict[str, None] = {}
    while len(names) < count:
        drawn = [int(n) for n in rng.integers(0, len(_ALPHABET), _TAIL)]
        number = functools.reduce(lambda total, n: total * len(_ALPHABET) + n, drawn)
        names[case_name(prefix, "".join(_ALPHABET[n] for n in drawn), number)] = None
    return list(names)


def bell(rng: Rng, shape: tuple[int, ...], sigma: float = 1.0) -> NDArray[np.float32]:
    """Bell-shaped noise as a sum of four uniform bytes: exact, unlike a logarithm in a tail.

    Args:
        rng: Random generator.
        shape: Of the result.
        sigma: Its standard deviation.
    """
    return bytes_summed(rng, shape).astype(np.float32) * np.float32(sigma / _DEVIATION)


def bytes_summed(rng: Rng, shape: tuple[int, ...]) -> NDArray[np.int16]:
    """The whole numbers behind :func:`bell`: mean 0, deviation 147.8."""
    total = rng.integers(0, 256, (_BYTES, *shape), dtype=np.uint8).astype(np.int16)
    summed: NDArray[np.int16] = (total[0] + total[1]) + (total[2] + total[3]) - 510
    return summed


def smooth_field(rng: Rng, shape: tuple[int, int], cells: int) -> NDArray[np.float64]:
    """Smooth noise in [0, 1]: a random grid of ``cells`` squares a side, linearly interpolated."""
    grid = rng.random((cells + 1, cells + 1))
    rows = np.arange(shape[0]) * (cells / shape[0])
    cols = np.arange(shape[1]) * (cells / shape[1])
    i, j = rows.astype(int), cols.astype(int)
    u, v = (rows - i)[:, None], (cols - j)[None, :]
    top = grid[i][:, j] * (1 - v) + grid[i][:, j + 1] * v
    low = grid[i + 1][:, j] * (1 - v) + grid[i + 1][:, j + 1] * v
    mixed: NDArray[np.float64] = top * (1 - u) + low * u
    return mixed
