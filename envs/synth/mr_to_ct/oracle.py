"""The expert workflow: every decision a choice between whole lines.

Code carries the values: they come from the headers, the model card and task/spec.json, so that
the same lines work on every instance.
"""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks.choices import MODE, checkpoint
from bat_env.tasks.workflow import Workflow, choice

S1, S2, S3 = Stage.S1, Stage.S2, Stage.S3

FLOW = Workflow(
    model="ct_unet",
    alternatives=("swin_unetr", "pix2pix_generator"),
    output="outputs/{case}/synth.nii.gz",
    imports="import json, os, platform, runpy, shutil, sys, torch, monai, "
    "nibabel as nib, numpy as np",
    steps="read - normalise in mask - orient - resample - UNet - HU - grid of the MR - save",
    look=(
        'images = [nib.load(f"/data/{case}/mr.nii.gz") for case in cases]',
        'masks = [nib.load(f"/data/{case}/mask.nii.gz").get_fdata() > 0 for case in cases]',
    ),
    facts=(
        choice(
            "geometry",
            S1,
            measured=(
                'axes = {c: "".join(nib.aff2axcodes(i.affine)) for c, i in zip(cases, images)}',
                "zooms = np.array([i.header.get_zooms()[:3] for i in images], float)",
            ),
            assumed=(
                'axes = {c: "RAS" for c in cases}',
                "zooms = np.ones((1, 3))",
            ),
        ),
        'facts["orientations"] = axes',
        'facts["spacing_mm"] = dict(min=zooms.min(0).tolist(), max=zooms.max(0).tolist())',
        choice(
            "signal",
            S1,
            scaled="values = [image.get_fdata() for image in images]",
            stored="values = [np.asarray(image.dataobj.get_unscaled()) for image in images]",
        ),
        choice(
            "region",
            S1,
            mask="means = [float(v[m].mean()) for v, m in zip(values, masks)]",
            volume="means = [float(v.mean()) for v in values]",
        ),
        'facts["mean_signal"] = dict(zip(cases, means))',
        "low, high = min(v.min() for v in values), max(v.max() for v in values)",
        'facts["signal_range"] = [float(low), float(high)]',
        choice(
            "declared",
            S1,
            card='facts["preprocessing"] = meta["preprocessing"]',
            habit=(
                'facts["preprocessing"] = dict(orientation="LPS", spacing_mm=[1.0] * 3)',
                'facts["preprocessing"].update(statistics_from="volume", slices=1)',
            ),
        ),
        'facts["postprocessing"] = meta["postprocessing"]',
        choice(
            "pilot_check",
            S1,
            hounsfield='facts["pilot_check"] = dict(quantity="mean", range=[-750, -150])',
            shares='facts["pilot_check"] = dict(quantity="mean", range=[0.1, 0.9])',
        ),
    ),
    output_fact='facts["output"] = dict(path=spec["output"]["path"], dtype="int16")',
    network=(
        checkpoint("ct_unet", 'net = UNet(**meta["network"])'),
        MODE,
    ),
    network_import="from monai.networks.nets import UNet",
    claims=(
        choice(
            "setup_claims",
            S2,
            measured=(
                "versions = dict(torch=torch.__version__, monai=monai.__version__)",
                "versions.update(nibabel=nib.__version__, python=platform.python_version())",
                "inputs = dict(dtype=str(images[0].get_data_dtype()), ndim=images[0].ndim)",
                'inputs["scaled"] = any(image.dataobj.slope != 1 for image in images)',
            ),
            memory=(
                'versions = dict(python="3.8", torch="1.13", monai="1.0", nibabel="4.0")',
                'inputs = dict(dtype="float32", ndim=4, scaled=False)',
            ),
        ),
    ),
    pipeline_imports=(
        "import nibabel as nib",
        "from monai.data import MetaTensor",
        "from monai.transforms import DivisiblePad, Orientation, Spacing",
        "from nibabel.processing import resample_from_to",
    ),
    predict=(
        '    image = nib.load(source + "/mr.nii.gz")',
        '    region = nib.load(source + "/mask.nii.gz").get_fdata() > 0',
        '    mr = image.get_fdata(dtype="float32")',
        choice(
            "normalise",
            S2,
            mask="    mr = (mr - mr[region].mean()) / mr[region].std()",
            volume="    mr = (mr - mr.mean()) / mr.std()",
            range="    mr = (mr - mr.min()) / (mr.max() - mr.min())",
            none="    mr = mr * 1.0",
        ),
        "    x = MetaTensor(mr[None], affine=image.affine)",
        choice(
            "orient",
            S2,
            card='    x = Orientation(meta["preprocessing"]["orientation"], labels=None)(x)',
            file="    x = x + 0",
        ),
        choice(
            "resample",
            S2,
            card='    x = Spacing(meta["preprocessing"]["spacing_mm"], mode="bilinear")(x)',
            habit='    x = Spacing([2.0] * 3, mode="bilinear")(x)',
        ),
        '    x = DivisiblePad((4, 4, 1), mode="edge")(x)',
        "    planes = x.as_tensor()[0].permute(2, 0, 1)",
        '    half, last = meta["preprocessing"]["slices"] // 2, len(planes) - 1',
        choice(
            "neighbours",
            S2,
            stacked="    near = torch.arange(-half, half + 1)",
            repeated="    near = torch.zeros(2 * half + 1, dtype=int)",
        ),
        "    y = net(planes[(torch.arange(last + 1)[:, None] + near).clamp(0, last)]).detach()",
        "    y = y[:, 0].permute(1, 2, 0).numpy()",
        choice(
            "unit",
            S2,
            card='    y = y * meta["postprocessing"]["output_unit_hu"]',
            raw="    y = y + 0",
            shifted="    y = y * 1000 + 1024",
            window="    y = (y * 1000).clip(-160, 240)",
        ),
        choice(
            "affine",
            S2,
            resampled="    y = nib.Nifti1Image(y, x.affine.numpy())",
            mirrored="    y = nib.Nifti1Image(y[::-1].copy(), x.affine.numpy())",
        ),
        choice(
            "restore",
            S2,
            mr_grid=(
                '    y = resample_from_to(y, image, order=1, mode="nearest").get_fdata()',
                '    outside = meta["postprocessing"]["outside_mask_hu"]',
                "    out = nib.Nifti1Image(np.rint(np.where(region, y, outside)), image.affine)",
            ),
            model_grid="    out = nib.Nifti1Image(np.rint(y.get_fdata()), y.affine)",
            no_affine=(
                '    y = resample_from_to(y, image, order=1, mode="nearest")',
                "    out = nib.Nifti1Image(np.rint(y.get_fdata()), np.eye(4))",
            ),
        ),
        choice(
            "dtype",
            S2,
            signed="    out.set_data_dtype(np.int16)",
            unsigned="    out = nib.Nifti1Image(np.int16(out.get_fdata().clip(0)), out.affine)",
        ),
        "    os.makedirs(target, exist_ok=True)",
        '    nib.save(out, target + "/synth.nii.gz")',
    ),
    record=(
        choice(
            "pilot_record",
            S3,
            measured=(
                "image = nib.load(path)",
                "y = image.get_fdata()",
                "record = dict(case=case, shape=list(y.shape), dtype=str(image.get_data_dtype()))",
                "record.update(minimum=float(y.min()), maximum=float(y.max()))",
                'record["mean"] = float(y.mean())',
            ),
            assumed=(
                'record = dict(case=case, shape=[256, 256, 192], dtype="int16")',
                "record.update(minimum=-1024.0, maximum=3071.0, mean=0.0)",
            ),
        ),
    ),
    edited=(
        "for case in cases:",
        '    image = nib.load(f"outputs/{case}/synth.nii.gz")',
        "    y = np.roll(image.get_fdata(), (2, 2, 2), (0, 1, 2)).astype(np.int16)",
        '    nib.save(nib.Nifti1Image(y, image.affine), f"outputs/{case}/synth.nii.gz")',
    ),
)

DECISIONS = FLOW.decisions
script = FLOW.script
