"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks import Mistake, load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes

FLOW = load_sibling(__file__, "oracle").FLOW
CHECKS = Checks(
    model="slice_net",
    imports="import nibabel as nib",
    inputs='images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases]',
    run="""\
print("check of pipeline/predict.py")
for case in cases[:2]:
    image = nib.load(f"/data/{case}/ct.nii.gz")
    module["predict"](f"/data/{case}", f"/tmp/check/{case}")
    out = nib.load(f"/tmp/check/{case}/synth.nii.gz")
    print(case, "input", image.shape, "output", out.shape)
    if np.prod(out.shape) == 4 * np.prod(image.shape):
        axis = int(np.argmax(np.divide(out.shape, image.shape)))
        thin = np.moveaxis(out.get_fdata(), axis, 0).reshape(image.shape[axis], 4, -1)
        thick = np.moveaxis(image.get_fdata(), axis, 0).reshape(image.shape[axis], -1)
        print("four thin slices minus their thick one, HU",
              round(float(np.abs(thin.mean(1) - thick).mean()), 1))
        step = np.abs(np.diff(thin.reshape(-1, thin.shape[-1]), axis=0)).mean(1)
        print("steps between thin slices: within groups",
              round(float(np.delete(step, np.s_[3::4]).mean()), 1),
              "between groups", round(float(step[3::4].mean()), 1))""",
)

MISTAKES = (
    # ------------------------------------------------------------------------------- S1, plan
    Mistake(
        "assumed_geometry",
        "Orientation, slice axis and spacing are assumed instead of read from the headers.",
        "nnUNet#2897",
        {"geometry": "assumed"},
        {"S1": 0.25},
        CHECKS.of_plan("""\
for case, image in zip(cases, images):
    print(case, "plan", facts["orientations"].get(case), facts["slice_axis"].get(case),
          "file", nib.aff2axcodes(image.affine), image.header.get_zooms())"""),
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
    CHECKS.preprocessing_by_habit(),
    CHECKS.pilot_check_in("shares", "HU are", "air is -1000 HU, soft tissue 40 HU"),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "nibabel"),
        """\
for case, image in zip(cases, images):
    print(case, image.get_data_dtype(), image.ndim, image.dataobj.slope, image.dataobj.inter)""",
    ),
    CHECKS.loose_checkpoint({"task": 0.4, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
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
print("stored values read:", "get_unscaled" in source)"""),
    ),
    Mistake(
        "last_axis",
        "The last axis is taken for the one that slices are stacked along.",
        "nnUNet#1951",
        {"axis": "last"},
        {"task": 0.3, "S4": 0.8},
        CHECKS.of_pipeline("""\
for case in cases:
    zooms = nib.load(f"/data/{case}/ct.nii.gz").header.get_zooms()
    print(case, "thickest along axis", int(np.argmax(zooms)))
print([line.strip() for line in source.splitlines() if "axis = " in line])"""),
    ),
    Mistake(
        "window_by_habit",
        "Intensities are scaled with a soft tissue window, not with the card's.",
        "MedSAM#101",
        {"window": "habit"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("window", 'card["preprocessing"]["window_hu"]', "low, high"),
    ),
    Mistake(
        "scaled_to_unit",
        "Intensities are scaled to 0 and 1; the network knows -1 to 1.",
        "common",
        {"scale": "unit"},
        {"task": 0.4},
        CHECKS.against(
            "input range",
            'card["network_data_format"]["inputs"]["image"]["value_range"]',
            "hu.clip",
        ),
    ),
    Mistake(
        "zeros_beyond_the_edge",
        "Slices beyond the volume are filled with zeros instead of its last slice.",
        "common",
        {"edges": "zero"},
        {"task": 0.15},
        CHECKS.against("edges", 'card["preprocessing"]["edges"]', "np.pad"),
    ),
    Mistake(
        "channels_as_slices",
        "Output channels are stacked as they come: each group of four slices is upside down.",
        "nnUNet#2500",
        {"order": "as_is"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("channels", 'card["channels"]', "y = y[:, ["),
    ),
    Mistake(
        "unit_by_window",
        "The network's output is scaled with the width of the window, not with its unit.",
        "common",
        {"unit": "window"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("unit, HU", 'card["postprocessing"]["output_unit_hu"]', "y = y *"),
    ),
    Mistake(
        "added_to_repeated_slices",
        "The network's output is added to the thick slice, not to the interpolation it corrects.",
        "common",
        {"base": "repeated"},
        {"task": 0.2},
        CHECKS.against("output", '"is added to the linear interpolation"', "share"),
    ),
    Mistake(
        "not_added",
        "The network's output is saved alone: the interpolation that it corrects is not added.",
        "common",
        {"addition": "alone"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("output", '"is added to the linear interpolation"', "y = y + "),
    ),
    Mistake(
        "network_unused",
        "Slices are interpolated; the network's output is not used.",
        "common",
        {"addition": "interpolated"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("output", '"is added to the linear interpolation"', " + linear"),
    ),
    Mistake(
        "first_slice_stays",
        "The first thin slice gets the place of the first thick one: part of a slice is lost.",
        "MONAI#2011",
        {"origin": "centres"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("first affine", "image.affine[:3, 3].round(2)", "affine["),
    ),
    Mistake(
        "input_affine",
        "The output keeps the input's affine, so its slices are as thick as before.",
        "TotalSegmentator#20",
        {"origin": "copied"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("spacing", "image.header.get_zooms(), out.header.get_zooms()", "affine ="),
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
