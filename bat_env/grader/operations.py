"""What a grader child can be asked, by name. Everything here runs on hostile bytes.

Each operation takes the request's header and blobs, and gives a JSON-able reply and blobs. The
metrics themselves bound what they unpack and allocate; the child's limits stand behind them.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import nibabel as nib
import numpy as np
import PIL.Image
import PIL.PngImagePlugin

from bat_env.metrics import CaseScore, aggregate, seg
from bat_env.tasks.spec import TaskSpec

Blobs: TypeAlias = Sequence[bytes]
Reply: TypeAlias = tuple[dict[str, Any], list[bytes]]

MAX_IMAGE_PIXELS: Final[int] = 16 * 1024 * 1024
_METRICS: Final = {"seg_dice": seg}
"""Metric name of a task -> module with ``score_case`` and ``agreement``."""


def _spec(header: Mapping[str, Any]) -> TaskSpec:
    return TaskSpec.model_validate(header["spec"])


def _grade(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """Score cases: blobs come in threes a case (input, truth, output; absent if not present)."""
    spec = _spec(header)
    metric = _METRICS[spec.metric.name]
    scores: dict[str, CaseScore] = {}
    for n, (case, present) in enumerate(header["cases"].items()):
        reference, truth, output = blobs[3 * n : 3 * n + 3]
        scores[case] = metric.score_case(spec, truth, reference, output if present else None)
    rows = {case: dataclasses.asdict(score) for case, score in scores.items()}
    return {"rows": rows, "total": dataclasses.asdict(aggregate(scores, scores))}, []


def _aggregate(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """The task score of rows that were graded one by one."""
    scores = {case: CaseScore(**row) for case, row in header["rows"].items()}
    return {"total": dataclasses.asdict(aggregate(scores, scores))}, []


def _agreement(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    spec = _spec(header)
    return {"agreement": _METRICS[spec.metric.name].agreement(spec, blobs[0], blobs[1])}, []


def _image(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """Decode a PNG: its size, and the number of colours on at most 256 x 256 of its pixels."""
    try:
        with PIL.Image.open(io.BytesIO(blobs[0]), formats=["PNG"]) as image:
            width, height = image.size
            if width * height > MAX_IMAGE_PIXELS:
                return {"readable": False, "message": f"{width} x {height} pixels are too many"}, []
            image.load()
            small = image.convert("RGBA").resize(
                (min(width, 256), min(height, 256)), PIL.Image.Resampling.NEAREST
            )
    except ImportError:
        raise
    except Exception as error:
        return {"readable": False, "message": str(error)[:200]}, []
    colours = len(np.unique(np.asarray(small).reshape(-1, 4), axis=0))
    return {"readable": True, "width": width, "height": height, "colours": colours}, []


def _preview(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """Labels of an output as uint8, for pictures; 255 stands for labels outside 0..254."""
    try:
        reference = seg.read_labels(blobs[0])
        labels = seg.read_labels(blobs[1], reference.labels.size).labels
    except seg.UnreadableError as error:
        return {"shape": None, "message": str(error)}, []
    small = np.where((labels >= 0) & (labels < 255), labels, 255).astype(np.uint8)
    return {"shape": list(small.shape), "message": ""}, [np.ascontiguousarray(small).tobytes()]


OPERATIONS: Final[Mapping[str, Callable[[Mapping[str, Any], Blobs], Reply]]] = {
    "grade": _grade,
    "aggregate": _aggregate,
    "agreement": _agreement,
    "image": _image,
    "preview": _preview,
}


def run(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """Run the operation that a request names."""
    return OPERATIONS[header["op"]](header, blobs)


def warm() -> None:
    """Touch the code paths once, so that a confined child has nothing left to import."""
    labels = np.zeros((8, 8, 8), np.uint8)
    labels[2:6, 2:6, 2:6] = 1
    image = cast(Any, nib).Nifti1Image(labels, np.eye(4))
    image.header.set_slope_inter(2.0, 1.0)
    seg.read_labels(image.to_bytes())
    distances = seg.surface_distances(labels > 0, labels > 0, (1.0, 1.0, 1.0))
    if distances is not None:
        seg.hd95(distances)
        seg.nsd(distances, 1.0)
    aggregate(["a"], {"a": CaseScore(0.5, True)})
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (8, 8)).save(buffer, "PNG")
    _image({}, [buffer.getvalue()])
