"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks import Mistake, load_sibling
from bat_env.tasks.mistakes import CLAIMS_HARD_CODED, Checks, frame_mistakes

FLOW = load_sibling(__file__, "oracle").FLOW
CHECKS = Checks(
    model="wrist_unet",
    imports="from PIL import Image",
    inputs='films = [Image.open(f"/data/{case}/wrist.png") for case in cases]',
    run="""\
rows = []
for case in cases[:10]:
    module["predict"](f"/data/{case}", f"/tmp/check/{case}")
    rows.append(json.load(open(f"/tmp/check/{case}/prediction.json"))["boxes"])
print("check of pipeline/predict.py on", len(rows), "cases")
print("boxes of each case", [len(boxes) for boxes in rows])
names = [box["class"] for boxes in rows for box in boxes]
print("classes", {name: names.count(name) for name in sorted(set(names))})
""",
)


def _shown(word: str) -> str:
    """Print the first boxes beside the sizes of their files, and some lines of predict.py."""
    return CHECKS.of_pipeline(
        """\
shown = [(case, boxes) for case, boxes in zip(cases, rows) if boxes][:2]
for case, boxes in shown:
    box = [round(boxes[0][k]) for k in ("x1", "y1", "x2", "y2")]
    print(case, "size", Image.open(f"/data/{case}/wrist.png").size, "x1 y1 x2 y2", box)
"""
        f"print([line.strip() for line in source.splitlines() if {word!r} in line])"
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
        "assumed_grey_scale",
        "The plan takes every file for MONOCHROME2 without reading its text.",
        "monai-deploy-app-sdk#282",
        {"grey_scales": "assumed"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", list(facts["photometric"].items())[:6])
print("files", [film.info.get("PhotometricInterpretation") for film in films][:6])"""),
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
        "The range of the pilot check counts candidates, not findings of one wrist.",
        "common",
        {"pilot_check": "many"},
        {"S1": 0.1},
        CHECKS.of_plan("""\
print("plan", facts["pilot_check"])
print("one wrist has few findings, and often none")"""),
    ),
    # ------------------------------------------------------------------------------ S2, set-up
    CHECKS.versions_from_memory(
        ("torch", "monai", "pillow"), 'print("first file", cases[0], films[0])'
    ),
    CHECKS.loose_checkpoint({"task": 0.45, "S2": 0.35, "S3": 0.95, "S4": 0.95}),
    Mistake(
        "read_as_bytes",
        "Files of 16 bits are turned into bytes: everything bright is cut.",
        "common",
        {"depth": "byte"},
        {"task": 0.45, "S4": 0.95},
        CHECKS.against(
            "input files", 'Image.open(f"/data/{cases[0]}/wrist.png").mode', "np.asarray(film"
        ),
    ),
    Mistake(
        "inverted_files_ignored",
        "MONOCHROME1 files go in as they are: bones are dark.",
        "monai-deploy-app-sdk#282",
        {"photometric": "ignored"},
        {"task": 0.2},
        CHECKS.of_pipeline("""\
for case in cases[:6]:
    film = Image.open(f"/data/{case}/wrist.png")
    print(case, film.info["PhotometricInterpretation"], "mean", round(np.asarray(film).mean()))
print([line.strip() for line in source.splitlines() if "Photometric" in line])"""),
    ),
    Mistake(
        "window_of_extremes",
        "The grey scale is stretched between the extremes, not between the card's percentiles.",
        "MedSAM#101",
        {"window": "extremes"},
        {"task": 0.1},
        CHECKS.against("percentiles", 'card["preprocessing"]["percentiles"]', "low, high = "),
    ),
    Mistake(
        "unit_range",
        "Values from 0 to 1 go in where the card asks for its own range.",
        "common",
        {"value_range": "unit"},
        {"task": 0.25},
        CHECKS.against("range", 'card["preprocessing"]["value_range"]', "x = "),
    ),
    Mistake(
        "cropped",
        "A corner of the picture is taken instead of the whole picture at the card's size.",
        "common",
        {"size": "cropped"},
        {"task": 0.45, "S4": 0.95},
        CHECKS.against("size", 'card["preprocessing"]["size_px"]', "x = "),
    ),
    Mistake(
        "softmax_over_maps",
        "The maps of the classes compete, though the card has one sigmoid for each.",
        "common",
        {"activation": "softmax"},
        {"task": 0.45},
        _shown("p = z."),
    ),
    Mistake(
        "alphabetical_classes",
        "The network's maps are named in alphabetical order instead of the card's.",
        "nnUNet#2500",
        {"classes": "alphabetical"},
        {"task": 0.45, "S4": 0.95},
        CHECKS.against("channels", 'card["channels"]', "names, boxes"),
    ),
    Mistake(
        "left_in_network_pixels",
        "Boxes stay in pixels of the resized picture.",
        "MedSAM#47",
        {"scale_back": "network"},
        {"task": 0.45, "S4": 0.95},
        _shown("sx, sy ="),
    ),
    Mistake(
        "one_box_a_class",
        "All findings of a class get one box together.",
        "common",
        {"pieces": "merged"},
        {"task": 0.05},
        _shown("find_objects("),
    ),
    Mistake(
        "rows_as_columns",
        "Rows and columns change places in the boxes.",
        "MONAI#3976",
        {"axes": "columns_first"},
        {"task": 0.45, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        _shown("= place"),
    ),
    Mistake(
        "corner_and_size",
        "Boxes are written as corner and size where two corners are asked for.",
        "Cartucho/mAP#70",
        {"corners": "size"},
        {"task": 0.45, "S2": 0.15, "S3": 0.95, "S4": 0.95},
        _shown("box = dict"),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    CLAIMS_HARD_CODED,
    # ------------------------------------------------------------------------- the whole frame
    *frame_mistakes(
        FLOW,
        """\
import json, os, runpy
predict = runpy.run_path("pipeline/predict.py")["predict"]
print("check of outputs/: boxes of a new run of predict.py, and of the file")
for case in sorted(os.listdir("/data"))[:5]:
    predict(f"/data/{case}", "/tmp/check")
    for path in ("/tmp/check/prediction.json", f"outputs/{case}/prediction.json"):
        boxes = json.load(open(path))["boxes"]
        print(case, [(b["class"], round(b["x1"]), round(b["y1"])) for b in boxes])
""",
    ),
)
