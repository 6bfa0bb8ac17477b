from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_agent.curriculum import (
    ControllerScores,
    RoundPlan,
    StateRow,
    TrainingHealth,
    best_so_far,
    detect_shift,
    fallback_reason,
    gate,
    plan_round,
    round_report,
    route,
)
from bat_agent.curriculum.fallback import consecutive_drops
from bat_agent.curriculum.rounds import COMPOSITION
from bat_agent.curriculum.router import kept
from bat_agent.curriculum.scores import STAGE_NAMES
from bat_agent.curriculum.teacher import track_shares
from bat_env.errors import BankError, ConfigError
from bat_env.stages import OUTCOMES, Stage

STAGES = ("S1", "S2", "S3", "S4", "S5")
GOOD = TrainingHealth(finite=True, rollouts=64, aborted=0)


def make(overall: float = 0.5, **stages: float) -> ControllerScores:
    values = dict.fromkeys(STAGES, 0.5) | stages
    return ControllerScores(
        overall=overall,
        agentic=0.5,
        task=0.5,
        stages=values,
        tracks={"seg": overall},
        track_stages={"seg": values},
        episodes={"seg": 24},
        completed={"seg": 20},
        failures={"none": 20, "weak_S3": 4},
        pairing="a" * 64,
    )


def bank(per_cell: int = 6, tracks: tuple[str, ...] = ("seg",)) -> list[StateRow]:
    return [
        StateRow(f"{t}-{f}-{o}-{i}", f"{i:064x}", t, f, o)
        for t in tracks
        for f in (*STAGES, "E2E")
        for o in OUTCOMES
        for i in range(per_cell)
    ]


def test_scores_refuse_everything_that_is_not_an_aggregate() -> None:
    with pytest.raises(ConfigError, match="aggregates"):
        replace(make(), tracks={"seg/kidney_tumor": 0.5})
    with pytest.raises(ConfigError, match="aggregates"):
        replace(make(), failures={"case_1234 has no output": 1})
    with pytest.raises(ConfigError, match="score"):
        replace(make(), overall=None)
    with pytest.raises(ConfigError, match="score"):
        replace(make(), task=float("nan"))
    with pytest.raises(ConfigError, match="pairing"):
        replace(make(), pairing="seg/kidney_tumor")
    with pytest.raises(ConfigError):
        ControllerScores.from_json({**make().to_json(), "answer": "42"})
    assert ControllerScores.from_json(make().to_json()) == make()


def test_router_takes_the_lowest_and_breaks_ties_early() -> None:
    assert route(make(S4=0.1)) is Stage.S4
    assert route(make(S4=0.1, S2=0.1)) is Stage.S2
    assert route(make()) is Stage.S1


def test_router_after_a_held_gate_takes_the_largest_regression() -> None:
    current = make(S1=0.1)
    assert route(current, make(S1=0.1, S3=0.3, S5=0.4)) is Stage.S3
    assert route(current, make(S1=0.2, S3=0.6)) is Stage.S1  # nothing got worse
    assert route(current, make(S1=0.1, S2=0.25, S5=0.25)) is Stage.S2  # tie


def test_router_by_bottleneck_takes_the_stage_that_keeps_least_of_the_one_before() -> None:
    """Whole workflows: what S3 breaks, S4 and S5 cannot mend, and theirs is the lowest score."""
    broken = make(S1=0.8, S2=0.6, S3=0.15, S4=0.12, S5=0.1)
    assert route(broken) is Stage.S5
    assert route(broken, rule="bottleneck") is Stage.S3
    assert kept(broken) == pytest.approx(
        {"S1": 0.8, "S2": 0.75, "S3": 0.25, "S4": 0.8, "S5": 0.1 / 0.12}
    )
    # Nothing reaches S4: that says nothing of S5. A stage may also do better than the one before.
    assert kept(make(S1=0.9, S2=0.5, S3=0.01, S4=0.0, S5=0.0))["S4"] == 1.0
    assert kept(make(S1=0.2, S2=0.9, S3=0.9, S4=0.9, S5=0.9))["S2"] == 1.0
    assert route(make(S1=0.0, S2=0.0, S3=0.0, S4=0.0, S5=0.0), rule="bottleneck") is Stage.S1
    # What kept a candidate from promotion goes first under either rule.
    assert route(broken, replace(broken, stages={**broken.stages, "S2": 0.3}), "bottleneck") is (
        Stage.S2
    )


