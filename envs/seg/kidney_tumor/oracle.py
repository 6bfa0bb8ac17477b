"""The expert workflow as cells, with every decision a choice between whole lines.

Code carries the values: they come from the files' headers, the model card and task/spec.json, so
that the same lines work on every instance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bat_env.stages import Stage
from bat_env.tasks.choices import checkpoint
from bat_env.tasks.scripts import Decision, ScriptCell

S1, S2, S3, S4, S5 = Stage.S1, Stage.S2, Stage.S3, Stage.S4, Stage.S5

DECISIONS = (
    Decision("facts", S1, ("measured", "assumed")),
    Decision("intensity_fact", S1, ("scaled", "stored")),
    Decision("declared", S1, ("card", "habit")),
    Decision("pilot_check", S1, ("millilitres", "litres")),
    Decision("candidates", S1, ("compared", "one")),
    Decision("setup_claims", S2, ("measured", "memory")),
    Decision("checkpoint", S2, ("strict", "loose")),
    Decision("mode", S2, ("eval", "train")),
    Decision("intensity", S2, ("scaled", "stored")),
    Decision("orient", S2, ("card", "none")),
    Decision("resample", S2, ("card", "none")),
    Decision("window", S2, ("card", "lung", "minmax")),
    Decision("channels", S2, ("mapped", "raw")),
    Decision("restore", S2, ("input_grid", "model_grid", "flipped", "identity")),
    Decision("repair", S3, ("rewrite", "skip")),
    Decision("pilot_cases", S3, ("one", "two")),
    Decision("pilot_order", S3, ("before", "after")),
    Decision("pilot_record", S3, ("measured", "assumed")),
    Decision("batch", S4, ("all", "first", "edited")),
    Decision("manifest", S5, ("content", "names", "first")),
)

IMPORTS = "import json, os, platform, runpy, shutil, sys, torch, monai, nibabel as nib, numpy as np"
META = 'meta = json.load(open("/models/kidney_unet/configs/metadata.json"))'
SPEC = 'spec = json.load(open("/workspace/task/spec.json"))'
CASES = 'cases = sorted(os.listdir("/data"))'
IMAGES = 'images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases]'
PREDICT = 'predict = runpy.run_path("pipeline/predict.py")["predict"]'

FACTS = {
    "measured": (
        'axes = {c: "".join(nib.aff2axcodes(i.affine)) for c, i in zip(cases, images)}',
        "zooms = np.array([i.header.get_zooms() for i in images], float)",
    ),
    "assumed": (
        'axes = {c: "RAS" for c in cases}',
        "zooms = np.ones((1, 3))",
    ),
}
INTENSITY_FACT = {
    "scaled": ("hu = [i.get_fdata() for i in images]",),
    "stored": ("hu = [i.dataobj.get_unscaled() for i in images]",),
}
DECLARED = {
    "card": ('facts["preprocessing"] = meta["preprocessing"]',),
    "habit": (
        'facts["preprocessing"] = dict(orientation="RAS", spacing_mm=[1.0] * 3, window_hu=[0, 1])',
    ),
}
PILOT_CHECK = {
    "millilitres": ('facts["pilot_check"] = dict(quantity="kidney_volume_ml", range=[60, 900])',),
    "litres": ('facts["pilot_check"] = dict(quantity="kidney_volume_ml", range=[0.06, 0.9])',),
}
CANDIDATES = {
    "compared": (
        "names = [facts['model'], 'swin_unetr', 'segresnet']",
        "facts['candidates'] = names",
        'text = "Compared: " + ", ".join(names) + ". The given weights fit this task."',
        "from PIL import Image, ImageDraw",
        'image = Image.new("RGB", (640, 120), "white")',
        'steps = "read - orient - resample - window - UNet - restore - check - submit"',
        'ImageDraw.Draw(image).text((20, 50), steps, fill="black")',
        'image.save("plan/plan.png")',
    ),
    "one": ('text = "The given weights fit this task."',),
}
SETUP_CLAIMS = {
    "measured": (
        "versions = {m.__name__: m.__version__ for m in (torch, monai, nib)}",
        'versions["python"] = platform.python_version()',
        "scaled = any(i.dataobj.slope != 1 or i.dataobj.inter != 0 for i in images)",
        "inputs = dict(dtype=str(images[0].get_data_dtype()), ndim=images[0].ndim, scaled=scaled)",
    ),
    "memory": (
        'versions = dict(python="3.8", torch="1.13", monai="1.0", nibabel="4.0")',
        'inputs = dict(dtype="float32", ndim=3, scaled=False)',
    ),
}
CHECKPOINT = checkpoint("kidney_unet", 'net = UNet(**meta["network"])').options
MODE = {"eval": ("net.eval()",), "train": ()}
INTENSITY = {
    "scaled": ("    x = MetaTensor(image.get_fdata(dtype=np.float32)[None], affine=image.affine)",),
    "stored": (
        "    x = MetaTensor(np.float32(image.dataobj.get_unscaled())[None], affine=image.affine)",
    ),
}
ORIENT = {
    "card": ('    x = Orientation(meta["preprocessing"]["orientation"], labels=None)(x)',),
    "none": (),
}
RESAMPLE = {"card": ('    x = Spacing(meta["preprocessing"]["spacing_mm"])(x)',), "none": ()}
WINDOW = {
    "card": (
        '    x = ScaleIntensityRange(*meta["preprocessing"]["window_hu"], 0, 1, clip=True)(x)',
    ),
    "lung": ("    x = ScaleIntensityRange(-1000, 400, 0, 1, clip=True)(x)",),
    "minmax": ("    x = ScaleIntensityRange(x.min(), x.max(), 0, 1)(x)",),
}
CHANNELS = {
    "mapped": ("    y = np.array([0, 2, 1], np.uint8)[y]",),
    "raw": ("    y = y.astype(np.uint8)",),
}
RESTORE = {
    "input_grid": (
        "    out = resample_from_to(nib.Nifti1Image(y, x.affine.numpy()), image, order=0)",
    ),
    "model_grid": ("    out = nib.Nifti1Image(y, x.affine.numpy())",),
    "flipped": (
        "    out = nib.Nifti1Image(y[::-1].copy(), x.affine.numpy())",
        "    out = resample_from_to(out, image, order=0)",
    ),
    "identity": (
        "    out = resample_from_to(nib.Nifti1Image(y, x.affine.numpy()), image, order=0)",
        "    out = nib.Nifti1Image(np.asarray(out.dataobj), np.eye(4))",
    ),
}
PILOT_CASES = {"one": ("pilots = cases[:1]",), "two": ("pilots = cases[:2]",)}
PILOT_RECORD = {
    "measured": (
        "y = np.asarray(image.dataobj)",
        "volume = (y == 1).sum() * np.prod(image.header.get_zooms()) / 1000",
        "record = dict(case=case, shape=list(y.shape), dtype=str(y.dtype))",
        "record.update(labels=np.unique(y).tolist(), kidney_volume_ml=float(volume))",
    ),
    "assumed": (
        'record = dict(case=case, shape=[512, 512, 64], dtype="uint8")',
        "record.update(labels=[0, 1, 2], kidney_volume_ml=150.0)",
    ),
}
BATCH = {
    "all": ("for case in cases:", '    predict(f"/data/{case}", f"outputs/{case}")'),
    "first": ("for case in cases[:1]:", '    predict(f"/data/{case}", f"outputs/{case}")'),
    "edited": (
        "for case in cases:",
        '    predict(f"/data/{case}", f"outputs/{case}")',
        '    path = f"outputs/{case}/dseg.nii.gz"',
        "    image = nib.load(path)",
        "    y = np.roll(np.asarray(image.dataobj), 3, 0)",
        "    nib.save(nib.Nifti1Image(y, image.affine), path)",
    ),
}
MANIFEST = {
    "content": (
        'files = [f"outputs/{case}/dseg.nii.gz" for case in cases]',
        'rows = [dict(path=p, sha256=sha256(open(p, "rb").read()).hexdigest()) for p in files]',
    ),
    "names": (
        'files = [f"outputs/{case}/dseg.nii.gz" for case in cases]',
        "rows = [dict(path=p, sha256=sha256(p.encode()).hexdigest()) for p in files]",
    ),
    "first": (
        'files = [f"outputs/{case}/dseg.nii.gz" for case in cases[:1]]',
        'rows = [dict(path=p, sha256=sha256(open(p, "rb").read()).hexdigest()) for p in files]',
    ),
}


def _cell(stage: Stage, lines: Iterable[str]) -> ScriptCell:
    return ScriptCell(stage, "\n".join(lines))


def plan(c: dict[str, str], tier: str) -> list[ScriptCell]:
    """S1: measure the data, then write facts and plan."""
    facts = (
        IMPORTS,
        META,
        SPEC,
        CASES,
        IMAGES,
        *FACTS[c["facts"]],
        *INTENSITY_FACT[c["intensity_fact"]],
        'facts = dict(case_count=len(cases), orientations=axes, model=spec["model"]["name"])',
        'facts["spacing_mm"] = dict(min=zooms.min(0).tolist(), max=zooms.max(0).tolist())',
        'facts["intensity_hu"] = [float(min(map(np.min, hu))), float(max(map(np.max, hu)))]',
        *DECLARED[c["declared"]],
        'facts["postprocessing"] = dict(restore_grid=True)',
        'facts["output"] = dict(spec["output"], dtype="uint8")',
        *PILOT_CHECK[c["pilot_check"]],
        'os.makedirs("plan", exist_ok=True)',
        *CANDIDATES[c["candidates"] if tier != "lite" else "one"],
        'open("plan/plan.md", "w").write("Run " + facts["model"] + " on every case. " + text)',
        'json.dump(facts, open("plan/facts.json", "w"))',
    )
    return [_cell(S1, facts)]


def _network(c: dict[str, str]) -> tuple[str, ...]:
    return (
        META,
        *CHECKPOINT[c["checkpoint"]],
        *MODE[c["mode"]],
    )


def setup(c: dict[str, str]) -> ScriptCell:
    """S2: report versions and inputs, load the network and run it on the probe."""
    return _cell(
        S2,
        (
            IMPORTS,
            "from monai.networks.nets import UNet",
            *_network(c),
            'out = net(torch.from_numpy(np.load("/models/kidney_unet/probe.npy"))).detach()',
            "probe = dict(mean=float(out.mean()), std=float(out.std()))",
            'model = dict(name="kidney_unet", parameters=sum(p.numel() for p in net.parameters()))',
            CASES,
            IMAGES,
            *SETUP_CLAIMS[c["setup_claims"]],
            "setup = dict(versions=versions, inputs=inputs, model=model, probe=probe)",
            'os.makedirs("setup", exist_ok=True)',
            'json.dump(setup, open("setup/setup.json", "w"))',
        ),
    )


def pipeline(c: dict[str, str], stage: Stage = S2, first: Iterable[str] = ()) -> ScriptCell:
    """S2: write predict.py. Also the repair of S3-S5, after the lines ``first``."""
    script = (
        "import json, os, sys, torch, nibabel as nib, numpy as np",
        "from monai.data import MetaTensor",
        "from monai.networks.nets import UNet",
        "from monai.transforms import DivisiblePad, Orientation, ScaleIntensityRange, Spacing",
        "from nibabel.processing import resample_from_to",
        *_network(c),
        "def predict(source, target):",
        '    image = nib.load(source + "/ct.nii.gz")',
        *INTENSITY[c["intensity"]],
        *ORIENT[c["orient"]],
        *RESAMPLE[c["resample"]],
        *WINDOW[c["window"]],
        "    x = DivisiblePad((8, 8, 1))(x)",
        "    y = net(x.as_tensor().permute(3, 0, 1, 2)).argmax(1).permute(1, 2, 0).numpy()",
        *CHANNELS[c["channels"]],
        *RESTORE[c["restore"]],
        "    os.makedirs(target, exist_ok=True)",
        '    nib.save(out, target + "/dseg.nii.gz")',
        'if __name__ == "__main__": predict(sys.argv[2], sys.argv[4])',
    )
    return _cell(
        stage,
        (
            "import os, shutil",
            *first,
            'os.makedirs("pipeline", exist_ok=True)',
            'open("pipeline/predict.py", "w").write("""',
            *script,
            '""")',
        ),
    )


