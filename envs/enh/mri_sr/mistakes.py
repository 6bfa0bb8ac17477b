"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
"""

from __future__ import annotations

from bat_env.tasks.discovery import load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes
from bat_env.tasks.scripts import Mistake

FLOW = load_sibling(__file__, "oracle").FLOW

CHECKS = Checks(
    model="mri_sr_unet",
    imports="",
    inputs='images = [np.load(f"/data/{case}/coarse.npy") for case in cases]',
    run="""\
case = cases[0]
x = np.load(f"/data/{case}/coarse.npy")
module["predict"](f"/data/{case}", "/tmp/check")
y = np.load("/tmp/check/enhanced.npy")
print("check of pipeline/predict.py on", case)
print("input", x.shape, x.dtype, "output", y.shape, y.dtype)
print("mean input", round(float(x.mean()), 1), "output", round(float(y.mean()), 1))
""",
)
_ENLARGED = CHECKS.against("card", 'card["preprocessing"]', "interpolate(x")

MISTAKES = (
    # ------------------------------------------------------------------------------- S1, plan
    Mistake(
        "assumed_shapes",
        "Rows and columns are assumed instead of read from the files.",
        "common",
        {"shapes": "assumed"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", list(facts["shape_px"].items())[:3])
print("files", [(case, image.shape) for case, image in zip(cases, images)][:3])"""),
    ),
    Mistake(
        "range_of_the_type",
        "The plan states the limits of the stored type, not the intensities of these files.",
        "scikit-image#6602",
        {"intensity_fact": "by_type"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", facts["intensity"])
print("files", [(int(image.min()), int(image.max())) for image in images])"""),
    ),
    CHECKS.preprocessing_by_habit("nnUNet#2768"),
    Mistake(
        "network_misunderstood",
        "The plan takes the network's output for the image, where the card says difference.",
        "common",
        {"network_fact": "image"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
card = json.load(open("/models/mri_sr_unet/configs/metadata.json"))
print("plan", facts["postprocessing"])
print("card", card["network_data_format"]["outputs"]["pred"])"""),
    ),
    Mistake(
        "check_in_network_units",
        "The range of the pilot check is in network units where stored intensities are recorded.",
        "common",
        {"pilot_check": "units"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", facts["pilot_check"])
print("means of the inputs", [round(float(image.mean())) for image in images])"""),
    ),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "numpy"),
        """\
for case, image in zip(cases, images):
    print(case, image.dtype, image.shape)""",
    ),
    CHECKS.loose_checkpoint({"task": 0.4, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
    CHECKS.training_mode(
        "The network predicts in training mode: every slice is normalised by itself.",
        {"task": 0.4, "S2": 0.35, "S3": 0.95, "S4": 0.95},
    ),
    Mistake(
        "divided_by_maximum",
        "Intensities are divided by the maximum: a bright vessel decides.",
        "common",
        {"divide": "maximum"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against(
            "card percentile", 'card["preprocessing"]["percentile"], "maximum", x.max()', "unit ="
        ),
    ),
    Mistake(
        "divided_by_twelve_bits",
        "Intensities are divided by 4095, whatever the gain.",
        "common",
        {"divide": "bits"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against(
            "card percentile", 'card["preprocessing"]["percentile"], "maximum", x.max()', "unit ="
        ),
    ),
    Mistake(
        "nearest_neighbours",
        "The input is enlarged by repeating pixels, not by the card's interpolation.",
        "common",
        {"enlarge": "nearest"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        _ENLARGED,
    ),
    Mistake(
        "half_a_pixel",
        "Corners are aligned in the interpolation: the image is stretched by half a pixel.",
        "MONAI#2011",
        {"enlarge": "corners"},
        {"task": 0.1},
        _ENLARGED,
    ),
    Mistake(
        "sub_pixels_exchanged",
        "The network's channels go to the wrong pixels of their block: right and lower exchanged.",
        "common",
        {"order": "exchanged"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("channels", 'card["channels"]', "pixel_shuffle(d"),
    ),
    Mistake(
        "left_on_input_grid",
        "The image is saved with the rows and columns of the input.",
        "MedSAM#47",
        {"grid": "coarse"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("factor", 'card["preprocessing"]["factor"]', "y = y[0, 0"),
    ),
    Mistake(
        "difference_as_image",
        "The network's output, which is a difference, is saved as the image.",
        "common",
        {"gives": "image"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("network gives", 'card["postprocessing"]["network_gives"]', "y = "),
    ),
    Mistake(
        "network_units",
        "The output stays in network units instead of the input's intensities.",
        "nnUNet#1680",
        {"units": "network"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("output range", "(float(y.min()), float(y.max()))", "y = y"),
    ),
    Mistake(
        "rows_and_columns_swapped",
        "The image is saved with rows and columns exchanged.",
        "MONAI#3976",
        {"axes": "swapped"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline('print("transposed:", ".T" in source)'),
    ),
    Mistake(
        "eight_bits",
        "The output is cut to eight bits: everything brighter is lost.",
        "common",
        {"depth": "uint8"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("maximum", "x.max(), y.max()", "astype("),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    CLAIMS_HARD_CODED,
    # ------------------------------------------------------------------------- the whole frame
    *frame_mistakes(
        FLOW,
        """\
import os, runpy, numpy as np
predict = runpy.run_path("pipeline/predict.py")["predict"]
print("check of outputs/: largest difference from a new run of predict.py")
for case in sorted(os.listdir("/data"))[:2]:
    predict(f"/data/{case}", "/tmp/check")
    a, b = np.load("/tmp/check/enhanced.npy"), np.load(f"outputs/{case}/enhanced.npy")
    print(case, abs(a.astype(float) - b).max() if a.shape == b.shape else (a.shape, b.shape))
""",
    ),
)