def test_tracks_get_half_of_a_round_by_what_they_miss() -> None:
    scores = replace(
        make(),
        track_stages={
            "seg": dict.fromkeys(STAGE_NAMES, 1.0),
            "det": dict.fromkeys(STAGE_NAMES, 0.25),
            "vqa": dict.fromkeys(STAGE_NAMES, 0.75),
        },
    )
    shares = track_shares(scores)
    assert shares == pytest.approx({"seg": 1 / 6, "det": 1 / 6 + 3 / 8, "vqa": 1 / 6 + 1 / 8})
    perfect = replace(scores, track_stages={"seg": {"S1": 1.0}, "det": {"S1": 1.0}})
    assert track_shares(perfect) == {"seg": 0.5, "det": 0.5}
    rows = [
        StateRow(f"{track}-{focus}-{outcome}-{i}", "0" * 64, track, focus, outcome)
        for track in ("seg", "det", "vqa")
        for focus in (*STAGE_NAMES, "E2E")
        for outcome in OUTCOMES
        for i in range(2)
    ]
    asked = {"round_id": 1, "seed": 3, "target": "S3", "steps": 24}
    plan = plan_round(rows, **asked, tracks=shares)
    for pool, count in COMPOSITION.items():
        drawn = Counter(d.state.track for d in plan.draws if d.pool == pool)
        assert {t: n / (24 * count) for t, n in drawn.items()} == pytest.approx(shares, abs=0.03)
        within = Counter(d.state.outcome for d in plan.draws if d.pool == pool)
        assert max(within.values()) - min(within.values()) <= 3  # the rest stays balanced
        uses = Counter((d.state.state_id, d.use) for d in plan.draws if d.pool == pool)
        assert max(uses.values()) == 1  # no state again before its track is through
    with pytest.raises(ConfigError, match="share > 0"):
        plan_round(rows, **asked, tracks={"seg": 1.0})


def test_the_gate_forgives_a_track_what_chance_may_do() -> None:
    """Ten episodes scatter: a drop of .06 with standard errors of .03 and .04 may be none."""
    old = replace(make(0.5), tracks={"seg": 0.5, "enh": 0.5}, errors={"seg": 0.03, "enh": 0.03})
    new = replace(make(0.5), tracks={"seg": 0.9, "enh": 0.44}, errors={"seg": 0.04, "enh": 0.04})
    assert gate(old, new, GOOD).reasons == ("tracks",)
    assert gate(old, new, GOOD, doubt=1.0).promoted
    fallen = replace(new, tracks={"seg": 0.9, "enh": 0.39})
    assert gate(old, fallen, GOOD, doubt=1.0).reasons == ("tracks",)  # .11 > .05 + .05
    assert gate(old, replace(new, errors={}), GOOD, doubt=1.0).promoted
    without = (replace(old, errors={}), replace(new, errors={}))
    assert gate(*without, GOOD, doubt=1.0).reasons == ("tracks",)


def test_gate_promotes_equal_scores_and_names_each_failed_check() -> None:
    assert gate(make(), make(), GOOD).promoted
    assert gate(make(0.5), make(0.49), GOOD).promoted
    assert gate(make(0.5), replace(make(0.5), task=0.47), GOOD).promoted
    assert gate(make(0.5), make(0.489), GOOD).reasons == ("overall",)
    assert gate(make(), replace(make(), task=0.46), GOOD).reasons == ("task",)
    assert gate(make(), replace(make(), tracks={"seg": 0.44}), GOOD).reasons == ("tracks",)
    assert gate(make(), make(S4=0.46), GOOD).reasons == ("stages",)
    assert gate(make(), make(S1=0.1, S2=0.1), GOOD).promoted  # only S3-S5 are guarded
    assert set(gate(make(0.5), make(0.3), GOOD).reasons) == {"overall", "tracks", "collapse"}
    assert gate(make(), make(), TrainingHealth(False, 64, 0)).reasons == ("health",)
    assert gate(make(), make(), TrainingHealth(True, 64, 32)).reasons == ("health",)
    assert gate(make(), make(), TrainingHealth(True, 0, 0)).reasons == ("health",)
    assert len(gate(make(), make(), GOOD).checks) == 6


def test_gate_refuses_cells_that_do_not_match() -> None:
    with pytest.raises(ConfigError, match="same cells"):
        gate(make(), replace(make(), pairing="b" * 64), GOOD)
    with pytest.raises(ConfigError, match="same cells"):
        gate(make(), replace(make(), episodes={"seg": 23}), GOOD)


