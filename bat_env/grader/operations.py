"""What a grader child can be asked, by name. Everything here runs on hostile bytes.

Each operation takes the request's header and blobs, and gives a JSON-able reply and blobs.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import nibabel as nib
import numpy as np
import PIL.Image
import PIL.PngImagePlugin

from bat_env.grader.decode import (
    MAX_LABELS,
    Unreadable,
    Volume,
    affine_close,
    as_labels,
    read_volume,
)
from bat_env.metrics import seg
from bat_env.tasks.spec import TaskSpec

Blobs: TypeAlias = Sequence[bytes]
Reply: TypeAlias = tuple[dict[str, Any], list[bytes]]

MAX_IMAGE_PIXELS: Final[int] = 16 * 1024 * 1024
_TRACK_METRICS: Final = {"seg_dice": seg}


def _spec(header: Mapping[str, Any]) -> TaskSpec:
    return TaskSpec.model_validate(header["spec"])


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def describe(spec: TaskSpec, reference: bytes, data: bytes | None) -> dict[str, Any]:
    """Host-measured properties of one output, beside the input that it must fit.

    Returns:
        ``readable``, ``valid``, ``message`` and, where readable, ``shape``, ``shape_ok``,
        ``affine_ok``, ``dtype``, ``labels``, ``volumes_ml`` and ``quantity``.
    """
    if data is None:
        return {"readable": False, "valid": False, "message": "the output is missing"}
    grid = read_volume(reference)
    try:
        volume = read_volume(data, max_voxels=max(8 * grid.data.size, 4096))
    except Unreadable as error:
        return {"readable": False, "valid": False, "message": str(error)}
    return _properties(spec, grid, volume)


def _properties(spec: TaskSpec, grid: Volume, volume: Volume) -> dict[str, Any]:
    wrong = []
    shape_ok = volume.data.shape == grid.data.shape
    if not shape_ok:
        wrong.append(f"shape is {list(volume.data.shape)}, the input has {list(grid.data.shape)}")
    affine_ok = affine_close(volume.affine, grid.affine)
    if not affine_ok:
        wrong.append("the affine differs from the input's")
    if volume.dtype not in spec.output.dtype:
        wrong.append(f"dtype is {volume.dtype}, expected {' or '.join(spec.output.dtype)}")
    labels = as_labels(volume)
    values: list[int] = []
    volumes: dict[str, float | None] = {}
    if labels is None:
        wrong.append("voxels are not integers")
    else:
        found, counts = np.unique(labels, return_counts=True)
        count = dict(zip(found.tolist(), counts.tolist(), strict=True))
        values = found.tolist()[:MAX_LABELS]
        unknown = [v for v in values if v not in spec.output.labels]
        if unknown:
            wrong.append(f"label {unknown[0]} is not in the contract")
        volumes = {
            name: _number(count.get(value, 0) * volume.voxel_ml)
            for value, name in spec.output.labels.items()
        }
    return {
        "readable": True,
        "valid": not wrong,
        "message": "; ".join(wrong),
        "shape": list(volume.data.shape),
        "shape_ok": shape_ok,
        "affine_ok": affine_ok,
        "dtype": volume.dtype,
        "labels": values,
        "volumes_ml": volumes,
        "quantity": volumes.get(spec.pilot.quantity.removesuffix("_volume_ml")),
    }


def _grade(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """Score cases. Blobs come in threes a case: input, truth, output (``present`` says if any)."""
    spec = _spec(header)
    metric = _TRACK_METRICS[spec.metric.name]
    rows = []
    for n, present in enumerate(header["present"]):
        reference, truth, output = blobs[3 * n : 3 * n + 3]
        properties = describe(spec, reference, output if present else None)
        usable = output if properties["readable"] else None
        rows.append([metric.score_case(spec, truth, reference, usable), properties])
    return {"rows": rows}, []


def _aggregate(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    spec = _spec(header)
    return {"total": _TRACK_METRICS[spec.metric.name].aggregate(spec, header["cases"])}, []


def _agreement(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """Mean Dice of two label maps over the labels that either holds; 1 when both are empty."""
    spec = _spec(header)
    try:
        first, second = (read_volume(blob) for blob in blobs)
    except Unreadable as error:
        return {"agreement": 0.0, "message": str(error)}, []
    a, b = as_labels(first), as_labels(second)
    if a is None or b is None or a.shape != b.shape:
        return {"agreement": 0.0, "message": "the two outputs cannot be compared"}, []
    if not affine_close(first.affine, second.affine):
        return {"agreement": 0.0, "message": "the two outputs lie on different grids"}, []
    scores = []
    for value in spec.output.labels:
        if value == 0:
            continue
        one, two = a == value, b == value
        size = int(one.sum()) + int(two.sum())
        if size:
            scores.append(2.0 * int((one & two).sum()) / size)
    return {"agreement": sum(scores) / len(scores) if scores else 1.0, "message": ""}, []


def _image(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """Decode a PNG: size and number of colours (counted on at most 256 x 256 pixels)."""
    try:
        with PIL.Image.open(io.BytesIO(blobs[0]), formats=["PNG"]) as image:
            width, height = image.size
            if width * height > MAX_IMAGE_PIXELS:
                raise Unreadable(f"{width} x {height} pixels are too many")
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
    """Labels of an output as uint8 on the input's grid, for pictures."""
    try:
        volume = read_volume(blobs[1], max_voxels=max(8 * read_volume(blobs[0]).data.size, 4096))
        labels = as_labels(volume)
    except Unreadable as error:
        return {"shape": None, "message": str(error)}, []
    if labels is None or labels.ndim != 3:
        return {"shape": None, "message": "not a 3-D label map"}, []
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
    """Touch every code path once, so that a confined child imports nothing."""
    labels = np.zeros((8, 8, 8), np.uint8)
    labels[2:6, 2:6, 2:6] = 1
    image = nib.Nifti1Image(labels, np.eye(4))
    volume = read_volume(image.to_bytes())
    as_labels(volume)
    affine_close(volume.affine, volume.affine)
    np.unique(labels, return_counts=True)
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (8, 8)).save(buffer, "PNG")
    _image({}, [buffer.getvalue()])
