"""Judge items in the contract: digests, weights, and what null, order and prose alone are worth."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.errors import BankError, UnknownNameError
from bat_env.judge import JudgedContract, judged_contract, make_judge
from bat_env.judge.contract import JUDGE_WEIGHT
from bat_env.judge.example import GOOD, example_episode
from bat_env.judge.items import asked_of_agent, questions
from bat_env.rubric import compile_contract
from bat_env.rubric.base import Context
from bat_env.scoring import contract_of
from bat_env.stages import WORK_STAGES, Stage
from bat_env.tasks import load_task, task_ids

PROSE = ("S1.fit_explained", "S1.risks_named")


@pytest.fixture(scope="module")
def instance():
    return load_task("seg/kidney_tumor").instance("train", 3, "mini")


def both(spec, focus=Stage.S1, tier="lite", model="m"):
    rules = compile_contract(spec, tier=tier, focus=focus)
    return rules, judged_contract(rules, spec, {"model": model})


def test_without_a_judge_nothing_changes(spec):
    for focus in Stage:
        rules = compile_contract(spec, tier="lite", focus=focus)
        assert judged_contract(rules, spec, None) is rules
        assert all(item.source == "host" for item in rules.items)


@pytest.mark.parametrize("task", task_ids())
def test_every_task_and_tier_has_a_judged_contract(task):
    spec = load_task(task).spec
    for tier, focus in itertools.product(spec.tiers, Stage):
        rules, judged = both(spec, focus, tier)
        if focus in (Stage.S4, Stage.S5):
            assert judged is rules and asked_of_agent(questions(spec, tier, focus)) == ""
            continue
        assert isinstance(judged, JudgedContract) and judged.digest != rules.digest
        assert judged.items[: len(rules.items)] == rules.items
        added = judged.items[len(rules.items) :]
        assert added and all(i.source == "judge" and i.at_hand_in for i in added)
        assert all(i.weight == JUDGE_WEIGHT and i.evidence == () for i in added)
        assert all(i.stage in (Stage.S1, Stage.S2, Stage.S3) for i in added)
        # Shared questions are items of the rules.
        known = {item.id for item in rules.items}
        shared = [q for q in questions(spec, tier, focus) if not q.scored]
        assert shared and all(q.id in known for q in shared)


def test_the_digest_names_judge_and_prompt(spec, monkeypatch):
    _, one = both(spec)
    assert both(spec)[1].digest == one.digest
    assert both(spec, model="other")[1].digest != one.digest
    assert both(spec, tier="standard")[1].digest != one.digest
    assert one.identity == {
        "model": "m",
        "prompt_digest": one.prompt_digest,
        "contract_digest": one.digest,
    }
    monkeypatch.setattr("bat_env.judge.prompt.RULES", "Be kind. {token}")
    changed = both(spec)[1]
    assert changed.prompt_digest != one.prompt_digest and changed.digest != one.digest


def test_no_public_word_of_a_question_is_private(spec):
    text = " ".join(q.text + q.title for q in questions(spec, "pro", Stage.E2E))
    assert str(spec.model.parameters) not in text and str(spec.pilot.cured_score) not in text


def scored(spec, instance, states, final=True, text=GOOD):
    """Rule result and judged result of an episode with these findings."""
    episode = example_episode(spec, text.replace("{model}", spec.model.name))
    rules, judged = both(spec)
    episode.evidence.judge = {
        **judged.identity,
        "findings": {
            i: {"state": s, "message": "why", "file": "f", "line": 2} for i, s in states.items()
        },
    }
    ctx = Context(spec, instance)
    return rules.evaluate(episode, ctx, final), judged.evaluate(episode, ctx, final)


STATES = st.dictionaries(st.sampled_from(PROSE), st.sampled_from(["met", "unmet", "null", "odd"]))


@settings(max_examples=60, deadline=None)
@given(STATES)
def test_the_arithmetic(spec, instance, states):
    rules, judged = scored(spec, instance, states)
    counted = [states[i] == "met" for i in PROSE if states.get(i) in ("met", "unmet")]
    alone, stage = rules.stages[Stage.S1], judged.stages[Stage.S1]
    assert stage.eta == alone.eta == 1.0
    expected = (7 * alone.score + JUDGE_WEIGHT * sum(counted)) / (7 + JUDGE_WEIGHT * len(counted))
    assert stage.score == pytest.approx(expected, abs=1e-12)
    assert judged.verdicts[: len(rules.verdicts)] == rules.verdicts
    assert judged.components["rules"]["score"] == rules.score
    if not counted:
        assert judged.score == rules.score
    for verdict in judged.verdicts[len(rules.verdicts) :]:
        decided = states.get(verdict.item) in ("met", "unmet")
        assert (verdict.state == "null") == (not decided)


def test_before_the_hand_in_the_judge_is_outside(spec, instance):
    rules, judged = scored(spec, instance, dict.fromkeys(PROSE, "met"), final=False)
    assert judged.score == rules.score and "rules" not in judged.components
    assert [v.state for v in judged.verdicts[-2:]] == ["pending", "pending"]


def test_prose_alone_earns_nothing(spec, instance):
    empty = example_episode(spec, "Words of a plan that names no model at all.")
    empty.evidence.files["plan/facts.json"] = b"{}"
    rules, judged = both(spec)
    empty.evidence.judge = {"findings": {i: {"state": "met"} for i in PROSE}}
    result = judged.evaluate(empty, Context(spec, instance), True)
    assert result.score == 0.0 == rules.evaluate(empty, Context(spec, instance), True).score
    assert all(v.state == "fail" and "Prose alone" in v.message for v in result.verdicts[-2:])


@pytest.mark.parametrize("kind", ["disqualified", "idle"])
def test_no_prose_saves_an_episode_without_work(kind, spec, instance):
    episode = example_episode(spec, GOOD)
    _, judged = both(spec)
    episode.evidence.judge = {"findings": {i: {"state": "met"} for i in PROSE}}
    if kind == "disqualified":
        episode.status = "disqualified"
    else:
        episode.cells = []
    result = judged.evaluate(episode, Context(spec, instance), True)
    assert result.score == 0.0 and all(v.state == "fail" for v in result.verdicts)


@pytest.mark.parametrize(
    "junk", [{}, {"findings": None}, {"findings": {PROSE[0]: None}}, {"findings": 3}]
)
def test_junk_in_the_evidence_is_null(junk, spec, instance):
    episode = example_episode(spec, GOOD)
    _, judged = both(spec)
    episode.evidence.judge = junk
    result = judged.evaluate(episode, Context(spec, instance), True)
    assert [v.state for v in result.verdicts[-2:]] == ["null", "null"]


def test_what_the_judge_can_move_in_all(spec):
    most = 0.0
    weights = {Stage.S1: 0.25, Stage.S2: 0.15, Stage.S3: 0.35, Stage.S4: 0.15, Stage.S5: 0.10}
    _, judged = both(spec, Stage.E2E)
    for stage in WORK_STAGES:
        items = [i for i in judged.items if i.stage is stage]
        share = sum(i.weight for i in items if i.source == "judge") / sum(i.weight for i in items)
        most += weights[stage] * share / 2
    assert most < 0.06


def test_items_are_plain_values(spec):
    _, judged = both(spec)
    item = judged.items[-1]
    assert dataclasses.replace(item) == item and hash(item)


def test_unknown_tiers_are_still_refused(spec):
    with pytest.raises(UnknownNameError):
        both(spec, tier="nope")


def test_bank_states_are_admitted_under_the_rules(spec):
    rules, judged = both(spec)
    judge = make_judge({"base_url": "http://127.0.0.1:9/v1", "model": "m"})
    start = SimpleNamespace(
        task=SimpleNamespace(spec=spec),
        tier="lite",
        focus=Stage.S1,
        outcome=None,
        state_id="s",
        state=SimpleNamespace(rubric_digest=rules.digest),
    )
    assert contract_of(start, judge).digest == judged.digest
    start.state.rubric_digest = judged.digest
    with pytest.raises(BankError, match="another rubric"):
        contract_of(start, judge)