def validate(c: dict[str, str]) -> ScriptCell:
    """S3: predict one pilot case and record what the file holds."""
    return _cell(
        S3,
        (
            IMPORTS,
            'os.makedirs("validation", exist_ok=True)',
            PREDICT,
            CASES,
            *PILOT_CASES[c["pilot_cases"]],
            "for case in pilots:",
            '    predict(f"/data/{case}", f"validation/pilot/{case}")',
            'image = nib.load(f"validation/pilot/{case}/dseg.nii.gz")',
            *PILOT_RECORD[c["pilot_record"]],
            'json.dump(record, open("validation/pilot.json", "w"))',
            "print(record)",
        ),
    )


def batch(c: dict[str, str], stage: Stage = S4) -> ScriptCell:
    """S4: predict the cases."""
    outputs = 'os.makedirs("outputs", exist_ok=True)'
    return _cell(stage, (IMPORTS, outputs, PREDICT, CASES, *BATCH[c["batch"]]))


def submit(c: dict[str, str]) -> ScriptCell:
    """S5: write the manifest."""
    return _cell(
        S5,
        (
            IMPORTS,
            "from hashlib import sha256",
            SPEC,
            CASES,
            *MANIFEST[c["manifest"]],
            'manifest = dict(format=spec["output"]["format"], files=rows)',
            'json.dump(manifest, open("outputs/manifest.json", "w"))',
        ),
    )


