"""What a grader child can be asked, by name. Everything here runs on hostile bytes.

Each operation takes the request's header and blobs, and gives a JSON-able reply and blobs. The
metrics themselves bound what they unpack and allocate; the child's limits stand behind them.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import PIL.Image
import PIL.PngImagePlugin

from bat_env.grader import preview
from bat_env.grader.difference import difference
from bat_env.grader.packing import unpack_cases
from bat_env.grader.warm import warm as touch_everything
from bat_env.metrics import CaseScore, load_metric
from bat_env.tasks.spec import TaskSpec

Blobs: TypeAlias = Sequence[bytes]
Reply: TypeAlias = tuple[dict[str, Any], list[bytes]]

MAX_IMAGE_PIXELS: Final[int] = 16 * 1024 * 1024


def _spec(header: Mapping[str, Any]) -> TaskSpec:
    return TaskSpec.model_validate(header["spec"])


def _prepare(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """What the metric works out from truths and inputs; the request holds no agent bytes."""
    spec = _spec(header)
    cases = unpack_cases(header["cases"], blobs)
    return {"known": load_metric(spec.metric.name).prepare(spec, cases)}, []


def _score(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """Rows of cases."""
    spec = _spec(header)
    cases = unpack_cases(header["cases"], blobs)
    scores = load_metric(spec.metric.name).score(spec, cases, header["known"])
    return {"rows": {case: dataclasses.asdict(score) for case, score in scores.items()}}, []


def _total(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """The task score of rows."""
    spec = _spec(header)
    rows = {case: CaseScore(**row) for case, row in header["rows"].items()}
    total = load_metric(spec.metric.name).total(spec, rows, header["known"])
    return {"total": dataclasses.asdict(total)}, []


def _agreement(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    spec = _spec(header)
    metric = load_metric(spec.metric.name)
    pairs = zip(header["cases"], blobs[::2], blobs[1::2], strict=True)
    return {"agreements": {case: metric.agreement(spec, case, a, b) for case, a, b in pairs}}, []


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
    return preview.decode(_spec(header), blobs[0], blobs[1], header["case"])


def _difference(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """How far two files lie apart; infinity has no word in JSON and is left out."""
    apart, message = difference(header["name"], blobs[0], blobs[1])
    return {"apart": apart if np.isfinite(apart) else None, "message": message}, []


OPERATIONS: Final[Mapping[str, Callable[[Mapping[str, Any], Blobs], Reply]]] = {
    "prepare": _prepare,
    "score": _score,
    "total": _total,
    "agreement": _agreement,
    "image": _image,
    "preview": _preview,
    "difference": _difference,
}


def run(header: Mapping[str, Any], blobs: Blobs) -> Reply:
    """Run the operation that a request names."""
    return OPERATIONS[header["op"]](header, blobs)


def warm() -> None:
    """Touch the code paths once, so that a confined child has nothing left to import."""
    touch_everything()
    buffer = io.BytesIO()
    PIL.Image.new("RGB", (8, 8)).save(buffer, "PNG")
    _image({}, [buffer.getvalue()])
