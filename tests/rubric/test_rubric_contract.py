"""Digest, eta, and the arithmetic from items to the episode's score."""

from __future__ import annotations

import dataclasses

import pytest

from bat_env.episode import RerunResult
from bat_env.errors import UnknownNameError
from bat_env.rubric import compile_contract
from bat_env.rubric.contract import FORM_ALONE
from bat_env.stages import STAGE_WEIGHTS, Stage


def test_digest_is_stable_and_sensitive(task):
    def digest(spec=task.spec, **options):
        options = {"tier": "lite", "focus": Stage.S3, "outcome": None, **options}
        return compile_contract(spec, **options).digest

    assert digest() == digest()
    other = {
        digest(),
        digest(tier="standard"),
        digest(focus=Stage.S4),
        digest(outcome="recovery"),
        digest(task.spec.model_copy(update={"floors": {"zeros": 0.07}})),
        digest(
            task.spec.model_copy(
                update={"pilot": task.spec.pilot.model_copy(update={"rel_tolerance": 0.5})}
            )
        ),
    }
    assert len(other) == 6
    assert all(len(d) == 64 for d in other)


def test_unknown_names_are_explained(task):
    with pytest.raises(UnknownNameError, match="lite"):
        compile_contract(task.spec, tier="light", focus=Stage.S1)
    with pytest.raises(UnknownNameError, match="recovery"):
        compile_contract(task.spec, tier="lite", focus=Stage.S1, outcome="recover")


def test_nothing_earns_before_work(story):
    idle = story()
    assert idle.result(final=False).score == 0.0 == idle.result().score
    looked = story().cell({})
    assert looked.result().score == 0.0, "a cell that changed nothing"
    failed = story().cell({"plan/plan.md": b"kidney_unet"}, ok=False)
    assert failed.result().score == 0.0, "a cell that failed"
    idle.episode.evidence.grade = None
    assert idle.result().score == 0.0, "no evidence is needed to say 0"


@pytest.mark.parametrize("focus", list(Stage))
def test_a_finished_bank_state_is_worth_nothing_at_reset(story, focus):
    whole = story().oracle().files
    start = story(focus, outcome="success", initial=whole)
    start.episode.evidence.inherited = start.grade(0.8)
    assert start.result(final=False).score == 0.0
    assert start.result().score == 0.0
    # Work elsewhere does not make inherited files this episode's own.
    start.cell({"notes.txt": b"hello"})
    assert start.result().score == 0.0


@pytest.mark.parametrize("focus", list(Stage))
def test_moving_inherited_files_away_and_back_is_no_work(story, focus):
    whole = story().oracle().files
    start = story(focus, outcome="success", initial=whole)
    start.episode.evidence.inherited = start.grade(0.8)
    start.cell({f"old/{p}": d for p, d in whole.items()} | dict.fromkeys(whole))
    start.cell({f"old/{p}": None for p in whole} | whole)
    assert start.result().score == 0.0


def test_eta_scales_the_stage(story):
    done = story(Stage.S2).oracle("S2")
    assert done.result().score == 1.0
    half = story(Stage.S2)
    files = done.files
    half.cell({"setup/setup.json": files["setup/setup.json"]})
    stage = half.result().stages[Stage.S2]
    assert stage.eta == 0.5
    assert stage.reward == pytest.approx(0.5 * stage.score)
    assert half.result().score == pytest.approx(stage.reward, abs=2**-20)


def test_deleted_evidence_no_longer_counts(story):
    done = story(Stage.S1).oracle("S1")
    assert done.result().score == 1.0
    done.cell({"plan/plan.md": None, "plan/facts.json": None, "notes": b"x"})
    assert done.result().score == 0.0


def test_running_score_uses_structural_items_only(story):
    done = story().oracle()
    running = done.result(final=False)
    states = {v.item: v.state for v in running.verdicts}
    structural = {i for i, s in states.items() if s != "pending"}
    assert structural == {"S1.plan_first", "S2.few_failures", "S3.pilot_first"}
    expected = (
        STAGE_WEIGHTS[Stage.S1] / 7 + STAGE_WEIGHTS[Stage.S2] / 5 + STAGE_WEIGHTS[Stage.S3] / 5
    )
    assert running.score == pytest.approx(0.5 * expected, abs=2**-20)
    assert running.task is None


