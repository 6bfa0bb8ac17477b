"""The expert workflow: every decision a choice between whole lines.

Code carries the values: they come from the headers, the model card and task/spec.json, so that
the same lines work on every instance.
"""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks.choices import checkpoint
from bat_env.tasks.workflow import Workflow, choice

S1, S2, S3 = Stage.S1, Stage.S2, Stage.S3

FLOW = Workflow(
    model="slice_net",
    alternatives=("srresnet3d", "edsr_slices"),
    output="outputs/{case}/synth.nii.gz",
    imports="import json, os, platform, runpy, shutil, sys, torch, monai, "
    "nibabel as nib, numpy as np",
    steps="read - slices first - window - neighbours - network - add to linear - four each - save",
    look=('images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases]',),
    facts=(
        choice(
            "geometry",
            S1,
            measured=(
                "zooms = np.array([image.header.get_zooms()[:3] for image in images], float)",
                "axes = [nib.aff2axcodes(image.affine) for image in images]",
                'facts["orientations"] = {c: "".join(a) for c, a in zip(cases, axes)}',
                'facts["slice_axis"] = {c: int(z.argmax()) for c, z in zip(cases, zooms)}',
                'facts["spacing_mm"] = dict(min=zooms.min(0).tolist(), max=zooms.max(0).tolist())',
            ),
            assumed=(
                'facts["orientations"] = {c: "RAS" for c in cases}',
                'facts["slice_axis"] = {c: 2 for c in cases}',
                'facts["spacing_mm"] = dict(min=[1, 1, 5], max=[1, 1, 5])',
            ),
        ),
        choice(
            "intensity_fact",
            S1,
            hounsfield="values = [image.get_fdata() for image in images]",
            stored="values = [np.asarray(image.dataobj.get_unscaled()) for image in images]",
        ),
        "low, high = min(v.min() for v in values), max(v.max() for v in values)",
        'facts["intensity_hu"] = [float(low), float(high)]',
        choice(
            "declared",
            S1,
            card='facts["preprocessing"] = meta["preprocessing"]',
            habit='facts["preprocessing"] = dict(window_hu=[-160, 240], slices=3, edges="zero")',
        ),
        'facts["postprocessing"] = meta["postprocessing"]',
        choice(
            "pilot_check",
            S1,
            hounsfield='facts["pilot_check"] = dict(quantity="std", range=[200, 900])',
            shares='facts["pilot_check"] = dict(quantity="std", range=[0.1, 0.5])',
        ),
    ),
    output_fact='facts["output"] = dict(path=spec["output"]["path"], dtype="int16")',
    network=(
        checkpoint("slice_net", 'net = AutoEncoder(**meta["network"])'),
        "net.eval()",
    ),
    network_import="from monai.networks.nets import AutoEncoder",
    claims=(
        choice(
            "setup_claims",
            S2,
            measured=(
                "versions = dict(torch=torch.__version__, monai=monai.__version__)",
                "versions.update(nibabel=nib.__version__, python=platform.python_version())",
                "inputs = dict(dtype=str(images[0].get_data_dtype()), ndim=images[0].ndim)",
                "slopes = [(image.dataobj.slope, image.dataobj.inter) for image in images]",
                'inputs["scaled"] = any(pair != (1, 0) for pair in slopes)',
            ),
            memory=(
                'versions = dict(python="3.8", torch="1.13", monai="1.0", nibabel="4.0")',
                'inputs = dict(dtype="float32", ndim=4, scaled=False)',
            ),
        ),
    ),
    pipeline_imports=("import nibabel as nib",),
    predict=(
        '    image = nib.load(source + "/ct.nii.gz")',
        choice(
            "intensity",
            S2,
            hounsfield='    hu = image.get_fdata(dtype="float32")',
            stored='    hu = np.asarray(image.dataobj.get_unscaled(), "float32")',
        ),
        choice(
            "axis",
            S2,
            thickest="    axis = int(np.argmax(image.header.get_zooms()[:3]))",
            last="    axis = 2",
        ),
        "    hu = np.moveaxis(hu, axis, 0)",
        choice(
            "window",
            S2,
            card='    low, high = meta["preprocessing"]["window_hu"]',
            habit="    low, high = -160, 240",
        ),
        choice(
            "scale",
            S2,
            card="    x = (hu.clip(low, high) - low) / (high - low) * 2 - 1",
            unit="    x = (hu.clip(low, high) - low) / (high - low)",
        ),
        '    half = meta["preprocessing"]["slices"] // 2',
        choice(
            "edges",
            S2,
            repeat='    x = np.pad(x, ((half, half), (0, 0), (0, 0)), "edge")',
            zero='    x = np.pad(x, ((half, half), (0, 0), (0, 0)), "constant")',
        ),
        "    x = np.stack([x[n : n + len(hu)] for n in range(2 * half + 1)], 1)",
        "    y = net(torch.from_numpy(x)).detach().numpy()",
        choice(
            "order",
            S2,
            card=(
                '    order = ["before_far", "before_near", "after_near", "after_far"]',
                '    y = y[:, [meta["channels"].index(name) for name in order]]',
            ),
            as_is="    y = y[:, [0, 1, 2, 3]]",
        ),
        choice(
            "unit",
            S2,
            card='    y = y * meta["postprocessing"]["output_unit_hu"]',
            window="    y = y * (high - low)",
        ),
        '    wide = np.pad(hu, ((1, 1), (0, 0), (0, 0)), "edge")',
        choice(
            "base",
            S2,
            linear="    share = np.array([3, 1, 1, 3]) / 8",
            repeated="    share = np.zeros(4)",
        ),
        "    other = np.stack([wide[:-2], wide[:-2], wide[2:], wide[2:]], 1)",
        "    linear = hu[:, None] + share[:, None, None] * (other - hu[:, None])",
        choice(
            "addition",
            S2,
            added="    y = y + linear",
            alone="    y = y + 0",
            interpolated="    y = y * 0 + linear",
        ),
        "    y = np.rint(y).reshape(-1, *hu.shape[1:])",
        "    affine = image.affine.copy()",
        "    affine[:3, axis] /= 4",
        choice(
            "origin",
            S2,
            edges="    affine[:3, 3] -= image.affine[:3, axis] * 3 / 8",
            centres="    affine[:3, 3] = image.affine[:3, 3]",
            copied="    affine = image.affine",
        ),
        '    image = nib.Nifti1Image(np.moveaxis(y, 0, axis).astype("int16"), affine)',
        "    os.makedirs(target, exist_ok=True)",
        '    nib.save(image, target + "/synth.nii.gz")',
    ),
    record=(
        choice(
            "pilot_record",
            S3,
            measured=(
                "image = nib.load(path)",
                "y = np.asarray(image.dataobj)",
                "record = dict(case=case, shape=list(y.shape), dtype=str(y.dtype))",
                "record.update(minimum=float(y.min()), maximum=float(y.max()))",
                'record["std"] = float(y.std())',
            ),
            assumed=(
                'record = dict(case=case, shape=[512, 512, 400], dtype="int16")',
                "record.update(minimum=-1024.0, maximum=3071.0, std=25.0)",
            ),
        ),
    ),
    edited=(
        "for case in cases:",
        '    image = nib.load(f"outputs/{case}/synth.nii.gz")',
        '    y = np.roll(image.get_fdata(), (2, 2, 2), (0, 1, 2)).astype("int16")',
        '    nib.save(nib.Nifti1Image(y, image.affine), f"outputs/{case}/synth.nii.gz")',
    ),
)

DECISIONS = FLOW.decisions
script = FLOW.script
