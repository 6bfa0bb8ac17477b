"""The expert workflow: every decision a choice between whole lines.

Code carries the values: they come from frames, questions, the model card and task/spec.json, so
that the same lines work on every instance.
"""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks.choices import MODE, checkpoint
from bat_env.tasks.rows import ANSWER_RECORD, next_letters
from bat_env.tasks.workflow import Workflow, choice

S1, S2, S3 = Stage.S1, Stage.S2, Stage.S3

FLOW = Workflow(
    model="echo_unet",
    alternatives=("deeplab_echo", "r2plus1d_ef"),
    output="outputs/answers.csv",
    imports="import glob, json, os, platform, runpy, shutil, torch, monai, PIL, numpy as np",
    steps="read frames - order - display - network - cavity of each frame - compare - letter",
    look=(
        "from PIL import Image",
        'paths = [sorted(glob.glob(f"/data/{case}/frame_*.png")) for case in cases]',
        "photos = [[Image.open(path) for path in frames] for frames in paths]",
        'times = [[float(photo.text["TriggerTime"]) for photo in frames] for frames in photos]',
    ),
    facts=(
        choice(
            "sizes",
            S1,
            measured='facts["size_px"] = {c: list(p[0].size) for c, p in zip(cases, photos)}',
            assumed='facts["size_px"] = {c: [800, 600] for c in cases}',
        ),
        choice(
            "order_fact",
            S1,
            timed=(
                "orders = [[int(n) + 1 for n in np.argsort(row)] for row in times]",
                'facts["frame_order"] = dict(zip(cases, orders))',
            ),
            numbered='facts["frame_order"] = {c: [1, 2, 3, 4] for c in cases}',
        ),
        choice(
            "display_fact",
            S1,
            read=(
                'shown = [frames[0].text["Display"] for frames in photos]',
                'facts["display"] = dict(zip(cases, shown))',
            ),
            assumed='facts["display"] = {c: "LV right" for c in cases}',
        ),
        choice(
            "time_fact",
            S1,
            measured=(
                "flat = [time for row in times for time in row]",
                'facts["trigger_ms"] = [min(flat), max(flat)]',
            ),
            seconds='facts["trigger_ms"] = [0, 1]',
        ),
        choice(
            "declared",
            S1,
            card='facts["preprocessing"] = meta["preprocessing"]',
            habit=(
                'facts["preprocessing"] = dict(display="as stored", size_px=[112, 112])',
                'facts["preprocessing"].update(full_scale=1, mean=0, std=1)',
            ),
        ),
        'facts["postprocessing"] = dict(answer_as_letter=True, frames="all")',
        choice(
            "pilot_check",
            S1,
            share='facts["pilot_check"] = dict(quantity="confidence", range=[0.3, 1])',
            percent='facts["pilot_check"] = dict(quantity="confidence", range=[30, 100])',
        ),
    ),
    network=(
        checkpoint("echo_unet", 'net = UNet(**meta["network"])'),
        MODE,
    ),
    network_import="from monai.networks.nets import UNet",
    claims=(
        choice(
            "setup_claims",
            S2,
            measured=(
                "versions = dict(torch=torch.__version__, monai=monai.__version__)",
                "versions.update(pillow=PIL.__version__, python=platform.python_version())",
                "first = photos[0][0]",
                "inputs = dict(mode=first.mode, channels=len(first.getbands()))",
                'inputs["bit_depth"] = np.asarray(first).dtype.itemsize * 8',
            ),
            memory=(
                'versions = dict(python="3.8", torch="1.13", monai="1.0", pillow="9.0")',
                'inputs = dict(mode="RGB", channels=3, bit_depth=16)',
            ),
        ),
    ),
    pipeline_imports=("import glob, re, PIL.Image",),
    predict=(
        '    card, asked = meta["preprocessing"], json.load(open(source + "/question.json"))',
        '    photos = [PIL.Image.open(p) for p in sorted(glob.glob(source + "/frame_*.png"))]',
        choice(
            "size",
            S2,
            resized='    x = np.stack([p.convert("F").resize(card["size_px"], 2) for p in photos])',
            transposed='    x = np.stack([np.transpose(p.convert("F").resize(card["size_px"], 2)) '
            "for p in photos])",
        ),
        choice(
            "display",
            S2,
            read='    x = x[:, :, ::-1] if photos[0].text["Display"] != card["display"] else x',
            ignored="    x = x[:, :, :]",
        ),
        choice("scale", S2, card='    x = x / card["full_scale"]', none="    x = x + 0"),
        choice(
            "normalise",
            S2,
            card='    x = (x - card["mean"]) / card["std"]',
            none="    x = x - 0",
        ),
        choice(
            "frames",
            S2,
            all="    x = torch.from_numpy(x)[:, None]",
            first="    x = torch.from_numpy(x[:1].repeat(len(x), 0))[:, None]",
        ),
        choice(
            "channel",
            S2,
            card="    cavity = net(x).argmax(1).numpy() == "
            'meta["channels"].index("left ventricle")',
            alphabetical="    cavity = net(x).argmax(1).numpy() == "
            'sorted(meta["channels"]).index("left ventricle")',
        ),
        "    area, col = cavity.sum((1, 2)) + 1.0, np.arange(cavity.shape[2])",
        choice(
            "phases",
            S2,
            by_area="    small, large = area.min(), area.max()",
            exchanged="    large, small = area.min(), area.max()",
        ),
        "    shrunk, grown = (np.exp(-abs(area - n) / area.max() / 0.05) for n in (small, large))",
        choice(
            "change",
            S2,
            lost="    change = 1 - area.min() / area.max()",
            left="    change = area.min() / area.max()",
        ),
        "    end, start = cavity[shrunk.argmax()], cavity[grown.argmax()]",
        "    band = start.sum(1) > 0.6 * start.sum(1).max()",
        "    mid = ((start * col).sum(1) / (start.sum(1) + 1e-6))[band, None]",
        "    kept = [((end[band] & h).sum() + 1) / ((start[band] & h).sum() + 1) "
        "for h in (col < mid, col >= mid)]",
        choice(
            "walls",
            S2,
            anatomy="    septum, lateral = (1 / (1 + np.exp((n - 0.8) / 0.03)) for n in kept)",
            exchanged="    lateral, septum = (1 / (1 + np.exp((n - 0.8) / 0.03)) for n in kept)",
        ),
        '    text, options = asked["question"], asked["options"]',
        choice(
            "negation",
            S2,
            read='    a, b = (1 - septum, 1 - lateral) if " not " in text else (septum, lateral)',
            ignored="    a, b = septum, lateral",
        ),
        '    table = {"septum": a * (1 - b), "lateral wall": b * (1 - a), "both walls": a * b}',
        '    table["neither wall"] = (1 - a) * (1 - b)',
        choice(
            "order",
            S2,
            timed='    order = list(np.argsort([float(p.text["TriggerTime"]) for p in photos]))',
            numbered="    order = list(range(len(photos)))",
        ),
        "    later = [shrunk[order[order.index(n) - 1]] for n in range(len(order))]",
        '    chosen = grown if "diastole" in text else later if "right after" in text else shrunk',
        '    names = ["frame " + re.findall("[0-9]+", photo.filename)[-1] for photo in photos]',
        "    table.update(zip(names, chosen))",
        '    for option in [text for text in options.values() if "%" in text]:',
        '        centre = np.mean([int(n) / 100 for n in re.findall("[0-9]+", option)])',
        "        table[option] = np.exp(-abs(change - centre) / 0.03)",
        '    scores = [float(table[options[letter]]) for letter in "ABCD"]',
        choice(
            "letter",
            S2,
            of_option='    letter = "ABCD"[int(np.argmax(scores))]',
            one_off='    letter = "ABCD"[int(np.argmax(scores)) - 1]',
        ),
        "    os.makedirs(target, exist_ok=True)",
        "    case, share = os.path.basename(os.path.normpath(source)), max(scores) / sum(scores)",
        "    text = chr(10).join(['case,answer,confidence', f'{case},{letter},{share}', ''])",
        '    open(target + "/answers.csv", "w").write(text)',
    ),
    record=(ANSWER_RECORD,),
    edited=next_letters("outputs/answers.csv"),
)

DECISIONS = FLOW.decisions
script = FLOW.script
