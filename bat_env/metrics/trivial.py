"""What an image output scores without any work: the listed trivial methods, by name.

Each of them knows the input and the grid of the output, and nothing of the truth's values.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy import ndimage

from bat_env.errors import unknown_name
from bat_env.metrics.arrays import Floats, Picture
from bat_env.metrics.median import median_filter

_ORDERS: Final = {"nearest": 0, "linear": 1, "cubic": 3}
_CHOICES: Final = (
    *("identity", "nearest", "linear", "cubic", "gaussian:<sigma>", "median:<size>"),
    *("constant:<value>", "scaled:<gain>:<offset>", "cubic+median:<size>"),
    *("cubic+gaussian:<sigma>", "cubic+bilateral:<sigma>:<value sigma>"),
    *("cubic+unsharp:<sigma>:<amount>", "cubic+wiener:<size>"),
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


def _parsed(text: str) -> tuple[str, list[float]]:
    """Name and numbers; what has no numbers where numbers should be is a name that is unknown."""
    name, *numbers = text.split(":")
    try:
        return name, [float(number) for number in numbers]
    except ValueError:
        return text, []


def _filtered(text: str, values: Floats) -> Floats | None:
    """A filter after interpolation; ``None`` if there is no such filter."""
    match _parsed(text):
        case "gaussian", [sigma]:
            made = ndimage.gaussian_filter(values, sigma)
        case "median", [size]:
            made = median_filter(values, int(size))
        case "bilateral", [sigma, value_sigma]:
            made = _bilateral(values, sigma, value_sigma)
        case "unsharp", [sigma, amount]:
            made = values + amount * (values - ndimage.gaussian_filter(values, sigma))
        case "wiener", [size]:
            made = _wiener(values, int(size))
        case _:
            return None
    return np.asarray(made, np.float64)


def _bilateral(values: Floats, sigma: float, value_sigma: float) -> Floats:
    """Mean of near voxels of a like value."""
    reach = max(1, round(2 * sigma))
    padded = np.pad(values, reach, "edge")
    total, weight = np.zeros(values.shape), np.zeros(values.shape)
    for offset in np.ndindex((2 * reach + 1,) * values.ndim):
        part = padded[tuple(slice(o, o + n) for o, n in zip(offset, values.shape, strict=True))]
        far = sum((o - reach) ** 2 for o in offset) / sigma**2
        share = np.exp(-0.5 * (far + ((part - values) / value_sigma) ** 2))
        total += share * part
        weight += share
    return total / weight


def _wiener(values: Floats, size: int) -> Floats:
    """The local mean where the variance is that of noise, the value itself where it is larger."""
    mean = ndimage.uniform_filter(values, size)
    variance = ndimage.uniform_filter(values * values, size) - mean**2
    noise = float(variance.mean())
    share = np.maximum(variance - noise, 0.0) / np.maximum(variance, max(noise, 1e-12))
    return np.asarray(mean + share * (values - mean), np.float64)


class TrivialMethods:
    """The trivial methods for one input; what several of them rest on is made once.

    Args:
        source: The input.
        grid: The grid that the output must lie on.
    """

    def __init__(self, source: Picture, grid: Picture) -> None:
        self._source, self._grid = source, grid
        self._made: dict[int, Floats] = {}

    def _interpolated(self, order: int) -> Floats:
        if order not in self._made:
            self._made[order] = _resampled(self._source, self._grid, order)
        return self._made[order]

    def output(self, method: str) -> Floats:
        """The output of a method, as :func:`trivial_output` describes it; not to be changed."""
        first, plus, then = method.partition("+")
        if plus:
            known = first in _ORDERS
            filtered = _filtered(then, self._interpolated(_ORDERS[first])) if known else None
            if filtered is None:
                raise unknown_name("trivial method", method, _CHOICES)
            return filtered
        name, values = _parsed(method)
        match name, values:
            case "identity", []:
                return self._interpolated(0)
            case (("nearest" | "linear" | "cubic"), []):
                return self._interpolated(_ORDERS[name])
            case (("gaussian" | "median"), [_]):
                made = _filtered(method, self._interpolated(1))
                assert made is not None
                return made
            case "constant", [value]:
                return np.full(self._grid.values.shape, value)
            case "scaled", [gain, offset]:
                return gain * self._interpolated(1) + offset
        raise unknown_name("trivial method", method, _CHOICES)


def trivial_output(method: str, source: Picture, grid: Picture) -> Floats:
    """The output of a trivial method.

    Args:
        method: ``identity`` (the input, where sizes differ its nearest voxels), ``nearest``,
            ``linear``, ``cubic`` (interpolation onto the grid), ``gaussian:<sigma>`` and
            ``median:<size>`` (voxels, after linear interpolation), ``constant:<value>``,
            ``scaled:<gain>:<offset>`` (linear interpolation, then gain and offset). After an
            interpolation and ``+`` stands a filter, as in ``cubic+median:5``: ``median``,
            ``gaussian``, ``bilateral:<sigma>:<value sigma>``, ``unsharp:<sigma>:<amount>`` or
            ``wiener:<size>``.
        source: The input.
        grid: The grid that the output must lie on.

    Raises:
        UnknownNameError: If there is no such method.
    """
    return TrivialMethods(source, grid).output(method)
