"""What the tasks of a track have in common: values of task.yaml that need not be repeated.

A task.yaml that names a key replaces the default as a whole; only ``model`` and ``pilot`` are
merged key by key. Plain data: adding to it changes no rule of the rubric.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

_THREE: Final = ["number", "number", "number"]

_VOLUME_FACTS: Final[dict[str, Any]] = {
    "orientations": {"kind": "per_case", "help": "axis codes of the file's axes, e.g. RAS"},
    "spacing_mm": {"kind": "extent", "size": 3, "abs_tol": 0.01, "rel_tol": 0.01},
    "intensity_hu": {"kind": "range", "abs_tol": 2.0, "rel_tol": 0.01},
}
_VOLUME_INPUTS: Final[dict[str, str]] = {
    "dtype": "on-disk type of the inputs",
    "ndim": "integer",
    "scaled": "whether any input has a slope or intercept other than 1 and 0",
}
_VOLUME: Final[dict[str, Any]] = {
    "facts": _VOLUME_FACTS,
    "inputs": _VOLUME_INPUTS,
    "packages": ["torch", "monai", "nibabel"],
    "postprocessing": {"restore_grid": {"value": True}},
}

_PICTURE: Final[dict[str, Any]] = {
    "facts": {
        "size_px": {"kind": "per_case", "help": "[width, height]"},
        "pixel_range": {"kind": "range", "abs_tol": 0.5},
    },
    "inputs": {
        "mode": "colour mode as Pillow names it, e.g. RGB",
        "channels": "integer",
        "bit_depth": "integer, bits a channel",
    },
    "packages": ["torch", "monai", "pillow"],
}

_SHAPE_DTYPE: Final[dict[str, Any]] = {
    "shape": ["integer", "integer", "integer"],
    "dtype": "on-disk type of the output",
}
_RANGE: Final[dict[str, Any]] = {
    **_SHAPE_DTYPE,
    "minimum": "lowest value of the output",
    "maximum": "highest value of the output",
}

TRACK_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "seg": {
            **_VOLUME,
            "model": {
                "preprocessing": {
                    "orientation": "axis codes",
                    "spacing_mm": _THREE,
                    "window_hu": ["low", "high"],
                }
            },
            "pilot": {
                "record": {**_SHAPE_DTYPE, "labels": ["integers present in the output"]},
            },
        },
        "enh": {**_VOLUME, "pilot": {"record": _RANGE}},
        "synth": {**_VOLUME, "pilot": {"record": _RANGE}},
        "det": {
            **_PICTURE,
            "postprocessing": {
                "boxes": {"value": "xyxy", "help": "order of a box's numbers: xyxy, xywh or yxyx"},
                "boxes_in_input_pixels": {"value": True},
            },
            "pilot": {
                "record": {
                    "box_count": "integer, boxes in the output",
                    "labels": ["class names in the output"],
                },
            },
        },
        "cls": {
            **_PICTURE,
            "postprocessing": {"class_names_from_card": {"value": True}},
            "pilot": {"record": {"labels": ["the predicted class"]}},
        },
        "vqa": {
            **_PICTURE,
            "postprocessing": {"answer_as_letter": {"value": True}},
            "pilot": {"record": {"labels": ["the chosen letter"]}},
        },
        "report": {
            **_PICTURE,
            "postprocessing": {"absent_findings_negated": {"value": True}},
            "pilot": {"record": {"words": "integer, words of the text"}},
        },
    }
)
"""Track -> defaults of its task.yaml files."""
