"""Medical Segmentation Decathlon: any ``TaskNN_Name`` folder with its ``dataset.json``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from bat_env.data.layout import Layout, find_root
from bat_env.data.records import LabelledVolume, Scan
from bat_env.data.tables import read_json
from bat_env.errors import DataError


def scan(root: Path) -> Scan:
    """The training cases that ``dataset.json`` lists; its test cases have no labels."""
    folder = find_root(root, "dataset.json", "imagesTr", "labelsTr")
    if folder is None:
        raise LAYOUT.wrong(root, "No dataset.json beside imagesTr and labelsTr was found.")
    if len(list(root.glob("*/dataset.json"))) > 1 and folder != root:
        tasks = ", ".join(sorted(path.parent.name for path in root.glob("*/dataset.json")))
        raise DataError(f"Expected the folder of one task, {root} holds {tasks}. Give one of them.")
    table = read_json(folder / "dataset.json", dict)
    try:
        labels = {int(value): _word(name) for value, name in table["labels"].items()}
        channels = tuple(str(table["modality"][key]) for key in sorted(table["modality"], key=int))
        records = [_record(folder, entry, channels) for entry in table["training"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"Expected labels (value -> name), modality and training in {folder / 'dataset.json'} "
            f"as the Decathlon writes them: {error!r}. nnU-Net's own dataset.json differs."
        ) from error
    if labels.get(0) != "background" or len(labels) < 2:
        raise DataError(f"Expected label 0 as background and one more in dataset.json: {labels}.")
    ct = channels == ("CT",)
    name = str(table.get("name", folder.name))
    return Scan(
        records,
        labels,
        modality="CT" if ct else "MR" if len(channels) == 1 else f"MR: {', '.join(channels)}",
        title=f"{name}: segmentation of {', '.join(n for v, n in labels.items() if v)}",
        suffix=_word(folder.name),
        input_file="ct.nii.gz" if ct else "mri.nii.gz",
        licence=str(table.get("licence", "")),
    )


def _record(folder: Path, entry: Any, channels: tuple[str, ...]) -> LabelledVolume:
    image = folder / entry["image"]
    case = image.name.removesuffix(".gz").removesuffix(".nii")
    return LabelledVolume(case, case, image, folder / entry["label"], channels)


def _word(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", str(name).lower()).strip("_")


LAYOUT = Layout(
    name="msd",
    title="Medical Segmentation Decathlon",
    track="seg",
    licence="CC BY-SA 4.0",
    terms="http://medicaldecathlon.com/",
    source="http://medicaldecathlon.com/",
    tree=(
        "TaskNN_Name/dataset.json",
        "TaskNN_Name/imagesTr/name_001.nii.gz",
        "TaskNN_Name/labelsTr/name_001.nii.gz",
    ),
    goal="Outline the named structures, as the challenge asks.",
    sibling="seg/kidney_tumor",
    input_file="ct.nii.gz",
    scan=scan,
    options={},
)
