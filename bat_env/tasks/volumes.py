"""Grids of volumes in the world, and their files, the same bytes on every machine.

The world is that of NIfTI: RAS, in mm. A phantom that is evaluated at the world coordinates of its
voxels has a true orientation, spacing and obliqueness without any resampling.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bat_env.tasks.drawing import Rng, between

AXCODES: Final = ("RAS", "LPS", "LAS", "RPI", "PIR", "SRA", "ASL", "IPL")
"""Orientations that generators mix: each axis of the world lies along each axis of a file."""
CT_SCALINGS: Final = ((1.0, 0.0), (1.0, -1024.0), (0.5, -512.0), (2.0, -1000.0))
"""Slopes and intercepts with which CT is stored."""
WORLD: Final[Mapping[str, tuple[int, int]]] = {
    "R": (0, 1),
    "L": (0, -1),
    "A": (1, 1),
    "P": (1, -1),
    "S": (2, 1),
    "I": (2, -1),
}
"""Axis code -> axis of the world and sign."""

Affine: TypeAlias = NDArray[np.float64]
_QFORM: Final = ("qform_code", "quatern_b", "quatern_c", "quatern_d")


@dataclass(frozen=True)
class Grid:
    """A voxel grid in the world.

    Attributes:
        shape: Voxels along each axis of the file.
        affine: 4x4, voxel to world.
        axcodes: Where the file's axes point to: ``"RAS"``.
        zooms: Voxel sizes in mm, in the order of the file's axes.
    """

    shape: tuple[int, ...]
    affine: Affine
    axcodes: str
    zooms: tuple[float, ...]

    def world(self) -> list[NDArray[np.float32]]:
        """World x, y, z of every voxel (see :func:`coordinates`)."""
        return coordinates(self.shape, self.affine)

    @property
    def voxel_ml(self) -> float:
        """Volume of a voxel."""
        return self.zooms[0] * self.zooms[1] * self.zooms[2] / 1000


def coordinates(shape: tuple[int, ...], affine: Affine) -> list[NDArray[np.float32]]:
    """World x, y, z of every voxel, by broadcast adds (exact on every machine)."""
    i, j, k = (
        np.arange(n, dtype=np.float32).reshape([-1 if a == b else 1 for b in range(3)])
        for a, n in enumerate(shape)
    )
    rows = affine.astype(np.float32)
    return [(row[0] * i + row[3]) + row[1] * j + row[2] * k for row in rows[:3]]


def box_around(
    to_voxel: Affine, shape: tuple[int, ...], centre: Any, reach: Any
) -> tuple[slice, ...]:
    """Voxels within ``reach`` (mm along x, y, z) of a point, and two more on each side.

    Most shapes fill a small part of a grid, so that only the voxels near them need a look.

    Args:
        to_voxel: Inverse of the affine. LAPACK may round it differently on another machine: the
            margin of two voxels is for that.
        shape: Of the grid.
        centre: World coordinates.
        reach: Three distances.
    """
    middle = to_voxel[:3, :3] @ np.asarray(centre, float) + to_voxel[:3, 3]
    half = np.abs(to_voxel[:3, :3]) @ np.asarray(reach, float) + 2.0
    low, high = np.floor(middle - half).astype(int), np.ceil(middle + half).astype(int) + 1
    return tuple(slice(max(0, m), max(0, n)) for m, n in zip(low, high, strict=True))


def turn(matrix: Affine, one: int, two: int, t: float) -> None:
    """Rotate two rows of an affine in place; a rational rotation needs no sine.

    Args:
        matrix: Rows are axes of the world.
        one: The row that turns towards ``two``.
        two: The other row.
        t: Tangent of half the angle.
    """
    cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    first, second = matrix[one].copy(), matrix[two].copy()
    matrix[one], matrix[two] = cos * first - sin * second, sin * first + cos * second


def axes_along(
    axcodes: str, by_world: Sequence[float], extent: Sequence[float]
) -> tuple[tuple[int, ...], tuple[float, ...], Affine]:
    """Shape, voxel sizes and 3x3 matrix of a grid whose axes point along the world's.

    Args:
        axcodes: Where the file's axes point to.
        by_world: Voxel sizes along x, y, z in mm.
        extent: Field of view along x, y, z in mm.
    """
    shape, zooms, matrix = [], [], np.zeros((3, 3))
    for axis, code in enumerate(axcodes):
        world, sign = WORLD[code]
        shape.append(round(extent[world] / by_world[world]))
        zooms.append(by_world[world])
        matrix[world, axis] = sign * by_world[world]
    return tuple(shape), tuple(zooms), matrix


def centred(matrix: Affine, shape: Sequence[int], centre: Sequence[float]) -> Affine:
    """The 4x4 affine with which a grid's middle lies at ``centre``, as a header can hold it."""
    affine = np.eye(4)
    affine[:3, :3] = matrix
    for row in range(3):
        middle = sum(matrix[row, a] * (shape[a] - 1) / 2 for a in range(3))
        affine[row, 3] = centre[row] - middle
    # Float32, so that the file and the phantom agree to the last bit.
    return affine.astype(np.float32).astype(np.float64)


def slice_spacing(rng: Rng, size: Mapping[str, Any]) -> tuple[float, float, float]:
    """Voxel sizes along x, y, z of a scan: ``in_plane_mm`` twice, then ``slice_mm``."""
    in_plane = round(between(rng, *size["in_plane_mm"]), 2)
    return in_plane, in_plane, round(between(rng, *size["slice_mm"]), 1)


def pack(data: NDArray[Any], affine: Affine, slope: float = 1.0, inter: float = 0.0) -> bytes:
    """gzip-compressed NIfTI-1 bytes of raw ``data``, without a time stamp.

    Args:
        data: Stored values.
        affine: 4x4, voxel to world; becomes the sform, and there is no qform.
        slope: Value of a reader = stored * slope + inter.
        inter: See ``slope``.
    """
    image = cast(Any, nib).Nifti1Image(data, affine)  # The container is untyped.
    image.header.set_slope_inter(slope, inter)
    image.header.set_xyzt_units("mm")
    image.set_sform(affine, 1)
    for name in _QFORM:
        image.header[name] = 0  # A quaternion comes from LAPACK: not the same on every machine.
    return gzip.compress(image.to_bytes(), compresslevel=1, mtime=0)
