"""The listed mistakes as variants of the oracle script, with the checks that expose them.

Sources are public threads in which people met the mistake; ``common`` is everyday carelessness.
A check is a cell for the agent's own interpreter: it prints a trace of the fault, no verdict.
"""

from __future__ import annotations

from bat_env.tasks.discovery import load_sibling
from bat_env.tasks.scripts import Mistake
from bat_env.tasks.workflow import frame_mistakes

FLOW = load_sibling(__file__, "oracle").FLOW

_PLAN = """\
import json, os, numpy as np
from PIL import Image
facts = json.load(open("plan/facts.json"))
cases = sorted(os.listdir("/data"))
photos = [Image.open(f"/data/{case}/photo.png") for case in cases]
print("check of plan/facts.json")
"""

_LOOK = """\
import json, os, runpy, torch, numpy as np
source = open("pipeline/predict.py").read()
card = json.load(open("/models/skin_resnet/configs/metadata.json"))
cases = sorted(os.listdir("/data"))
module = runpy.run_path("pipeline/predict.py")
said, top = [], []
for case in cases[:12]:
    module["predict"](f"/data/{case}", f"/tmp/check/{case}")
    row = open(f"/tmp/check/{case}/predictions.csv").read().splitlines()[1].split(",")
    said.append(row[1])
    top.append(max(map(float, row[2:])))
print("check of pipeline/predict.py on", len(said), "cases")
print("labels", {name: said.count(name) for name in sorted(set(said))})
print("mean top probability", round(float(np.mean(top)), 2))
"""


def _lines(what: str, wanted: str, word: str) -> str:
    """Print the card's value, and the lines of predict.py that deal with it."""
    return (
        _LOOK
        + f'print("card {what}", {wanted})\n'
        + f'print([line.strip() for line in source.splitlines() if "{word}" in line])\n'
    )


MISTAKES = (
    # ------------------------------------------------------------------------------- S1, plan
    Mistake(
        "assumed_sizes",
        "Picture sizes are assumed instead of read from the files.",
        "common",
        {"sizes": "assumed"},
        {"S1": 0.1},
        _PLAN
        + """\
print("plan", list(facts["size_px"].items())[:3])
print("files", [(case, photo.size) for case, photo in zip(cases, photos)][:3])
""",
    ),
    Mistake(
        "colours_by_habit",
        "The plan states the mean colours of a well-known photo collection, not of these files.",
        "common",
        {"colour_fact": "habit"},
        {"S1": 0.1},
        _PLAN
        + """\
print("plan", facts["mean_rgb"])
print("first file", np.asarray(photos[0]).reshape(-1, 3).mean(0).round(1).tolist())
""",
    ),
    Mistake(
        "preprocessing_by_habit",
        "The plan declares the usual preprocessing, not the model card's.",
        "common",
        {"declared": "habit"},
        {"S1": 0.1},
        _PLAN
        + """\
card = json.load(open("/models/skin_resnet/configs/metadata.json"))["preprocessing"]
print("plan", facts["preprocessing"])
print("card", card)
""",
    ),
    Mistake(
        "check_in_percent",
        "The range of the pilot check is in percent where a share is recorded.",
        "common",
        {"pilot_check": "percent"},
        {"S1": 0.1},
        _PLAN
        + """\
print("plan", facts["pilot_check"])
print("a probability lies between 0 and 1")
""",
    ),
    # ------------------------------------------------------------------------------ S2, set-up
    Mistake(
        "versions_from_memory",
        "Versions and input types are reported from memory.",
        "common",
        {"setup_claims": "memory"},
        {"S2": 0.2},
        """\
import json, os, platform, torch, monai, PIL
from PIL import Image
setup = json.load(open("setup/setup.json"))
print("check of setup/setup.json")
print("setup", setup["versions"], setup["inputs"])
print("here", platform.python_version(), torch.__version__, monai.__version__, PIL.__version__)
case = sorted(os.listdir("/data"))[0]
print("first file", Image.open(f"/data/{case}/photo.png"))
""",
    ),
    Mistake(
        "loose_checkpoint",
        "The checkpoint is loaded without its key and not strictly: no weight arrives.",
        "MedSAM#200",
        {"checkpoint": "loose"},
        {"task": 0.4, "S2": 0.1, "S4": 0.3},
        _LOOK
        + """\
state = torch.load("/models/skin_resnet/models/model.pt")["model"]
same = sum(torch.equal(v, state[k]) for k, v in module["net"].state_dict().items())
print("tensors equal to the checkpoint", same, "of", len(state))
""",
    ),
    Mistake(
        "training_mode",
        "The network predicts in training mode: every picture is normalised by itself.",
        "MedSAM#200",
        {"mode": "train"},
        {"task": 0.05, "S2": 0.1},
        _LOOK + 'print("network in training mode:", module["net"].training)\n',
    ),
    Mistake(
        "cropped",
        "A corner of the picture is taken instead of the whole picture at the card's size.",
        "common",
        {"size": "cropped"},
        {"task": 0.3},
        _lines("size", 'card["preprocessing"]["size_px"]', "photo = photo."),
    ),
    Mistake(
        "bytes_unscaled",
        "Bytes go into the normalisation without the division by 255.",
        "common",
        {"scale": "byte"},
        {"task": 0.4},
        _lines(
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
        {"task": 0.2},
        _lines("colour order", 'card["preprocessing"]["channel_order"]', "x = x[..., "),
    ),
    Mistake(
        "normalised_by_habit",
        "Mean and deviation of a well-known photo collection are used, not the card's.",
        "common",
        {"normalise": "habit"},
        {"task": 0.1},
        _lines("mean", 'card["preprocessing"]["mean"]', "x = (x - "),
    ),
    Mistake(
        "not_normalised",
        "The normalisation is left out.",
        "common",
        {"normalise": "none"},
        {"task": 0.2},
        _lines("mean", 'card["preprocessing"]["mean"]', "x = x - "),
    ),
    Mistake(
        "alphabetical_classes",
        "The network's outputs are named in alphabetical order instead of the card's.",
        "nnUNet#2500",
        {"classes": "alphabetical"},
        {"task": 0.4},
        _lines("channels", 'card["channels"]', "names = "),
    ),
    Mistake(
        "least_likely_class",
        "The class of the smallest probability is named.",
        "common",
        {"pick": "smallest"},
        {"task": 0.4},
        _lines("output", '"largest probability is the class"', "label = "),
    ),
    # ----------------------------------------------------------------------------- S3, validate
    Mistake(
        "claims_hard_coded",
        "What the pilot's file should hold is written down without looking.",
        "common",
        {"pilot_record": "assumed"},
        {"S3": 0.2},
    ),
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
