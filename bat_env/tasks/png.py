"""PNG files with the same bytes on every machine: pixels are stored, not compressed.

Compressors differ between builds of zlib, so a digest over a compressed picture would too.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_STORED_BYTES: Final = 65_535
_COLOUR_TYPE: Final = {1: 0, 2: 4, 3: 2, 4: 6}
"""Channels -> PNG colour type: grey, grey + alpha, RGB, RGBA."""


def encode_png(
    pixels: NDArray[Any], *, spacing_mm: float | None = None, text: dict[str, str] | None = None
) -> bytes:
    """A PNG file of an array.

    Args:
        pixels: (height, width) or (height, width, channels) of uint8 or uint16; 1 to 4 channels.
        spacing_mm: Side of a pixel, written as pixels a metre (whole number).
        text: Keyword -> Latin-1 text, e.g. ``{"PhotometricInterpretation": "MONOCHROME1"}``.

    Raises:
        ValueError: If the array has another shape or type.
    """
    array = pixels[..., None] if pixels.ndim == 2 else pixels
    if array.ndim != 3 or array.shape[2] not in _COLOUR_TYPE or not array.size:
        raise ValueError(f"Expected (height, width[, 1-4]) pixels, got the shape {pixels.shape}.")
    if array.dtype not in (np.uint8, np.uint16):
        raise ValueError(f"Expected uint8 or uint16 pixels, got {array.dtype}.")
    height, width, channels = array.shape
    depth = 8 * array.dtype.itemsize
    rows = np.ascontiguousarray(array.astype(array.dtype.newbyteorder(">")))
    lines = rows.reshape(height, -1).view(np.uint8)
    filtered = np.concatenate([np.zeros((height, 1), np.uint8), lines], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", width, height, depth, _COLOUR_TYPE[channels], 0, 0, 0)
    chunks = [_chunk(b"IHDR", header)]
    if spacing_mm is not None:
        per_metre = round(1000.0 / spacing_mm)
        chunks.append(_chunk(b"pHYs", struct.pack(">IIB", per_metre, per_metre, 1)))
    for key, value in (text or {}).items():
        chunks.append(_chunk(b"tEXt", f"{key}\0{value}".encode("latin-1")))
    chunks += [_chunk(b"IDAT", _stored(filtered)), _chunk(b"IEND", b"")]
    return _SIGNATURE + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _stored(data: bytes) -> bytes:
    """A zlib stream of stored blocks."""
    blocks = []
    for start in range(0, len(data), _STORED_BYTES):
        part = data[start : start + _STORED_BYTES]
        last = start + _STORED_BYTES >= len(data)
        blocks.append(struct.pack("<BHH", last, len(part), len(part) ^ 0xFFFF) + part)
    return b"\x78\x01" + b"".join(blocks) + struct.pack(">I", zlib.adler32(data))
