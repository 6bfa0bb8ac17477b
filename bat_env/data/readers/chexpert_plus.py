"""CheXpert Plus: ``df_chexpert_plus_240401.csv`` and the pictures that it names."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

from bat_env.data.layout import Layout, find_root
from bat_env.data.records import ReportedStudy, Scan
from bat_env.data.tables import read_csv

_TABLE: Final = "df_chexpert_plus_*.csv"
_COLUMNS: Final = ("path_to_image", "deid_patient_id", "section_findings", "section_impression")
_PLACES: Final = ("", "PNG", "PNG/PNG", "png", "images", "CheXpert-v1.0", "CheXpert-v1.0-small")
MAX_VIEWS: Final = 4


def scan(root: Path) -> Scan:
    """Studies with their pictures; reports are judged when they are staged."""
    folder = find_root(root, _TABLE)
    if folder is None:
        raise LAYOUT.wrong(root, "No df_chexpert_plus_240401.csv was found.")
    table = sorted(folder.glob(_TABLE))[0]
    views: defaultdict[str, list[Path]] = defaultdict(list)
    texts: dict[str, tuple[str, str, str]] = {}
    missing = 0
    for row in read_csv(table, _COLUMNS):
        path = _picture(folder, row["path_to_image"])
        if path is None:
            missing += 1
            continue
        study = row["path_to_image"].rsplit("/", 1)[0]
        views[study].append(path)
        texts[study] = (
            row["deid_patient_id"],
            row["section_findings"],
            row["section_impression"],
        )
    if not views:
        raise LAYOUT.wrong(root, f"None of the {missing} pictures of {table.name} is there.")
    records = [
        ReportedStudy(
            case=study.replace("/", "_"),
            group=texts[study][0],
            images=tuple(sorted(views[study])[:MAX_VIEWS]),
            report=" ".join(texts[study][1:]),
        )
        for study in sorted(views)
    ]
    notes = (f"{missing} pictures of {table.name} are not there.",) if missing else ()
    return Scan(records, modality="Chest radiographs, one or more views", notes=notes)


def _picture(folder: Path, name: str) -> Path | None:
    """The file of a picture: as named, or the same in PNG, under the usual folders."""
    bare = Path(name.removeprefix("CheXpert-v1.0/").removeprefix("CheXpert-v1.0-small/"))
    for place in _PLACES:
        for suffix in (bare.suffix, ".png", ".jpg"):
            path = folder / place / bare.with_suffix(suffix)
            if path.is_file():
                return path
    return None


LAYOUT = Layout(
    name="chexpert_plus",
    title="Reports on chest radiographs",
    track="report",
    licence="Stanford University dataset research use agreement",
    terms="https://aimi.stanford.edu/datasets/chexpert-plus",
    source="https://aimi.stanford.edu/datasets/chexpert-plus",
    tree=("df_chexpert_plus_240401.csv", "PNG/train/patient42142/study5/view1_frontal.png"),
    goal="Write what a radiologist would: findings with their side, and what is absent.",
    sibling="report/chest_findings",
    input_file="study.json",
    scan=scan,
    options={},
    group="patient",
)
