"""Everything that a confined child may need, touched once in the server.

A child cannot import: what it runs for the first time (a codec, a lazily loaded part of scipy) must
have run here before. So each metric scores one tiny case of its own.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from typing import Any, Final, cast

import nibabel as nib
import numpy as np
import PIL.Image

from bat_env.grader import preview
from bat_env.metrics import Case, load_metric, metric_names
from bat_env.tasks.spec import MetricSpec, OutputSpec, PilotSpec, TaskSpec

_NAMES: Final = {0: "a", 1: "b", 2: "c"}


def _nifti(values: Any) -> bytes:
    image = cast(Any, nib).Nifti1Image(values, np.eye(4))
    image.header.set_slope_inter(2.0, 1.0)
    return gzip.compress(image.to_bytes(), 1)


def _volume(kind: type) -> bytes:
    values: Any = np.zeros((16, 16, 16), kind)
    values[4:9, 4:9, 4:9] = 1
    return _nifti(values)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _samples() -> Mapping[str, tuple[str, str, dict[str, Any], dict[str, bytes], bytes, bytes]]:
    """Metric -> output path, format, parameters, truth, input, output."""
    box = {"class": "a", "x1": 1, "y1": 1, "x2": 5, "y2": 5}
    labels, picture = _volume(np.uint8), _volume(np.float32)
    options = {"a": "one", "b": "two", "c": "three"}
    table = b"case,label,p_a,p_b,p_c\nx,a,0.8,0.1,0.1\n"
    trivial = ["identity", "linear", "cubic", "gaussian:1", "median:3", "constant:0", "scaled:1:0"]
    return {
        "seg_dice": (
            "outputs/{case}/o.nii.gz", "nifti-labels", {}, {"o.nii.gz": labels}, labels, labels
        ),
        "image_ssim": (
            "outputs/{case}/o.nii.gz",
            "nifti-image",
            {"data_range": 1.0, "careful_ssim": 0.9, "trivial": trivial},
            {"o.nii.gz": picture},
            picture,
            picture,
        ),
        "det_map": (
            "outputs/{case}/o.json",
            "boxes-json",
            {},
            {"truth.json": _json({"case": "x", "width": 9, "height": 9, "boxes": [box]})},
            b"",
            _json({"boxes": [{**box, "score": 0.5}]}),
        ),
        "cls_balanced_accuracy": (
            "outputs/o.csv", "class-table", {}, {"truth.json": _json({"label": "a"})}, b"", table
        ),
        "vqa_accuracy": (
            "outputs/o.csv",
            "answer-table",
            {},
            {"truth.json": _json({"answer": "a", "options": options})},
            b"",
            b"case,answer,confidence\nx,a,0.5\n",
        ),
        "report_findings": (
            "outputs/{case}/o.txt",
            "text",
            {"findings": {"nodule": {"terms": ["nodule"], "lateral": True}}},
            {
                "truth.json": _json(
                    {"findings": [{"finding": "nodule", "side": "left"}], "report": "Nodule left."}
                )
            },
            b"",
            b"There is a nodule on the left. No other finding.\n",
        ),
    }  # fmt: skip


def warm() -> None:
    """Run every metric, every preview and the picture decoder once."""
    samples = _samples()
    for name in metric_names():
        path, kind, params, truth, source, output = samples[name]
        spec = cast(Any, TaskSpec).model_construct(
            id="warm/up",
            input_file="i.nii.gz",
            output=OutputSpec(path=path, format=kind, dtype=("uint8", "float32"), labels=_NAMES),
            metric=MetricSpec(name=name, params=params),
            pilot=PilotSpec(quantity="none", unit="", record={}),
        )
        case = Case("x", truth, {"i.nii.gz": source}, output)
        metric = load_metric(name)
        known = metric.prepare(spec, [case])
        for data in (output, b"broken", b"\x1f\x8bbroken", None):
            rows = metric.score(spec, [Case("x", truth, case.inputs, data)], known)
            metric.total(spec, rows, known)
        metric.inspect(spec, case)
        metric.agreement(spec, "x", output, output)
        preview.decode(spec, source, output, "x")
    for mode in ("RGB", "RGBA", "P", "L"):
        buffer = io.BytesIO()
        PIL.Image.new(mode, (8, 8)).save(buffer, "PNG")
        PIL.Image.open(buffer).convert("RGBA").resize((4, 4), PIL.Image.Resampling.NEAREST)
