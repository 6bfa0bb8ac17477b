"""True facts about an input file, read from its header without an imaging library.

The host wrote these files itself, so that a small reader of the NIfTI-1 header is enough; agent
files are only ever parsed in the grader process.
"""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bat_env.errors import TaskError

_HEADER_BYTES: Final[int] = 348
_DTYPES: Final[Mapping[int, str]] = {
    2: "uint8",
    4: "int16",
    8: "int32",
    16: "float32",
    64: "float64",
    256: "int8",
    512: "uint16",
    768: "uint32",
}


@dataclass(frozen=True, slots=True)
class InputFacts:
    """On-disk dtype, number of dimensions, and whether slope or intercept scale the values."""

    dtype: str
    ndim: int
    scaled: bool


@functools.lru_cache(maxsize=256)
def input_facts(data: bytes) -> InputFacts:
    """Read the facts of one NIfTI-1 input (gzipped or not).

    Raises:
        TaskError: If ``data`` is not a NIfTI-1 file; the task's generator wrote it.
    """
    head = data[:_HEADER_BYTES]
    if data[:2] == b"\x1f\x8b":
        head = zlib.decompressobj(wbits=31).decompress(data, _HEADER_BYTES)
    if len(head) < _HEADER_BYTES:
        raise TaskError("Expected a NIfTI-1 input, got a file shorter than its header.")
    order = "<" if struct.unpack_from("<i", head)[0] == _HEADER_BYTES else ">"
    if struct.unpack_from(order + "i", head)[0] != _HEADER_BYTES:
        raise TaskError("Expected a NIfTI-1 input, got a file with another header.")
    ndim = struct.unpack_from(order + "h", head, 40)[0]
    code = struct.unpack_from(order + "h", head, 70)[0]
    slope, inter = struct.unpack_from(order + "2f", head, 112)
    scaled = slope not in (0.0, 1.0) or (slope != 0.0 and inter != 0.0)
    return InputFacts(_DTYPES.get(code, f"code {code}"), int(ndim), bool(scaled))
