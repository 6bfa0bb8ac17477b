"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks import Mistake, load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes

FLOW = load_sibling(__file__, "oracle").FLOW

CHECKS = Checks(
    model="organ_unet",
    imports="import nibabel as nib",
    inputs='images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases]',
    run="""\
case = cases[0]
image = nib.load(f"/data/{case}/ct.nii.gz")
module["predict"](f"/data/{case}", "/tmp/check")
out = nib.load("/tmp/check/dseg.nii.gz")
y = np.asarray(out.dataobj)
labels = json.load(open("task/spec.json"))["output"]["labels"]
ml = np.prod(image.header.get_zooms()) / 1000
print("check of pipeline/predict.py on", case)
print("shape", image.shape, "output", y.shape)
print("same affine", np.allclose(image.affine, out.affine))
volumes = {name: round(float((y == int(v)).sum() * ml)) for v, name in labels.items() if v != "0"}
print("ml", volumes)
""",
)

SIDES = """\
world = lambda v: nib.affines.apply_affine(out.affine, np.argwhere(y == v).mean(0))[0].round()
middle = nib.affines.apply_affine(image.affine, np.array(image.shape) / 2)[0].round()
print("x grows to the patient's right; middle of the image", middle)
print("x of", {labels[str(v)]: world(v) for v in (1, 2, 3, 5) if (y == v).any()})
"""

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
print("plan spacing", facts["spacing_mm"], "first file", image.header.get_zooms())
"""),
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
print("files", min(v.min() for v in hu), "to", max(v.max() for v in hu))
"""),
    ),
    CHECKS.preprocessing_by_habit("nnUNet#2768"),
    CHECKS.pilot_check_in("litres", "millilitres are", "an adult liver holds some 1500 ml"),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "nibabel"),
        """\
for case, i in zip(cases, images):
    print(case, i.get_data_dtype(), i.ndim, i.dataobj.slope, i.dataobj.inter)
""",
    ),
    CHECKS.loose_checkpoint({"task": 0.45, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
    CHECKS.training_mode(
        "The network predicts in training mode: dropout is on, results change from run to run.",
        {"task": 0.05, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        """\
module["predict"](f"/data/{case}", "/tmp/check")
again = np.asarray(nib.load("/tmp/check/dseg.nii.gz").dataobj)
print("voxels that differ in a second run", int((again != y).sum()))
""",
    ),
    Mistake(
        "slope_ignored",
        "Stored integers go into the network: slope and intercept are ignored.",
        "pylidc PR#32",
        {"intensity": "stored"},
        {"task": 0.3},
        CHECKS.of_pipeline("""\
for case in cases:
    image = nib.load(f"/data/{case}/ct.nii.gz")
    print(case, "slope", image.dataobj.slope, "inter", image.dataobj.inter)
print("stored values read:", "get_unscaled" in source)
"""),
    ),
    Mistake(
        "no_reorientation",
        "Arrays go into the network in the file's axis order and direction.",
        "nnUNet#2768",
        {"orient": "none"},
        {"task": 0.4},
        CHECKS.of_pipeline(
            'print("axes", nib.aff2axcodes(image.affine))\n'
            'print("model axes", card["preprocessing"]["orientation"])\n'
            'print("Orientation called:", "Orientation(" in source)'
        ),
    ),
    Mistake(
        "canonical_by_habit",
        "Volumes are turned to RAS out of habit: the network sees its patients mirrored.",
        "nnUNet#2897",
        {"orient": "canonical"},
        {"task": 0.4},
        CHECKS.of_pipeline(
            SIDES
            + 'print("model axes", card["preprocessing"]["orientation"])\n'
            + 'print([line.strip() for line in source.splitlines() if "Orientation(" in line])'
        ),
    ),
    Mistake(
        "no_resampling",
        "Arrays go into the network with the file's spacing.",
        "nnUNet#2402",
        {"resample": "none"},
        {"task": 0.1},
        CHECKS.of_pipeline(
            'print("spacing", image.header.get_zooms())\n'
            'print("model spacing", card["preprocessing"]["spacing_mm"])\n'
            'print("Spacing called:", "Spacing(" in source)'
        ),
    ),
    Mistake(
        "lung_window",
        "Intensities are scaled with a lung window.",
        "MedSAM#101",
        {"window": "lung"},
        {"task": 0.45},
        CHECKS.against("model window", 'card["preprocessing"]["window_hu"]', "IntensityRange("),
    ),
    Mistake(
        "min_max_scaling",
        "Intensities are scaled by the image's own minimum and maximum, without a window.",
        "nnUNet#1680",
        {"window": "minmax"},
        {"task": 0.45},
        CHECKS.against("model window", 'card["preprocessing"]["window_hu"]', "IntensityRange("),
    ),
    Mistake(
        "fills_absent_classes",
        "Every class gets its most likely voxels, so that an organ that is not there is found.",
        "common",
        {"absent": "filled"},
        {"task": 0.1},
        CHECKS.of_pipeline("""\
print("classes in the output", np.unique(y).tolist())
print("card", card["postprocessing"])
print([line.strip() for line in source.splitlines() if "topk" in line or "minimum_ml" in line])
"""),
    ),
    Mistake(
        "channels_as_labels",
        "Channels are written as labels: the organs change places.",
        "nnUNet#2500",
        {"channels": "raw"},
        {"task": 0.5, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline('print("channels", card["channels"])\nprint("labels", labels)'),
    ),
    Mistake(
        "kidneys_exchanged",
        "The kidneys are named as they lie in the picture, not in the patient.",
        "TotalSegmentator#509",
        {"channels": "sides"},
        {"task": 0.1},
        CHECKS.of_pipeline(SIDES + 'print("kidneys renamed:", "kidney_left=" in source)\n'),
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
        "identity_affine",
        "The label map is saved with an identity affine.",
        "SimpleITK-Notebooks#244",
        {"restore": "identity"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline(
            'print("output affine", np.diag(out.affine), "identity:", "np.eye" in source)'
        ),
    ),
    Mistake(
        "labels_interpolated",
        "Label numbers are interpolated: between background and liver lie four other organs.",
        "CA-Net#7",
        {"restore": "linear"},
        {"task": 0.2},
        CHECKS.of_pipeline("""\
core = (y[1:-1] != y[:-2]) & (y[1:-1] != y[2:]) & (y[1:-1] > 0)
print("voxels whose label is that of no neighbour on the first axis", int(core.sum()))
print([line.strip() for line in source.splitlines() if "resample_from_to(out" in line])
"""),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    CLAIMS_HARD_CODED,
    # ------------------------------------------------------------------------- the whole frame
    *frame_mistakes(
        FLOW,
        """\
import os, runpy, nibabel as nib, numpy as np
predict = runpy.run_path("pipeline/predict.py")["predict"]
print("check of outputs/: voxels that differ from a new run of predict.py")
for case in sorted(os.listdir("/data"))[:2]:
    predict(f"/data/{case}", "/tmp/check")
    a = np.asarray(nib.load("/tmp/check/dseg.nii.gz").dataobj)
    b = np.asarray(nib.load(f"outputs/{case}/dseg.nii.gz").dataobj)
    print(case, int((a != b).sum()), "of", int((a > 0).sum()))
""",
        edited=0.25,
    ),
)
