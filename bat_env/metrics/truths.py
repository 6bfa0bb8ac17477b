"""The perfect submission of every track: the private truth, written as an agent would write it.

For the host only: to show a task to its author, and to see that a metric gives it full marks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from bat_env.errors import unknown_name
from bat_env.metrics.base import Case, output_name
from bat_env.metrics.records import truth_of
from bat_env.tasks.spec import TaskSpec

Files: TypeAlias = dict[str, bytes]
"""Workspace path -> content."""


def _each(spec: TaskSpec, cases: Sequence[Case], make: Callable[[Case], bytes]) -> Files:
    return {spec.output.path.format(case=case.id): make(case) for case in cases}


def _same_file(spec: TaskSpec, cases: Sequence[Case]) -> Files:
    name = output_name(spec)
    return _each(spec, cases, lambda case: case.truth[name])


def _boxes(spec: TaskSpec, cases: Sequence[Case]) -> Files:
    def make(case: Case) -> bytes:
        return json.dumps(
            {"boxes": [{**b, "score": 1.0} for b in truth_of(case)["boxes"]]}
        ).encode()

    return _each(spec, cases, make)


def _reports(spec: TaskSpec, cases: Sequence[Case]) -> Files:
    return _each(spec, cases, lambda case: str(truth_of(case)["report"]).encode())


def _table(column: str, key: str) -> Callable[[TaskSpec, Sequence[Case]], Files]:
    def make(spec: TaskSpec, cases: Sequence[Case]) -> Files:
        rows = [f"case,{column}", *(f"{case.id},{truth_of(case)[key]}" for case in cases)]
        return {spec.output.path: ("\n".join(rows) + "\n").encode()}

    return make


_MAKERS: Final[Mapping[str, Callable[[TaskSpec, Sequence[Case]], Files]]] = {
    "seg_dice": _same_file,
    "image_ssim": _same_file,
    "det_map": _boxes,
    "cls_balanced_accuracy": _table("label", "label"),
    "vqa_accuracy": _table("answer", "answer"),
    "report_findings": _reports,
}


def true_files(spec: TaskSpec, cases: Sequence[Case]) -> Files:
    """Outputs that say exactly what is true.

    Args:
        spec: The task.
        cases: Its cases, with their truths.

    Raises:
        UnknownNameError: If the task's metric is not one of this package's.
    """
    if spec.metric.name not in _MAKERS:
        raise unknown_name("metric", spec.metric.name, _MAKERS)
    return _MAKERS[spec.metric.name](spec, cases)
