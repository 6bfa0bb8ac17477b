"""The noise of a low-dose scan: from rays through the body to the reconstructed slab.

Arrays meet only operations that IEEE 754 rounds exactly, so that the same seed gives the same
bytes on every machine.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from bat_env.tasks.drawing import Rng, bell

WATER = 0.0193  # Attenuation per mm at the energy of a body scan.
TAPS = 24


@functools.cache
def _filter() -> tuple[float, ...]:
    """Taps 0, 1, ... of the symmetric ramp filter, smoothed by [1, 2, 1] / 4."""

    def ramp(n: int) -> float:
        return 0.25 if n == 0 else -1 / (math.pi * n) ** 2 if n % 2 else 0.0

    taps = [(ramp(abs(n - 1)) + 2 * ramp(n) + ramp(n + 1)) / 4 for n in range(TAPS)]
    return tuple(round(tap, 7) for tap in taps)


@functools.cache
def _directions(count: int) -> tuple[tuple[float, float], ...]:
    """Cosine and sine of evenly spread angles; a table of seven digits is the same everywhere."""
    angles = [math.pi * (n + 0.5) / count for n in range(count)]
    return tuple((round(math.cos(a), 7), round(math.sin(a), 7)) for a in angles)


def _weakening(path: np.ndarray) -> np.ndarray:
    """exp(path) as (1 + path / 1024) ** 1024: ten squarings, rounded alike everywhere."""
    out = path / 1024 + 1
    for _ in range(10):
        out = out * out
    return out


def _paths(canvas: Any, directions: Any, half: int) -> np.ndarray:
    """Attenuation along every ray (views, 2 * half + 1) through the middle slice.

    Measured on squares of two pixels and their rays; rays between them get the mean.
    """
    hu = canvas.hu[:, :, canvas.hu.shape[2] // 2]
    hu = hu[: hu.shape[0] // 2 * 2, : hu.shape[1] // 2 * 2].astype(np.float64)
    square = (hu[::2, ::2] + hu[1::2, ::2]) + (hu[::2, 1::2] + hu[1::2, 1::2])
    density = np.clip(1 + square / 4000, 0, None) * (WATER * 2 * canvas.pixel)
    x = canvas.x[0 : hu.shape[0] : 2, 0, 0].astype(np.float64) / canvas.pixel + 0.5
    y = canvas.y[0, 0 : hu.shape[1] : 2, 0].astype(np.float64) / canvas.pixel + 0.5
    coarse = half // 2
    rows = np.zeros((len(directions), 2 * half + 1))
    for row, (cos, sin) in zip(rows, directions, strict=True):
        place = (x[:, None] * cos + y[None, :] * sin) * 0.5 + coarse
        left = place.astype(np.int32)
        weight = (place - left) * density
        # Adds one after the other, in the order of the pixels: the same on every machine.
        row[::2] = np.bincount(left.ravel(), (density - weight).ravel(), 2 * coarse + 1)
        row[::2] += np.bincount(left.ravel() + 1, weight.ravel(), 2 * coarse + 1)
    rows[:, 1::2] = (rows[:, :-1:2] + rows[:, 2::2]) * 0.5
    return rows


def noise(rng: Rng, canvas: Any, views: int, sigma: float) -> np.ndarray:
    """Reconstructed noise of a phantom's slab.

    Args:
        rng: Source of everything random.
        canvas: The phantom: ``hu`` (nx, ny, nz), places ``x``, ``y`` and ``pixel`` in mm.
        views: Projections over half a turn.
        sigma: Deviation in the middle of the slab, HU, about.
    """
    nx, ny, nz = canvas.hu.shape
    half = (int((nx + ny) * 0.55) + TAPS) // 2 * 2
    directions = _directions(views)
    variance = _weakening(_paths(canvas, directions, half))
    middle = math.fsum(float(row[half]) for row in variance) / views
    deviation = np.sqrt(variance / middle).astype(np.float32)
    rays = bell(rng, (*variance.shape, nz)) * deviation[:, :, None]
    taps = _filter()
    filtered = rays * np.float32(taps[0])
    for n in range(1, TAPS):
        tap = np.float32(taps[n])
        if tap:
            filtered[:, n:] += rays[:, :-n] * tap
            filtered[:, :-n] += rays[:, n:] * tap
    out = np.zeros((nx, ny, nz), np.float32)
    x, y = (axis[..., 0] * np.float32(1 / canvas.pixel) for axis in (canvas.x, canvas.y))
    for (cos, sin), row in zip(directions, filtered, strict=True):
        place = (x * np.float32(cos) + y * np.float32(sin)) + np.float32(half)
        left = place.astype(np.int32)
        weight = (place - left)[:, :, None]
        low = row[left]
        out += low + (row[left + 1] - low) * weight
    energy = math.fsum(tap * tap for tap in (*taps, *taps[1:]))
    return out * np.float32(sigma / math.sqrt(views * energy * 0.8))
