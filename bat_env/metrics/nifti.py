"""Bounded reading of NIfTI-1 images from bytes that may be hostile."""

from __future__ import annotations

import io
import math
import zlib
from dataclasses import dataclass
from typing import Any, Final

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bat_env.metrics.base import UnreadableError

AFFINE_TOLERANCE: Final = 1e-3
_HEADER_BYTES: Final = 352
_MAX_BYTES_PER_VOXEL: Final = 8
_EXTENSION_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Image:
    """A parsed image.

    Attributes:
        values: Stored values with slope and intercept applied, in file order; of an integer or
            float type, and not checked for NaN or infinity.
        affine: 4x4 voxel-to-world (RAS, mm), finite; the sform if it is set, else the qform.
        dtype: Name of the on-disk dtype.
    """

    values: NDArray[Any]
    affine: NDArray[np.float64]
    dtype: str


def _unpack(data: bytes, limit: int) -> bytes:
    """Plain bytes of a file that may be gzip-compressed, at most ``limit`` of them."""
    if data[:2] != b"\x1f\x8b":
        if len(data) > limit:
            raise UnreadableError(f"holds {len(data)} bytes, expected at most {limit}")
        return data
    reader = zlib.decompressobj(wbits=31)
    try:
        plain = reader.decompress(data, limit + 1)
    except zlib.error as error:
        raise UnreadableError(f"is not a gzip file: {error}") from error
    if len(plain) > limit:
        raise UnreadableError(f"unpacks to more than {limit} bytes")
    if not reader.eof:
        raise UnreadableError("is a truncated gzip file")
    return plain


def _header(plain: bytes) -> Any:
    if len(plain) < _HEADER_BYTES:
        raise UnreadableError("is shorter than a NIfTI-1 header")
    if plain[344:348] != b"n+1\0":
        raise UnreadableError("is not a single-file NIfTI-1 image")
    try:
        header_class: Any = nib.Nifti1Header
        return header_class.from_fileobj(io.BytesIO(plain))
    except Exception as error:
        raise UnreadableError(f"has a broken NIfTI-1 header: {error}") from error


def read_image(data: bytes, voxels: int | None = None) -> Image:
    """Parse (gzip-compressed) NIfTI-1 bytes.

    Args:
        data: File content.
        voxels: Number of voxels that is expected; bounds what is unpacked. ``None``: 2**27.

    Raises:
        UnreadableError: If it cannot be read as a 3D image of real numbers.
    """
    wanted = voxels if voxels is not None else 1 << 27
    plain = _unpack(data, _HEADER_BYTES + _EXTENSION_BYTES + wanted * _MAX_BYTES_PER_VOXEL)
    header = _header(plain)
    shape = header.get_data_shape()
    if len(shape) != 3 or math.prod(shape) == 0:
        raise UnreadableError(f"must be 3D and not empty, its shape is {tuple(shape)}")
    if voxels is not None and math.prod(shape) > 2 * voxels:
        raise UnreadableError(f"has the shape {tuple(shape)}, far larger than the input")
    try:
        image = nib.Nifti1Image.from_bytes(plain)
        values = np.asanyarray(image.dataobj)
        affine = np.asarray(image.affine, dtype=np.float64)
        dtype = str(np.dtype(header.get_data_dtype()).newbyteorder("="))
    except Exception as error:
        raise UnreadableError(f"cannot be read: {error}") from error
    if values.dtype.kind not in "iuf" or not np.isfinite(affine).all():
        raise UnreadableError(f"holds {dtype} voxels or a broken affine")
    return Image(values, affine, dtype)
