"""KiTS19: ``data/case_00000/imaging.nii.gz`` and ``segmentation.nii.gz``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bat_env.data.layout import Layout, find_root, visible
from bat_env.data.records import LabelledVolume, Scan

_LABELS: Final = {0: "background", 1: "kidney", 2: "tumor"}


def scan(root: Path) -> Scan:
    """Cases with a segmentation; the challenge's test cases (210 to 299) have none."""
    folder = find_root(root, "case_*/imaging.nii.gz")
    if folder is None:
        bare = find_root(root, "case_*/segmentation.nii.gz")
        came = (
            "There are segmentations but no imaging.nii.gz: run the repository's download script."
            if bare is not None
            else "No folder case_* with imaging.nii.gz was found."
        )
        raise LAYOUT.wrong(root, came)
    cases = [path.parent for path in visible(folder.glob("case_*/imaging.nii.gz"))]
    labelled = [case for case in cases if (case / "segmentation.nii.gz").exists()]
    if not labelled:
        raise LAYOUT.wrong(root, "No case has a segmentation.nii.gz.")
    records = [
        LabelledVolume(
            case=case.name,
            group=case.name,
            image=case / "imaging.nii.gz",
            labels=case / "segmentation.nii.gz",
        )
        for case in labelled
    ]
    left = len(cases) - len(labelled)
    notes = (f"{left} cases without segmentation were left out.",) if left else ()
    return Scan(records, _LABELS, "Contrast-enhanced abdominal CT", notes=notes)


LAYOUT = Layout(
    name="kits19",
    title="Kidney and kidney tumour segmentation",
    track="seg",
    licence="CC BY-NC-SA 4.0",
    terms="https://kits19.grand-challenge.org/data/",
    source="https://github.com/neheller/kits19",
    tree=("data/case_00000/imaging.nii.gz", "data/case_00000/segmentation.nii.gz"),
    goal="Outline both kidneys and any kidney tumour, to plan kidney-sparing surgery.",
    sibling="seg/kidney_tumor",
    input_file="ct.nii.gz",
    scan=scan,
    options={},
)
