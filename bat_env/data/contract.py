"""The TaskSpec of a staged data set: made of the layout, the staged cases and the model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bat_env.data.convert import MASK, channel_file
from bat_env.data.layout import Layout
from bat_env.data.manifest import CaseRow
from bat_env.data.model import Bundle
from bat_env.data.records import LabelledVolume, Scan
from bat_env.data.reports import vocabulary

_OUTPUTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "seg": {
        "path": "outputs/{case}/dseg.nii.gz",
        "format": "nifti-labels",
        "dtype": ["uint8", "int16"],
    },
    "enh": {
        "path": "outputs/{case}/enhanced.nii.gz",
        "format": "nifti-image",
        "dtype": ["int16", "float32"],
    },
    "synth": {
        "path": "outputs/{case}/synth.nii.gz",
        "format": "nifti-image",
        "dtype": ["int16", "float32"],
    },
    "det": {
        "path": "outputs/{case}/prediction.json",
        "format": "boxes-json",
        "help": 'JSON {"boxes": [{"class", "score", "x1", "y1", "x2", "y2"}]}, pixels of the input',
    },
    "cls": {"path": "outputs/predictions.csv", "format": "class-table"},
    "vqa": {
        "path": "outputs/answers.csv",
        "format": "answer-table",
        "columns": ["case", "answer", "confidence"],
        "help": "one row a case; the letter of an option, and a confidence from 0 to 1",
    },
    "report": {
        "path": "outputs/{case}/report.txt",
        "format": "text",
        "help": "findings and impression in English; what is absent is denied",
    },
}
_METRICS: Final[Mapping[str, tuple[str, float]]] = {
    "seg": ("seg_dice", 0.02),
    "enh": ("image_ssim", 0.02),
    "synth": ("image_ssim", 0.02),
    "det": ("det_map", 0.1),
    "cls": ("cls_balanced_accuracy", 0.0),
    "vqa": ("vqa_accuracy", 0.0),
    "report": ("report_findings", 0.05),
}
"""Track -> metric, and how far a clean re-run may differ."""

_CASES: Final[Mapping[str, tuple[int, int]]] = {
    "seg": (4, 2),
    "enh": (4, 2),
    "synth": (3, 2),
    "det": (24, 8),
    "cls": (42, 14),
    "vqa": (40, 16),
    "report": (24, 8),
}
"""Track -> cases of a full and of a reduced instance; a smaller split gives what it has."""
MINI_VOXELS: Final = 1 << 17
MINI_SIDE_PX: Final = 256
SYNTH_CAREFUL: Final = 0.85
"""No classical method makes one modality from another: a fixed reference, near what published
networks reach under this metric's mask."""
_LESIONS: Final = ("tumor", "tumour", "cancer", "lesion")


def contract(
    layout: Layout,
    scan: Scan,
    rows: Sequence[CaseRow],
    bundle: Bundle,
    *,
    max_voxels: int,
    max_side_px: int,
) -> dict[str, Any]:
    """Content of the staged task's ``task.yaml``; floors are measured later.

    Args:
        layout: Where the data come from.
        scan: What was found.
        rows: Staged cases.
        bundle: The model that is given.
        max_voxels: Bound of a staged volume.
        max_side_px: Bound of a staged picture.
    """
    track = scan.track or layout.track
    metric, tolerance = _METRICS[track]
    full, mini = _CASES[track]
    volumes = track in ("seg", "enh", "synth")
    bound = "max_voxels" if volumes else "max_side_px"
    largest = max_voxels if volumes else max_side_px
    least = min(largest, MINI_VOXELS if volumes else MINI_SIDE_PX)
    made: dict[str, Any] = {
        "schema_version": 1,
        "id": f"{track}/{staged_name(layout, scan)}",
        "title": scan.title or layout.title,
        "modality": scan.modality,
        "clinical_goal": layout.goal,
        "mirrors": layout.name,
        "input_file": scan.input_file or layout.input_file,
        "extra_inputs": _extra_inputs(track, layout, scan, rows),
        "output": {**_OUTPUTS[track], **_labels(track, scan)},
        "model": {
            "name": bundle.name,
            "parameters": bundle.parameters,
            "alternatives": list(bundle.alternatives),
            "preprocessing": dict(bundle.preprocessing),
        },
        "pilot": _pilot(track, rows),
        "metric": {
            "name": metric,
            "params": _params(track, scan),
            "rerun_tolerance": tolerance,
        },
        "tiers": {
            "lite": {"skills": [f"S{n}.md" for n in range(1, 6)], "model_card": True},
            "standard": {"model_card": True, "candidates": 3, "plan_image": True},
            "pro": {"model_card": False, "candidates": 3, "plan_image": True},
        },
        "sizes": {
            "full": {"cases": full, bound: largest},
            "mini": {"cases": mini, bound: least},
        },
        "reduction": {
            "cases": mini / full,
            "input_fraction": min(1.0, least / largest),
            "validation_passes": 1,
        },
        "fiction": {
            split: [{"prefix": "CASE", "study": staged_name(layout, scan)}]
            for split in ("train", "dev", "heldout")
        },
    }
    if track in ("det", "report"):
        made["truth_file"] = "truth.json"
    made.update(_asked(track, scan))
    return made


def staged_name(layout: Layout, scan: Scan) -> str:
    """Name of the staged task, without its track."""
    return f"{layout.name}_{scan.suffix}" if scan.suffix else layout.name


