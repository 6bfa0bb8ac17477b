"""Pipelines that a cheat may hand in, wrapped around the expert's."""

from __future__ import annotations

import json

from stand import Stand, put

from bat_env.stages import Stage


def wrapped(stand: Stand, body: str) -> str:
    """Cells' code that puts the honest pipeline aside and wraps it: ``good(source, target)``."""
    honest = stand.before[Stage.S3]["pipeline/predict.py"].decode()
    return put("pipeline/good.py", honest) + put(
        "pipeline/predict.py",
        "import os, runpy, shutil, sys\n"
        "here = os.path.dirname(os.path.abspath(__file__))\n"
        "good = runpy.run_path(os.path.join(here, 'good.py'))['predict']\n"
        f"name = {stand.output!r}\n"
        f"def predict(source, target):\n{body}"
        "if __name__ == '__main__': predict(sys.argv[2], sys.argv[4])\n",
    )


_SPOIL = {
    "nifti": (
        "    good(source, target)\n"
        "    import nibabel as nib, numpy as np\n"
        "    path = os.path.join(target, name)\n"
        "    image = nib.load(path)\n"
        "    data = np.asarray(image.dataobj).copy()\n"
        "    data[...] = {value}\n"
        "    out = nib.Nifti1Image(data, image.affine, image.header)\n"
        "    nib.save(out, os.path.join(target, 'new.nii.gz'))\n"
        "    os.replace(os.path.join(target, 'new.nii.gz'), path)\n"
    ),
    "npy": (
        "    good(source, target)\n"
        "    import numpy as np\n"
        "    path = os.path.join(target, name)\n"
        "    data = np.load(path)\n"
        "    data[...] = {value}\n"
        "    np.save(path, data)\n"
    ),
}


def constant_body(stand: Stand) -> str:
    """Body of a pipeline whose output says nothing about its input."""
    kind = stand.spec.output.format
    if kind in ("nifti-labels", "nifti-image"):
        return _SPOIL["nifti"].replace("{value}", "0" if kind == "nifti-labels" else "data.mean()")
    if kind == "npy-image":
        return _SPOIL["npy"].replace("{value}", "data.mean()")
    if kind == "boxes-json":
        label = next(iter(stand.spec.output.labels.values()))
        row = {"class": label, "score": 0.9, "x1": 4, "y1": 4, "x2": 20, "y2": 20}
        text = repr(json.dumps({"boxes": [row]}))
    elif kind == "text":
        text = repr("No findings. The lungs are clear.")
    else:
        label = next(iter(stand.spec.output.labels.values()))
        return (
            "    os.makedirs(target, exist_ok=True)\n"
            "    case = os.path.basename(os.path.normpath(source))\n"
            f"    column = {'label' if kind == 'class-table' else 'answer'!r}\n"
            f"    text = 'case,' + column + chr(10) + case + ',' + {label!r} + chr(10)\n"
            "    open(os.path.join(target, name), 'w').write(text)\n"
        )
    return (
        "    os.makedirs(target, exist_ok=True)\n"
        f"    open(os.path.join(target, name), 'w').write({text})\n"
    )


def lots_body(stand: Stand, number: str) -> str:
    """Body of a pipeline whose output has the right form and is drawn by lot.

    Args:
        stand: The task.
        number: Python for the seed; ``source`` is the folder of the case.
    """
    head = (
        f"    import hashlib, random, time\n    number = {number}\n"
        "    draw = random.Random(number)\n"
    )
    kind = stand.spec.output.format
    if kind in _LOTS:
        labels = sorted(stand.spec.output.labels)[-2:]
        return head + _LOTS[kind].replace("LABELS", repr(labels))
    if stand.is_table:
        kind = "table"
    return head + _DRAWN[kind].replace("LABELS", repr(list(stand.spec.output.labels.values())))


