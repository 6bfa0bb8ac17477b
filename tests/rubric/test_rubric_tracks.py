"""The same items on a track whose outputs are one table, and the rules that read any fact."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bat_env.rubric import Context, compile_contract
from bat_env.rubric.claims import same
from bat_env.rubric.validate import cured, first_batch_call, is_prediction
from bat_env.stages import Stage
from bat_env.tasks import Task, load_task
from bat_env.tasks.instance import Instance

TABLE = "outputs/predictions.csv"


@pytest.fixture(scope="module")
def skin() -> Task:
    return load_task("cls/skin_lesion")


@pytest.fixture(scope="module")
def drawn(skin: Task) -> Instance:
    return skin.instance("train", 2, "mini")


@pytest.fixture
def tale(skin: Task, drawn: Instance, story: Any) -> Any:
    """A story about skin: the seg story's class with another task."""
    made = type(story())

    def start(focus: Stage = Stage.E2E, **options: Any) -> Any:
        facts = {**drawn.facts, "shape": dict.fromkeys(drawn.cases, (1,))}
        blank = made(skin, dataclasses.replace(drawn, facts=facts), focus, **options)
        blank.episode.evidence.pilot = {
            "readable": True,
            "valid": True,
            "message": "",
            "labels": ["nevus"],
            "values": {"top_probability": 0.8},
            "quantity": 0.8,
            "case_score": 1.0,
        }
        return blank

    return start


def _careful(skin: Task, drawn: Instance) -> dict[str, dict[str, bytes]]:
    spec, facts = skin.spec, drawn.facts
    plan = {
        "case_count": facts["case_count"],
        "size_px": facts["size_px"],
        "mean_rgb": facts["mean_rgb"],
        "model": spec.model.name,
        "preprocessing": {k: facts["model_card"][k] for k in spec.model.preprocessing},
        "postprocessing": {"class_order": "card"},
        "output": {
            "path": TABLE,
            "labels": {str(v): n for v, n in spec.output.labels.items()},
            "columns": list(spec.output.columns),
        },
        "pilot_check": {"quantity": "top_probability", "range": [0.4, 1.0]},
    }
    case = drawn.cases[0]
    table = b"case,label\n" + b"".join(f"{c},nevus\n".encode() for c in drawn.cases)
    digest = hashlib.sha256(table).hexdigest()
    pilot = {"case": case, "labels": ["nevus"], "top_probability": 0.8}
    manifest = {"format": "class-table", "files": [{"path": TABLE, "sha256": digest}]}
    return {
        "S1": {"plan/plan.md": b"skin_resnet", "plan/facts.json": json.dumps(plan).encode()},
        "S3": {
            f"validation/pilot/{case}/predictions.csv": b"row",
            "validation/pilot.json": json.dumps(pilot).encode(),
        },
        "S4": {TABLE: table},
        "S5": {"outputs/manifest.json": json.dumps(manifest).encode()},
    }


def test_a_careful_table_task_earns_everything(tale: Any, skin: Task, drawn: Instance) -> None:
    done = tale()
    for files in _careful(skin, drawn).values():
        done.cell(files)
    contract = compile_contract(skin.spec, tier="lite", focus=Stage.E2E)
    result = contract.evaluate(done.episode, Context(skin.spec, done.instance), True)
    wrong = {v.item: v.message for v in result.verdicts if v.state != "pass" and v.item[:2] != "S2"}
    assert not wrong
    for stage in (Stage.S1, Stage.S3, Stage.S4, Stage.S5):
        assert result.stages[stage].reward == 1.0


