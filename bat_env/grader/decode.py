"""Bounded decoding of hostile label maps. Runs only in a grader child.

Order matters: the size of what gzip unpacks and of what the header announces is known to be
bounded before anything of that size is allocated.
"""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

MAX_FILE_BYTES: Final[int] = 64 * 1024 * 1024
MAX_RAW_BYTES: Final[int] = 256 * 1024 * 1024
MAX_VOXELS: Final[int] = 32 * 1024 * 1024
MAX_LABELS: Final[int] = 256
HEADER_ROOM_BYTES: Final[int] = 64 * 1024
AFFINE_TOLERANCE: Final[float] = 1e-3


class Unreadable(Exception):
    """The file is not a label map that can be read; the message is for people."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A decoded image: integer labels or scaled values, its affine, and its on-disk dtype."""

    data: NDArray[Any]
    affine: NDArray[np.float64]
    dtype: str

    @property
    def voxel_ml(self) -> float:
        """Volume of one voxel; NaN when the affine is not finite."""
        if not np.isfinite(self.affine).all():
            return math.nan
        return abs(float(np.linalg.det(self.affine[:3, :3]))) / 1000.0


def unpack(data: bytes, max_raw: int = MAX_RAW_BYTES) -> bytes:
    """Undo gzip, bounded; other bytes come back as they are.

    Raises:
        Unreadable: If more than ``max_raw`` bytes come out, or the stream is broken.
    """
    if len(data) > MAX_FILE_BYTES:
        raise Unreadable(f"the file has {len(data)} bytes, at most {MAX_FILE_BYTES} are read")
    if data[:2] != b"\x1f\x8b":
        if len(data) > max_raw:
            raise Unreadable(f"the file has {len(data)} bytes, at most {max_raw} are expected")
        return data
    out = bytearray()
    rest = data
    while rest[:2] == b"\x1f\x8b":
        stream = zlib.decompressobj(wbits=31)
        try:
            out += stream.decompress(rest, max_raw + 1 - len(out))
        except zlib.error as error:
            raise Unreadable(f"the gzip stream is broken: {error}") from None
        if len(out) > max_raw:
            raise Unreadable(f"it unpacks to more than {max_raw} bytes")
        if not stream.eof:
            raise Unreadable("the gzip stream is cut short")
        rest = stream.unused_data
    return bytes(out)


def _sniff(raw: bytes) -> tuple[tuple[int, ...], int]:
    """Dimensions and bits a voxel from a NIfTI-1 or NIfTI-2 single-file header."""
    if len(raw) < 352:
        raise Unreadable("it is shorter than a NIfTI header")
    for order in "<>":
        size = struct.unpack_from(order + "i", raw)[0]
        if size == 348 and raw[344:348] == b"n+1\0":
            dims = struct.unpack_from(order + "8h", raw, 40)
            bits = struct.unpack_from(order + "h", raw, 72)[0]
            break
        if size == 540 and raw[4:8] == b"n+2\0":
            dims = struct.unpack_from(order + "8q", raw, 16)
            bits = struct.unpack_from(order + "h", raw, 14)[0]
            break
    else:
        raise Unreadable("it is not a single-file NIfTI image")
    if not 1 <= dims[0] <= 7 or any(d < 1 for d in dims[1 : dims[0] + 1]):
        raise Unreadable(f"its dimensions {list(dims)} are not valid")
    return tuple(int(d) for d in dims[1 : dims[0] + 1]), int(bits)


def read_volume(data: bytes, max_voxels: int = MAX_VOXELS) -> Volume:
    """Decode one NIfTI image.

    Args:
        data: File content, gzipped or not.
        max_voxels: More than this is refused before anything is allocated.

    Returns:
        The volume with slope and intercept applied.

    Raises:
        Unreadable: If it is no image within the bounds.
    """
    # The widest voxel a reader here accepts has 16 bytes.
    raw = unpack(data, min(MAX_RAW_BYTES, 16 * max_voxels + HEADER_ROOM_BYTES))
    shape, bits = _sniff(raw)
    voxels = math.prod(shape)
    if voxels > max_voxels:
        raise Unreadable(f"its shape {list(shape)} is larger than any output of this task")
    if not 8 <= bits <= 128:
        raise Unreadable(f"{bits} bits a voxel are not supported")
    if voxels * bits // 8 > len(raw):
        raise Unreadable("the header announces more data than the file holds")
    try:
        kind = nib.Nifti2Image if raw[4:7] == b"n+2" else nib.Nifti1Image
        image = kind.from_bytes(raw)
        values = np.asanyarray(image.dataobj)
        affine = np.asarray(image.affine, dtype=np.float64)
        dtype = image.get_data_dtype().newbyteorder("=").name
    except MemoryError:
        raise Unreadable("it needs more memory than grading allows") from None
    except ImportError:
        raise
    except Exception as error:
        raise Unreadable(f"{type(error).__name__}: {str(error)[:160]}") from None
    if values.dtype.kind not in "iuf":
        raise Unreadable(f"voxels of type {dtype} are not numbers")
    return Volume(values, affine, dtype)


def as_labels(volume: Volume) -> NDArray[np.int64] | None:
    """The voxels as integers, or ``None`` where a voxel is no integer."""
    data = volume.data
    if data.dtype.kind == "f":
        if not np.isfinite(data).all():
            return None
        rounded = np.rint(data)
        # Float labels under a scaled header come back as 1.00000002 (a known reader trait).
        if (
            np.abs(data - rounded).max(initial=0.0) > 1e-4
            or np.abs(rounded).max(initial=0.0) > 2**31
        ):
            return None
        return rounded.astype(np.int64)
    return data.astype(np.int64)


def affine_close(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
    """Whether two affines are the same within 1e-3; NaN never is."""
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    return bool(np.abs(a - b).max() <= AFFINE_TOLERANCE)
