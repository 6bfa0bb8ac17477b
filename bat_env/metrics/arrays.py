"""Image outputs as arrays: ``.npy`` and ``.nii.gz`` behind one bounded reader."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bat_env.errors import TaskError
from bat_env.metrics.base import UnreadableError
from bat_env.metrics.nifti import AFFINE_TOLERANCE, read_image

_HEADER_BYTES: Final = 10_000
_MAX_MAGNITUDE: Final = 1e9

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Picture:
    """A 2D or 3D image.

    Attributes:
        values: Finite float64 values, in file order.
        affine: 4x4 voxel-to-world (RAS, mm); ``None`` for a plain array.
        dtype: Name of the on-disk dtype.
    """

    values: Floats
    affine: Floats | None
    dtype: str

    @property
    def mapping(self) -> Floats:
        """Square matrix from array to world coordinates.

        Plain arrays are taken to cover the unit box, so that their pixel areas, not their pixel
        centres, line up across sizes.
        """
        if self.affine is not None:
            return self.affine
        matrix = np.eye(self.values.ndim + 1)
        for axis, size in enumerate(self.values.shape):
            matrix[axis, axis], matrix[axis, -1] = 1.0 / size, 0.5 / size
        return matrix


def _read_npy(data: bytes, limit: int) -> NDArray[Any]:
    """The array of an ``.npy`` file, never unpickled."""
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            header = np.lib.format.read_array_header_1_0(stream, max_header_size=_HEADER_BYTES)
        elif version == (2, 0):
            header = np.lib.format.read_array_header_2_0(stream, max_header_size=_HEADER_BYTES)
        else:
            raise UnreadableError(f"is an .npy file of version {version}, expected 1.0 or 2.0")
    except UnreadableError:
        raise
    except Exception as error:
        raise UnreadableError(f"is no .npy file: {str(error)[:200]}") from error
    shape, fortran, dtype = header
    if dtype.kind not in "iufb" or dtype.itemsize > 8 or dtype.hasobject:
        raise UnreadableError(f"holds the dtype {dtype}, expected real numbers of at most 8 bytes")
    if len(shape) not in (2, 3) or not 0 < math.prod(shape) <= limit:
        raise UnreadableError(f"has the shape {shape}, expected a 2D or 3D array of the contract")
    start = stream.tell()
    if len(data) - start != math.prod(shape) * dtype.itemsize:
        raise UnreadableError("has not as many bytes as its header says")
    flat = np.frombuffer(data, dtype, offset=start)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)


def read_picture(name: str, data: bytes, voxels: int | None = None) -> Picture:
    """Parse an image file of the kind that its name says.

    Args:
        name: File name; ``.npy`` or ``.nii``/``.nii.gz``.
        data: File content.
        voxels: Number of voxels that is expected; bounds what is read. ``None``: 2**27.

    Raises:
        UnreadableError: If it cannot be read, or holds NaN, infinity or values beyond 1e9.
        TaskError: If the name has another ending.
    """
    affine: Floats | None = None
    if name.endswith(".npy"):
        array = _read_npy(data, 2 * voxels if voxels is not None else 1 << 27)
        dtype = str(array.dtype.newbyteorder("="))
    elif name.endswith((".nii", ".nii.gz")):
        image = read_image(data, voxels)
        array, affine, dtype = image.values, image.affine, image.dtype
    else:
        raise TaskError(f"Expected an image named .npy, .nii or .nii.gz, got {name!r}.")
    values = np.asarray(array, np.float64)
    # Comparisons with NaN are false, so that one test finds NaN, infinity and absurd values.
    if not bool((np.abs(values) <= _MAX_MAGNITUDE).all()):
        raise UnreadableError("holds NaN, infinity or values beyond 1e9")
    return Picture(values, affine, dtype)


def geometry_fault(output: Picture, wanted: Picture) -> str:
    """Why an image does not lie on the grid of another one, or ``""``."""
    if output.values.shape != wanted.values.shape:
        return f"the shape is {output.values.shape}, expected {wanted.values.shape}"
    if output.affine is None or wanted.affine is None:
        return ""
    if not np.allclose(output.affine, wanted.affine, rtol=0.0, atol=AFFINE_TOLERANCE):
        return "the affine is not that of the contract"
    return ""
