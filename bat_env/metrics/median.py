"""The median filter of ``scipy.ndimage``, value for value, in a fraction of its time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bat_env.metrics.arrays import Floats

_AT_ONCE: Final = 1 << 19
"""Values that are selected from in one piece: they stay in the cache."""
_INT16: Final = np.iinfo(np.int16)


def _narrow(values: Floats) -> NDArray[Any]:
    """The same values in the smallest type that holds every one exactly."""
    if _INT16.min <= float(values.min()) and float(values.max()) <= _INT16.max:
        whole = values.astype(np.int16)
        if np.array_equal(whole, values):
            return whole
    single = values.astype(np.float32)
    return single if np.array_equal(single, values) else values


def median_filter(values: Floats, size: int) -> Floats:
    """``scipy.ndimage.median_filter(values, size)``: the upper median, edges mirrored.

    Windows are gathered and numpy selects in them, with the widest instructions of the machine;
    scipy walks from voxel to voxel.

    Args:
        values: Finite values of any number of axes.
        size: Voxels a side of the window, at least 1.
    """
    before = size // 2
    mirrored = np.pad(_narrow(values), (before, size - 1 - before), "symmetric")
    windows = sliding_window_view(mirrored, (size,) * values.ndim)
    inside = size**values.ndim
    longest = int(np.argmax(values.shape))
    windows = np.moveaxis(windows, longest, 0)
    made = np.empty(windows.shape[: values.ndim], np.float64)
    step = max(1, _AT_ONCE * len(made) // (inside * max(1, made.size)))
    for start in range(0, len(made), step):
        piece = np.array(windows[start : start + step], order="C").reshape(-1, inside)
        piece.partition(inside // 2, axis=1)
        made[start : start + step] = piece[:, inside // 2].reshape(-1, *made.shape[1:])
    return np.ascontiguousarray(np.moveaxis(made, 0, longest))
