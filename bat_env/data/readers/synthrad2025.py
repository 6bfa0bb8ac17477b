"""SynthRAD2025 (and 2023): ``Task1/HN/1HNA001/`` with mr, ct and mask."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from bat_env.data.layout import Layout, visible
from bat_env.data.records import PairedVolume, Scan
from bat_env.errors import unknown_name

_GIVEN: Final = {"1": "mr", "2": "cbct"}
_ENDINGS: Final = (".mha", ".nii.gz")
_REGIONS: Final = {"HN": "head and neck", "TH": "thorax", "AB": "abdomen", "all": "all regions"}


def scan(root: Path, task: str = "1", region: str = "all") -> Scan:
    """Patients of one task.

    Args:
        root: The unpacked archive.
        task: 1 for MR to CT, 2 for CBCT to CT.
        region: HN, TH, AB or all.
    """
    if task not in _GIVEN:
        raise unknown_name("task of SynthRAD", task, _GIVEN)
    if region not in _REGIONS:
        raise unknown_name("region of SynthRAD2025", region, _REGIONS)
    given, records, without = _GIVEN[task], [], 0
    found = {e: visible(root.rglob(f"{given}{e}")) for e in _ENDINGS}
    for ending, paths in found.items():
        for path in paths:
            folder = path.parent
            if region != "all" and not re.match(rf"\d{region}", folder.name):
                continue
            target = folder / f"ct{ending}"
            if not target.exists():
                without += 1
                continue
            mask = folder / f"mask{ending}"
            records.append(
                PairedVolume(
                    folder.name, folder.name, path, target, mask if mask.exists() else None
                )
            )
    if not records:
        came = f"{without} patients have no ct: the validation and test sets keep it." if without \
            else f"No folder of a patient with {given}.mha was found."  # fmt: skip
        raise LAYOUT.wrong(root, came)
    names = {"mr": "MR", "cbct": "Cone-beam CT"}
    notes = (f"{without} patients without ct were left out.",) if without else ()
    return Scan(
        sorted(records, key=lambda record: record.case),
        modality=f"{names[given]} of {_REGIONS[region]}",
        title=f"{names[given]} to CT",
        suffix=f"task{task}",
        input_file=f"{given}.nii.gz",
        notes=notes,
    )


LAYOUT = Layout(
    name="synthrad2025",
    title="Synthetic CT",
    track="synth",
    licence="CC BY-NC 4.0",
    terms="https://synthrad2025.grand-challenge.org/data/",
    source="https://doi.org/10.5281/zenodo.14918089",
    tree=(
        "Task1/HN/1HNA001/mr.mha (Task2: cbct.mha)",
        "Task1/HN/1HNA001/ct.mha",
        "Task1/HN/1HNA001/mask.mha",
    ),
    goal="Make a CT in Hounsfield units, so that a dose can be planned without one.",
    sibling="synth/mr_to_ct",
    input_file="mr.nii.gz",
    scan=scan,
    options={"task": "1 (MR) or 2 (CBCT)", "region": "HN, TH, AB or all"},
    extra=True,
    group="patient",
)
