"""What an output looks like: decoded in the grader child, checked again on the host.

An agent's file never reaches the host's own parsers; what comes back is bounded plain data.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bat_env.tasks.spec import TaskSpec

MAX_SIDE: Final[int] = 2048
MAX_BOXES: Final[int] = 100
MAX_LINES: Final[int] = 12
MAX_CHARS: Final[int] = 160
MAX_TEXT_BYTES: Final[int] = 1 << 20

Box: TypeAlias = tuple[str, float, float, float, float, float]
"""Class, score, x1, y1, x2, y2 in pixels of the input."""


@dataclass(frozen=True)
class Preview:
    """One decoded output; exactly one of the fields says something.

    Attributes:
        labels: Label map, uint8, in file order; 255 stands for labels outside 0..254.
        image: Picture or volume, uint8, in file order, scaled to its own 1st to 99th percentile.
        boxes: Boxes of a detection.
        lines: Lines of a text, or of a table's row.
    """

    labels: NDArray[np.uint8] | None = None
    image: NDArray[np.uint8] | None = None
    boxes: tuple[Box, ...] | None = None
    lines: tuple[str, ...] = ()


Reply: TypeAlias = tuple[dict[str, Any], list[bytes]]


def grey8(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Values scaled from their 1st and 99th percentile to 0..255."""
    finite = np.nan_to_num(np.asarray(values, np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    low, high = (float(v) for v in np.percentile(finite, [1, 99]))
    scaled = (finite - low) / max(high - low, 1e-6)
    return np.asarray(np.clip(scaled, 0.0, 1.0) * 255, dtype=np.uint8)


def _clean(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:MAX_CHARS]


def _array(kind: str, array: NDArray[np.uint8]) -> Reply:
    packed = np.ascontiguousarray(array)
    return {"kind": kind, "shape": list(packed.shape)}, [packed.tobytes()]


def _labels(spec: TaskSpec, reference: bytes, data: bytes, case: str) -> Reply:
    from bat_env.metrics import seg

    labels = seg.read_labels(data, seg.read_labels(reference).labels.size).labels
    return _array("labels", np.where((labels >= 0) & (labels < 255), labels, 255).astype(np.uint8))


def _volume(spec: TaskSpec, reference: bytes, data: bytes, case: str) -> Reply:
    from bat_env.metrics import arrays

    return _array("image", grey8(arrays.read_picture(spec.output.name, data).values))


def _boxes(spec: TaskSpec, reference: bytes, data: bytes, case: str) -> Reply:
    rows = [
        [_clean(str(b["class"])), *(float(b[k]) for k in ("score", "x1", "y1", "x2", "y2"))]
        for b in json.loads(data[:MAX_TEXT_BYTES])["boxes"][:MAX_BOXES]
    ]
    return {"kind": "boxes", "boxes": rows}, []


def _row(spec: TaskSpec, reference: bytes, data: bytes, case: str) -> Reply:
    table = csv.DictReader(io.StringIO(data[:MAX_TEXT_BYTES].decode("utf-8", "replace")))
    first = spec.output.columns[0] if spec.output.columns else "case"
    rows = [row for row in table if row.get(first) == case]
    lines = [_clean(f"{k}: {v}") for k, v in (rows[0] if rows else {}).items() if k != first]
    return {"kind": "lines", "lines": lines[:MAX_LINES]}, []


def _text(spec: TaskSpec, reference: bytes, data: bytes, case: str) -> Reply:
    text = data[:MAX_TEXT_BYTES].decode("utf-8", "replace")
    return {"kind": "lines", "lines": [_clean(t) for t in text.splitlines()[:MAX_LINES]]}, []


_DECODERS: Final = {
    "nifti-labels": _labels,
    "nifti-image": _volume,
    "npy-image": _volume,
    "boxes-json": _boxes,
    "class-table": _row,
    "answer-table": _row,
    "text": _text,
}
"""Output format -> its decoder."""

FORMATS: Final[tuple[str, ...]] = tuple(_DECODERS)


def decode(spec: TaskSpec, reference: bytes, data: bytes, case: str) -> Reply:
    """Decode an output, in the grader child. Anything that cannot be shown is kind ``""``."""
    try:
        return _DECODERS[spec.output.format](spec, reference, data, case)
    except ImportError:
        raise
    except Exception as error:
        return {"kind": "", "message": str(error)[:200]}, []


def unpack(reply: Mapping[str, Any], blobs: Sequence[bytes]) -> Preview | None:
    """Check what a child sent. A child may have been taken over by the file it read."""
    kind = reply.get("kind")
    if kind in ("labels", "image"):
        array = _checked_array(reply.get("shape"), blobs)
        if array is None:
            return None
        return Preview(labels=array) if kind == "labels" else Preview(image=array)
    if kind == "boxes" and isinstance(reply.get("boxes"), list):
        boxes = [_checked_box(row) for row in reply["boxes"][:MAX_BOXES]]
        return Preview(boxes=tuple(box for box in boxes if box is not None))
    if kind == "lines" and isinstance(reply.get("lines"), list):
        return Preview(lines=tuple(_clean(str(t)) for t in reply["lines"][:MAX_LINES]))
    return None


def _checked_array(shape: object, blobs: Sequence[bytes]) -> NDArray[np.uint8] | None:
    if not isinstance(shape, list) or len(shape) not in (2, 3) or len(blobs) != 1:
        return None
    if not all(type(n) is int and 1 <= n <= MAX_SIDE for n in shape):
        return None
    if math.prod(shape) != len(blobs[0]):
        return None
    return np.frombuffer(blobs[0], np.uint8).reshape(shape)


def _checked_box(row: object) -> Box | None:
    if not isinstance(row, list) or len(row) != 6 or not isinstance(row[0], str):
        return None
    numbers = [float(v) for v in row[1:] if type(v) in (int, float) and math.isfinite(v)]
    if len(numbers) != 5 or max(map(abs, numbers)) > 1e6:
        return None
    score, x1, y1, x2, y2 = numbers
    return _clean(row[0]), score, x1, y1, x2, y2
