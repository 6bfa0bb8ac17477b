"""The expert workflow: every decision a choice between whole lines.

Code carries the values: they come from the files' headers, the model card and task/spec.json, so
that the same lines work on every instance.
"""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks.choices import MODE, checkpoint
from bat_env.tasks.workflow import Workflow, choice

S1, S2, S3 = Stage.S1, Stage.S2, Stage.S3

IMPORTS = "import json, os, platform, runpy, shutil, sys, torch, monai, nibabel as nib, numpy as np"
NAMES = "background external_csf grey_matter white_matter ventricles cerebellum"
MORE_NAMES = "deep_grey_matter brainstem"

FLOW = Workflow(
    model="fetal_unet",
    alternatives=("nnunet_3d", "segresnet"),
    output="outputs/{case}/dseg.nii.gz",
    imports=IMPORTS,
    steps="read - orient - resample - local mean - range - UNet - name - restore - check - submit",
    look=('images = [nib.load(f"/data/{case}/t2w.nii.gz") for case in cases]',),
    facts=(
        choice(
            "facts",
            S1,
            measured=(
                'axes = {c: "".join(nib.aff2axcodes(i.affine)) for c, i in zip(cases, images)}',
                "zooms = np.array([i.header.get_zooms() for i in images], float)",
            ),
            assumed=(
                'axes = {c: "RAS" for c in cases}',
                "zooms = np.full((1, 3), 0.5)",
            ),
        ),
        'facts["orientations"] = axes',
        'facts["spacing_mm"] = dict(min=zooms.min(0).tolist(), max=zooms.max(0).tolist())',
        choice(
            "signal_fact",
            S1,
            scaled="signals = [i.get_fdata() for i in images]",
            stored="signals = [i.dataobj.get_unscaled() for i in images]",
        ),
        "p99 = [float(np.percentile(s[s != 0], 99)) for s in signals]",
        'facts["signal_p99"] = dict(zip(cases, p99))',
        choice(
            "declared",
            S1,
            card='facts["preprocessing"] = meta["preprocessing"]',
            habit=(
                'usual = dict(orientation="RAS", spacing_mm=[0.5] * 3, smooth_mm=0)',
                'facts["preprocessing"] = dict(usual, signal_range=[0, 1])',
            ),
        ),
        'facts["postprocessing"] = dict(restore_grid=True)',
        choice(
            "pilot_check",
            S1,
            millilitres=(
                'check = dict(quantity="white_matter_volume_ml", range=[15, 280])',
                'facts["pilot_check"] = check',
            ),
            litres=(
                'check = dict(quantity="white_matter_volume_ml", range=[0.015, 0.28])',
                'facts["pilot_check"] = dict(check)',
            ),
        ),
    ),
    output_fact='facts["output"] = dict(spec["output"], dtype="uint8")',
    network=(
        checkpoint("fetal_unet", 'net = UNet(**meta["network"])'),
        MODE,
    ),
    network_import="from monai.networks.nets import UNet",
    claims=(
        choice(
            "setup_claims",
            S2,
            measured=(
                "versions = {m.__name__: m.__version__ for m in (torch, monai, nib)}",
                'versions["python"] = platform.python_version()',
                "scaled = any(i.dataobj.slope != 1 or i.dataobj.inter != 0 for i in images)",
                "inputs = dict(dtype=str(images[0].get_data_dtype()), ndim=images[0].ndim)",
                "corner = all(i.get_fdata()[0, 0, 0] == 0 for i in images)",
                "inputs.update(scaled=scaled, zero_background=corner)",
            ),
            memory=(
                'versions = dict(python="3.8", torch="1.13", monai="1.0", nibabel="4.0")',
                'inputs = dict(dtype="float32", ndim=3, scaled=False, zero_background=False)',
            ),
        ),
    ),
    pipeline_imports=(
        "import nibabel as nib",
        "from monai.data import MetaTensor",
        "from monai.transforms import DivisiblePad, Orientation, Spacing",
        "from nibabel.processing import resample_from_to",
        "from scipy.ndimage import gaussian_filter as smooth",
        f'NAMES = "{NAMES}".split()',
        f'NAMES += "{MORE_NAMES}".split()',
    ),
    predict=(
        '    card = meta["preprocessing"]',
        '    image = nib.load(source + "/t2w.nii.gz")',
        choice(
            "signal",
            S2,
            scaled="    raw = image.get_fdata(dtype=np.float32)",
            stored="    raw = np.float32(image.dataobj.get_unscaled())",
        ),
        "    x = MetaTensor(raw[None], affine=image.affine)",
        choice(
            "orient",
            S2,
            card='    x = Orientation(card["orientation"], labels=None)(x)',
            none=(),
            axial='    x = Orientation("RAS", labels=None)(x)',
        ),
        choice("resample", S2, card='    x = Spacing(card["spacing_mm"])(x)', none=()),
        "    x = DivisiblePad((8, 8, 1))(x)",
        "    v = x[0].numpy()",
        "    mask = np.float32(v > 0)",
        choice(
            "local_mean",
            S2,
            card=(
                '    sigma = card["smooth_mm"] / np.array(card["spacing_mm"])',
                "    low = smooth(v, sigma) / np.maximum(smooth(mask, sigma), 1e-6)",
            ),
            everywhere='    low = smooth(v, card["smooth_mm"] / np.array(card["spacing_mm"]))',
            whole="    low = v[mask > 0].mean()",
        ),
        "    v = np.where(mask > 0, v / np.maximum(low, 1e-6), 0)",
        choice(
            "range",
            S2,
            card='    a, b = card["signal_range"]',
            unit="    a, b = 0.0, 1.0",
        ),
        "    v = np.float32(((v - a) / (b - a)).clip(0, 1))",
        "    p = net(torch.from_numpy(v)[None].permute(3, 0, 1, 2)).detach()",
        "    y = p.argmax(1).permute(1, 2, 0).numpy()",
        choice(
            "channels",
            S2,
            named='    y = np.uint8([NAMES.index(name) for name in meta["channels"]])[y]',
            raw="    y = y.astype(np.uint8)",
        ),
        choice(
            "restore",
            S2,
            input_grid=(
                "    out = nib.Nifti1Image(y, x.affine.numpy())",
                "    out = resample_from_to(out, image, order=0)",
            ),
            model_grid="    out = nib.Nifti1Image(y.copy(), x.affine.numpy())",
            identity=(
                "    out = nib.Nifti1Image(y, x.affine.numpy())",
                "    out = resample_from_to(out, image, order=0)",
                "    out = nib.Nifti1Image(np.asarray(out.dataobj), np.eye(4))",
            ),
            upside_down=(
                "    out = nib.Nifti1Image(y[:, ::-1].copy(), x.affine.numpy())",
                "    out = resample_from_to(out, image, order=0)",
            ),
        ),
        "    os.makedirs(target, exist_ok=True)",
        '    nib.save(out, target + "/dseg.nii.gz")',
    ),
    record=(
        choice(
            "pilot_record",
            S3,
            measured=(
                "image = nib.load(path)",
                "y = np.asarray(image.dataobj)",
                'spec = json.load(open("/workspace/task/spec.json"))',
                'names = {v: int(k) for k, v in spec["output"]["labels"].items()}',
                'volume = (y == names["white_matter"]).sum()',
                "volume = float(volume * np.prod(image.header.get_zooms()) / 1000)",
                "record = dict(case=case, shape=list(y.shape), dtype=str(y.dtype))",
                "record.update(labels=np.unique(y).tolist(), white_matter_volume_ml=volume)",
            ),
            assumed=(
                'record = dict(case=case, shape=[256, 256, 256], dtype="uint8")',
                "record.update(labels=list(range(8)), white_matter_volume_ml=400.0)",
            ),
        ),
    ),
    edited=(
        "for case in cases:",
        '    path = f"outputs/{case}/dseg.nii.gz"',
        "    image = nib.load(path)",
        "    y = np.roll(np.asarray(image.dataobj), 3, 0)",
        "    nib.save(nib.Nifti1Image(y, image.affine), path)",
    ),
)

DECISIONS = FLOW.decisions
script = FLOW.script
