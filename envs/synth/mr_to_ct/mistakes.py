"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks import Mistake, load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes

FLOW = load_sibling(__file__, "oracle").FLOW
CHECKS = Checks(
    model="ct_unet",
    imports="import nibabel as nib",
    inputs="""\
images = [nib.load(f"/data/{case}/mr.nii.gz") for case in cases]
masks = [nib.load(f"/data/{case}/mask.nii.gz").get_fdata() > 0 for case in cases]""",
    run="""\
case = cases[0]
image = nib.load(f"/data/{case}/mr.nii.gz")
region = nib.load(f"/data/{case}/mask.nii.gz").get_fdata() > 0
module["predict"](f"/data/{case}", "/tmp/check")
out = nib.load("/tmp/check/synth.nii.gz")
ct = out.get_fdata()
print("check of pipeline/predict.py on", case)
print("MR", image.shape, "output", ct.shape)
print("same affine", np.allclose(image.affine, out.affine, atol=1e-3))
print("HU from", round(ct.min()), "to", round(ct.max()), "mean", round(ct.mean()))
if ct.shape == region.shape:
    print("in the mask", round(ct[region].mean()), "outside", round(ct[~region].mean()))
    print("bone, share of the mask", round(float((ct[region] > 300).mean()), 3))""",
)

