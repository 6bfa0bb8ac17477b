"""TotalSegmentator: ``s0000/ct.nii.gz`` and one binary mask for each class."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bat_env.data.layout import Layout, find_root, visible
from bat_env.data.records import LabelledVolume, Scan
from bat_env.errors import unknown_name

ORGANS: Final = (
    *("spleen", "kidney_right", "kidney_left", "gallbladder", "liver", "stomach", "pancreas"),
    *("aorta", "urinary_bladder", "heart"),
)
"""Classes that are staged unless others are asked for."""


def scan(root: Path, classes: str = "") -> Scan:
    """Subjects with their masks.

    Args:
        root: The unpacked archive.
        classes: Names of masks to stage, with commas; ``all`` for every one; default: organs.
    """
    folder = find_root(root, "s[0-9]*/ct.nii.gz", "s[0-9]*/segmentations/*.nii.gz")
    if folder is None:
        mr = find_root(root, "s[0-9]*/mri.nii.gz") is not None
        came = "That is the MR release; this reader takes the CT release." if mr else ""
        raise LAYOUT.wrong(root, came or "No folder s0000 with ct.nii.gz and segmentations/.")
    subjects = [path.parent for path in visible(folder.glob("s[0-9]*/ct.nii.gz"))]
    known = sorted(
        {
            path.name.removesuffix(".nii.gz")
            for subject in subjects[:3]
            for path in visible((subject / "segmentations").glob("*.nii.gz"))
        }
    )
    wanted = known if classes == "all" else [name.strip() for name in classes.split(",")]
    if not classes:
        wanted = [name for name in ORGANS if name in known]
    if not wanted:
        raise LAYOUT.wrong(root, f"None of the masks {', '.join(ORGANS)} is there.")
    for name in wanted:
        if name not in known:
            raise unknown_name("class of TotalSegmentator", name, known)
    labels = {0: "background", **dict(enumerate(dict.fromkeys(wanted), 1))}
    records = [
        LabelledVolume(
            case=subject.name,
            group=subject.name,
            image=subject / "ct.nii.gz",
            labels={
                name: subject / "segmentations" / f"{name}.nii.gz"
                for value, name in labels.items()
                if value
            },
        )
        for subject in subjects
        if (subject / "segmentations").is_dir()
    ]
    left = len(known) - len(labels) + 1
    notes = (f"{left} of {len(known)} classes were left out (option classes).",) if left else ()
    return Scan(records, labels, "CT of varied parts of the body", notes=notes)


LAYOUT = Layout(
    name="totalsegmentator",
    title="Segmentation of organs",
    track="seg",
    licence="CC BY 4.0 (version 2 on Zenodo)",
    terms="https://zenodo.org/records/10047292",
    source="https://zenodo.org/records/10047292",
    tree=("s0000/ct.nii.gz", "s0000/segmentations/<class>.nii.gz", "meta.csv"),
    goal="Outline every named organ that the scan holds.",
    sibling="seg/multi_organ",
    input_file="ct.nii.gz",
    scan=scan,
    options={"classes": "names of masks, with commas, or all"},
)
