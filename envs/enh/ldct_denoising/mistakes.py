"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
"""

from __future__ import annotations

from bat_env.tasks.discovery import load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes
from bat_env.tasks.scripts import Mistake

FLOW = load_sibling(__file__, "oracle").FLOW

CHECKS = Checks(
    model="ldct_unet",
    imports="import nibabel as nib",
    inputs='images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases]',
    run="""\
case = cases[0]
image = nib.load(f"/data/{case}/ct.nii.gz")
module["predict"](f"/data/{case}", "/tmp/check")
out = nib.load("/tmp/check/enhanced.nii.gz")
x, y = image.get_fdata(), out.get_fdata()
print("check of pipeline/predict.py on", case)
print("shape", x.shape, "output", y.shape, "same affine", np.allclose(image.affine, out.affine))
print("median input", round(float(np.median(x))), "output", round(float(np.median(y))))
if x.shape == y.shape:
    print("removed std", round(float((y - x).std()), 1))
""",
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
for case, image in list(zip(cases, images))[:4]:
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
    Mistake(
        "network_misunderstood",
        "The plan takes the network's output for the image, where the card says noise.",
        "common",
        {"network_fact": "image"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
card = json.load(open("/models/ldct_unet/configs/metadata.json"))
print("plan", facts["postprocessing"])
print("card", card["network_data_format"]["outputs"]["pred"])"""),
    ),
    Mistake(
        "check_in_network_units",
        "The range of the pilot check is in network units where Hounsfield units are recorded.",
        "common",
        {"pilot_check": "units"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", facts["pilot_check"])
print("unit", json.load(open("task/spec.json"))["pilot"])"""),
    ),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "nibabel"),
        """\
for case, image in zip(cases, images):
    print(case, image.get_data_dtype(), image.ndim, image.dataobj.slope, image.dataobj.inter)""",
    ),
    CHECKS.loose_checkpoint({"task": 0.4, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
    CHECKS.training_mode(
        "The network predicts in training mode: every slab is normalised by itself.",
        {"task": 0.3, "S2": 0.15},
    ),
    Mistake(
        "slope_ignored",
        "Stored integers go into the network: slope and intercept are ignored.",
        "pylidc PR#32",
        {"intensity": "stored"},
        {"task": 0.35},
        CHECKS.of_pipeline("""\
for case in sorted(os.listdir("/data"))[:4]:
    image = nib.load(f"/data/{case}/ct.nii.gz")
    print(case, "slope", image.dataobj.slope, "inter", image.dataobj.inter)
print([line.strip() for line in source.splitlines() if "hu = " in line])"""),
    ),
    Mistake(
        "no_reorientation",
        "Arrays go into the network in the file's axis order: slices are cut across the body.",
        "nnUNet#1951",
        {"orient": "none"},
        {"task": 0.25},
        CHECKS.against(
            "axes",
            'nib.aff2axcodes(image.affine), card["preprocessing"]["orientation"]',
            "wanted =",
        ),
    ),
    Mistake(
        "lung_window",
        "Intensities are scaled with a lung window instead of the card's centre and scale.",
        "MedSAM#101",
        {"window": "lung"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("card", 'card["preprocessing"]', "centre, scale ="),
    ),
    Mistake(
        "brain_window",
        "Intensities are scaled with a narrow brain window instead of the card's values.",
        "MedSAM#101",
        {"window": "narrow"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("card", 'card["preprocessing"]', "centre, scale ="),
    ),
    Mistake(
        "noise_as_image",
        "The network's output, which is noise, is saved as the image.",
        "common",
        {"gives": "image"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("network gives", 'card["postprocessing"]["network_gives"]', "y = "),
    ),
    Mistake(
        "network_units",
        "The output stays in network units instead of Hounsfield units.",
        "nnUNet#1680",
        {"units": "network"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("output range", "(float(y.min()), float(y.max()))", "y = y"),
    ),
    Mistake(
        "offset_kept",
        "1024 is added to the output, as archives of unsigned integers want it.",
        "pylidc PR#32",
        {"units": "offset"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("output range", "(float(y.min()), float(y.max()))", "y = y"),
    ),
    Mistake(
        "eight_bits",
        "The output is cut to eight bits: everything darker than water is lost.",
        "common",
        {"depth": "uint8"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("types", "image.get_data_dtype(), out.get_data_dtype()", "astype("),
    ),
    Mistake(
        "left_in_model_grid",
        "The image is saved in the network's axis order, not the input's.",
        "TotalSegmentator#20",
        {"restore": "model_grid"},
        {"task": 0.35, "S2": 0.15, "S3": 0.95, "S4": 0.85},
        CHECKS.against(
            "axes",
            "nib.aff2axcodes(image.affine), nib.aff2axcodes(out.affine)",
            "out = ",
        ),
    ),
    Mistake(
        "mirrored",
        "The image is flipped left to right on its way back.",
        "TotalSegmentator#509",
        {"restore": "flipped"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline('print("flips on the way back:", "[::-1]" in source)'),
    ),
    Mistake(
        "identity_affine",
        "The image is saved with an identity affine.",
        "SimpleITK-Notebooks#244",
        {"restore": "identity"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline(
            'print("output affine", np.diag(out.affine), "identity:", "np.eye" in source)'
        ),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    CLAIMS_HARD_CODED,
    # ------------------------------------------------------------------------- the whole frame
    *frame_mistakes(
        FLOW,
        """\
import os, runpy, nibabel as nib
predict = runpy.run_path("pipeline/predict.py")["predict"]
print("check of outputs/: largest difference from a new run of predict.py, HU")
for case in sorted(os.listdir("/data"))[:2]:
    predict(f"/data/{case}", "/tmp/check")
    a = nib.load("/tmp/check/enhanced.nii.gz").get_fdata()
    b = nib.load(f"outputs/{case}/enhanced.nii.gz").get_fdata()
    print(case, abs(a - b).max())
""",
    ),
)