def test_fallback_on_three_drops_or_on_kl() -> None:
    assert consecutive_drops([-0.1, 0.2, -0.1, -0.1]) == 2
    assert fallback_reason([0.1, -0.1, -0.1], 0.1) is None
    assert "3 rounds" in (fallback_reason([0.1, -0.1, -0.1, -0.1], None) or "")
    assert "KL" in (fallback_reason([], 0.11) or "")
    assert "KL" in (fallback_reason([], float("nan")) or "")


def test_a_round_is_4_2_2_balanced_and_without_replacement() -> None:
    plan = plan_round(bank(40), round_id=1, seed=3, target="S3", steps=20)
    assert plan.reused == 0
    for batch in plan.batches():
        assert Counter(d.pool for d in batch) == {"target": 4, "mix": 2, "e2e": 2}
        assert [d.slot for d in batch] == list(range(8))
    ids = [d.state.state_id for d in plan.draws]
    assert len(set(ids)) == len(ids)
    assert {d.state.focus for d in plan.draws if d.pool == "target"} == {"S3"}
    mix = Counter(d.state.focus for d in plan.draws if d.pool == "mix")
    assert set(mix) == {"S1", "S2", "S4", "S5"} and max(mix.values()) - min(mix.values()) <= 1
    for pool in ("target", "mix", "e2e"):
        outcomes = Counter(d.state.outcome for d in plan.draws if d.pool == pool)
        assert max(outcomes.values()) - min(outcomes.values()) <= 1


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**31), st.integers(1, 50), st.integers(1, 6), st.sampled_from(STAGES), st.data()
)
def test_a_round_follows_from_its_id_and_seed_alone(
    seed: int, round_id: int, steps: int, target: str, data: st.DataObject
) -> None:
    rows = bank(2, ("seg", "cls"))
    shuffled = data.draw(st.permutations(rows))
    first = plan_round(rows, round_id=round_id, seed=seed, target=target, steps=steps)
    second = plan_round(shuffled, round_id=round_id, seed=seed, target=target, steps=steps)
    assert first == second and first.digest == second.digest
    assert RoundPlan.from_json(first.to_json()) == first
    tracks = Counter(d.state.track for d in first.draws if d.pool == "target")
    assert abs(tracks["seg"] - tracks["cls"]) <= 1
    other = plan_round(rows, round_id=round_id + 1, seed=seed, target=target, steps=steps)
    assert other.digest != first.digest


def test_a_small_pool_is_passed_over_again_and_says_so() -> None:
    plan = plan_round(bank(1), round_id=1, seed=0, target="S2", steps=3)
    assert plan.reused > 0
    uses = [d.use for d in plan.draws if d.pool == "target"]
    assert all(b >= a for a, b in pairwise(uses))


def test_round_errors() -> None:
    with pytest.raises(BankError, match="bank build"):
        plan_round(
            [r for r in bank() if r.focus != "E2E"], round_id=1, seed=0, target="S1", steps=1
        )
    with pytest.raises(ConfigError, match="S1-S5"):
        plan_round(bank(), round_id=1, seed=0, target="E2E", steps=1)
    value = plan_round(bank(), round_id=1, seed=0, target="S1", steps=1).to_json()
    value["draws"][0]["state"]["state_id"] = "other"
    with pytest.raises(ConfigError, match="digest"):
        RoundPlan.from_json(value)


def test_teacher_measures_shift_and_flags_forgetting() -> None:
    plan = plan_round(bank(), round_id=1, seed=0, target="S1", steps=2)
    after = make(0.6, S1=1.0, S2=1.0, S4=1.0, S5=1.0, S3=0.3)
    shift = detect_shift(plan, after, best_so_far(make(), make(S3=0.5)))
    assert 0.5 < shift.total_variation <= 1.0 and 0.0 < shift.jensen_shannon <= 1.0
    assert shift.cells[0].stage == "S3" and shift.cells[0].gap > 0
    assert shift.forgetting == {"S3": pytest.approx(0.2)}
    decision = gate(make(), after, GOOD)
    value, text = round_report(plan, make(), after, shift, decision)
    assert value["gate"]["promoted"] is False and "held" in text and "S3 -0.200" in text
    assert round_report(plan, make(), after, shift, decision) == (value, text)
    assert not any(row.state_id in text for row in bank())


def test_perfect_scores_leave_nothing_needed() -> None:
    plan = plan_round(bank(), round_id=1, seed=0, target="S1", steps=1)
    shift = detect_shift(plan, make(1.0, **dict.fromkeys(STAGES, 1.0)))
    assert shift.total_variation == 0.0 and not shift.forgetting
