"""AeroPath: ``AeroPath/1/1_CT_HR.nii.gz`` with labels of airways and lungs."""

from __future__ import annotations

from pathlib import Path

from bat_env.data.layout import Layout, find_root
from bat_env.data.records import LabelledVolume, Scan


def scan(root: Path) -> Scan:
    """All patients; the airways win where they overlap the lungs."""
    folder = find_root(root, "[0-9]*/[0-9]*_CT_HR.nii.gz")
    if folder is None:
        raise LAYOUT.wrong(root, "No folder 1/ with 1_CT_HR.nii.gz was found.")
    patients = sorted(
        (path.parent for path in folder.glob("[0-9]*/[0-9]*_CT_HR.nii.gz")),
        key=lambda path: (len(path.name), path.name),
    )
    records = [
        LabelledVolume(
            case=patient.name,
            group=patient.name,
            image=patient / f"{patient.name}_CT_HR.nii.gz",
            labels={
                "lung": patient / f"{patient.name}_CT_HR_label_lungs.nii.gz",
                "airway": patient / f"{patient.name}_CT_HR_label_airways.nii.gz",
            },
        )
        for patient in patients
    ]
    return Scan(records, {0: "background", 1: "lung", 2: "airway"}, "Chest CT with pathology")


LAYOUT = Layout(
    name="aeropath",
    title="Segmentation of lungs and airways",
    track="seg",
    licence="as stated on the Zenodo record",
    terms="https://zenodo.org/records/10069289",
    source="https://zenodo.org/records/10069289",
    tree=(
        "AeroPath/1/1_CT_HR.nii.gz",
        "AeroPath/1/1_CT_HR_label_airways.nii.gz",
        "AeroPath/1/1_CT_HR_label_lungs.nii.gz",
    ),
    goal="Outline lungs and airways, to plan a bronchoscopy.",
    sibling="seg/kidney_tumor",
    input_file="ct.nii.gz",
    scan=scan,
    options={},
)
