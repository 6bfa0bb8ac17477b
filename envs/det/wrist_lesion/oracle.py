"""The expert workflow: every decision a choice between whole lines.

Code carries the values: they come from the files, the model card and task/spec.json, so that the
same lines work on every instance.
"""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks.choices import checkpoint
from bat_env.tasks.workflow import Workflow, choice

S1, S2, S3 = Stage.S1, Stage.S2, Stage.S3

FLOW = Workflow(
    model="wrist_unet",
    alternatives=("retinanet_small", "detr_tiny"),
    output="outputs/{case}/prediction.json",
    imports="import json, os, platform, runpy, shutil, sys, torch, monai, PIL, numpy as np",
    steps="read - one grey scale - normalise - resize - network - boxes - file pixels - submit",
    look=(
        "from PIL import Image",
        'films = [Image.open(f"/data/{case}/wrist.png") for case in cases]',
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
            "grey_scales",
            S1,
            read=(
                'scales = [film.info["PhotometricInterpretation"] for film in films]',
                'facts["photometric"] = dict(zip(cases, scales))',
            ),
            assumed='facts["photometric"] = {c: "MONOCHROME2" for c in cases}',
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
                'facts["preprocessing"] = dict(photometric="MONOCHROME1", size_px=[512, 512])',
                'facts["preprocessing"].update(percentiles=[0, 100], value_range=[0, 1])',
            ),
        ),
        'facts["postprocessing"] = dict(boxes="xyxy", boxes_in_input_pixels=True)',
        choice(
            "pilot_check",
            S1,
            few='facts["pilot_check"] = dict(quantity="box_count", range=[0, 4])',
            many='facts["pilot_check"] = dict(quantity="box_count", range=[10, 100])',
        ),
    ),
    network=(
        checkpoint("wrist_unet", 'net = UNet(**meta["network"])'),
        "net.eval()",
    ),
    network_import="from monai.networks.nets import UNet",
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
    pipeline_imports=("from PIL import Image", "from scipy.ndimage import find_objects, label"),
    predict=(
        '    film, card = Image.open(source + "/wrist.png"), meta["preprocessing"]',
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
            cropped="    x = x[:96, :72]",
        ),
        "    z = net(torch.from_numpy(np.array(x, np.float32))[None, None])[0]",
        choice(
            "activation",
            S2,
            sigmoid="    p = z.sigmoid().detach().numpy()",
            softmax="    p = z.softmax(0).detach().numpy()",
        ),
        choice(
            "classes",
            S2,
            card='    names, boxes = meta["channels"], []',
            alphabetical='    names, boxes = sorted(meta["channels"]), []',
        ),
        choice(
            "scale_back",
            S2,
            file='    sx, sy = (a / b for a, b in zip(film.size, card["size_px"]))',
            network="    sx, sy = 1, 1",
        ),
        "    for name, q in zip(names, p):",
        choice(
            "pieces",
            S2,
            apart='        for place in find_objects(label(q > meta["threshold"])[0]):',
            merged='        for place in find_objects((q > meta["threshold"]).astype(int)):',
        ),
        choice(
            "axes",
            S2,
            rows_first="            rows, cols = place",
            columns_first="            cols, rows = place",
        ),
        "            x1, x2 = cols.start * sx, cols.stop * sx",
        "            y1, y2 = rows.start * sy, rows.stop * sy",
        choice(
            "corners",
            S2,
            two="            box = dict(x1=x1, y1=y1, x2=x2, y2=y2)",
            size="            box = dict(x1=x1, y1=y1, x2=x2 - x1, y2=y2 - y1)",
        ),
        '            boxes.append({"class": name, "score": float(q[place].mean()), **box})',
        '    boxes = sorted(boxes, key=lambda box: -box["score"])[:100]',
        "    os.makedirs(target, exist_ok=True)",
        '    json.dump(dict(boxes=boxes), open(target + "/prediction.json", "w"))',
    ),
    record=(
        choice(
            "pilot_record",
            S3,
            measured=(
                'boxes = json.load(open(path))["boxes"]',
                'labels = sorted({box["class"] for box in boxes})',
                'top = max([box["score"] for box in boxes], default=0)',
                "record = dict(case=case, labels=labels, box_count=len(boxes), top_score=top)",
            ),
            assumed='record = dict(case=case, labels=["none"], box_count=50, top_score=0.99999)',
        ),
    ),
    edited=(
        "for case in cases:",
        '    path = f"outputs/{case}/prediction.json"',
        '    boxes = json.load(open(path))["boxes"][:9]',
        "    for box in boxes:",
        "        box.update(x1=0.0, y1=0.0)",
        '    boxes.append({"class": "metal", "score": 1.0, "x1": 0, "y1": 0, "x2": 9, "y2": 9})',
        '    json.dump(dict(boxes=boxes), open(path, "w"))',
    ),
)

DECISIONS = FLOW.decisions
script = FLOW.script
