"""The expert workflow: every decision a choice between whole lines.

Code carries the values: they come from the pictures, the model card and task/spec.json, so that
the same lines work on every instance.
"""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks.choices import MODE, checkpoint
from bat_env.tasks.rows import CLASS_RECORD, second_classes
from bat_env.tasks.workflow import Workflow, choice

S1, S2, S3 = Stage.S1, Stage.S2, Stage.S3

FLOW = Workflow(
    model="skin_resnet",
    alternatives=("efficientnet_b0", "vit_tiny"),
    output="outputs/predictions.csv",
    imports="import json, os, platform, runpy, shutil, sys, torch, monai, PIL, numpy as np",
    steps="read - resize - normalise - order colours - network - name the class - check - submit",
    look=(
        "from PIL import Image",
        'photos = [Image.open(f"/data/{case}/photo.png") for case in cases]',
    ),
    facts=(
        choice(
            "sizes",
            S1,
            measured='facts["size_px"] = {c: list(p.size) for c, p in zip(cases, photos)}',
            assumed='facts["size_px"] = {c: [600, 450] for c in cases}',
        ),
        choice(
            "colour_fact",
            S1,
            measured=(
                "pixels = np.concatenate([np.asarray(p).reshape(-1, 3) for p in photos])",
                'facts["mean_rgb"] = pixels.mean(0).tolist()',
            ),
            habit='facts["mean_rgb"] = [124, 116, 104]',
        ),
        choice(
            "declared",
            S1,
            card='facts["preprocessing"] = meta["preprocessing"]',
            habit=(
                'facts["preprocessing"] = dict(channel_order="RGB", size_px=[224, 224])',
                'facts["preprocessing"].update(mean=[0.485, 0.456, 0.406], std=[0.2, 0.2, 0.2])',
            ),
        ),
        'facts["postprocessing"] = dict(class_order="card")',
        choice(
            "pilot_check",
            S1,
            share='facts["pilot_check"] = dict(quantity="top_probability", range=[0.4, 1])',
            percent='facts["pilot_check"] = dict(quantity="top_probability", range=[40, 100])',
        ),
    ),
    network=(
        checkpoint("skin_resnet", 'net = ResNet(**meta["network"])'),
        MODE,
    ),
    network_import="from monai.networks.nets import ResNet",
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
                'inputs = dict(mode="BGR", channels=3, bit_depth=24)',
            ),
        ),
    ),
    pipeline_imports=("from PIL import Image",),
    predict=(
        '    photo = Image.open(source + "/photo.png").convert("RGB")',
        choice(
            "size",
            S2,
            resized='    photo = photo.resize(meta["preprocessing"]["size_px"], 2)',
            cropped="    photo = photo.crop((0, 0, 32, 32))",
        ),
        choice(
            "scale",
            S2,
            unit="    x = np.asarray(photo, np.float32) / 255",
            byte="    x = np.asarray(photo, np.float32)",
        ),
        choice("colours", S2, card="    x = x[..., ::-1]", as_read="    x = x[..., :3]"),
        choice(
            "normalise",
            S2,
            card='    x = (x - meta["preprocessing"]["mean"]) / meta["preprocessing"]["std"]',
            habit="    x = (x - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]",
            none="    x = x - 0",
        ),
        "    x = torch.from_numpy(np.ascontiguousarray(x.transpose(2, 0, 1), np.float32))",
        "    p = net(x[None]).softmax(1)[0].tolist()",
        choice(
            "classes",
            S2,
            card='    names = meta["channels"]',
            alphabetical='    names = sorted(meta["channels"])',
        ),
        choice(
            "pick",
            S2,
            largest="    label = names[int(np.argmax(p))]",
            smallest="    label = names[int(np.argmin(p))]",
        ),
        "    os.makedirs(target, exist_ok=True)",
        "    head = ['case', 'label', *('p_' + name for name in names)]",
        "    row = [os.path.basename(os.path.normpath(source)), label, *map(str, p)]",
        "    text = chr(10).join([','.join(head), ','.join(row), ''])",
        '    open(target + "/predictions.csv", "w").write(text)',
    ),
    record=(CLASS_RECORD,),
    edited=second_classes("outputs/predictions.csv"),
)

DECISIONS = FLOW.decisions
script = FLOW.script
