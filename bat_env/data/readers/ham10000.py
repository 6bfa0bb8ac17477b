"""HAM10000 as its authors publish it, and the ISIC 2018 and 2019 challenge tables."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bat_env.data.layout import Layout, find_root, pictures_by_stem
from bat_env.data.pictures import SUFFIXES
from bat_env.data.records import LabelledPicture, Scan
from bat_env.data.tables import number, read_csv

_NAMES: Final = {
    "mel": "melanoma",
    "nv": "nevus",
    "bcc": "basal_cell_carcinoma",
    "akiec": "actinic_keratosis",
    "ak": "actinic_keratosis",
    "bkl": "benign_keratosis",
    "df": "dermatofibroma",
    "vasc": "vascular_lesion",
    "scc": "squamous_cell_carcinoma",
}
_CHALLENGE: Final = ("MEL", "NV", "BCC", "DF", "VASC")


def scan(root: Path) -> Scan:
    """Photographs with their diagnosis, grouped by lesion where the table tells it."""
    folder = find_root(root, "HAM10000_metadata*", "HAM10000_images_part_*")
    if folder is not None:
        table = sorted(folder.glob("HAM10000_metadata*"))[0]
        images = pictures_by_stem(sorted(folder.glob("HAM10000_images_part_*")), SUFFIXES)
        rows = [
            (row["image_id"], row["lesion_id"], row["dx"].lower())
            for row in read_csv(table, ("lesion_id", "image_id", "dx"))
        ]
        return _found(root, images, rows)
    return _challenge(root)


def _challenge(root: Path) -> Scan:
    """``ISIC*_GroundTruth.csv``: one column a class, 1.0 for the right one."""
    tables = sorted(p for p in root.rglob("ISIC*Training*GroundTruth*.csv") if p.is_file())
    folders = sorted(p for p in root.rglob("ISIC*Training_Input*") if p.is_dir())
    if not tables or not folders:
        raise LAYOUT.wrong(
            root,
            "Neither HAM10000_metadata.csv beside HAM10000_images_part_*, nor a challenge's "
            "Training_GroundTruth.csv with its Training_Input folder was found.",
        )
    lesions: dict[str, str] = {}
    for extra in sorted(root.rglob("ISIC2018_Task3_Training_LesionGroupings.csv")):
        lesions |= {r["image"]: r["lesion_id"] for r in read_csv(extra, ("image", "lesion_id"))}
    rows = []
    for row in read_csv(tables[0], ("image", *_CHALLENGE)):
        right = [key.lower() for key, value in row.items() if number(value) == 1.0]
        if len(right) == 1:
            rows.append((row["image"], lesions.get(row["image"], row["image"]), right[0]))
    return _found(root, pictures_by_stem(folders, SUFFIXES), rows)


def _found(root: Path, images: dict[str, Path], rows: list[tuple[str, str, str]]) -> Scan:
    records, missing, strange = [], 0, 0
    for image, lesion, code in rows:
        if code not in _NAMES:
            strange += 1
        elif image not in images:
            missing += 1
        else:
            records.append(LabelledPicture(image, lesion, images[image], _NAMES[code]))
    if not records:
        raise LAYOUT.wrong(root, f"None of the {len(rows)} pictures of the table is there.")
    present = {record.label for record in records}
    names = [name for name in dict.fromkeys(_NAMES.values()) if name in present]
    notes = [f"{missing} pictures of the table are not there."] if missing else []
    notes += [f"{strange} rows have another diagnosis."] if strange else []
    return Scan(
        sorted(records, key=lambda record: record.case),
        dict(enumerate(names)),
        "Dermatoscopic colour photographs of skin",
        notes=tuple(notes),
    )


LAYOUT = Layout(
    name="ham10000",
    title="Classification of skin lesions",
    track="cls",
    licence="CC BY-NC 4.0",
    terms="https://doi.org/10.7910/DVN/DBW86T",
    source="https://doi.org/10.7910/DVN/DBW86T or https://challenge.isic-archive.com/data/",
    tree=(
        "HAM10000_metadata.csv (or .tab)",
        "HAM10000_images_part_1/ISIC_0024306.jpg",
        "HAM10000_images_part_2/...",
        "or ISIC2018_Task3_Training_GroundTruth.csv and ISIC2018_Task3_Training_Input/",
    ),
    goal="Name the kind of lesion, so that dangerous ones are seen by a dermatologist first.",
    sibling="cls/skin_lesion",
    input_file="image.png",
    scan=scan,
    options={},
    group="lesion",
)