MISTAKES = (
    # ------------------------------------------------------------------------------- S1, plan
    Mistake(
        "assumed_geometry",
        "Orientation and spacing are assumed instead of read from the headers.",
        "nnUNet#2897",
        {"geometry": "assumed"},
        {"S1": 0.25},
        CHECKS.of_plan("""\
for case, image in zip(cases, images):
    print(case, "plan", facts["orientations"].get(case), "file", nib.aff2axcodes(image.affine))
print("plan", facts["spacing_mm"], "first file", image.header.get_zooms())"""),
    ),
    Mistake(
        "stored_values_as_signal",
        "The plan takes stored integers for the signal: the slope of the header is ignored.",
        "pylidc PR#32",
        {"signal": "stored"},
        {"S1": 0.25},
        CHECKS.of_plan("""\
values = [image.get_fdata() for image in images]
print("plan", facts["signal_range"])
print("files", min(v.min() for v in values), "to", max(v.max() for v in values))"""),
    ),
    Mistake(
        "mean_of_the_volume",
        "The mean signal is taken over the whole volume: most of it is air.",
        "nnUNet#1680",
        {"region": "volume"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
for case, image, mask in zip(cases, images, masks):
    value = image.get_fdata()
    print(case, "plan", round(facts["mean_signal"].get(case, 0), 1),
          "in the mask", round(value[mask].mean(), 1), "share", round(mask.mean(), 2))"""),
    ),
    CHECKS.preprocessing_by_habit("nnUNet#2768"),
    CHECKS.pilot_check_in("shares", "HU are", "air is -1000 HU, water 0 HU"),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "nibabel"),
        """\
for case, image in zip(cases, images):
    print(case, image.get_data_dtype(), image.ndim, image.dataobj.slope, image.dataobj.inter)""",
    ),
    CHECKS.loose_checkpoint({"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95}),
    CHECKS.training_mode(
        "The network predicts in training mode: every case is normalised by its own statistics.",
        {"S2": 0.15},
    ),
    Mistake(
        "statistics_of_the_volume",
        "Mean and standard deviation are taken over the whole volume, air included.",
        "nnUNet#1680",
        {"normalise": "volume"},
        {"task": 0.2},
        CHECKS.against("statistics from", 'card["preprocessing"]["statistics_from"]', "mr = (mr"),
    ),
    Mistake(
        "scaled_by_range",
        "MR is scaled from its minimum and maximum to 0 and 1.",
        "common",
        {"normalise": "range"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("statistics from", 'card["preprocessing"]["statistics_from"]', "mr = "),
    ),
    Mistake(
        "signal_as_it_is",
        "MR goes into the network in the scanner's unit, as CT would.",
        "MedSAM#101",
        {"normalise": "none"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline("""\
values = image.get_fdata()[region]
print("MR in the mask, mean", round(values.mean(), 1), "deviation", round(values.std(), 1))
print([line.strip() for line in source.splitlines() if "mr = " in line])"""),
    ),
    Mistake(
        "no_reorientation",
        "Arrays go into the network in the file's axis order and direction.",
        "nnUNet#2768",
        {"orient": "file"},
        {"task": 0.25},
        CHECKS.of_pipeline("""\
print("axes", nib.aff2axcodes(image.affine), "model axes", card["preprocessing"]["orientation"])
print("Orientation called:", "Orientation(" in source)"""),
    ),
    Mistake(
        "spacing_by_habit",
        "Arrays are resampled to 2 mm, the usual grid of head MR, not to the card's spacing.",
        "common",
        {"resample": "habit"},
        {"task": 0.15},
        CHECKS.of_pipeline("""\
print("spacing", image.header.get_zooms(), "model", card["preprocessing"]["spacing_mm"])
print([line.strip() for line in source.splitlines() if " Spacing(" in line])"""),
    ),
    Mistake(
        "one_slice_repeated",
        "The slice itself stands in for its neighbours in the network input.",
        "common",
        {"neighbours": "repeated"},
        {"task": 0.1},
        CHECKS.against("slices", 'card["preprocessing"]["slices"]', "near = "),
    ),
    Mistake(
        "network_unit",
        "The network's output is saved as it comes, not in Hounsfield units.",
        "nnUNet#1680",
        {"unit": "raw"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("unit, HU", 'card["postprocessing"]["output_unit_hu"]', "y = "),
    ),
    Mistake(
        "shifted_by_1024",
        "1024 is added, as if Hounsfield units were stored as unsigned integers.",
        "pylidc PR#32",
        {"unit": "shifted"},
        {"task": 0.5, "S3": 0.95, "S4": 0.95},
        CHECKS.against("unit, HU", 'card["postprocessing"]["output_unit_hu"]', "y = "),
    ),
    Mistake(
        "soft_tissue_window",
        "The output is cut to a soft tissue window: bone is lost.",
        "MedSAM#101",
        {"unit": "window"},
        {"task": 0.25},
        CHECKS.against("unit, HU", 'card["postprocessing"]["output_unit_hu"]', "y = "),
    ),
    Mistake(
        "mirrored",
        "The output is flipped left to right on its way back.",
        "TotalSegmentator#509",
        {"affine": "mirrored"},
        {"task": 0.3},
        CHECKS.of_pipeline('print("flips on the way back:", "[::-1]" in source)'),
    ),
    Mistake(
        "left_in_model_grid",
        "The output is saved in the network's grid, not the MR's.",
        "TotalSegmentator#20",
        {"restore": "model_grid"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline('print("resampled back:", "resample_from_to(" in source)'),
    ),
    Mistake(
        "identity_affine",
        "The output is saved with an identity affine.",
        "SimpleITK-Notebooks#244",
        {"restore": "no_affine"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline(
            'print("output affine", np.diag(out.affine), "identity:", "np.eye" in source)'
        ),
    ),
    Mistake(
        "negative_values_lost",
        "The output is made unsigned: everything below water becomes 0.",
        "nnUNet#1680",
        {"dtype": "unsigned"},
        {"task": 0.15, "S3": 0.15},
        CHECKS.of_pipeline('print("share of 0 HU", round(float((ct == 0).mean()), 2))'),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    CLAIMS_HARD_CODED,
    # ------------------------------------------------------------------------- the whole frame
    *frame_mistakes(
        FLOW,
        """\
import os, runpy, nibabel as nib, numpy as np
predict = runpy.run_path("pipeline/predict.py")["predict"]
print("check of outputs/: mean difference from a new run of predict.py, HU")
for case in sorted(os.listdir("/data"))[:2]:
    predict(f"/data/{case}", "/tmp/check")
    a = nib.load("/tmp/check/synth.nii.gz").get_fdata()
    b = nib.load(f"outputs/{case}/synth.nii.gz").get_fdata()
    print(case, "shapes", a.shape, b.shape)
    if a.shape == b.shape:
        print(case, "mean", round(float(np.abs(a - b).mean()), 1))
""",
    ),
)
