"""Trivial outputs of every track: files that need no look at an image, to measure floors with.

A task folder may add its own; these are the ones that every task of a metric must withstand.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bat_env.errors import unknown_name
from bat_env.metrics.arrays import Picture, read_picture
from bat_env.metrics.base import Case, class_names, output_name
from bat_env.metrics.images import ImageParams
from bat_env.metrics.nifti import read_image
from bat_env.metrics.records import truth_of
from bat_env.metrics.trivial import trivial_output
from bat_env.tasks.discovery import task_of
from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import TaskSpec

Files: TypeAlias = dict[str, bytes]
"""Workspace path -> content."""
_PRIOR_REPORTS: Final = 5
_PRIOR_INSTANCES: Final = 3
_CORNERS: Final = ("x1", "y1", "x2", "y2")


def _nifti(values: NDArray[Any], affine: NDArray[np.float64]) -> bytes:
    # The container is untyped.
    image = cast(Any, nib).Nifti1Image(values, affine)
    return gzip.compress(image.to_bytes(), 1, mtime=0)


def _each(spec: TaskSpec, cases: Sequence[Case], make: Callable[[Case], bytes]) -> Files:
    return {spec.output.path.format(case=case.id): make(case) for case in cases}


def _label_maps(spec: TaskSpec, cases: Sequence[Case], prior: Sequence[Case]) -> dict[str, Files]:
    """Background alone, and each class everywhere."""

    def filled(value: int) -> Files:
        def make(case: Case) -> bytes:
            grid = read_image(case.truth[output_name(spec)])
            dtype = np.dtype(spec.output.dtype[0])
            return _nifti(np.full(grid.values.shape, value, dtype), grid.affine)

        return _each(spec, cases, make)

    return {f"all_{name}": filled(value) for value, name in spec.output.labels.items()}


def _write_picture(name: str, dtype: str, values: NDArray[np.float64], grid: Picture) -> bytes:
    typed = np.rint(values) if np.dtype(dtype).kind in "iu" else values
    typed = typed.astype(dtype)
    if grid.affine is not None:
        return _nifti(typed, grid.affine)
    buffer = io.BytesIO()
    np.save(buffer, typed, allow_pickle=False)
    return buffer.getvalue()


def _pictures(spec: TaskSpec, cases: Sequence[Case], prior: Sequence[Case]) -> dict[str, Files]:
    """The listed trivial methods."""
    name = output_name(spec)

    def method_files(method: str) -> Files:
        def make(case: Case) -> bytes:
            grid = read_picture(name, case.truth[name])
            source = read_picture(spec.input_file, case.inputs[spec.input_file])
            values = trivial_output(method, source, grid)
            return _write_picture(name, spec.output.dtype[0], values, grid)

        return _each(spec, cases, make)

    params = ImageParams.model_validate(spec.metric.params)
    return {method.replace(":", "_"): method_files(method) for method in params.trivial}


def _boxes(spec: TaskSpec, cases: Sequence[Case], prior: Sequence[Case]) -> dict[str, Files]:
    """No box, the whole picture, and the mean true box of each class in other instances."""
    means: list[dict[str, Any]] = []
    for name in class_names(spec):
        rows = [
            [box[corner] / truth[("width", "height")[n % 2]] for n, corner in enumerate(_CORNERS)]
            for truth in map(truth_of, prior)
            for box in truth["boxes"]
            if box["class"] == name
        ]
        if rows:
            corners = np.mean(rows, axis=0).tolist()
            means.append({"class": name, "score": 0.5, **dict(zip(_CORNERS, corners, strict=True))})
    whole = [
        {"class": name, "score": 0.5, "x1": 0.0, "y1": 0.0, "x2": 1.0, "y2": 1.0}
        for name in class_names(spec)
    ]

    def write(boxes: Sequence[Mapping[str, Any]], case: Case) -> bytes:
        truth = truth_of(case)
        scale = {corner: truth[("width", "height")[n % 2]] for n, corner in enumerate(_CORNERS)}
        placed = [
            {key: value * scale[key] if key in scale else value for key, value in box.items()}
            for box in boxes
        ]
        return json.dumps({"boxes": placed}).encode()

    kinds = {"no_boxes": [], "whole_picture": whole, "prior_boxes": means}
    return {
        kind: _each(spec, cases, functools.partial(write, boxes)) for kind, boxes in kinds.items()
    }


def _table(spec: TaskSpec, column: str, rows: Mapping[str, str]) -> Files:
    lines = [f"case,{column}", *(f"{case},{value}" for case, value in rows.items())]
    return {spec.output.path: ("\n".join(lines) + "\n").encode()}


def _labels(spec: TaskSpec, cases: Sequence[Case], prior: Sequence[Case]) -> dict[str, Files]:
    """Each class for every case."""
    return {
        f"all_{name}": _table(spec, "label", dict.fromkeys((case.id for case in cases), name))
        for name in class_names(spec)
    }


def _letters(spec: TaskSpec, cases: Sequence[Case], prior: Sequence[Case]) -> dict[str, Files]:
    """Each letter, the longest option, and the option that is most often right elsewhere."""
    truths = {case.id: truth_of(case) for case in cases}
    found = Counter(
        truth["options"][truth["answer"]].strip().casefold() for truth in map(truth_of, prior)
    )

    def best(options: Mapping[str, str], key: Callable[[str], int]) -> str:
        return max(sorted(options), key=lambda letter: key(options[letter]))

    chosen = {f"all_{letter}": dict.fromkeys(truths, letter) for letter in class_names(spec)}
    chosen["longest"] = {case: best(t["options"], len) for case, t in truths.items()}
    chosen["prior_text"] = {
        case: best(t["options"], lambda text: found[text.strip().casefold()])
        for case, t in truths.items()
    }
    return {name: _table(spec, "answer", rows) for name, rows in chosen.items()}


def _reports(spec: TaskSpec, cases: Sequence[Case], prior: Sequence[Case]) -> dict[str, Files]:
    """A normal report, one that claims everything, and true reports of other instances."""
    findings: Mapping[str, Any] = spec.metric.params["findings"]
    everything = " ".join(
        f"There is {'bilateral ' if entry.get('lateral') else ''}{entry['terms'][0]}."
        for entry in findings.values()
    )
    texts = {
        "normal": "Heart, lungs and bones are normal. No abnormal finding.",
        "everything": everything,
    }
    for n, case in enumerate(prior[:_PRIOR_REPORTS]):
        texts[f"constant_{n}"] = str(truth_of(case)["report"])
    return {
        name: dict.fromkeys((spec.output.path.format(case=c.id) for c in cases), text.encode())
        for name, text in texts.items()
    }


_MAKERS: Final[
    Mapping[str, Callable[[TaskSpec, Sequence[Case], Sequence[Case]], dict[str, Files]]]
] = {
    "seg_dice": _label_maps,
    "image_ssim": _pictures,
    "det_map": _boxes,
    "cls_balanced_accuracy": _labels,
    "vqa_accuracy": _letters,
    "report_findings": _reports,
}


def trivial_files(
    spec: TaskSpec, cases: Sequence[Case], prior: Sequence[Case] = ()
) -> dict[str, Files]:
    """Trivial outputs for every case of an instance.

    Args:
        spec: The task.
        cases: The instance's cases, with truth (for grids and options) and inputs.
        prior: Cases of other instances, whose truths a prior may be learned from.

    Returns:
        Method -> workspace path -> bytes.

    Raises:
        UnknownNameError: If the task's metric is not one of this package's.
    """
    if spec.metric.name not in _MAKERS:
        raise unknown_name("metric", spec.metric.name, _MAKERS)
    return _MAKERS[spec.metric.name](spec, cases, prior)


def trivial_outputs(file: str, instance: Instance) -> dict[str, Files]:
    """What the ``trivial.py`` of a task starts from: the trivial outputs of its metric.

    Args:
        file: ``__file__`` of trivial.py.
        instance: The instance to answer. Priors are learned from training instances of its size.
    """
    task = task_of(file)
    prior = [task.instance("train", index, instance.size) for index in range(_PRIOR_INSTANCES)]
    seen = [case for drawn in prior for case in cases_of(drawn)]
    return trivial_files(task.spec, cases_of(instance), seen)


def cases_of(instance: Instance) -> list[Case]:
    """The cases of an instance with their truths and inputs, and no output."""

    def within(tree: Mapping[str, bytes], case: str) -> dict[str, bytes]:
        start = f"{case}/"
        return {p.removeprefix(start): data for p, data in tree.items() if p.startswith(start)}

    return [
        Case(case, within(instance.private, case), within(instance.public, case))
        for case in instance.cases
    ]
