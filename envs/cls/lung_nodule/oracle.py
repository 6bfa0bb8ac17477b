"""The expert workflow: every decision a choice between whole lines.

Code carries the values: they come from the headers, the model card and task/spec.json, so that
the same lines work on every instance.
"""

from __future__ import annotations

from bat_env.stages import Stage
from bat_env.tasks.choices import MODE, checkpoint
from bat_env.tasks.rows import CLASS_RECORD, second_classes
from bat_env.tasks.workflow import Workflow, choice

S1, S2, S3 = Stage.S1, Stage.S2, Stage.S3

FLOW = Workflow(
    model="nodule_resnet3d",
    alternatives=("densenet121_3d", "swin_tiny_3d"),
    output="outputs/predictions.csv",
    imports="import json, os, platform, runpy, shutil, torch, monai, nibabel as nib, numpy as np",
    steps="read HU - orient - resample - window - crop - network - name the class - submit",
    look=('images = [nib.load(f"/data/{case}/ct.nii.gz") for case in cases]',),
    facts=(
        choice(
            "geometry",
            S1,
            measured=(
                'axes = ["".join(nib.aff2axcodes(i.affine)) for i in images]',
                "zooms = np.array([i.header.get_zooms() for i in images], float)",
            ),
            assumed=(
                'axes = ["RAS" for case in cases]',
                "zooms = np.ones((1, 3))",
            ),
        ),
        'facts["orientations"] = dict(zip(cases, axes))',
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
            habit=(
                'facts["preprocessing"] = dict(orientation="RAS", spacing_mm=[1.0, 1.0, 1.0])',
                'facts["preprocessing"].update(window_hu=[-160, 240], size_vox=[64, 64, 64])',
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
        checkpoint("nodule_resnet3d", 'net = ResNet(**meta["network"])'),
        MODE,
    ),
    network_import="from monai.networks.nets import ResNet",
    claims=(
        choice(
            "setup_claims",
            S2,
            measured=(
                "versions = {m.__name__: m.__version__ for m in (torch, monai, nib)}",
                'versions["python"] = platform.python_version()',
                "scaled = any(i.dataobj.slope != 1 or i.dataobj.inter != 0 for i in images)",
                "inputs = dict(dtype=str(images[0].get_data_dtype()), scaled=scaled)",
                'inputs["ndim"] = images[0].ndim',
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
        "from monai.transforms import Orientation, Spacing",
        "from monai.transforms import ResizeWithPadOrCrop, ScaleIntensityRange",
    ),
    predict=(
        '    image, card = nib.load(source + "/ct.nii.gz"), meta["preprocessing"]',
        choice(
            "intensity",
            S2,
            scaled="    hu = image.get_fdata(dtype=np.float32)",
            stored="    hu = np.float32(image.dataobj.get_unscaled())",
        ),
        "    x = MetaTensor(hu[None], affine=image.affine)",
        choice(
            "orient",
            S2,
            card='    x = Orientation(card["orientation"], labels=None)(x)',
            habit='    x = Orientation("RAS", labels=None)(x)',
            none="    x = x.clone()",
        ),
        choice(
            "resample",
            S2,
            card='    x = Spacing(card["spacing_mm"], padding_mode="border")(x)',
            none="    x = x.as_tensor()",
        ),
        choice(
            "window",
            S2,
            card='    x = ScaleIntensityRange(*card["window_hu"], 0, 1, clip=True)(x)',
            soft_tissue="    x = ScaleIntensityRange(-160, 240, 0, 1, clip=True)(x)",
            extremes="    x = ScaleIntensityRange(x.min(), x.max(), 0, 1)(x)",
        ),
        choice(
            "size",
            S2,
            middle='    x = ResizeWithPadOrCrop(card["size_vox"], mode="edge")(x)',
            corner="    x = x[:, :20, :20, :20]",
        ),
        "    x = torch.from_numpy(np.array(x, np.float32))",
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
