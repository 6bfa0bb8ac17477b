"""The expert workflow: every decision a choice between whole lines.

Code carries the values: they come from the files' headers, the model card and task/spec.json, so
that the same lines work on every instance.
"""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks.choices import MODE, checkpoint
from bat_env.tasks.workflow import Workflow, choice

S1, S2, S3 = Stage.S1, Stage.S2, Stage.S3

FLOW = Workflow(
    model="ldct_unet",
    alternatives=("red_cnn", "swin_ir"),
    output="outputs/{case}/enhanced.nii.gz",
    imports="import json, os, platform, runpy, shutil, torch, monai, nibabel as nib, numpy as np",
    steps="read - orient - scale - estimate noise - subtract - restore - check - submit",
    look=('images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases]',),
    facts=(
        choice(
            "geometry",
            S1,
            measured=(
                'axes = {c: "".join(nib.aff2axcodes(i.affine)) for c, i in zip(cases, images)}',
                "zooms = np.array([i.header.get_zooms() for i in images], float)",
            ),
            assumed=('axes = {c: "RAS" for c in cases}', "zooms = np.ones((1, 3))"),
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
            card='facts["preprocessing"] = meta["preprocessing"]',
            habit='facts["preprocessing"] = dict(orientation="RAS", centre_hu=0, scale_hu=1000)',
        ),
        choice(
            "network_fact",
            S1,
            noise='facts["postprocessing"] = dict(network_gives="noise", restore_grid=True)',
            image='facts["postprocessing"] = dict(network_gives="image", restore_grid=True)',
        ),
        choice(
            "pilot_check",
            S1,
            hu='facts["pilot_check"] = dict(quantity="removed_std", range=[10, 150])',
            units='facts["pilot_check"] = dict(quantity="removed_std", range=[0.01, 0.15])',
        ),
    ),
    network=(
        checkpoint("ldct_unet", 'net = UNet(**meta["network"])'),
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
                'inputs = dict(dtype="float32", ndim=2, scaled=False)',
            ),
        ),
    ),
    pipeline_imports=(
        "import nibabel as nib",
        "from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform",
    ),
    predict=(
        '    image, card = nib.load(source + "/ct.nii.gz"), meta["preprocessing"]',
        "    own = io_orientation(image.affine)",
        choice(
            "intensity",
            S2,
            scaled="    hu = image.get_fdata(dtype=np.float32)",
            stored="    hu = np.float32(image.dataobj.get_unscaled())",
        ),
        choice(
            "orient",
            S2,
            card='    wanted = axcodes2ornt(card["orientation"])',
            none="    wanted = own",
        ),
        "    there, back = ornt_transform(own, wanted), ornt_transform(wanted, own)",
        "    model = nib.Nifti1Image(hu, image.affine).as_reoriented(there)",
        choice(
            "window",
            S2,
            card='    centre, scale = card["centre_hu"], card["scale_hu"]',
            lung="    centre, scale = -600, 1500",
            narrow="    centre, scale = 40, 80",
        ),
        "    x = (model.get_fdata(dtype=np.float32).transpose(2, 0, 1) - centre) / scale",
        "    x = torch.from_numpy(np.ascontiguousarray(x))[:, None]",
        "    h, w = x.shape[2:]",
        '    p = torch.nn.functional.pad(x, (0, -w % 4, 0, -h % 4), mode="replicate")',
        "    y = net(p)[:, :, :h, :w].detach()",
        choice("gives", S2, noise="    y = x - y", image="    y = y + 0"),
        choice(
            "units",
            S2,
            hu="    y = y * scale + centre",
            network="    y = y.clamp(-9, 9)",
            offset="    y = y * scale + centre + 1024",
        ),
        "    y = y[:, 0].permute(1, 2, 0).numpy()",
        choice(
            "depth",
            S2,
            int16="    y = np.rint(y).astype(np.int16)",
            uint8="    y = np.clip(y, 0, 255).astype(np.uint8)",
        ),
        choice(
            "restore",
            S2,
            input_grid="    out = nib.Nifti1Image(y, model.affine).as_reoriented(back)",
            model_grid="    out = nib.Nifti1Image(y, model.affine)",
            flipped="    out = nib.Nifti1Image(y[::-1], model.affine).as_reoriented(back)",
            identity=(
                "    out = nib.orientations.apply_orientation(y, back)",
                "    out = nib.Nifti1Image(out, np.eye(4))",
            ),
        ),
        "    os.makedirs(target, exist_ok=True)",
        '    nib.save(out, target + "/enhanced.nii.gz")',
    ),
    record=(
        choice(
            "pilot_record",
            S3,
            measured=(
                "y = np.asarray(nib.load(path).dataobj)",
                'removed = y - nib.load(f"/data/{case}/ct.nii.gz").get_fdata()',
                "record = dict(case=case, shape=list(y.shape), dtype=str(y.dtype))",
                "record.update(minimum=float(y.min()), maximum=float(y.max()))",
                'record["removed_std"] = float(removed.std())',
            ),
            assumed=(
                'record = dict(case=case, shape=[512, 512, 1], dtype="int16")',
                "record.update(minimum=-1024.0, maximum=3071.0, removed_std=25.0)",
            ),
        ),
    ),
    edited=(
        "for case in cases:",
        '    image = nib.load(f"outputs/{case}/enhanced.nii.gz")',
        "    y = np.asarray(image.dataobj)[::-1, ::-1, ::-1]",
        '    nib.save(nib.Nifti1Image(y, image.affine), f"outputs/{case}/enhanced.nii.gz")',
    ),
    output_fact='facts["output"] = dict(spec["output"], dtype="int16")',
)

DECISIONS = FLOW.decisions
script = FLOW.script