def _extra_inputs(track: str, layout: Layout, scan: Scan, rows: Sequence[CaseRow]) -> list[str]:
    if track == "seg" and isinstance(scan.records[0], LabelledVolume):
        main = scan.input_file or layout.input_file
        return [channel_file(main, name) for name in scan.records[0].channels[1:]]
    if track in ("enh", "synth"):
        return [MASK] if all(MASK in row.public for row in rows) else []
    return {"vqa": ["image.png"], "report": ["view*.png"]}.get(track, [])


def _labels(track: str, scan: Scan) -> dict[str, Any]:
    if track in ("enh", "synth", "report"):
        return {}
    labels: dict[str, Any] = {"labels": dict(scan.labels)}
    if track == "cls":
        names = [name for _, name in sorted(scan.labels.items())]
        labels["columns"] = ["case", "label", *(f"p_{name}" for name in names)]
        labels["help"] = "one row a case; its label, and the probability of every class (sum 1)"
    return labels


def _asked(track: str, scan: Scan) -> dict[str, Any]:
    """Facts, inputs, packages and declarations that differ from the track's defaults."""
    if track in ("seg", "enh", "synth"):
        unit = "intensity_hu" if "CT" in scan.modality else "intensity"
        return {
            "facts": {
                "orientations": {"kind": "per_case", "help": "axis codes of the file's axes"},
                "spacing_mm": {"kind": "extent", "size": 3, "abs_tol": 0.01, "rel_tol": 0.01},
                unit: {"kind": "range", "abs_tol": 2.0, "rel_tol": 0.01},
            },
            "inputs": {
                "dtype": "on-disk type of the first case's input, cases sorted by name",
                "ndim": "integer",
                "scaled": "whether any input has a slope or intercept other than 1 and 0",
            },
        }
    facts: dict[str, Any] = {
        "size_px": {
            "kind": "per_case",
            "help": "[width, height]" + (" of view1.png" if track == "report" else ""),
        },
        "pixel_range": {"kind": "range", "abs_tol": 0.5},
    }
    if track == "vqa":
        facts["option_count"] = {"kind": "per_case", "help": "number of options"}
    if track == "report":
        facts["views"] = {"kind": "per_case", "help": "number of pictures"}
        facts["pixel_range"]["help"] = "over the pictures view1.png"
    asked: dict[str, Any] = {
        "facts": facts,
        "inputs": {
            "channels": "integer, of the first case's picture, cases sorted by name",
            "bit_depth": "integer, bits a channel of the same picture",
        },
    }
    if track == "cls":
        asked["postprocessing"] = {"class_names_from_contract": {"value": True}}
    return asked


def _params(track: str, scan: Scan) -> dict[str, Any]:
    if track == "report":
        return {"findings": vocabulary()}
    if track != "seg":
        return {}
    names = [name for value, name in scan.labels.items() if value != 0]
    lesions = [name for name in names if any(word in name.split("_") for word in _LESIONS)]
    organs = [name for name in names if name not in lesions]
    if len(lesions) == 1 and organs:
        return {"organ": organs[0], "lesion": lesions[0]}
    return {}


def _pilot(track: str, rows: Sequence[CaseRow]) -> dict[str, Any]:
    """The pilot's quantity, with bounds that the staged cases fit into."""
    if track == "seg":
        return _volume_pilot(rows)
    if track in ("enh", "synth"):
        values = [float(row.summary["std"]) for row in rows]
        return {
            "quantity": "std",
            "unit": "standard deviation of the output's voxels",
            "max_range_ratio": _ratio(values),
            "plausible_ratio": 3.0,
        }
    if track == "det":
        most = max(int(row.summary["boxes"]) for row in rows)
        return {
            "quantity": "box_count",
            "unit": "boxes",
            "max_range_width": float(max(20, 2 * most)),
            "plausible_abs": float(max(5, most)),
        }
    if track == "report":
        values = [float(row.summary["words"]) for row in rows]
        return {
            "quantity": "words",
            "unit": "words",
            "max_range_ratio": _ratio(values),
            "plausible_ratio": 10.0,
        }
    return {
        "quantity": "top_probability" if track == "cls" else "confidence",
        "unit": "probability of the chosen answer",
        "max_range_ratio": 20.0,
        "plausible_ratio": 20.0,
    }


def _volume_pilot(rows: Sequence[CaseRow]) -> dict[str, Any]:
    """The class that every case holds and whose volume varies least, else the most frequent."""
    by_class = {
        name: [float(row.summary["volumes_ml"][name]) for row in rows]
        for name in rows[0].summary["volumes_ml"]
    }
    always = {name: values for name, values in by_class.items() if min(values) > 0}
    if always:
        name = min(always, key=lambda key: max(always[key]) / min(always[key]))
        return {
            "quantity": f"{name}_volume_ml",
            "unit": "ml",
            # Reduced instances measure coarser voxels: volumes of small structures move.
            "max_range_ratio": 2.0 * _ratio(always[name]),
            "plausible_ratio": 5.0,
        }
    name = max(by_class, key=lambda key: sum(value > 0 for value in by_class[key]))
    most = max(by_class[name])
    return {
        "quantity": f"{name}_volume_ml",
        "unit": "ml",
        "max_range_width": max(1.0, 3.0 * most),
        "plausible_ratio": 5.0,
        "plausible_abs": max(0.5, 0.5 * most),
    }


def _ratio(values: Sequence[float]) -> float:
    low, high = max(1e-6, min(values)), max(values)
    return float(max(20.0, math.ceil(3.0 * high / low)))