def test_scores_are_whole_multiples_of_the_quantum(story):
    done = story().oracle()
    for final in (False, True):
        assert (done.result(final).score * 2**20).is_integer()


def test_end_to_end_is_half_agentic_half_task(story):
    done = story().oracle("S1", "S2", "S3", "S4")
    result = done.result()
    s5 = result.stages[Stage.S5]
    assert s5.eta == 0.0 and s5.reward == 0.0
    assert result.agentic == pytest.approx(0.9)
    assert result.score == pytest.approx(0.5 * 0.9 + 0.5 * 0.8, abs=2**-20)


def test_task_score_counts_own_outputs_only(story, instance):
    path = "outputs/{}/dseg.nii.gz".format
    initial = {path(c): b"inherited" for c in instance.cases}
    start = story(Stage.E2E, initial=initial)
    start.episode.evidence.inherited = start.grade(0.8)
    start.cell({path(instance.cases[0]): b"mine"})
    assert start.result().task == pytest.approx(0.8 / len(instance.cases))


def test_pooled_scores_of_own_outputs_come_from_their_own_grading(story, instance):
    path = "outputs/{}/dseg.nii.gz".format
    start = story(Stage.E2E, initial={path(c): b"inherited" for c in instance.cases})
    start.cell({path(instance.cases[0]): b"mine"})
    start.episode.evidence.grade_own = start.grade(0.25)
    assert start.result().task == pytest.approx(0.25)


def test_disqualified_is_zero(story):
    done = story().oracle()
    done.episode.status = "disqualified"
    done.episode.evidence.grade = None
    assert done.result().score == 0.0


def test_false_claims_are_counted_and_explained(story):
    done = story().oracle()
    done.edit("setup/setup.json", lambda d: d["versions"].update(torch="1.0"))
    result = done.result()
    assert result.false_claims == 1
    assert result.components["false_claims"] == ["S2.versions"]
    assert "torch" in result.components["errors"]["S2.versions"]


def test_a_claim_is_judged_in_its_last_version(story):
    done = story().oracle()
    done.edit("setup/setup.json", lambda d: d["versions"].update(torch="1.0"))
    done.edit("setup/setup.json", lambda d: d["versions"].update(torch="2.13.0"))
    assert done.result().false_claims == 0


def test_evaluate_changes_nothing(story):
    done = story().oracle()
    before = dataclasses.asdict(done.episode)
    first = done.result()
    assert done.result() == first
    assert dataclasses.asdict(done.episode) == before


def test_files_in_the_right_order_earn_nothing_by_themselves(story):
    """Empty plan, a set-up file of no content, a pilot that is no image: order, and no truth."""
    hollow = story()
    hollow.cell({"plan/plan.md": b" ", "plan/facts.json": b"{}"})
    hollow.cell({"setup/setup.json": b"{}", "pipeline/predict.py": b"pass"})
    hollow.cell({f"validation/pilot/{hollow.episode.cases[0]}/dseg.nii.gz": b"no image"})
    evidence = hollow.episode.evidence
    evidence.pilot = {"readable": False, "valid": False, "message": "no NIfTI"}
    evidence.probe_rerun = RerunResult(False, "no output")
    evidence.grade = hollow.grade(0.0)
    assert hollow.result(final=False).score > 0.0
    done = hollow.result()
    assert done.score == 0.0
    assert {v.item: v.message for v in done.verdicts}["S1.plan_first"] == FORM_ALONE


def test_one_true_statement_makes_order_count(story):
    done = story(Stage.S1).oracle("S1")
    done.edit("plan/facts.json", lambda d: {"model": d["model"]})
    states = {v.item: v.state for v in done.result().verdicts}
    assert states["S1.plan_first"] == "pass"
    assert sum(state == "pass" for state in states.values()) == 2