def _repair(c: dict[str, str], stage: Stage) -> list[ScriptCell]:
    """What a careful expert redoes before trusting what earlier stages left behind."""
    if c["repair"] == "skip":
        return []
    stale = {S3: "validation", S4: "outputs", S5: "outputs"}[stage]
    return [pipeline(c, stage, (f'shutil.rmtree("{stale}", ignore_errors=True)',))]


def script(
    choices: dict[str, str], *, focus: Stage, tier: str, outcome: str | None
) -> list[ScriptCell]:
    """The cells of a focus, made of a full set of choices."""
    late = choices["pilot_order"] == "after"
    pilot = [batch(choices, S3), validate(choices)] if late else [validate(choices)]
    made: dict[Stage, Callable[[], list[ScriptCell]]] = {
        S1: lambda: plan(choices, tier),
        S2: lambda: [setup(choices), pipeline(choices)],
        S3: lambda: [*_repair(choices, S3), *pilot],
        S4: lambda: [*_repair(choices, S4), batch(choices)],
        S5: lambda: [*_redo(choices), submit(choices)],
    }
    if focus is not Stage.E2E:
        return made[focus]()
    start = [*made[S1](), *made[S2]()]
    middle = [batch(choices), validate(choices)] if late else [validate(choices), batch(choices)]
    return [*start, *middle, submit(choices)]


def _redo(c: dict[str, str]) -> list[ScriptCell]:
    repaired = _repair(c, S5)
    return [*repaired, batch(c, S5)] if repaired else []
