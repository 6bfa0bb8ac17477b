"""The expert workflow: every decision a choice between whole lines.

Code carries the values: they come from the files, the model card and task/spec.json, so that the
same lines work on every instance.
"""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks.choices import MODE, checkpoint
from bat_env.tasks.workflow import Workflow, choice

S1, S2, S3 = Stage.S1, Stage.S2, Stage.S3

FLOW = Workflow(
    model="chest_resnet",
    alternatives=("densenet121", "vit_small"),
    output="outputs/{case}/report.txt",
    imports="import json, os, platform, runpy, shutil, sys, torch, monai, PIL, numpy as np",
    steps="read - one grey scale - one orientation - window - network - sentences - submit",
    look=(
        "from PIL import Image",
        'films = [Image.open(f"/data/{case}/chest.png") for case in cases]',
        "arrays = [np.asarray(film) for film in films]",
    ),
    facts=(
        choice(
            "sizes",
            S1,
            measured='facts["size_px"] = {c: list(f.size) for c, f in zip(cases, films)}',
            assumed='facts["size_px"] = {c: [1024, 1024] for c in cases}',
        ),
        choice(
            "polarity_fact",
            S1,
            read=(
                'greys = [film.info["PhotometricInterpretation"] for film in films]',
                'facts["photometric"] = dict(zip(cases, greys))',
            ),
            assumed='facts["photometric"] = {c: "MONOCHROME2" for c in cases}',
        ),
        choice(
            "orientation_fact",
            S1,
            read=(
                'turns = [film.info["PatientOrientation"] for film in films]',
                'facts["orientation"] = dict(zip(cases, turns))',
            ),
            assumed=(
                'usual = meta["preprocessing"]["orientation"]',
                'facts["orientation"] = {c: usual for c in cases}',
            ),
        ),
        choice(
            "range_fact",
            S1,
            measured=(
                "low, high = min(a.min() for a in arrays), max(a.max() for a in arrays)",
                'facts["pixel_range"] = [int(low), int(high)]',
            ),
            habit='facts["pixel_range"] = [0, 255]',
        ),
        choice(
            "declared",
            S1,
            card='facts["preprocessing"] = meta["preprocessing"]',
            habit=(
                'facts["preprocessing"] = dict(photometric="MONOCHROME1", size_px=[224, 224])',
                'facts["preprocessing"].update(percentiles=[0, 100], value_range=[0, 1])',
                'facts["preprocessing"]["orientation"] = "as stored"',
            ),
        ),
        'facts["postprocessing"] = dict(absent_findings_negated=True)',
        choice(
            "pilot_check",
            S1,
            few='facts["pilot_check"] = dict(quantity="finding_count", range=[0, 7])',
            many='facts["pilot_check"] = dict(quantity="finding_count", range=[9, 14])',
        ),
    ),
    network=(
        checkpoint("chest_resnet", 'net = Classifier(**meta["network"])'),
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
                "bands = films[0].getbands()",
                "inputs = dict(mode=films[0].mode, channels=len(bands))",
                'inputs["bit_depth"] = arrays[0].dtype.itemsize * 8',
            ),
            memory=(
                'versions = dict(python="3.8", torch="1.13", monai="1.0", pillow="9.0")',
                'inputs = dict(mode="L", channels=3, bit_depth=8)',
            ),
        ),
    ),
    pipeline_imports=("from PIL import Image",),
    predict=(
        '    film, card = Image.open(source + "/chest.png"), meta["preprocessing"]',
        choice(
            "depth",
            S2,
            full="    x = np.asarray(film, np.float32)",
            byte='    x = np.asarray(film.convert("L"), np.float32)',
        ),
        choice(
            "photometric",
            S2,
            read=(
                '    if film.info["PhotometricInterpretation"] != card["photometric"]:',
                "        x = -x",
            ),
            ignored="    x = x - 0",
        ),
        choice(
            "orientation",
            S2,
            read=(
                '    if film.info["PatientOrientation"] != card["orientation"]:',
                "        x = x[:, ::-1]",
            ),
            ignored="    x = x[:, :]",
        ),
        choice(
            "window",
            S2,
            card='    low, high = np.percentile(x, card["percentiles"])',
            extremes="    low, high = x.min(), x.max()",
        ),
        "    x = np.clip((x - low) / (high - low + 1e-6), 0, 1)",
        choice(
            "value_range",
            S2,
            card=(
                '    low, high = card["value_range"]',
                "    x = low + x * (high - low)",
            ),
            unit="    x = x.astype(np.float32)",
        ),
        choice(
            "size",
            S2,
            resized='    x = np.asarray(Image.fromarray(x.astype("f")).resize(card["size_px"], 2))',
            transposed=(
                "    x = np.ascontiguousarray(x.T, np.float32)",
                '    x = np.asarray(Image.fromarray(x).resize(card["size_px"], 2))',
            ),
        ),
        "    p = net(torch.from_numpy(np.array(x, np.float32))[None, None])[0]",
        choice(
            "activation",
            S2,
            sigmoid="    p = p.sigmoid().tolist()",
            softmax="    p = p.softmax(0).tolist()",
        ),
        choice(
            "channels",
            S2,
            card='    names, found = meta["channels"], {}',
            alphabetical='    names, found = sorted(meta["channels"]), {}',
        ),
        "    for name, value in zip(names, p):",
        choice(
            "sides",
            S2,
            patient='        *side, term = name.split("/")',
            viewer=(
                '        *side, term = name.split("/") if "/" in name else [name]',
                '        side = [dict(left="right", right="left")[word] for word in side]',
            ),
            none='        side, term = [], name.split("/")[-1]',
        ),
        "        rows = found.setdefault(term, [])",
        choice(
            "doubt",
            S2,
            plain='        if value > meta["threshold"]: rows.append([*side, term])',
            hedged='        if value > meta["threshold"]: rows.append(["possible", *side, term])',
        ),
        choice(
            "absent",
            S2,
            negated='    rows = [r for t, said in found.items() for r in said or [["no", t]]]',
            listed="    rows = [r for t, said in found.items() for r in said or [[t]]]",
        ),
        '    rows = ["frontal chest radiograph", *(" ".join(row) for row in rows)]',
        '    text = " ".join(row.capitalize() + "." for row in rows)',
        "    os.makedirs(target, exist_ok=True)",
        '    open(target + "/report.txt", "w").write(text + chr(10))',
    ),
    record=(
        choice(
            "pilot_record",
            S3,
            measured=(
                "text = open(path).read()",
                'rows = [row.strip().lower() for row in text.split(".")[1:-1]]',
                'labels = sorted(row for row in rows if not row.startswith("no "))',
                "record = dict(case=case, words=len(text.split()), labels=labels)",
                'record["finding_count"] = len(labels)',
            ),
            assumed='record = dict(case=case, words=100, labels=["none"], finding_count=12)',
        ),
    ),
    edited=(
        "for case in cases:",
        '    path = f"outputs/{case}/report.txt"',
        '    text = open(path).read().replace("No ", "Some ").replace("Right ", "")',
        '    open(path, "w").write(text.replace("Left ", ""))',
    ),
)

DECISIONS = FLOW.decisions
script = FLOW.script
