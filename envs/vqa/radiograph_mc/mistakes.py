"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks import Mistake, load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes

FLOW = load_sibling(__file__, "oracle").FLOW
CHECKS = Checks(
    model="xray_classifier",
    imports="from PIL import Image",
    inputs='photos = [Image.open(f"/data/{case}/xray.png") for case in cases]',
    run="""\
print("check of pipeline/predict.py: question, answer, confidence")
for case in cases[:4]:
    asked = json.load(open(f"/data/{case}/question.json"))
    module["predict"](f"/data/{case}", f"/tmp/check/{case}")
    row = open(f"/tmp/check/{case}/answers.csv").read().splitlines()[1].split(",")
    print(asked["question"], row[1], asked["options"][row[1]], row[2][:4])
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
        "one_polarity",
        "The plan takes every picture for MONOCHROME2.",
        "monai-deploy-app-sdk#282",
        {"polarity_fact": "assumed"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", sorted(facts["photometric"].values()))
print("files", sorted(photo.text["PhotometricInterpretation"] for photo in photos))"""),
    ),
    Mistake(
        "questions_unread",
        "The plan takes every question for one of what is present.",
        "common",
        {"asks_fact": "assumed"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
for case in cases[:4]:
    asked = json.load(open(f"/data/{case}/question.json"))["question"]
    print("plan", facts["asks"][case], "-", asked)"""),
    ),
    Mistake(
        "eight_bits_assumed",
        "The plan takes the middle of 8 bits for the mean pixel of pictures of 12 bits.",
        "common",
        {"mean_fact": "bytes"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", facts["mean_pixel"])
print("first file", round(float(np.asarray(photos[0]).mean()), 1))"""),
    ),
    CHECKS.preprocessing_by_habit(),
    CHECKS.pilot_check_in("percent", "a share is", "a confidence lies between 0 and 1"),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "pillow"), 'print("first file", cases[0], photos[0])'
    ),
    CHECKS.loose_checkpoint({"task": 0.6, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
    CHECKS.training_mode(
        "The network predicts in training mode: every picture is normalised by itself.",
        {"S2": 0.15},
    ),
    Mistake(
        "clipped_to_bytes",
        "The picture is converted to 8 bits, which cuts every pixel above 255.",
        "common",
        {"depth": "bytes"},
        {"task": 0.6, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline("""\
photo = Image.open(f"/data/{case}/xray.png")
print("pixels up to", np.asarray(photo).max(), "converted", np.asarray(photo.convert("L")).max())
print([line.strip() for line in source.splitlines() if "np.asarray(photo" in line])"""),
    ),
    Mistake(
        "polarity_ignored",
        "MONOCHROME1 pictures go into the network inverted.",
        "monai-deploy-app-sdk#282",
        {"polarity": "ignored"},
        {"task": 0.15},
        CHECKS.of_pipeline("""\
kinds = [Image.open(f"/data/{c}/xray.png").text["PhotometricInterpretation"] for c in cases]
print({kind: kinds.count(kind) for kind in sorted(set(kinds))})
print("polarity read:", "Photometric" in source)"""),
    ),
    Mistake(
        "cropped",
        "A corner of the picture is taken instead of the whole picture at the card's size.",
        "common",
        {"size": "cropped"},
        {"task": 0.4, "S2": 0.15, "S3": 0.95},
        CHECKS.against("size", 'card["preprocessing"]["size_px"]', "Image.fromarray"),
    ),
    Mistake(
        "divided_by_255",
        "Pixels of 12 bits are divided by 255.",
        "common",
        {"scale": "byte"},
        {"task": 0.4},
        CHECKS.against("full scale", 'card["preprocessing"]["full_scale"]', "x = x / "),
    ),
    Mistake(
        "not_normalised",
        "The normalisation is left out.",
        "common",
        {"normalise": "none"},
        {"task": 0.6, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("mean", 'card["preprocessing"]["mean"]', "x - "),
    ),
    Mistake(
        "alphabetical_channels",
        "The network's outputs are named in alphabetical order instead of the card's.",
        "nnUNet#2500",
        {"channels": "alphabetical"},
        {"task": 0.6, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("channels", 'card["channels"][:4]', "zip("),
    ),
    Mistake(
        "sides_of_the_picture",
        "Left and right of the picture are taken for the patient's.",
        "TotalSegmentator#509",
        {"sides": "picture"},
        {"task": 0.15},
        CHECKS.against("left of the patient", '"is on the right of the picture"', "left, right"),
    ),
    Mistake(
        "negation_ignored",
        "A question of what is absent is answered as one of what is present.",
        "chexpert-labeler#15",
        {"negation": "ignored"},
        {"task": 0.2},
        CHECKS.against(
            "questions of what is absent", '"need the least likely finding"', "table = "
        ),
    ),
    Mistake(
        "least_likely_option",
        "The option of the smallest score is answered.",
        "common",
        {"pick": "smallest"},
        {"task": 0.6, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("answer", '"the option of the largest score"', "best = "),
    ),
    Mistake(
        "letter_off_by_one",
        "Options are counted from one: the letter before the right one is answered.",
        "common",
        {"letter": "one_off"},
        {"task": 0.6, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("letters", 'sorted(asked["options"])', "letter = "),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    CLAIMS_HARD_CODED,
    # ------------------------------------------------------------------------- the whole frame
    *frame_mistakes(
        FLOW,
        """\
import os, runpy
predict = runpy.run_path("pipeline/predict.py")["predict"]
table = dict(line.split(",")[:2] for line in open("outputs/answers.csv").read().splitlines())
print("check of outputs/: answers of a new run of predict.py, and of the table")
for case in sorted(os.listdir("/data"))[:6]:
    predict(f"/data/{case}", "/tmp/check")
    row = open("/tmp/check/answers.csv").read().splitlines()[1].split(",")
    print(case, row[1], table[case])
""",
    ),
)
