"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks import Mistake
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes

CHECKS = Checks(
    model="kidney_unet",
    imports="import nibabel as nib",
    inputs='images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases]',
    run="""\
case = cases[0]
image = nib.load(f"/data/{case}/ct.nii.gz")
module["predict"](f"/data/{case}", "/tmp/check")
out = nib.load("/tmp/check/dseg.nii.gz")
y = np.asarray(out.dataobj)
print("check of pipeline/predict.py on", case)
print("shape", image.shape, "output", y.shape)
print("same affine", np.allclose(image.affine, out.affine))
ml = np.prod(image.header.get_zooms()) / 1000
print("kidney ml", round(float((y == 1).sum() * ml)), "tumor ml", round(float((y == 2).sum() * ml)))
""",
)
COMPARE = """\
import os, runpy, nibabel as nib, numpy as np
predict = runpy.run_path("pipeline/predict.py")["predict"]
print("check of outputs/: voxels that differ from a new run of predict.py")
for case in sorted(os.listdir("/data"))[:2]:
    predict(f"/data/{case}", "/tmp/check")
    a = np.asarray(nib.load("/tmp/check/dseg.nii.gz").dataobj)
    b = np.asarray(nib.load(f"outputs/{case}/dseg.nii.gz").dataobj)
    print(case, int((a != b).sum()), "of", int((a > 0).sum()))
"""


def _called(what: str, wanted: str, name: str) -> str:
    """Print what the card wants, and whether predict.py calls the transform for it."""
    return CHECKS.of_pipeline(f'print("{what}", {wanted}, "- {name} called:", "{name}(" in source)')


MISTAKES = (
    # ------------------------------------------------------------------------------- S1, plan
    Mistake(
        "assumed_geometry",
        "Orientation and spacing are assumed instead of read from the headers.",
        "nnUNet#2897",
        {"facts": "assumed"},
        {"S1": 0.25},
        CHECKS.of_plan("""\
for case, image in zip(cases, images):
    print(case, "plan", facts["orientations"].get(case), "file", nib.aff2axcodes(image.affine))
print("plan spacing", facts["spacing_mm"], "first file", image.header.get_zooms())"""),
    ),
    Mistake(
        "stored_values_as_hu",
        "The plan takes stored integers for Hounsfield units.",
        "pylidc PR#32",
        {"intensity_fact": "stored"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
hu = [image.get_fdata() for image in images]
print("plan intensity_hu", facts["intensity_hu"])
print("files", min(v.min() for v in hu), "to", max(v.max() for v in hu))"""),
    ),
    CHECKS.preprocessing_by_habit("nnUNet#2768"),
    CHECKS.pilot_check_in("litres", "millilitres are", "two adult kidneys hold 200 to 400 ml"),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "nibabel"),
        """\
for case, image in zip(cases, images):
    print(case, image.get_data_dtype(), image.ndim, image.dataobj.slope, image.dataobj.inter)""",
    ),
    CHECKS.loose_checkpoint({"task": 0.5, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
    CHECKS.training_mode(
        "The network predicts in training mode: dropout is on, results change from run to run.",
        {"task": 0.2, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        """\
module["predict"](f"/data/{case}", "/tmp/check")
again = np.asarray(nib.load("/tmp/check/dseg.nii.gz").dataobj)
print("voxels that differ in a second run", int((again != y).sum()))""",
    ),
    Mistake(
        "slope_ignored",
        "Stored integers go into the network: slope and intercept are ignored.",
        "pylidc PR#32",
        {"intensity": "stored"},
        {"task": 0.3},
        CHECKS.of_pipeline("""\
for case in sorted(os.listdir("/data")):
    image = nib.load(f"/data/{case}/ct.nii.gz")
    print(case, "slope", image.dataobj.slope, "inter", image.dataobj.inter)
print("stored values read:", "get_unscaled" in source)"""),
    ),
    Mistake(
        "no_reorientation",
        "Arrays go into the network in the file's axis order and direction.",
        "nnUNet#2768",
        {"orient": "none"},
        {"task": 0.3},
        _called(
            "axes",
            'nib.aff2axcodes(image.affine), card["preprocessing"]["orientation"]',
            "Orientation",
        ),
    ),
    Mistake(
        "no_resampling",
        "Arrays go into the network with the file's spacing.",
        "nnUNet#2402",
        {"resample": "none"},
        {"task": 0.25},
        _called(
            "spacing", 'image.header.get_zooms(), card["preprocessing"]["spacing_mm"]', "Spacing"
        ),
    ),
    Mistake(
        "lung_window",
        "Intensities are scaled with a lung window.",
        "MedSAM#101",
        {"window": "lung"},
        {"task": 0.4},
        CHECKS.of_pipeline("""\
print("model window", card["preprocessing"]["window_hu"])
print([line.strip() for line in source.splitlines() if "IntensityRange(" in line])"""),
    ),
    Mistake(
        "min_max_scaling",
        "Intensities are scaled by the image's own minimum and maximum, without a window.",
        "nnUNet#1680",
        {"window": "minmax"},
        {"task": 0.4},
        CHECKS.of_pipeline("""\
print("model window", card["preprocessing"]["window_hu"])
print([line.strip() for line in source.splitlines() if "IntensityRange(" in line])"""),
    ),
    Mistake(
        "labels_swapped",
        "Channels are written as labels: kidney and tumour change places.",
        "nnUNet#2500",
        {"channels": "raw"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline("""\
print("channels", card["channels"])
print("labels", json.load(open("task/spec.json"))["output"]["labels"])"""),
    ),
    Mistake(
        "left_in_model_grid",
        "The label map is saved in the network's grid, not the input's.",
        "TotalSegmentator#20",
        {"restore": "model_grid"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline('print("resampled back:", "resample_from_to(" in source)'),
    ),
    Mistake(
        "mirrored",
        "The label map is flipped left to right on its way back.",
        "TotalSegmentator#509",
        {"restore": "flipped"},
        {"task": 0.35},
        CHECKS.of_pipeline("""\
print("flips on the way back:", "[::-1]" in source)"""),
    ),
    Mistake(
        "identity_affine",
        "The label map is saved with an identity affine.",
        "SimpleITK-Notebooks#244",
        {"restore": "identity"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline(
            'print("output affine", np.diag(out.affine), "identity:", "np.eye" in source)'
        ),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    CLAIMS_HARD_CODED,
    # ------------------------------------------------------------------------- the whole frame
    *frame_mistakes("outputs/{case}/dseg.nii.gz", COMPARE, edited=0.25),
)
