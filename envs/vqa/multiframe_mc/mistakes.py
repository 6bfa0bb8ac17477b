"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks import Mistake, load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes

FLOW = load_sibling(__file__, "oracle").FLOW
CHECKS = Checks(
    model="echo_unet",
    imports="import glob\nfrom PIL import Image",
    inputs="""\
paths = [sorted(glob.glob(f"/data/{case}/frame_*.png")) for case in cases]
photos = [[Image.open(path) for path in frames] for frames in paths]
""",
    run="""\
print("check of pipeline/predict.py: question, answer, confidence")
for case in cases[:6]:
    asked = json.load(open(f"/data/{case}/question.json"))
    module["predict"](f"/data/{case}", f"/tmp/check/{case}")
    row = open(f"/tmp/check/{case}/answers.csv").read().splitlines()[1].split(",")
    print(asked["question"], row[1], asked["options"][row[1]], row[2][:4])
photos = [Image.open(path) for path in sorted(glob.glob(f"/data/{cases[0]}/frame_*.png"))]
""",
)

MISTAKES = (
    # ------------------------------------------------------------------------------- S1, plan
    Mistake(
        "assumed_sizes",
        "Frame sizes are assumed instead of read from the files.",
        "common",
        {"sizes": "assumed"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", list(facts["size_px"].items())[:3])
print("files", [(case, frames[0].size) for case, frames in zip(cases, photos)][:3])"""),
    ),
    Mistake(
        "order_of_names",
        "The plan takes the order of the files' names for the order in time.",
        "dcm2niix#248",
        {"order_fact": "numbered"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", list(facts["frame_order"].items())[:3])
times = [[photo.text["TriggerTime"] for photo in frames] for frames in photos[:3]]
print("trigger times of frame 1, 2, ...", times)"""),
    ),
    Mistake(
        "one_display",
        "The plan takes every frame to show the left ventricle on the right.",
        "TotalSegmentator#509",
        {"display_fact": "assumed"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", sorted(facts["display"].values()))
print("files", sorted(frames[0].text["Display"] for frames in photos))"""),
    ),
    Mistake(
        "times_in_seconds",
        "The plan gives trigger times in seconds; the files hold milliseconds.",
        "common",
        {"time_fact": "seconds"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", facts["trigger_ms"])
print("first files", [photo.text["TriggerTime"] for photo in photos[0]])"""),
    ),
    CHECKS.preprocessing_by_habit(),
    CHECKS.pilot_check_in("percent", "a share is", "a confidence lies between 0 and 1"),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "pillow"), 'print("first file", photos[0][0].mode, photos[0][0].size)'
    ),
    CHECKS.loose_checkpoint({"task": 0.55, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
    CHECKS.training_mode(
        "The network predicts in training mode: frames are normalised by those beside them.",
        {"S2": 0.15},
    ),
    Mistake(
        "transposed",
        "Rows and columns change places on the way into the network.",
        "MONAI#3976",
        {"size": "transposed"},
        {"task": 0.35, "S2": 0.15, "S3": 0.95},
        CHECKS.against("network input", '"(frames, 1, rows, columns)"', "np.stack"),
    ),
    Mistake(
        "display_ignored",
        "Frames with the left ventricle on the left go into the network as they are.",
        "TotalSegmentator#509",
        {"display": "ignored"},
        {"task": 0.1},
        CHECKS.against("display", 'card["preprocessing"]["display"], photos[0].text', "x[:, :, "),
    ),
    Mistake(
        "not_scaled",
        "Stored pixels go into the network without the card's scale.",
        "common",
        {"scale": "none"},
        {"task": 0.2},
        CHECKS.against("full scale", 'card["preprocessing"]["full_scale"]', "x = x "),
    ),
    Mistake(
        "not_normalised",
        "The normalisation is left out.",
        "common",
        {"normalise": "none"},
        {"task": 0.55, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("mean", 'card["preprocessing"]["mean"]', "x - "),
    ),
    Mistake(
        "alphabetical_channels",
        "Channels are taken in alphabetical order: the wall is measured, not the cavity.",
        "nnUNet#2500",
        {"channel": "alphabetical"},
        {"task": 0.55, "S4": 0.95},
        CHECKS.against("channels", 'card["channels"]', "cavity = "),
    ),
    Mistake(
        "first_frame_only",
        "Every answer rests on the first frame.",
        "common",
        {"frames": "first"},
        {"task": 0.55, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("frames of a case", "len(photos)", "x = torch"),
    ),
    Mistake(
        "phases_exchanged",
        "The largest cavity is taken for end-systole.",
        "common",
        {"phases": "exchanged"},
        {"task": 0.55, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("cavity at end-systole", '"the smallest of a beat"', "area.min(), "),
    ),
    Mistake(
        "what_is_left",
        "The share of the cavity that is left is taken for its change.",
        "common",
        {"change": "left"},
        {"task": 0.1},
        CHECKS.against("area change", '"1 minus smallest over largest"', "change = "),
    ),
    Mistake(
        "walls_exchanged",
        "The wall on the left of the ventricle is taken for the lateral wall.",
        "TotalSegmentator#509",
        {"walls": "exchanged"},
        {"task": 0.05},
        CHECKS.against("display", 'card["preprocessing"]["display"]', "septum, lateral = "),
    ),
    Mistake(
        "negation_ignored",
        "A question of what does not move is answered as one of what moves.",
        "chexpert-labeler#15",
        {"negation": "ignored"},
        {"task": 0.05},
        CHECKS.against("questions with not", '"ask for the other walls"', "a, b = "),
    ),
    Mistake(
        "numbers_for_time",
        "The frame that follows is the one with the next number, not the next in time.",
        "dcm2niix#248",
        {"order": "numbered"},
        {"task": 0.1},
        CHECKS.against("times", '[photo.text["TriggerTime"] for photo in photos]', "order = "),
    ),
    Mistake(
        "letter_off_by_one",
        "Options are counted from one: the letter before the right one is answered.",
        "common",
        {"letter": "one_off"},
        {"task": 0.55, "S2": 0.15, "S3": 0.95, "S4": 0.95},
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
