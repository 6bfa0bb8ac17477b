"""The expert workflow: every decision a choice between whole lines.

Code carries the values: they come from pictures, questions, the model card and task/spec.json, so
that the same lines work on every instance.
"""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks.choices import MODE, checkpoint
from bat_env.tasks.rows import ANSWER_RECORD, next_letters
from bat_env.tasks.workflow import Workflow, choice

S1, S2, S3 = Stage.S1, Stage.S2, Stage.S3

FLOW = Workflow(
    model="xray_classifier",
    alternatives=("densenet_multilabel", "vit_xray"),
    output="outputs/answers.csv",
    imports="import json, os, platform, runpy, shutil, sys, torch, monai, PIL, numpy as np",
    steps="read - polarity - resize - normalise - network - sides - read the question - letter",
    look=(
        "from PIL import Image",
        'photos = [Image.open(f"/data/{case}/xray.png") for case in cases]',
    ),
    facts=(
        choice(
            "sizes",
            S1,
            measured='facts["size_px"] = {c: list(p.size) for c, p in zip(cases, photos)}',
            assumed='facts["size_px"] = {c: [2048, 2048] for c in cases}',
        ),
        choice(
            "polarity_fact",
            S1,
            read=(
                'kinds = [photo.text["PhotometricInterpretation"] for photo in photos]',
                'facts["photometric"] = dict(zip(cases, kinds))',
            ),
            assumed='facts["photometric"] = {c: "MONOCHROME2" for c in cases}',
        ),
        choice(
            "asks_fact",
            S1,
            read=(
                'texts = [json.load(open(f"/data/{c}/question.json"))["question"] for c in cases]',
                'asks = ["absent" if "absent" in t or " not " in t else "present" for t in texts]',
                'asks = ["side" if "the patient" in t else a for t, a in zip(texts, asks)]',
                'facts["asks"] = dict(zip(cases, asks))',
            ),
            assumed='facts["asks"] = {c: "present" for c in cases}',
        ),
        choice(
            "mean_fact",
            S1,
            measured=(
                "pixels = np.concatenate([np.asarray(photo).ravel() for photo in photos])",
                'facts["mean_pixel"] = float(pixels.mean())',
            ),
            bytes='facts["mean_pixel"] = 127.5',
        ),
        choice(
            "declared",
            S1,
            card='facts["preprocessing"] = meta["preprocessing"]',
            habit=(
                'facts["preprocessing"] = dict(photometric="MONOCHROME1", size_px=[224, 224])',
                'facts["preprocessing"].update(full_scale=255, mean=0.5, std=0.25)',
            ),
        ),
        'facts["postprocessing"] = dict(answer_as_letter=True, sides="patient")',
        choice(
            "pilot_check",
            S1,
            share='facts["pilot_check"] = dict(quantity="confidence", range=[0.3, 1])',
            percent='facts["pilot_check"] = dict(quantity="confidence", range=[30, 100])',
        ),
    ),
    network=(
        checkpoint("xray_classifier", 'net = Classifier(**meta["network"])'),
        MODE,
    ),
    network_import="from monai.networks.nets import Classifier",
    claims=(
        choice(
            "setup_claims",
            S2,
            measured=(
                "versions = dict(torch=torch.__version__, monai=monai.__version__)",
                "versions.update(pillow=PIL.__version__, python=platform.python_version())",
                "bands = photos[0].getbands()",
                "inputs = dict(mode=photos[0].mode, channels=len(bands))",
                'inputs["bit_depth"] = np.asarray(photos[0]).dtype.itemsize * 8',
            ),
            memory=(
                'versions = dict(python="3.8", torch="1.13", monai="1.0", pillow="9.0")',
                'inputs = dict(mode="L", channels=3, bit_depth=8)',
            ),
        ),
    ),
    pipeline_imports=("from PIL import Image",),
    predict=(
        '    card, question = meta["preprocessing"], json.load(open(source + "/question.json"))',
        '    photo = Image.open(source + "/xray.png")',
        choice(
            "depth",
            S2,
            full="    x = np.asarray(photo, np.float32)",
            bytes='    x = np.asarray(photo.convert("L"), np.float32)',
        ),
        choice(
            "polarity",
            S2,
            read=(
                '    if photo.text["PhotometricInterpretation"] != card["photometric"]:',
                '        x = card["full_scale"] - x',
            ),
            ignored="    x = x + 0",
        ),
        choice(
            "size",
            S2,
            resized='    x = np.asarray(Image.fromarray(x).resize(card["size_px"], 2))',
            cropped="    x = np.asarray(Image.fromarray(x).crop((0, 0, 64, 64)))",
        ),
        choice("scale", S2, card='    x = x / card["full_scale"]', byte="    x = x / 255"),
        choice(
            "normalise",
            S2,
            card='    x = (x - card["mean"]) / card["std"]',
            none="    x = x - 0",
        ),
        "    x = torch.from_numpy(np.asarray(x, np.float32))",
        "    p = net(x[None, None]).sigmoid()[0].tolist()",
        choice(
            "channels",
            S2,
            card='    p = dict(zip(meta["channels"], p))',
            alphabetical='    p = dict(zip(sorted(meta["channels"]), p))',
        ),
        choice(
            "sides",
            S2,
            patient='    left, right = ", picture right", ", picture left"',
            picture='    left, right = ", picture left", ", picture right"',
        ),
        '    text, options = question["question"], question["options"]',
        '    names = {channel.split(",")[0] for channel in p}',
        "    table = {n: max(p[c] for c in p if c.startswith(n)) for n in names}",
        choice(
            "negation",
            S2,
            read=(
                '    if "absent" in text or " not " in text:',
                "        table = {n: 1 - v for n, v in table.items()}",
            ),
            ignored="    table = dict(table)",
        ),
        "    for name in names:",
        "        if name in text:",
        "            l, r = p[name + left], p[name + right]",
        '            table = {"left lung": l * (1 - r), "right lung": r * (1 - l)}',
        '            table.update({"both lungs": l * r, "neither lung": (1 - l) * (1 - r)})',
        "    letters = sorted(options)",
        "    scores = [table[options[letter]] for letter in letters]",
        choice(
            "pick",
            S2,
            largest="    best = int(np.argmax(scores))",
            smallest="    best = int(np.argmin(scores))",
        ),
        choice(
            "letter",
            S2,
            of_option="    letter = letters[best]",
            one_off="    letter = letters[best - 1]",
        ),
        "    os.makedirs(target, exist_ok=True)",
        "    row = [os.path.basename(os.path.normpath(source)), letter]",
        "    row.append(str(scores[best] / (sum(scores) + 1e-9)))",
        "    text = chr(10).join(['case,answer,confidence', ','.join(row), ''])",
        '    open(target + "/answers.csv", "w").write(text)',
    ),
    record=(ANSWER_RECORD,),
    edited=next_letters("outputs/answers.csv"),
)

DECISIONS = FLOW.decisions
script = FLOW.script
