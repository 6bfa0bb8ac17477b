"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks import Mistake, load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes

FLOW = load_sibling(__file__, "oracle").FLOW

CHECKS = Checks(
    model="fetal_unet",
    imports="import nibabel as nib",
    inputs='images = [nib.load(f"/data/{case}/t2w.nii.gz") for case in cases]',
    run="""\
case = cases[0]
image = nib.load(f"/data/{case}/t2w.nii.gz")
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

HEIGHTS = """\
z = lambda v: nib.affines.apply_affine(out.affine, np.argwhere(y == v).mean(0))[2].round()
print("z grows to the head; z of", {labels[str(v)]: z(v) for v in (3, 5, 7) if (y == v).any()})
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
        "stored_values_as_signal",
        "The plan takes stored integers for the signal.",
        "pylidc PR#32",
        {"signal_fact": "stored"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
for case, image in zip(cases, images):
    signal = image.get_fdata()
    p99 = np.percentile(signal[signal != 0], 99)
    print(case, "plan", facts["signal_p99"].get(case), "file", p99.round(1))
"""),
    ),
    CHECKS.preprocessing_by_habit("nnUNet#2768"),
    CHECKS.pilot_check_in("litres", "millilitres are", "a whole fetal brain holds 60 to 400 ml"),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "nibabel"),
        """\
for case, i in zip(cases, images):
    print(case, i.get_data_dtype(), i.ndim, i.dataobj.slope, i.dataobj.inter)
print("corner", images[0].get_fdata()[0, 0, 0])
""",
    ),
    CHECKS.loose_checkpoint({"task": 0.45, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
    CHECKS.training_mode(
        "The network predicts in training mode: dropout is on, results change from run to run.",
        {"S2": 0.15, "S3": 0.95, "S4": 0.95},
        """\
module["predict"](f"/data/{case}", "/tmp/check")
again = np.asarray(nib.load("/tmp/check/dseg.nii.gz").dataobj)
print("voxels that differ in a second run", int((again != y).sum()))
""",
    ),
    Mistake(
        "slope_ignored",
        "Stored integers go into the network: an intercept turns the empty background into signal.",
        "pylidc PR#32",
        {"signal": "stored"},
        {"task": 0.1},
        CHECKS.of_pipeline("""\
for case in cases:
    image = nib.load(f"/data/{case}/t2w.nii.gz")
    print(case, "slope", image.dataobj.slope, "inter", image.dataobj.inter)
print("stored values read:", "get_unscaled" in source)
"""),
    ),
    Mistake(
        "no_reorientation",
        "Arrays go into the network in the file's axis order and direction.",
        "nnUNet#2768",
        {"orient": "none"},
        {"task": 0.1},
        CHECKS.of_pipeline(
            'print("axes", nib.aff2axcodes(image.affine))\n'
            'print("model axes", card["preprocessing"]["orientation"])\n'
            'print("Orientation called:", "Orientation(" in source)'
        ),
    ),
    Mistake(
        "axial_by_habit",
        "Volumes are turned to RAS out of habit: the network wants coronal slices and gets axial.",
        "nnUNet#1951",
        {"orient": "axial"},
        {"task": 0.15},
        CHECKS.against("model axes", 'card["preprocessing"]["orientation"]', "Orientation("),
    ),
    Mistake(
        "no_resampling",
        "Arrays go into the network with the file's spacing.",
        "nnUNet#2402",
        {"resample": "none"},
        {"task": 0.05},
        CHECKS.of_pipeline(
            'print("spacing", image.header.get_zooms())\n'
            'print("model spacing", card["preprocessing"]["spacing_mm"])\n'
            'print("Spacing called:", "Spacing(" in source)'
        ),
    ),
    Mistake(
        "background_in_the_mean",
        "The empty background takes part in the local mean: the rim of the head is too bright.",
        "common",
        {"local_mean": "everywhere"},
        {"task": 0.15},
        CHECKS.against("model smooth_mm", 'card["preprocessing"]["smooth_mm"]', "low = "),
    ),
    Mistake(
        "bias_left_in",
        "The signal is divided by one mean of the whole volume: the bias field stays.",
        "common",
        {"local_mean": "whole"},
        {"task": 0.05},
        CHECKS.against("model smooth_mm", 'card["preprocessing"]["smooth_mm"]', "low = "),
    ),
    Mistake(
        "clipped_at_one",
        "The ratio is clipped to 0 to 1: everything brighter than its surroundings is the same.",
        "MedSAM#101",
        {"range": "unit"},
        {"task": 0.45},
        CHECKS.against("model range", 'card["preprocessing"]["signal_range"]', "a, b = "),
    ),
    Mistake(
        "channels_as_labels",
        "Channels are written as labels: the tissues change places.",
        "nnUNet#2500",
        {"channels": "raw"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline('print("channels", card["channels"])\nprint("labels", labels)'),
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
        "upside_down",
        "The label map is flipped from head to foot on its way back.",
        "TotalSegmentator#509",
        {"restore": "upside_down"},
        {"task": 0.3},
        CHECKS.of_pipeline(HEIGHTS + 'print("flips on the way back:", "::-1" in source)\n'),
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
