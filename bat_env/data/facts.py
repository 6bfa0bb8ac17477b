"""Facts of an instance, measured on the very files that the agent gets."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Mapping
from typing import Any, Final, cast

import nibabel as nib
import numpy as np
from PIL import Image

from bat_env.data.convert import PICTURE, QUESTION, STUDY, TRUTH
from bat_env.tasks.spec import TaskSpec

SURE: Final = 0.9
"""Typical confidence of a careful pipeline, where the pilot's quantity is one."""


def measure(
    spec: TaskSpec,
    public: Mapping[str, Mapping[str, bytes]],
    private: Mapping[str, Mapping[str, bytes]],
) -> dict[str, Any]:
    """All facts that the task's contract asks about an instance.

    Args:
        spec: The staged task.
        public: Case -> file name -> bytes.
        private: The same of the truth.
    """
    volumes = spec.track in ("seg", "enh", "synth")
    found = _volumes(spec, public) if volumes else _pictures(spec, public)
    truths = {case: _truth(spec, files) for case, files in private.items()}
    facts = {"case_count": len(public), **found}
    facts["pilot_truth"] = {case: _quantity(spec, truths[case]) for case in public}
    if spec.track == "seg":
        facts["volumes_ml"] = truths
    return facts


def _image(data: bytes) -> Any:
    return cast(Any, nib).Nifti1Image.from_bytes(gzip.decompress(data))


def _volumes(spec: TaskSpec, public: Mapping[str, Mapping[str, bytes]]) -> dict[str, Any]:
    images = {case: _image(files[spec.input_file]) for case, files in public.items()}
    arrays = {case: np.asanyarray(image.dataobj) for case, image in images.items()}
    first = images[min(images)]
    intensity = next(key for key, fact in spec.facts.items() if fact.kind == "range")
    return {
        "orientations": {
            case: "".join(nib.aff2axcodes(i.affine))  # type: ignore[no-untyped-call]
            for case, i in images.items()
        },
        "spacing_mm": {
            case: [round(float(z), 6) for z in image.header.get_zooms()[:3]]
            for case, image in images.items()
        },
        intensity: [
            min(float(array.min()) for array in arrays.values()),
            max(float(array.max()) for array in arrays.values()),
        ],
        "inputs": {"dtype": str(first.get_data_dtype()), "ndim": 3, "scaled": False},
    }


def _pictures(spec: TaskSpec, public: Mapping[str, Mapping[str, bytes]]) -> dict[str, Any]:
    names = {case: PICTURE if PICTURE in files else "view1.png" for case, files in public.items()}
    pixels = {
        case: np.asarray(Image.open(io.BytesIO(public[case][name]))) for case, name in names.items()
    }
    first = pixels[min(pixels)]
    found: dict[str, Any] = {
        "size_px": {case: [array.shape[1], array.shape[0]] for case, array in pixels.items()},
        "pixel_range": [
            min(int(array.min()) for array in pixels.values()),
            max(int(array.max()) for array in pixels.values()),
        ],
        "inputs": {
            "channels": 1 if first.ndim == 2 else first.shape[2],
            "bit_depth": 8 if first.dtype == np.uint8 else 16,
        },
    }
    if "option_count" in spec.facts:
        found["option_count"] = {
            case: len(json.loads(files[QUESTION])["options"]) for case, files in public.items()
        }
    if "views" in spec.facts:
        found["views"] = {
            case: len(json.loads(files[STUDY])["images"]) for case, files in public.items()
        }
    return found


def _truth(spec: TaskSpec, files: Mapping[str, bytes]) -> dict[str, Any]:
    """What of a case's truth the pilot's quantity is read from."""
    if spec.track == "seg":
        image = _image(files[spec.output.name])
        volume_ml = abs(float(np.linalg.det(image.affine[:3, :3]))) / 1000.0
        counts = np.bincount(
            np.asanyarray(image.dataobj).ravel(), minlength=max(spec.output.labels) + 1
        )
        return {
            name: round(int(counts[value]) * volume_ml, 3)
            for value, name in spec.output.labels.items()
            if value != 0
        }
    if spec.track in ("enh", "synth"):
        return {"std": float(np.asanyarray(_image(files[spec.output.name]).dataobj).std())}
    truth: dict[str, Any] = json.loads(files[TRUTH])
    return truth


def _quantity(spec: TaskSpec, truth: Mapping[str, Any]) -> float:
    if spec.track == "seg":
        return float(truth[spec.pilot.quantity.removesuffix("_volume_ml")])
    if spec.track in ("enh", "synth"):
        return round(float(truth["std"]), 6)
    if spec.track == "det":
        return float(len(truth["boxes"]))
    return float(len(str(truth["report"]).split())) if spec.track == "report" else SURE
