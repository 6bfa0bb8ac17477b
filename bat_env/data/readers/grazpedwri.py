"""GRAZPEDWRI-DX: wrist radiographs of children with YOLO boxes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from bat_env.data.layout import Layout, find_root, pictures_by_stem
from bat_env.data.records import BoxedPicture, Scan
from bat_env.data.tables import number, read_csv
from bat_env.errors import DataError

_CLASSES: Final = (
    *("boneanomaly", "bonelesion", "foreignbody", "fracture", "metal"),
    *("periostealreaction", "pronatorsign", "softtissue", "text"),
)
"""Classes in the order of their numbers, where ``meta.yaml`` is not there to say so."""


def scan(root: Path) -> Scan:
    """Radiographs listed in ``dataset.csv``; one without a label file has no box."""
    folder = find_root(root, "dataset.csv", "images*/*.png")
    if folder is None:
        raise LAYOUT.wrong(root, "No dataset.csv beside images_part1 ... with PNG files was found.")
    yolo = next((p for p in sorted(folder.rglob("yolov5")) if (p / "labels").is_dir()), None)
    if yolo is None:
        raise LAYOUT.wrong(root, "No folder_structure/yolov5/labels was found.")
    meta = yolo / "meta.yaml"
    names = _names(meta) if meta.is_file() else list(_CLASSES)
    images = pictures_by_stem(sorted(folder.glob("images*")), (".png",))
    records, missing = [], 0
    for row in read_csv(folder / "dataset.csv", ("filestem", "patient_id")):
        stem = row["filestem"]
        if stem not in images:
            missing += 1
            continue
        boxes = _boxes(yolo / "labels" / f"{stem}.txt", names)
        records.append(BoxedPicture(stem, row["patient_id"], images[stem], boxes, relative=True))
    if not records:
        raise LAYOUT.wrong(root, "None of the pictures of dataset.csv is there.")
    notes = (f"{missing} pictures of dataset.csv are not there.",) if missing else ()
    return Scan(
        sorted(records, key=lambda record: record.case),
        dict(enumerate(names)),
        "Radiographs of children's wrists",
        notes=notes,
    )


def _names(path: Path) -> list[str]:
    try:
        names = yaml.safe_load(path.read_text("utf-8"))["names"]
        return [str(n) for n in (names.values() if isinstance(names, dict) else names)]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise DataError(f"Expected names of classes in {path}: {error!r}. Get it again.") from error


def _boxes(path: Path, names: list[str]) -> tuple[dict[str, Any], ...]:
    """Boxes of a YOLO file: class, then centre and size as shares of the picture."""
    if not path.is_file():
        return ()
    boxes = []
    for line in path.read_text("utf-8").splitlines():
        parts = [number(word) for word in line.split()]
        if not parts:
            continue
        kind, *rest = parts
        values = [value for value in rest if value is not None]
        if len(parts) != 5 or len(values) != 4 or kind is None or not 0 <= int(kind) < len(names):
            raise DataError(f"Expected 'class x y width height' in {path}, got {line!r:.80}.")
        x, y, width, height = values
        boxes.append(
            {
                "class": names[int(kind)],
                "x1": x - width / 2,
                "y1": y - height / 2,
                "x2": x + width / 2,
                "y2": y + height / 2,
            }
        )
    return tuple(boxes)


LAYOUT = Layout(
    name="grazpedwri",
    title="Detection of findings in wrist radiographs",
    track="det",
    licence="CC BY 4.0",
    terms="https://doi.org/10.6084/m9.figshare.14825193",
    source="https://doi.org/10.6084/m9.figshare.14825193",
    tree=(
        "dataset.csv",
        "images_part1/<filestem>.png ... images_part4/",
        "folder_structure/yolov5/labels/<filestem>.txt",
    ),
    goal="Mark fractures and other findings, so that none is missed in an emergency.",
    sibling="det/wrist_lesion",
    input_file="image.png",
    scan=scan,
    options={},
    group="patient",
)
