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
NAMES = "spleen kidney_right kidney_left gallbladder liver stomach aorta pancreas"

FLOW = Workflow(
    model="organ_unet",
    alternatives=("swin_unetr", "segresnet"),
    output="outputs/{case}/dseg.nii.gz",
    imports=IMPORTS,
    steps="read - orient - resample - window - UNet - drop absent - restore - check - submit",
    look=('images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases]',),
    facts=(
        choice(
            "facts",
            S1,
            measured=(
                'axes = {c: "".join(nib.aff2axcodes(i.affine)) for c, i in zip(cases, images)}',
                "zooms = np.array([i.header.get_zooms() for i in images], float)",
            ),
            assumed=(
                'axes = {c: "LPS" for c in cases}',
                "zooms = np.full((1, 3), 1.5)",
            ),
        ),
        'facts["orientations"] = axes',
        'facts["spacing_mm"] = dict(min=zooms.min(0).tolist(), max=zooms.max(0).tolist())',
        choice(
            "intensity_fact",
            S1,
            scaled="hu = [i.get_fdata() for i in images]",
            stored="hu = [i.dataobj.get_unscaled() for i in images]",
        ),
        'facts["intensity_hu"] = [float(min(map(np.min, hu))), float(max(map(np.max, hu)))]',
        choice(
            "declared",
            S1,
            card=(
                'facts["preprocessing"] = meta["preprocessing"]',
                'facts["postprocessing"] = dict(meta["postprocessing"], restore_grid=True)',
            ),
            habit=(
                'usual = dict(orientation="RAS", spacing_mm=[1.5] * 3, window_hu=[-175, 250])',
                'facts["preprocessing"] = usual',
                'facts["postprocessing"] = dict(restore_grid=True, minimum_ml=0)',
            ),
        ),
        choice(
            "pilot_check",
            S1,
            millilitres='facts["pilot_check"] = dict(quantity="liver_volume_ml", range=[70, 2000])',
            litres='facts["pilot_check"] = dict(quantity="liver_volume_ml", range=[0.07, 2])',
        ),
    ),
    output_fact='facts["output"] = dict(spec["output"], dtype="uint8")',
    network=(
        checkpoint("organ_unet", 'net = UNet(**meta["network"])'),
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
                'inputs["scaled"] = scaled',
            ),
            memory=(
                'versions = dict(python="3.8", torch="1.13", monai="1.0", nibabel="4.0")',
                'inputs = dict(dtype="float32", ndim=3, scaled=False)',
            ),
        ),
    ),
    pipeline_imports=(
        "import nibabel as nib",
        "from monai.data import MetaTensor",
        "from monai.transforms import DivisiblePad, Orientation, ScaleIntensityRange, Spacing",
        "from nibabel.processing import resample_from_to",
        f'NAMES = "background {NAMES}".split()',
    ),
    predict=(
        '    image = nib.load(source + "/ct.nii.gz")',
        choice(
            "intensity",
            S2,
            scaled="    raw = image.get_fdata(dtype=np.float32)",
            stored="    raw = np.float32(image.dataobj.get_unscaled())",
        ),
        "    x = MetaTensor(raw[None], affine=image.affine)",
        choice(
            "orient",
            S2,
            card='    x = Orientation(meta["preprocessing"]["orientation"], labels=None)(x)',
            none=(),
            canonical='    x = Orientation("RAS", labels=None)(x)',
        ),
        choice(
            "resample",
            S2,
            card='    x = Spacing(meta["preprocessing"]["spacing_mm"])(x)',
            none=(),
        ),
        choice(
            "window",
            S2,
            card=(
                '    window = meta["preprocessing"]["window_hu"]',
                "    x = ScaleIntensityRange(*window, 0, 1, clip=True)(x)",
            ),
            lung="    x = ScaleIntensityRange(-1000, 400, 0, 1, clip=True)(x)",
            minmax="    x = ScaleIntensityRange(x.min(), x.max(), 0, 1)(x)",
        ),
        "    x = DivisiblePad((8, 8, 1))(x)",
        "    p = net(x.as_tensor().permute(3, 0, 1, 2)).softmax(1).detach()",
        choice(
            "absent",
            S2,
            dropped=(
                "    y = p.argmax(1).permute(1, 2, 0).numpy()",
                "    ml = np.bincount(y.ravel(), minlength=9) * x.pixdim.prod().item() / 1000",
                '    y = np.where(ml >= meta["postprocessing"]["minimum_ml"], np.arange(9), 0)[y]',
            ),
            filled=(
                "    flat = p.permute(2, 3, 0, 1).reshape(-1, 9)",
                "    y = flat.argmax(1)",
                "    for c in range(1, 9): y[flat[:, c].topk(200).indices] = c",
                "    y = y.reshape(p.permute(2, 3, 0, 1).shape[:3]).numpy()",
            ),
        ),
        choice(
            "channels",
            S2,
            named=(
                '    label_of = [NAMES.index(name) for name in meta["channels"]]',
                "    y = np.uint8(label_of)[y]",
            ),
            raw="    y = y.astype(np.uint8)",
            sides=(
                '    other = dict(kidney_left="kidney_right", kidney_right="kidney_left")',
                '    label_of = [NAMES.index(other.get(name, name)) for name in meta["channels"]]',
                "    y = np.uint8(label_of)[y]",
            ),
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
            linear=(
                "    out = nib.Nifti1Image(np.float32(y), x.affine.numpy())",
                "    out = resample_from_to(out, image, order=1)",
                "    out = nib.Nifti1Image(np.uint8(np.rint(out.get_fdata())), out.affine)",
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
                'volume = (y == names["liver"]).sum() * np.prod(image.header.get_zooms()) / 1000',
                "record = dict(case=case, shape=list(y.shape), dtype=str(y.dtype))",
                "record.update(labels=np.unique(y).tolist(), liver_volume_ml=float(volume))",
            ),
            assumed=(
                'record = dict(case=case, shape=[512, 512, 90], dtype="uint8")',
                "record.update(labels=list(range(9)), liver_volume_ml=3000.0)",
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