@pytest.mark.parametrize(
    ("item", "path", "change"),
    [
        ("S1.facts_counts", "plan/facts.json", {"size_px": {}}),
        ("S1.facts_ranges", "plan/facts.json", {"mean_rgb": [124, 116, 104]}),
        ("S1.processing_declared", "plan/facts.json", {"postprocessing": {"class_order": "az"}}),
        ("S1.output_declared", "plan/facts.json", {"output": {"path": TABLE}}),
        ("S1.pilot_check", "plan/facts.json", {"pilot_check": {"quantity": "rows"}}),
        ("S3.recorded", "validation/pilot.json", {"labels": ["melanoma"]}),
        ("S3.sanity_value", "validation/pilot.json", {"top_probability": 0.99}),
        ("S5.manifest", "outputs/manifest.json", {"files": []}),
    ],
)
def test_each_item_falls_with_its_claim(
    tale: Any, skin: Task, drawn: Instance, item: str, path: str, change: dict[str, Any]
) -> None:
    done = tale()
    for files in _careful(skin, drawn).values():
        done.cell(files)
    done.edit(path, lambda value: {**value, **change})
    contract = compile_contract(skin.spec, tier="lite", focus=Stage.E2E)
    result = contract.evaluate(done.episode, Context(skin.spec, done.instance), True)
    assert next(v for v in result.verdicts if v.item == item).state == "fail"


def test_the_batch_of_a_table_is_the_cell_that_writes_it(
    tale: Any, skin: Task, drawn: Instance
) -> None:
    made = _careful(skin, drawn)
    done = tale().cell({"outputs/notes.txt": b"x"}).cell(made["S4"]).cell(made["S3"])
    assert first_batch_call(done.episode, skin.spec) == 1
    assert is_prediction("outputs/a/b.nii.gz", skin.spec)
    assert not is_prediction("outputs/manifest.json", skin.spec)
    contract = compile_contract(skin.spec, tier="lite", focus=Stage.E2E)
    result = contract.evaluate(done.episode, Context(skin.spec, done.instance), True)
    first = next(v for v in result.verdicts if v.item == "S3.pilot_first")
    assert first.state == "fail"


def test_cured_needs_a_case_on_which_the_fault_showed() -> None:
    assert cured(0.9, 0.2, 0.72) and cured(0.6, 0.5, 0.72) and cured(0.73, 0.71, 0.72)
    assert not cured(0.9, 0.9, 0.72) and not cured(0.45, 0.0, 0.72) and not cured(0.6, 0.55, 0.72)


@pytest.mark.parametrize(
    ("claimed", "true", "equal"),
    [
        ("ras", "RAS", True),
        (True, 1, False),
        (1, True, False),
        ([1, 2.0], [1.0, 2], True),
        ([1, 2], [1, 2, 3], False),
        ({"a": 1}, [1], False),
        (float("nan"), 1.0, False),
        (10**400, 1.0, False),
        (None, 0, False),
    ],
)
def test_same(claimed: Any, true: Any, equal: bool) -> None:
    assert same(claimed, true) is equal


@given(st.lists(st.integers(0, 5) | st.text(max_size=3), max_size=6), st.randoms())
def test_unordered_lists_compare_as_sets(values: list[Any], random: Any) -> None:
    shuffled = [*values, *values[:2]]
    random.shuffle(shuffled)
    assert same(shuffled, values, ordered=False)


_JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(_JSON, _JSON, st.booleans())
def test_same_never_raises(claimed: Any, true: Any, ordered: bool) -> None:
    assert isinstance(same(claimed, true, abs_tol=0.1, ordered=ordered), bool)


@pytest.mark.parametrize("focus", [Stage.S5, Stage.E2E])
def test_what_lots_bring_is_worth_nothing_to_every_stage(tale: Any, focus: Stage) -> None:
    """A table of n rows: the best trivial answer, and .6 over the root of n, is paid by none."""
    start = tale(focus)
    spec, cases = start.task.spec, start.instance.cases
    rows = "".join(f"{case},nevus\n" for case in cases)
    table = f"case,label\n{rows}".encode()
    listed = [{"path": TABLE, "sha256": hashlib.sha256(table).hexdigest()}]
    record = {"format": spec.output.format, "files": listed}
    start.cell({TABLE: table})
    start.cell({"outputs/manifest.json": json.dumps(record).encode()})
    lots = spec.floor + 0.6 / len(cases) ** 0.5
    assert lots > spec.floor + 0.05
    items = [
        item.id
        for item in compile_contract(spec, tier="lite", focus=focus).items
        if item.id[:2] in ("S4", "S5")
    ]
    for score, state in ((lots, "fail"), (lots + 1e-6, "pass")):
        start.episode.evidence.grade = start.grade(score)
        assert {start.verdict(item).state for item in items} == {state}, score
