"""MIMIC-CXR: reports of ``mimic-cxr`` and pictures of ``mimic-cxr-jpg`` under one folder."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Final

from bat_env.data.layout import Layout, find_root
from bat_env.data.records import CaseError, ReportedStudy, Scan
from bat_env.data.reports import read_findings, tidy
from bat_env.data.tables import read_csv

_TABLE: Final = "mimic-cxr-2.0.0-metadata.csv*"
_COLUMNS: Final = ("dicom_id", "subject_id", "study_id", "ViewPosition")
_FRONTAL: Final = ("PA", "AP")
_HEADING: Final = re.compile(r"^\s*([A-Z][A-Z /]{3,40}):", re.M)
MAX_VIEWS: Final = 4


def scan(root: Path) -> Scan:
    """Studies with a frontal view and a report that the labeler reads without doubt."""
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
    records: list[ReportedStudy] = []
    left: Counter[str] = Counter()
    for (subject, study), pictures in sorted(views.items()):
        try:
            text = _report(_place(folder, subject, study).with_suffix(".txt"))
            read_findings(text)
        except CaseError as error:
            left[" ".join(str(error).split()[:6])] += 1
            continue
        paths = tuple(path for _, path in sorted(pictures)[:MAX_VIEWS])
        records.append(ReportedStudy(f"p{subject}_s{study}", subject, paths, text))
    if not records:
        raise LAYOUT.wrong(root, f"No study has a report that can be scored: {dict(left)}.")
    notes = [f"{missing} pictures of {table.name} are not there."] if missing else []
    notes += [f"{count} studies left out: {why}." for why, count in left.most_common(3)]
    return Scan(records, modality="Chest radiographs, one or more views", notes=tuple(notes))


def _place(folder: Path, subject: str, study: str) -> Path:
    return folder / "files" / f"p{subject[:2]}" / f"p{subject}" / f"s{study}"


def _report(path: Path) -> str:
    """Findings and impression of a report.

    Raises:
        CaseError: If the file is missing or has neither.
    """
    try:
        text = path.read_text("utf-8", "replace")
    except OSError:
        raise CaseError("its report is missing") from None
    pieces = _HEADING.split(text)
    sections = dict(zip(pieces[1::2], pieces[2::2], strict=True))
    return tidy(sections.get("FINDINGS", ""), sections.get("IMPRESSION", ""))


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
