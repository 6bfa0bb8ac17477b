"""MIMIC-CXR: reports of ``mimic-cxr`` and pictures of ``mimic-cxr-jpg`` under one folder."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Final

from bat_env.data.layout import Layout, find_root
from bat_env.data.records import ReportedStudy, Scan
from bat_env.data.tables import read_csv

_TABLE: Final = "mimic-cxr-2.0.0-metadata.csv*"
_COLUMNS: Final = ("dicom_id", "subject_id", "study_id", "ViewPosition")
_FRONTAL: Final = ("PA", "AP")
MAX_VIEWS: Final = 4


def scan(root: Path) -> Scan:
    """Studies with their pictures, frontal views first; reports are read when they are staged."""
    folder = find_root(root, _TABLE, "files/p1*")
    if folder is None:
        raise LAYOUT.wrong(root, "No mimic-cxr-2.0.0-metadata.csv.gz beside files/p10 was found.")
    table = sorted(folder.glob(_TABLE))[0]
    views: defaultdict[tuple[str, str], list[tuple[bool, Path]]] = defaultdict(list)
    missing = 0
    for row in read_csv(table, _COLUMNS):
        subject, study = row["subject_id"], row["study_id"]
        path = _place(folder, subject, study) / f"{row['dicom_id']}.jpg"
        if path.is_file():
            views[subject, study].append((row["ViewPosition"] not in _FRONTAL, path))
        else:
            missing += 1
    if not views:
        raise LAYOUT.wrong(root, f"None of the {missing} pictures of {table.name} is there.")
    records = [
        ReportedStudy(
            case=f"p{subject}_s{study}",
            group=subject,
            images=tuple(path for _, path in sorted(pictures)[:MAX_VIEWS]),
            report=_place(folder, subject, study).with_suffix(".txt"),
        )
        for (subject, study), pictures in sorted(views.items())
    ]
    notes = (f"{missing} pictures of {table.name} are not there.",) if missing else ()
    return Scan(records, modality="Chest radiographs, one or more views", notes=notes)


def _place(folder: Path, subject: str, study: str) -> Path:
    return folder / "files" / f"p{subject[:2]}" / f"p{subject}" / f"s{study}"


LAYOUT = Layout(
    name="mimic_cxr",
    title="Reports on chest radiographs",
    track="report",
    licence="PhysioNet Credentialed Health Data License 1.5.0",
    terms="https://physionet.org/content/mimic-cxr-jpg/view-dua/2.1.0/",
    source="https://physionet.org/content/mimic-cxr-jpg/2.1.0/",
    tree=(
        "mimic-cxr-2.0.0-metadata.csv.gz",
        "files/p10/p10000032/s50414267/<dicom_id>.jpg (mimic-cxr-jpg)",
        "files/p10/p10000032/s50414267.txt (mimic-cxr)",
    ),
    goal="Write what a radiologist would: findings with their side, and what is absent.",
    sibling="report/chest_findings",
    input_file="study.json",
    scan=scan,
    options={},
    group="patient",
)
