"""Any paired volumes: two folders with files (or DICOM folders) of the same names."""

from __future__ import annotations

from pathlib import Path

from bat_env.data.layout import Layout, find_root, visible
from bat_env.data.records import PairedVolume, Scan
from bat_env.data.volumes import ITK, NIFTI
from bat_env.errors import DataError, unknown_name


def scan(root: Path, track: str = "enh", modality: str = "volumes") -> Scan:
    """Pairs by name.

    Args:
        root: Holds ``input`` and ``target``, and perhaps ``mask``.
        track: ``enh`` (better of the same) or ``synth`` (another modality).
        modality: What the inputs are, in words.
    """
    if track not in ("enh", "synth"):
        raise unknown_name("track of paired volumes", track, ("enh", "synth"))
    folder = find_root(root, "input", "target")
    if folder is None:
        raise LAYOUT.wrong(root, "The folders input and target were not found side by side.")
    inputs, targets, masks = (_by_case(folder / name) for name in ("input", "target", "mask"))
    alone = sorted(set(inputs) ^ set(targets))
    if alone:
        raise DataError(
            f"Expected the same names in input and target of {folder}, these stand in one of them "
            f"only: {', '.join(alone[:5])} ({len(alone)} in all). Rename or remove them."
        )
    if not inputs:
        raise LAYOUT.wrong(root, "The folders are empty.")
    records = [
        PairedVolume(case, case, inputs[case], targets[case], masks.get(case)) for case in inputs
    ]
    return Scan(records, modality=modality, track=track)


def _by_case(folder: Path) -> dict[str, Path]:
    """File or folder name without ending -> path."""
    if not folder.is_dir():
        return {}
    found = {}
    for path in visible(folder.iterdir()):
        ending = next((e for e in (".nii.gz", *NIFTI, *ITK) if path.name.endswith(e)), None)
        if path.is_dir():
            found[path.name] = path
        elif ending is not None:
            found[path.name.removesuffix(ending)] = path
    return found


LAYOUT = Layout(
    name="paired",
    title="Image to image",
    track="enh",
    licence="that of your data",
    terms="your data's own",
    source="your own folder",
    tree=(
        "input/<case>.nii.gz, .mha, .nrrd or <case>/ with one DICOM series",
        "target/<case>... on the same grid",
        "mask/<case>... (optional)",
    ),
    goal="Make the target image from the input image.",
    sibling="enh/ldct_denoising",
    input_file="input.nii.gz",
    scan=scan,
    options={"track": "enh or synth", "modality": "what the inputs are, in words"},
)
