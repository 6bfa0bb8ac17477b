"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks import Mistake, load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes

FLOW = load_sibling(__file__, "oracle").FLOW
CHECKS = Checks(
    model="skin_resnet",
    imports="from PIL import Image",
    inputs='photos = [Image.open(f"/data/{case}/photo.png") for case in cases]',
    run="""\
said, top = [], []
for case in cases[:12]:
    module["predict"](f"/data/{case}", f"/tmp/check/{case}")
    row = open(f"/tmp/check/{case}/predictions.csv").read().splitlines()[1].split(",")
    said.append(row[1])
    top.append(max(map(float, row[2:])))
print("check of pipeline/predict.py on", len(said), "cases")
print("labels", {name: said.count(name) for name in sorted(set(said))})
print("mean top probability", round(float(np.mean(top)), 2))
""",
)

MISTAKES = (
    # ------------------------------------------------------------------------------- S1, plan
    Mistake(
        "assumed_sizes",
        "Picture sizes are assumed instead of read from the files.",
        "common",
        {"sizes": "assumed"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", list(facts["size_px"].items())[:3])
print("files", [(case, photo.size) for case, photo in zip(cases, photos)][:3])"""),
    ),
    Mistake(
        "colours_by_habit",
        "The plan states the mean colours of a well-known photo collection, not of these files.",
        "common",
        {"colour_fact": "habit"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", facts["mean_rgb"])
print("first file", np.asarray(photos[0]).reshape(-1, 3).mean(0).round(1).tolist())"""),
    ),
    CHECKS.preprocessing_by_habit(),
    CHECKS.pilot_check_in("percent", "a share is", "a probability lies between 0 and 1"),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "pillow"), 'print("first file", cases[0], photos[0])'
    ),
    CHECKS.loose_checkpoint({"task": 0.5, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
    CHECKS.training_mode(
        "The network predicts in training mode: every picture is normalised by itself.",
        {"task": 0.3, "S2": 0.15},
    ),
    Mistake(
        "cropped",
        "A corner of the picture is taken instead of the whole picture at the card's size.",
        "common",
        {"size": "cropped"},
        {"task": 0.45, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("size", 'card["preprocessing"]["size_px"]', "photo = photo."),
    ),
    Mistake(
        "bytes_unscaled",
        "Bytes go into the normalisation without the division by 255.",
        "common",
        {"scale": "byte"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against(
            "input range",
            'card["network_data_format"]["inputs"]["image"]["value_range"]',
            "float32",
        ),
    ),
    Mistake(
        "colours_exchanged",
        "Red and blue change places: the picture goes in as it was read.",
        "common",
        {"colours": "as_read"},
        {"task": 0.5, "S3": 0.95, "S4": 0.95},
        CHECKS.against("colour order", 'card["preprocessing"]["channel_order"]', "x = x[..., "),
    ),
    Mistake(
        "normalised_by_habit",
        "Mean and deviation of a well-known photo collection are used, not the card's.",
        "common",
        {"normalise": "habit"},
        {"task": 0.2, "S2": 0.15},
        CHECKS.against("mean", 'card["preprocessing"]["mean"]', "x = (x - "),
    ),
    Mistake(
        "not_normalised",
        "The normalisation is left out.",
        "common",
        {"normalise": "none"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("mean", 'card["preprocessing"]["mean"]', "x = x - "),
    ),
    Mistake(
        "alphabetical_classes",
        "The network's outputs are named in alphabetical order instead of the card's.",
        "nnUNet#2500",
        {"classes": "alphabetical"},
        {"task": 0.45, "S4": 0.95},
        CHECKS.against("channels", 'card["channels"]', "names = "),
    ),
    Mistake(
        "least_likely_class",
        "The class of the smallest probability is named.",
        "common",
        {"pick": "smallest"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("output", '"largest probability is the class"', "label = "),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    CLAIMS_HARD_CODED,
    # ------------------------------------------------------------------------- the whole frame
    *frame_mistakes(
        FLOW,
        """\
import os, runpy
predict = runpy.run_path("pipeline/predict.py")["predict"]
table = dict(line.split(",")[:2] for line in open("outputs/predictions.csv").read().splitlines())
print("check of outputs/: labels of a new run of predict.py, and of the table")
for case in sorted(os.listdir("/data"))[:6]:
    predict(f"/data/{case}", "/tmp/check")
    row = open("/tmp/check/predictions.csv").read().splitlines()[1].split(",")
    print(case, row[1], table[case])
""",
    ),
)
