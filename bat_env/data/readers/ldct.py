"""Low-dose CT: TCIA's LDCT-and-Projection-data, or the folders of the 2016 Grand Challenge."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Final

from bat_env.data.dicom import series_folders
from bat_env.data.layout import Layout
from bat_env.data.records import PairedVolume, Scan

_PATIENT: Final = re.compile(r"[LCN]\d{3}")
_FULL: Final = re.compile(r"full[ _]?dose[ _]images|^full_\d+mm", re.I)
_LOW: Final = re.compile(r"low[ _]?dose[ _]images|^quarter_\d+mm", re.I)


def scan(root: Path) -> Scan:
    """Patients with a full-dose and a low-dose reconstruction; projections are not touched."""
    found: defaultdict[str, dict[str, list[Path]]] = defaultdict(lambda: defaultdict(list))
    for folder in series_folders(root):
        parts = folder.relative_to(root.parent).parts
        patient = next((part for part in parts if _PATIENT.fullmatch(part)), None)
        if patient is None:
            continue
        for kind, pattern in (("full", _FULL), ("low", _LOW)):
            if any(pattern.search(part) for part in parts):
                found[patient][kind].append(folder)
    if not found:
        raise LAYOUT.wrong(root, "No folder of DICOM images of a patient (L004, C002, N005).")
    records, lone = [], []
    for patient, kinds in sorted(found.items()):
        if not kinds["full"] or not kinds["low"]:
            lone.append(patient)
            continue
        records.append(PairedVolume(patient, patient, kinds["low"][0], kinds["full"][0]))
    if not records:
        raise LAYOUT.wrong(
            root,
            f"{len(lone)} patients have one of the two doses only; GE scanners came without "
            "low-dose images.",
        )
    notes = (f"{len(lone)} patients with one dose only were left out.",) if lone else ()
    return Scan(records, modality="CT at a quarter or a tenth of the dose", notes=notes)


LAYOUT = Layout(
    name="ldct",
    title="Denoising of low-dose CT",
    track="enh",
    licence="TCIA data usage policy; head scans under a restricted licence",
    terms="https://www.cancerimagingarchive.net/collection/ldct-and-projection-data/",
    source="https://doi.org/10.7937/9npb-2637",
    tree=(
        "L004/<study>/1.000000-Full Dose Images-<n>/*.dcm",
        "L004/<study>/1.000000-Low Dose Images-<n>/*.dcm",
    ),
    goal="Remove the noise of a low dose and keep what a reader needs.",
    sibling="enh/ldct_denoising",
    input_file="low.nii.gz",
    scan=scan,
    options={},
    extra=True,
    group="patient",
)
