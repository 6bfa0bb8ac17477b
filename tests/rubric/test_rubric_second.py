"""Two implementations of the score, from one specification, must agree exactly."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import random
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction as F
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import second

from bat_env import stages
from bat_env.episode import CellRecord, Episode, GradeResult, RerunResult
from bat_env.rubric import compile_contract, contract, infer, submit
from bat_env.rubric.base import Context, Verdict
from bat_env.sandbox.base import CellResult, Delta, FileEntry
from bat_env.stages import Stage
from bat_env.tasks import load_task, task_ids
from bat_env.tasks.instance import Instance

T = TypeVar("T")
Pick = Callable[[Sequence[T]], T]
TASKS = [t for t in map(load_task, task_ids()) if t.spec.lite]
RUN = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
FOCUSES = ["S1", "S2", "S3", "S4", "S5", "E2E", "E2E"]


def entry(text: str) -> FileEntry:
    return FileEntry("file", len(text), hashlib.sha256(text.encode()).hexdigest())


def an_instance(cases: Sequence[str]) -> Instance:
    nothing: dict[str, bytes] = {}
    return Instance(tuple(cases), nothing, nothing, {}, "", nothing, nothing)


def cell(number: int, paths: Sequence[str], ok: bool = True) -> CellRecord:
    made = Delta(created={path: entry(f"{path} {number}") for path in paths})
    return CellRecord(number, number, "python", "", CellResult(0 if ok else 1, delta=made))


def an_episode(task: Any, tale: dict[str, Any], cells: list[CellRecord], **more: Any) -> Episode:
    current: dict[str, FileEntry] = dict(more.pop("initial", {}))
    initial = dict(current)
    for one in cells:
        current |= one.result.delta.created
    return Episode(
        task=task.spec.id,
        split="train",
        size="mini",
        instance_seed=1,
        seed=1,
        initial=initial,
        current=current,
        cells=cells,
        **tale,
        **more,
    )


def picker(data: st.DataObject) -> Pick[Any]:
    return lambda options: data.draw(st.sampled_from(list(options)))


# ------------------------------------------------------------------------- arithmetic over items


def arithmetic(pick: Pick[Any], unit: Callable[[], float]) -> tuple[Any, second.Told]:
    """One random tale, scored by both."""
    task, tier, focus = pick(TASKS), pick(["lite", "standard", "pro"]), pick(FOCUSES)
    outcome = pick([None, "success", "recovery", "failure"])
    rules = compile_contract(task.spec, tier=tier, focus=Stage[focus], outcome=outcome)
    table = second.rows(tier, focus, outcome)
    assert [item.id for item in rules.items] == [row[0] for row in table]
    output = task.spec.output
    paths = {
        second.PILOT: f"validation/pilot/c-1/{output.name}",
        second.BATCH: output.path.format(case="c-1"),
    }
    states: dict[str, tuple[str, float]] = {}
    items = []
    usual = pick(
        [["pass"], ["pass", "fail"], ["pass", "fail", "na"], ["pass", "fail", "na", "null"]]
    )
    for item, (name, weight, order, needed) in zip(rules.items, table, strict=True):
        assert (F(item.weight), not item.at_hand_in, len(item.evidence)) == (
            weight,
            order,
            len(needed),
        )
        state = pick(["pass", "fail"] if order else usual)
        value = (unit() if name[:2] in ("S4", "S5") else 1.0) if state == "pass" else 0.0
        states[name] = (state, value) if value else ("fail" if state == "pass" else state, 0.0)

        def decide(
            episode: Episode, ctx: Context, final: bool, name: str = name, order: bool = order
        ) -> Verdict:
            state, value = states[name]
            if not order and not final and state != "na":
                return Verdict(name, "pending")
            return Verdict(name, state, value)  # type: ignore[arg-type]

        items.append(dataclasses.replace(item, predicate=decide))
    every = sorted({path for row in table for path in row[3]})
    own = frozenset(path for path in every if pick([True, True, False]))
    inherited = {
        paths.get(p, p): entry("old") for p in every if p not in own and pick([True, False])
    }
    worked, ok = pick([True, True, True, False]), pick([True, True, True, False])
    written = [paths.get(path, path) for path in own] if worked else []
    cells = [cell(0, written, ok)] + ([cell(1, ["note.txt"])] if worked and not ok else [])
    if worked and ok and not written:
        cells = [cell(0, ["note.txt"])]
    out = pick([False] * 5 + [True])
    final = pick([True, True, False]) and not out
    lost, score = pick([False] * 5 + [True]), unit()
    status = "disqualified" if out else pick(["submitted", "truncated"])
    episode = an_episode(
        task,
        {"tier": tier, "focus": Stage[focus], "outcome": outcome, "status": status},
        cells,
        initial=inherited,
    )
    if not lost:
        episode.evidence.grade = GradeResult(score, per_case={"c-1": score})
    own_now = own if worked else frozenset()
    foreign = second.BATCH not in own_now
    task_score = None if lost else (0.0 if foreign else score)
    ctx = Context(task.spec, an_instance(["c-1"]))
    mine = dataclasses.replace(rules, items=tuple(items)).evaluate(episode, ctx, final)
    tale = second.Tale(tier, focus, outcome, states, own_now, worked, out, final, task_score)
    return mine, second.told(tale)


def same(mine: Any, theirs: second.Told) -> bool:
    """Exactly the same score; parts to the last bits of a float."""

    def close(a: float | None, b: F | None) -> bool:
        return a == b if a is None or b is None else abs(F(a) - b) < F(1, 10**12)

    return (
        (None if mine.score is None else F(mine.score)) == theirs.overall
        and {s.name for s in mine.stages} == set(theirs.reward)
        and all(close(r.eta, theirs.eta[s.name]) for s, r in mine.stages.items())
        and all(close(r.score, theirs.score[s.name]) for s, r in mine.stages.items())
        and all(close(r.reward, theirs.reward[s.name]) for s, r in mine.stages.items())
        and close(mine.agentic, theirs.agentic)
    )


@RUN
@given(data=st.data())
def test_items_become_the_same_score(data: st.DataObject) -> None:
    mine, theirs = arithmetic(picker(data), lambda: data.draw(st.floats(0.0, 1.0)))
    assert same(mine, theirs), (mine, theirs)


# ------------------------------------------------------------------------------ order of cells


def order(pick: Pick[Any]) -> tuple[dict[str, bool], dict[str, bool]]:
    """Random cells; which items of order hold, by both."""
    task = pick(TASKS)
    output = task.spec.output
    paths = {
        "plan": "plan/plan.md",
        "facts": "plan/facts.json",
        "other": "notes/x.txt",
        "pilot-1": f"validation/pilot/c-1/{output.name}",
        "pilot-2": f"validation/pilot/c-2/{output.name}",
        "batch-1": output.path.format(case="c-1"),
        "batch-2": output.path.format(case="c-2"),
    }
    cells: list[frozenset[str]] = [frozenset({"other"})]
    for _ in range(pick(range(9))):
        cells.append(frozenset(n for n in paths if pick([True, False, False, False])))
    if output.is_table:
        cells = [frozenset(n.replace("batch-2", "batch-1") for n in c) for c in cells]
    ok = [True, *(pick([True, False]) for _ in cells[1:])]
    made = [cell(n, [paths[p] for p in sorted(c)], ok[n]) for n, c in enumerate(cells)]
    episode = an_episode(task, {"tier": "lite", "focus": Stage.E2E}, made)
    rules = compile_contract(task.spec, tier="lite", focus=Stage.E2E)
    result = rules.evaluate(episode, Context(task.spec, an_instance(["c-1", "c-2"])), False)
    mine = {v.item: v.state == "pass" for v in result.verdicts if v.state != "pending"}
    theirs = {
        "S1.plan_first": second.plan_first(cells),
        "S2.few_failures": second.few_failures(cells, ok),
        "S3.pilot_first": second.pilot_first(cells),
    }
    return mine, theirs


@RUN
@given(data=st.data())
def test_the_order_of_cells_is_judged_the_same(data: st.DataObject) -> None:
    mine, theirs = order(picker(data))
    assert mine == theirs


# ---------------------------------------------------------------------------------- S4 and S5


def batch(pick: Pick[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Random outputs; states and values of the four items, by both."""
    said = pick([True, False])
    task = pick(
        [
            t
            for t in TASKS
            if not t.spec.output.is_table and (t.spec.output.format == "text") is said
        ]
    )
    spec, focus = task.spec, pick(["S4", "S5", "E2E"])
    cases = [f"c-{n}" for n in range(pick([1, 2, 3, 6]))]
    path = {case: spec.output.path.format(case=case) for case in cases}
    odds = pick([[True], [True, True, True, False], [True, False]])
    some = lambda: frozenset(c for c in cases if pick(odds))  # noqa: E731
    at_reset = some() if pick([True, False]) else None
    valid, own = some(), some()
    trivial = frozenset(c for c in valid if pick([False] * 4 + [True]))
    floor, bar = F(spec.floor), F(spec.floor + submit.MARGIN)
    near = [0.0, float(floor), float(floor) + 0.01, float(bar) + 0.001, float(bar) + 0.2, 0.9]
    near.append(float(floor) + 0.3 / math.sqrt(len(cases)) + 0.001)
    score, before = pick(near), pick(near)
    agreement = pick([None, 0.0, 1.0, 1.0, 1.0 - spec.metric.rerun_tolerance, 0.5])
    listed, digests, form = (pick([True, True, False]) for _ in range(3))
    present = own | valid
    cells = [cell(0, ["note.txt", *(path[c] for c in sorted(own))])]
    initial = {path[c]: entry("old") for c in (present - own) | (at_reset or frozenset())}
    if at_reset is not None and not initial:
        initial = {path[cases[0]]: entry("old")}
    if at_reset is None:
        initial, valid = {}, valid & own
        present = own
        trivial &= valid
    episode = an_episode(task, {"tier": "lite", "focus": Stage[focus]}, cells, initial=initial)
    files = [
        {"path": p, "sha256": e.sha256 if digests else "0" * 64}
        for p, e in sorted(episode.current.items())
        if p.startswith("outputs/")
    ]
    record = {"format": spec.output.format if form else "other", "files": files}
    if not listed:
        record["files"] = files[1:]
    if not files:
        listed = False
    text = json.dumps(record)
    cells.append(CellRecord(1, 1, "python", "", CellResult(0, delta=Delta())))
    cells[1].result.delta.created["outputs/manifest.json"] = entry(text)
    episode.current["outputs/manifest.json"] = entry(text)
    evidence = episode.evidence
    evidence.files = {"outputs/manifest.json": text.encode()}
    names = dict.fromkeys(trivial, "all background")
    valid_now = {c: c in valid for c in cases}
    evidence.grade = GradeResult(score, valid=valid_now, trivial=names)
    if initial:
        at_reset = at_reset or frozenset()
        evidence.inherited = GradeResult(before, valid={c: c in at_reset for c in cases})
    evidence.batch_rerun = RerunResult(agreement is not None)
    evidence.batch_agreement = agreement
    rules = compile_contract(spec, tier="lite", focus=Stage[focus])
    result = rules.evaluate(episode, Context(spec, an_instance(cases)), True)
    mine = {
        v.item: (v.state, F(v.value).limit_denominator(1000))
        for v in result.verdicts
        if v.item[:2] in ("S4", "S5")
    }
    theirs = second.batch_states(
        second.Batch(
            frozenset(cases),
            at_reset if initial else None,
            valid,
            own,
            F(score),
            F(before),
            floor,
            F(0.3 / math.sqrt(len(cases))) if spec.output.format == "text" else F(0),
            None if agreement is None else F(agreement),
            F(1.0 - spec.metric.rerun_tolerance),
            trivial,
            listed,
            digests,
            form,
        ),
        focus,
    )
    return mine, {item: found for item, found in theirs.items() if item in mine}


