"""VinDr-CXR: chest radiographs in DICOM with boxes of several readers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bat_env.data.layout import Layout, find_root, pictures_by_stem
from bat_env.data.records import BoxedPicture, Scan
from bat_env.data.tables import number, read_csv
from bat_env.errors import unknown_name
from bat_env.metrics.boxes import Box, iou

_CORNERS: Final = ("x_min", "y_min", "x_max", "y_max")
_NOTHING: Final = "no_finding"
_SAME: Final = 0.5
_READERS: Final = 2
"""Of the three readers of a training picture, this many must have drawn a box."""


def scan(root: Path, part: str = "test") -> Scan:
    """Radiographs of one part.

    Args:
        root: The unpacked release.
        part: ``test`` (boxes by consensus of five readers) or ``train`` (three readers each:
            boxes that two of them drew, at an overlap of one half, are averaged).
    """
    if part not in ("train", "test"):
        raise unknown_name("part of VinDr-CXR", part, ("train", "test"))
    folder = find_root(root, f"annotations/annotations_{part}.csv", part)
    if folder is None:
        raise LAYOUT.wrong(root, f"No annotations/annotations_{part}.csv beside {part}/ was found.")
    images = pictures_by_stem([folder / part], (".dicom", ".dcm", ".png"))
    drawn: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    names: dict[str, None] = {}
    table = folder / "annotations" / f"annotations_{part}.csv"
    for row in read_csv(table, ("image_id", "class_name", *_CORNERS)):
        kind = _word(row["class_name"])
        entries = drawn[row["image_id"]]
        corners = [number(row[key]) for key in _CORNERS]
        if kind == _NOTHING or any(value is None for value in corners):
            continue
        names[kind] = None
        entries.append({"class": kind, "rad": row.get("rad_id", ""), "corners": corners})
    records = [
        BoxedPicture(image, image, images[image], _agreed(drawn[image]))
        for image in sorted(set(images) & set(drawn))
    ]
    if not records:
        raise LAYOUT.wrong(root, f"None of the pictures of {table.name} is in {part}/.")
    missing = len(set(drawn) - set(images))
    notes = (f"{missing} pictures of {table.name} are not there.",) if missing else ()
    return Scan(records, dict(enumerate(sorted(names))), "Frontal chest radiographs", notes=notes)


def _agreed(entries: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Boxes as they are where there are no readers, else the means of what two readers drew."""
    if not any(entry["rad"] for entry in entries):
        return tuple(_box(entry["class"], entry["corners"]) for entry in entries)
    clusters: list[list[dict[str, Any]]] = []
    for entry in entries:
        near = next(
            (
                group
                for group in clusters
                if group[0]["class"] == entry["class"]
                and entry["rad"] not in {other["rad"] for other in group}
                and iou(_plain(group[0]), _plain(entry)) >= _SAME
            ),
            None,
        )
        if near is None:
            clusters.append([entry])
        else:
            near.append(entry)
    return tuple(
        _box(group[0]["class"], [sum(column) / len(group) for column in zip(*corners, strict=True)])
        for group in clusters
        if len(group) >= _READERS
        for corners in [[entry["corners"] for entry in group]]
    )


def _plain(entry: dict[str, Any]) -> Box:
    x1, y1, x2, y2 = entry["corners"]
    return Box(0, x1, y1, x2, y2, 1.0)


def _box(kind: str, corners: Sequence[float]) -> dict[str, Any]:
    return {"class": kind, **dict(zip(("x1", "y1", "x2", "y2"), corners, strict=True))}


def _word(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


LAYOUT = Layout(
    name="vindr_cxr",
    title="Detection of findings in chest radiographs",
    track="det",
    licence="PhysioNet Credentialed Health Data Use Agreement 1.5.0",
    terms="https://physionet.org/content/vindr-cxr/view-dua/1.0.0/",
    source="https://physionet.org/content/vindr-cxr/1.0.0/",
    tree=(
        "annotations/annotations_test.csv (annotations_train.csv)",
        "test/<image_id>.dicom (train/)",
    ),
    goal="Mark abnormal findings, so that urgent radiographs are read first.",
    sibling="det/wrist_lesion",
    input_file="image.png",
    scan=scan,
    options={"part": "test or train"},
    extra=True,
)
