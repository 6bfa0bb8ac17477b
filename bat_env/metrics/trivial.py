"""What an image output scores without any work: the listed trivial methods, by name.

Each of them knows the input and the grid of the output, and nothing of the truth's values.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy import ndimage

from bat_env.errors import unknown_name
from bat_env.metrics.arrays import Floats, Picture

_ORDERS: Final = {"nearest": 0, "linear": 1, "cubic": 3}
_CHOICES: Final = (
    *("identity", "nearest", "linear", "cubic", "gaussian:<sigma>", "median:<size>"),
    *("constant:<value>", "scaled:<gain>:<offset>"),
)


def _resampled(source: Picture, grid: Picture, order: int) -> Floats:
    """The source at the places of the grid's voxels; outside it, its nearest values."""
    if source.values.ndim != grid.values.ndim:
        return np.broadcast_to(float(source.values.mean()), grid.values.shape).copy()
    matrix = np.linalg.solve(source.mapping, grid.mapping)
    if source.values.shape == grid.values.shape and np.allclose(matrix, np.eye(len(matrix))):
        return source.values
    return np.asarray(
        ndimage.affine_transform(
            source.values,
            matrix[:-1, :-1],
            matrix[:-1, -1],
            output_shape=grid.values.shape,
            order=order,
            mode="nearest",
        ),
        np.float64,
    )


def trivial_output(method: str, source: Picture, grid: Picture) -> Floats:
    """The output of a trivial method.

    Args:
        method: ``identity`` (the input, where sizes differ its nearest voxels), ``nearest``,
            ``linear``, ``cubic`` (interpolation onto the grid), ``gaussian:<sigma>`` and
            ``median:<size>`` (voxels, after linear interpolation), ``constant:<value>``,
            ``scaled:<gain>:<offset>`` (linear interpolation, then gain and offset).
        source: The input.
        grid: The grid that the output must lie on.

    Raises:
        UnknownNameError: If there is no such method.
    """
    name, *numbers = method.split(":")
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        name = method
        values = []
    match name, values:
        case "identity", []:
            return _resampled(source, grid, 0)
        case (("nearest" | "linear" | "cubic"), []):
            return _resampled(source, grid, _ORDERS[name])
        case "gaussian", [sigma]:
            return np.asarray(ndimage.gaussian_filter(_resampled(source, grid, 1), sigma))
        case "median", [size]:
            return np.asarray(ndimage.median_filter(_resampled(source, grid, 1), int(size)))
        case "constant", [value]:
            return np.full(grid.values.shape, value)
        case "scaled", [gain, offset]:
            return gain * _resampled(source, grid, 1) + offset
    raise unknown_name("trivial method", method, _CHOICES)