@RUN
@given(data=st.data())
def test_outputs_and_manifest_are_judged_the_same(data: st.DataObject) -> None:
    mine, theirs = batch(picker(data))
    assert mine == theirs


# --------------------------------------------------------------------------- and they can disagree


def _disagree(tales: int = 400) -> bool:
    rng = random.Random(7)
    for _ in range(tales):
        if not same(*arithmetic(rng.choice, rng.random)):
            return True
        for mine, theirs in (order(rng.choice), batch(rng.choice)):
            if mine != theirs:
                return True
    return False


def _agentic(rewards: Any) -> float | None:
    known = [value for value in rewards.values() if value is not None]
    return sum(known) / len(known) if known else None


WRONG: dict[str, tuple[object, str, object]] = {
    "equal stage weights": (contract, "agentic", _agentic),
    "null as 0": (
        contract,
        "agentic",
        lambda rewards: stages.agentic({s: r or 0.0 for s, r in rewards.items()}),
    ),
    "task weighs more": (
        contract,
        "overall",
        lambda task, agentic: None if None in (task, agentic) else 0.6 * task + 0.4 * agentic,
    ),
    "no eta": (contract, "evidence_share", lambda *_: 1.0),
    "rounded down": (contract, "quantize", lambda score: int(score * 2**20) / 2**20),
    "coarser steps": (contract, "quantize", lambda score: round(score * 2**10) / 2**10),
    "order pays alone": (
        contract.RubricContract,
        "_without_hollow_form",
        lambda self, verdicts: verdicts,
    ),
    "no margin": (submit, "MARGIN", 0.0),
    "inherited outputs count": (infer, "open_cases", lambda episode, ctx: ctx.instance.cases),
    "lots are a result": (infer, "luck", lambda ctx: 0.0),
    "lots are a submission": (submit, "nothing", lambda ctx: 0.0),
    "no re-run": (infer, "agrees", lambda episode, ctx: None),
    "junk is a result": (infer, "no_result", lambda *_: ""),
    "idle episodes earn": (Episode, "worked", property(lambda self: True)),
}


@pytest.mark.parametrize("name", ["none", *WRONG])
def test_a_wrong_formula_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name != "none":
        monkeypatch.setattr(*WRONG[name])
    assert _disagree() is (name != "none")
