"""The expert workflow: every decision a choice between whole lines.

Code carries the values: they come from the arrays, the model card and task/spec.json, so that the
same lines work on every instance.
"""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks.choices import MODE, checkpoint
from bat_env.tasks.workflow import Workflow, choice

S1, S2, S3 = Stage.S1, Stage.S2, Stage.S3

FLOW = Workflow(
    model="mri_sr_unet",
    alternatives=("rcan", "swin_ir"),
    output="outputs/{case}/enhanced.npy",
    imports="import json, os, platform, runpy, shutil, torch, monai, numpy as np",
    steps="read - divide - network - shuffle - add to the interpolated - multiply - check - submit",
    look=('images = [np.load(f"/data/{case}/coarse.npy") for case in cases]',),
    facts=(
        choice(
            "shapes",
            S1,
            measured='facts["shape_px"] = {c: list(v.shape) for c, v in zip(cases, images)}',
            assumed='facts["shape_px"] = {c: [128, 128] for c in cases}',
        ),
        choice(
            "intensity_fact",
            S1,
            measured=(
                "low, high = min(v.min() for v in images), max(v.max() for v in images)",
                'facts["intensity"] = [int(low), int(high)]',
            ),
            by_type='facts["intensity"] = [0, 65535]',
        ),
        choice(
            "declared",
            S1,
            card='facts["preprocessing"] = meta["preprocessing"]',
            habit=(
                'facts["preprocessing"] = dict(percentile=100, factor=4)',
                'facts["preprocessing"].update(interpolation="nearest", align_corners=True)',
            ),
        ),
        choice(
            "network_fact",
            S1,
            difference='facts["postprocessing"] = dict(network_gives="difference")',
            image='facts["postprocessing"] = dict(network_gives="image")',
        ),
        'facts["postprocessing"]["restore_intensity"] = True',
        choice(
            "pilot_check",
            S1,
            stored='facts["pilot_check"] = dict(quantity="mean", range=[60, 1500])',
            units='facts["pilot_check"] = dict(quantity="mean", range=[0.1, 1])',
        ),
    ),
    network=(
        checkpoint("mri_sr_unet", 'net = BasicUNet(**meta["network"])'),
        MODE,
    ),
    network_import="from monai.networks.nets import BasicUNet",
    claims=(
        choice(
            "setup_claims",
            S2,
            measured=(
                "versions = {m.__name__: m.__version__ for m in (torch, monai, np)}",
                'versions["python"] = platform.python_version()',
                "square = all(v.shape[0] == v.shape[1] for v in images)",
                "inputs = dict(dtype=str(images[0].dtype), ndim=images[0].ndim, square=square)",
            ),
            memory=(
                'versions = dict(python="3.8", torch="1.13", monai="1.0", numpy="1.20")',
                'inputs = dict(dtype="float32", ndim=3, square=True)',
            ),
        ),
    ),
    pipeline_imports=("from torch.nn.functional import interpolate, pad, pixel_shuffle",),
    predict=(
        '    image, card = np.load(source + "/coarse.npy"), meta["preprocessing"]',
        choice(
            "divide",
            S2,
            card='    unit = float(np.percentile(image, card["percentile"]))',
            maximum="    unit = float(image.max())",
            bits="    unit = 4095.0",
        ),
        "    x = torch.from_numpy(np.float32(image / unit))[None, None]",
        "    h, w = image.shape",
        '    d = net(pad(x, (0, -w % 2, 0, -h % 2), mode="replicate")).detach()',
        choice(
            "order",
            S2,
            card="    d = pixel_shuffle(d, 2)[:, :, : 2 * h, : 2 * w]",
            exchanged="    d = pixel_shuffle(d[:, [0, 2, 1, 3]], 2)[:, :, : 2 * h, : 2 * w]",
        ),
        choice(
            "enlarge",
            S2,
            card='    x = interpolate(x, scale_factor=card["factor"], mode=card["interpolation"])',
            nearest='    x = interpolate(x, scale_factor=card["factor"], mode="nearest")',
            corners='    x = interpolate(x, scale_factor=2, mode="bicubic", align_corners=True)',
        ),
        choice("gives", S2, difference="    y = x + d", image="    y = d + 0"),
        choice("units", S2, stored="    y = y * unit", network="    y = y.clamp(0, 9)"),
        choice(
            "grid",
            S2,
            fine="    y = y[0, 0].numpy()",
            coarse="    y = y[0, 0, ::2, ::2].numpy()",
        ),
        choice("axes", S2, kept="    y = np.ascontiguousarray(y)", swapped="    y = y.T.copy()"),
        choice(
            "depth",
            S2,
            uint16="    y = np.rint(y.clip(0, 65535)).astype(np.uint16)",
            uint8="    y = np.rint(y.clip(0, 255)).astype(np.uint8)",
        ),
        "    os.makedirs(target, exist_ok=True)",
        '    np.save(target + "/enhanced.npy", y)',
    ),
    record=(
        choice(
            "pilot_record",
            S3,
            measured=(
                "y = np.load(path)",
                "record = dict(case=case, shape=list(y.shape), dtype=str(y.dtype))",
                "record.update(minimum=int(y.min()), maximum=int(y.max()), mean=float(y.mean()))",
            ),
            assumed=(
                'record = dict(case=case, shape=[256, 256], dtype="uint16")',
                "record.update(minimum=0, maximum=4095, mean=100.0)",
            ),
        ),
    ),
    edited=(
        "for case in cases:",
        '    y = np.load(f"outputs/{case}/enhanced.npy")',
        '    np.save(f"outputs/{case}/enhanced.npy", np.flipud(y).copy())',
    ),
    output_fact='facts["output"] = dict(spec["output"], dtype="uint16")',
)

DECISIONS = FLOW.decisions
script = FLOW.script
