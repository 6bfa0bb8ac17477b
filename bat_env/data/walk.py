"""The walk-through of a staged task: every stage done honestly around a prediction without skill.

It shows that a staged folder can be played and what is recorded where; its outputs are those of a
threshold, a filter, or a guess that brightness decides. What it expects of the pilot comes from
training cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bat_env.data.manifest import Manifest
from bat_env.data.model import LOAD
from bat_env.stages import Stage
from bat_env.tasks.scripts import ScriptCell
from bat_env.tasks.spec import TaskSpec
from bat_env.tasks.workflow import Lines, Workflow

_PLAIN: Final = "import json, os, platform, re, runpy, shutil, sys, torch, monai, numpy as np"
_MARGIN: Final = 1.5
_VOLUMES: Final = ("seg", "enh", "synth")


def walk_through(
    spec: TaskSpec,
    manifest: Manifest,
    *,
    focus: Stage = Stage.E2E,
    tier: str = "lite",
    outcome: str | None = None,
) -> tuple[ScriptCell, ...]:
    """The cells of a focus.

    Args:
        spec: The staged task.
        manifest: Of the staged folder: training cases tell what a pilot may look like.
        focus: As in :meth:`bat_env.tasks.Task.script`.
        tier: The same.
        outcome: The same.
    """
    flow = _flow(spec, manifest)
    good = {decision.id: decision.good for decision in flow.decisions}
    return tuple(flow.script(good, focus=focus, tier=tier, outcome=outcome))


def _flow(spec: TaskSpec, manifest: Manifest) -> Workflow:
    volumes = spec.track in _VOLUMES
    reader = "nibabel as nib" if volumes else "PIL"
    name = spec.model.name
    return Workflow(
        model=name,
        alternatives=spec.model.alternatives,
        output=spec.output.path,
        imports=f"{_PLAIN}, {reader}" + ("" if volumes else "; from PIL import Image"),
        steps="read - check - predict - write - pilot - batch - submit",
        look=_look(spec),
        facts=(*_facts(spec), *_declared(spec, manifest)),
        network=(f'root = "/models/{name}"', *LOAD.strip().splitlines()[1:]),
        network_import=LOAD.splitlines()[0],
        probe=(
            'with torch.no_grad(): out = net(torch.from_numpy(np.load(f"{root}/probe.npy")))\n'
            "while isinstance(out, (list, tuple)): out = out[0]"
        ),
        claims=_claims(spec),
        pipeline_imports=(
            ("import nibabel as nib", "from scipy import ndimage") if volumes else ()
        ),
        predict=_predict(spec),
        record=_record(spec),
        edited=(),
        output_fact=_output_fact(spec),
    )


def _output_fact(spec: TaskSpec) -> str:
    if not spec.output.dtype:
        return 'facts["output"] = spec["output"]'
    return 'facts["output"] = {**spec["output"], "dtype": spec["output"]["dtype"][-1]}'


def _picture(spec: TaskSpec) -> str:
    return "view1.png" if spec.track == "report" else "image.png"


def _look(spec: TaskSpec) -> Lines:
    if spec.track in _VOLUMES:
        return (f'images = [nib.load(f"/data/{{c}}/{spec.input_file}") for c in cases]',)
    return (f'pixels = [np.asarray(Image.open(f"/data/{{c}}/{_picture(spec)}")) for c in cases]',)


def _facts(spec: TaskSpec) -> Lines:
    ranged = next(key for key, fact in spec.facts.items() if fact.kind == "range")
    if spec.track in _VOLUMES:
        return (
            'axes = {c: "".join(nib.aff2axcodes(i.affine)) for c, i in zip(cases, images)}',
            "zooms = np.array([i.header.get_zooms()[:3] for i in images], float)",
            "values = [np.asanyarray(i.dataobj) for i in images]",
            'facts["orientations"] = axes',
            'facts["spacing_mm"] = dict(min=zooms.min(0).tolist(), max=zooms.max(0).tolist())',
            f'facts["{ranged}"] = [float(min(v.min() for v in values)), '
            "float(max(v.max() for v in values))]",
        )
    lines = [
        'facts["size_px"] = {c: [p.shape[1], p.shape[0]] for c, p in zip(cases, pixels)}',
        f'facts["{ranged}"] = [int(min(p.min() for p in pixels)), '
        "int(max(p.max() for p in pixels))]",
    ]
    for key, inner in (("option_count", "options"), ("views", "images")):
        if key in spec.facts:
            lines += [
                f'read = lambda c: json.load(open(f"/data/{{c}}/{spec.input_file}"))',
                f'facts["{key}"] = {{c: len(read(c)["{inner}"]) for c in cases}}',
            ]
    return tuple(lines)


def _declared(spec: TaskSpec, manifest: Manifest) -> Lines:
    low, high = pilot_range(spec, manifest)
    post = {key: said.value for key, said in spec.postprocessing.items()}
    return (
        'wanted = spec["artifacts"]["plan/facts.json"]["preprocessing"]',
        'facts["preprocessing"] = {k: meta["preprocessing"][k] for k in wanted}',
        f'facts["postprocessing"] = {post!r}',
        f'facts["pilot_check"] = dict(quantity="{spec.pilot.quantity}", range=[{low}, {high}])',
    )


def pilot_range(spec: TaskSpec, manifest: Manifest) -> tuple[float, float]:
    """What the pilot's quantity may be, as training cases and the contract's bounds tell."""
    pilot = spec.pilot
    if pilot.max_range_width is not None:
        return 0.0, pilot.max_range_width
    rows = [row.summary for row in manifest.cases if row.split == "train"]
    values: Sequence[float]
    if spec.track == "seg":
        name = pilot.quantity.removesuffix("_volume_ml")
        values = [float(row["volumes_ml"][name]) for row in rows]
    elif spec.track in ("enh", "synth"):
        values = [float(row["std"]) for row in rows]
    elif spec.track == "report":
        values = [float(row["words"]) for row in rows]
    else:
        return 0.1, 1.0
    return round(max(1e-3, min(values) / _MARGIN), 4), round(max(values) * _MARGIN, 4)


def _claims(spec: TaskSpec) -> Lines:
    reader = "nibabel=nib.__version__" if spec.track in _VOLUMES else "pillow=PIL.__version__"
    versions = f"versions = dict(torch=torch.__version__, monai=monai.__version__, {reader})"
    python = 'versions["python"] = platform.python_version()'
    if spec.track in _VOLUMES:
        return (
            versions,
            python,
            "scaled = any(i.dataobj.slope != 1 or i.dataobj.inter != 0 for i in images)",
            "inputs = dict(dtype=str(images[0].get_data_dtype()), ndim=images[0].ndim, "
            "scaled=bool(scaled))",
        )
    return (
        versions,
        python,
        "channels = 1 if pixels[0].ndim == 2 else pixels[0].shape[2]",
        "inputs = dict(channels=channels, bit_depth=8 if pixels[0].dtype == np.uint8 else 16)",
    )


# ---------------------------------------------------------------------------------- prediction


def _predict(spec: TaskSpec) -> Lines:
    target = f'f"{{target}}/{spec.output.name}"'
    made = "    os.makedirs(target, exist_ok=True)"
    if spec.track in _VOLUMES:
        value = {
            "seg": "y = (x > np.percentile(x, 90)).astype(np.uint8)",
            "enh": "y = ndimage.gaussian_filter(x, 0.7)",
            "synth": "y = np.interp(x, np.percentile(x, [1, 99]), [-1000, 500]).astype(np.float32)",
        }[spec.track]
        return (
            f'    image = nib.load(f"{{source}}/{spec.input_file}")',
            "    x = np.asanyarray(image.dataobj).astype(np.float32)",
            f"    {value}",
            made,
            f"    nib.save(nib.Nifti1Image(y, image.affine), {target})",
        )
    return _picture_predict(spec, target, made)


def _picture_predict(spec: TaskSpec, target: str, made: str) -> Lines:
    """A guess that brightness decides: it looks at the picture and knows nothing."""
    names = [name for _, name in sorted(spec.output.labels.items())]
    look = (
        "    from PIL import Image",
        f'    p = np.asarray(Image.open(f"{{source}}/{_picture(spec)}").convert("F"))',
    )
    if spec.track == "det":
        return (
            *look,
            "    h, w = p.shape[0] // 4, p.shape[1] // 4",
            "    places = [(i * h // 2, j * w // 2) for i in range(6) for j in range(6)]",
            "    y, x = max(places, key=lambda at: p[at[0] : at[0] + h, at[1] : at[1] + w].mean())",
            f'    box = {{"class": "{names[0]}", "score": 0.1, "x1": x, "y1": y}}',
            "    box.update(x2=x + w, y2=y + h)",
            made,
            f'    json.dump({{"boxes": [box]}}, open({target}, "w"))',
        )
    if spec.track == "report":
        return (
            *look,
            "    half = p.shape[1] // 2",
            '    side = "left" if p[:, half:].mean() > p[:, :half].mean() else "right"',
            made,
            f'    open({target}, "w").write(f"Small {{side}} pleural effusion. No pneumothorax.")',
        )
    case = "    case = os.path.basename(source)"
    if spec.track == "vqa":
        return (
            *look,
            case,
            '    options = sorted(json.load(open(f"{source}/question.json"))["options"])',
            "    letter = options[int(10 * p.mean()) % len(options)]",
            made,
            '    rows = "case,answer,confidence", f"{case},{letter},0.25"',
            f'    print(*rows, sep=chr(10), file=open({target}, "w"))',
        )
    return (
        *look,
        case,
        f"    names = {names!r}",
        "    k = int(10 * p.mean()) % len(names)",
        "    shares = [0.5 if n == k else round(0.5 / (len(names) - 1), 6) "
        "for n in range(len(names))]",
        made,
        '    row = ",".join(map(str, [case, names[k], *shares]))',
        f'    rows = "{",".join(spec.output.columns)}", row',
        f'    print(*rows, sep=chr(10), file=open({target}, "w"))',
    )


# ------------------------------------------------------------------------------------- record


def _record(spec: TaskSpec) -> Lines:
    quantity = spec.pilot.quantity
    if spec.track in _VOLUMES:
        lines = (
            "image = nib.load(path)",
            "y = np.asanyarray(image.dataobj)",
            "record = dict(case=case, shape=list(y.shape), dtype=str(image.get_data_dtype()))",
        )
        if spec.track == "seg":
            name = quantity.removesuffix("_volume_ml")
            value = next(v for v, n in spec.output.labels.items() if n == name)
            return (
                *lines,
                'record["labels"] = np.unique(y).tolist()',
                "voxel_ml = abs(np.linalg.det(image.affine[:3, :3])) / 1000",
                f'record["{quantity}"] = float((y == {value}).sum() * voxel_ml)',
            )
        return (
            *lines,
            "record.update(minimum=float(y.min()), maximum=float(y.max()))",
            f'record["{quantity}"] = float(y.astype(np.float64).std())',
        )
    if spec.track == "det":
        return (
            'boxes = json.load(open(path))["boxes"]',
            'labels = sorted({b["class"] for b in boxes})',
            "record = dict(case=case, box_count=len(boxes), labels=labels)",
        )
    if spec.track == "report":
        return (
            'words = len(re.findall("[a-z0-9]+", open(path).read().lower()))',
            "record = dict(case=case, words=words)",
        )
    last = "float(row[2])" if spec.track == "vqa" else "max(map(float, row[2:]))"
    return (
        'row = open(path).read().splitlines()[1].split(",")',
        f"record = dict(case=case, labels=[row[1]], {quantity}={last})",
    )
