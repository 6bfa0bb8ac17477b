"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks import Mistake, load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes

FLOW = load_sibling(__file__, "oracle").FLOW
CHECKS = Checks(
    model="chest_resnet",
    imports="from PIL import Image",
    inputs='films = [Image.open(f"/data/{case}/chest.png") for case in cases]',
    run="""\
cases = cases[:10]
films = [Image.open(f"/data/{case}/chest.png") for case in cases]
print("check of pipeline/predict.py on", len(cases), "cases")
texts = []
for case in cases:
    module["predict"](f"/data/{case}", f"/tmp/check/{case}")
    texts.append(open(f"/tmp/check/{case}/report.txt").read())
said = [[row for row in text.split(". ")[1:] if not row.startswith("No ")] for text in texts]
print("findings claimed of each case", [len(rows) for rows in said])
print(cases[0], texts[0].strip())
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
print("files", [(case, film.size) for case, film in zip(cases, films)][:3])"""),
    ),
    Mistake(
        "one_polarity",
        "The plan takes every file for MONOCHROME2.",
        "monai-deploy-app-sdk#282",
        {"polarity_fact": "assumed"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", list(facts["photometric"].values())[:6])
print("files", [film.info.get("PhotometricInterpretation") for film in films][:6])"""),
    ),
    Mistake(
        "assumed_orientation",
        "The plan takes every file for turned as the network wants it.",
        "TotalSegmentator#509",
        {"orientation_fact": "assumed"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", list(facts["orientation"].items())[:6])
print("files", [film.info.get("PatientOrientation") for film in films][:6])"""),
    ),
    Mistake(
        "range_by_habit",
        "The plan states the range of a byte for files of 16 bits.",
        "common",
        {"range_fact": "habit"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", facts["pixel_range"])
print("first file", films[0].mode, np.asarray(films[0]).min(), np.asarray(films[0]).max())"""),
    ),
    CHECKS.preprocessing_by_habit(),
    Mistake(
        "check_without_sense",
        "The range of the pilot check is that of all the network's numbers, not of one chest.",
        "common",
        {"pilot_check": "many"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", facts["pilot_check"])
print("one chest has few findings, and often none")"""),
    ),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "pillow"), 'print("first file", films[0].mode, films[0].size)'
    ),
    CHECKS.loose_checkpoint({"task": 0.5, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
    CHECKS.training_mode(
        "The network runs in training mode: each picture is normalised by itself.", {"S2": 0.15}
    ),
    Mistake(
        "read_as_bytes",
        "Files of 16 bits are turned into bytes: everything bright is cut.",
        "common",
        {"depth": "byte"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("first file", "films[0].mode", "np.asarray(film"),
    ),
    Mistake(
        "inverted_files_ignored",
        "MONOCHROME1 files go in as they are: lungs are bright.",
        "monai-deploy-app-sdk#282",
        {"photometric": "ignored"},
        {"task": 0.25},
        CHECKS.against(
            "files", '[f.info["PhotometricInterpretation"] for f in films]', "Photometric"
        ),
    ),
    Mistake(
        "mirrored_files_ignored",
        "Files whose rows run to the patient's right go in as they are: sides are exchanged.",
        "TotalSegmentator#509",
        {"orientation": "ignored"},
        {"task": 0.2},
        CHECKS.against(
            "files", '[f.info["PatientOrientation"] for f in films]', "PatientOrientation"
        ),
    ),
    Mistake(
        "window_of_extremes",
        "The grey scale is stretched between the extremes, not between the card's percentiles.",
        "MedSAM#101",
        {"window": "extremes"},
        {"task": 0.25},
        CHECKS.against("percentiles", 'card["preprocessing"]["percentiles"]', "low, high = "),
    ),
    Mistake(
        "unit_range",
        "Values from 0 to 1 go in where the card asks for its own range.",
        "common",
        {"value_range": "unit"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("range", 'card["preprocessing"]["value_range"]', "x = "),
    ),
    Mistake(
        "transposed",
        "Rows and columns change places on the way into the network.",
        "MONAI#3976",
        {"size": "transposed"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.against("network input", '"(pictures, 1, rows, columns)"', "x = "),
    ),
    Mistake(
        "softmax",
        "Findings that go together are made to compete: softmax instead of a sigmoid for each.",
        "common",
        {"activation": "softmax"},
        {"task": 0.2},
        CHECKS.against("findings of one chest", '"do not exclude each other"', "p = p."),
    ),
    Mistake(
        "alphabetical_channels",
        "The network's numbers are named in alphabetical order instead of the card's.",
        "nnUNet#2500",
        {"channels": "alphabetical"},
        {"task": 0.45},
        CHECKS.against("channels", 'card["channels"]', "names, found"),
    ),
    Mistake(
        "sides_of_the_viewer",
        "What the card calls left is called right, as if it meant the picture's sides.",
        "TotalSegmentator#509",
        {"sides": "viewer"},
        {"task": 0.4},
        CHECKS.against("channels", 'card["channels"][:3]', "side"),
    ),
    Mistake(
        "no_sides",
        "Findings are reported without their side.",
        "common",
        {"sides": "none"},
        {"task": 0.45},
        CHECKS.against("channels", 'card["channels"][:3]', "side"),
    ),
    Mistake(
        "everything_possible",
        "Every finding is only called possible.",
        "chexpert-labeler#29",
        {"doubt": "hedged"},
        {"task": 0.25},
        CHECKS.of_pipeline(
            'print("reports with Possible", sum("ossible" in text for text in texts))'
        ),
    ),
    Mistake(
        "absent_not_negated",
        "Absent findings are listed by their name alone: they read as present.",
        "chexpert-labeler#15",
        {"absent": "listed"},
        {"task": 0.5, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        CHECKS.of_pipeline(
            'print("reports with a negation", sum("No " in text for text in texts))'
        ),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    CLAIMS_HARD_CODED,
    # ------------------------------------------------------------------------- the whole frame
    *frame_mistakes(
        FLOW,
        """\
import os, runpy
predict = runpy.run_path("pipeline/predict.py")["predict"]
print("check of outputs/: a new run of predict.py, and the file")
for case in sorted(os.listdir("/data"))[:3]:
    predict(f"/data/{case}", "/tmp/check")
    for path in ("/tmp/check/report.txt", f"outputs/{case}/report.txt"):
        print(case, open(path).read().strip()[26:])
""",
    ),
)
