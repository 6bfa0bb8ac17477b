"""What task.yaml says fits its metric, its bundle and what the generator gives."""

from __future__ import annotations

import json
from typing import Final

from bat_env.grader.preview import FORMATS
from bat_env.metrics import load_metric
from bat_env.tasks import Instance, Task
from bat_env.tasks.instance import SPLITS

_BY_CASE: Final = ("per_case", "extent")


def contract(task: Task) -> None:
    """task.yaml fits its metric, its bundle and what the generator gives."""
    spec = task.spec
    load_metric(spec.metric.name).check(spec)
    assert spec.output.format in FORMATS, (
        f"output.format {spec.output.format!r} must be one of {', '.join(FORMATS)}."
    )
    if spec.output.is_table:
        assert spec.output.columns[:1] == ("case",), "A table's first column must be case."
    card = task.model_card
    absent = sorted(set(spec.model.preprocessing) - set(card))
    assert not absent, f"metadata.json's preprocessing lacks {', '.join(absent)}."
    for split in SPLITS:
        _facts(task, task.instance(split, 0, "mini"))  # type: ignore[arg-type]


def _facts(task: Task, drawn: Instance) -> None:
    spec, facts = task.spec, drawn.facts
    wanted = {"case_count", "inputs", "pilot_truth", *spec.facts}
    absent = sorted(wanted - set(facts))
    assert not absent, f"generate() gives no fact {', '.join(absent)}."
    assert facts["case_count"] == len(drawn.cases), "case_count must be the number of cases."
    for key in ("pilot_truth", *(k for k, f in spec.facts.items() if f.kind in _BY_CASE)):
        assert set(facts[key]) == set(drawn.cases), f"Fact {key} must have one entry a case."
    assert set(facts["inputs"]) == set(spec.inputs), "Fact inputs must have the keys of `inputs`."
    json.dumps(dict(facts))
    for case in (*drawn.cases, drawn.probe_case):
        probe = case == drawn.probe_case
        public = drawn.probe_public if probe else drawn.public
        private = drawn.probe_private if probe else drawn.private
        start = "" if probe else f"{case}/"
        assert start + spec.input_file in public, f"{case} has no {spec.input_file}."
        assert start + spec.truth_name in private, f"{case} has no private {spec.truth_name}."