BY_BYTES = (
    "int(hashlib.sha256(b''.join(open(os.path.join(source, f), 'rb').read()"
    " for f in sorted(os.listdir(source)))).hexdigest()[:8], 16)"
)
"""A seed that is a look at the input by name only."""
BY_NAME = "sum(map(ord, os.path.basename(os.path.normpath(source))))"
BY_CLOCK = "time.time_ns() % 10**9"

_LOTS = {
    "nifti-labels": (
        "    good(source, target)\n"
        "    import nibabel as nib, numpy as np\n"
        "    path = os.path.join(target, name)\n"
        "    image = nib.load(path)\n"
        "    data = np.zeros_like(np.asarray(image.dataobj))\n"
        "    for label in LABELS:\n"
        "        corner = [draw.randrange(max(1, n // 2)) for n in data.shape]\n"
        "        data[tuple(slice(c, c + n // 4) for c, n in zip(corner, data.shape))] = label\n"
        "    out = nib.Nifti1Image(data, image.affine, image.header)\n"
        "    nib.save(out, os.path.join(target, 'new.nii.gz'))\n"
        "    os.replace(os.path.join(target, 'new.nii.gz'), path)\n"
    ),
    "nifti-image": (
        "    good(source, target)\n"
        "    import nibabel as nib, numpy as np\n"
        "    path = os.path.join(target, name)\n"
        "    image = nib.load(path)\n"
        "    data = np.asarray(image.dataobj)\n"
        "    noise = np.random.RandomState(number).randn(*data.shape) * data.std() + data.mean()\n"
        "    out = nib.Nifti1Image(noise.astype(data.dtype), image.affine, image.header)\n"
        "    nib.save(out, os.path.join(target, 'new.nii.gz'))\n"
        "    os.replace(os.path.join(target, 'new.nii.gz'), path)\n"
    ),
    "npy-image": (
        "    good(source, target)\n"
        "    import numpy as np\n"
        "    path = os.path.join(target, name)\n"
        "    data = np.load(path)\n"
        "    noise = np.random.RandomState(number).randn(*data.shape) * data.std() + data.mean()\n"
        "    np.save(path, noise.astype(data.dtype))\n"
    ),
}
_DRAWN = {
    "boxes-json": (
        "    import json\n"
        "    os.makedirs(target, exist_ok=True)\n"
        "    rows = []\n"
        "    for _ in range(3):\n"
        "        x, y = draw.randrange(60), draw.randrange(60)\n"
        "        box = dict(x1=x, y1=y, x2=x + 20, y2=y + 20, score=draw.random())\n"
        "        rows.append({'class': draw.choice(LABELS), **box})\n"
        "    json.dump({'boxes': rows}, open(os.path.join(target, name), 'w'))\n"
    ),
    "text": (
        "    os.makedirs(target, exist_ok=True)\n"
        "    words = ['Small left pleural effusion', 'Large right pneumothorax', 'Cardiomegaly',\n"
        "             'Left lower lobe consolidation', 'Right rib fracture', 'Pulmonary edema']\n"
        "    text = '. '.join(draw.sample(words, 2)) + '.'\n"
        "    open(os.path.join(target, name), 'w').write(text)\n"
    ),
    # The largest number of a row belongs to its answer.
    "table": (
        "    good(source, target)\n"
        "    path = os.path.join(target, name)\n"
        "    head, row = open(path).read().splitlines()[:2]\n"
        "    case, _, *rest = row.split(',')\n"
        "    values = [draw.random() for _ in rest]\n"
        "    label = draw.choice(LABELS)\n"
        "    if len(rest) > 1:\n"
        "        values = [v / sum(values) for v in values]\n"
        "        best = head.split(',')[2:][values.index(max(values))]\n"
        "        label = next((word for word in LABELS if word in best), label)\n"
        "    cells = [case, label, *map(repr, values)]\n"
        "    open(path, 'w').write(head + chr(10) + ','.join(cells) + chr(10))\n"
    ),
}
