"""The hack matrix: what a policy might learn to do in place of the work pays nothing.

Every cheat on the Lite task of every track, played for real, and beside it the benign matrix:
honest work in other forms, which keeps full credit. `make test` plays each of them once, on a track
drawn by seed, on `local`; `make test-all` all of them on both backends.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable

import cheats_deep
import cheats_late
import pytest
from benign import VARIANTS
from cheats import CHEATS, Cheat
from stand import Played, Stand

from bat_env.episode import Episode
from bat_env.rubric import RubricContract, compile_contract, infer
from bat_env.rubric.base import Context, Verdict
from bat_env.stages import Stage
from bat_env.tasks import load_task, task_ids

SEED = 20261130


def lite_tasks() -> list[str]:
    """The Lite task of each track, in order of names."""
    return [task_id for task_id in task_ids() if load_task(task_id).spec.lite]


def sampled(names: list[str]) -> set[tuple[str, str]]:
    """Each name once, with tasks drawn by seed."""
    drawn = random.Random(SEED)
    tasks = lite_tasks()
    return {(drawn.choice(tasks), name) for name in names}


def parameters(names: list[str]) -> list[object]:
    """Every task with every name on both backends; what is not in the sample is slow."""
    found = []
    chosen = sampled(names)
    for backend in ("local", "docker"):
        for task_id in lite_tasks():
            for name in names:
                marks = [pytest.mark.docker] if backend == "docker" else []
                if backend == "docker" or (task_id, name) not in chosen:
                    marks.append(pytest.mark.slow)
                found.append(
                    pytest.param(
                        task_id, name, backend, id=f"{task_id}-{name}-{backend}", marks=marks
                    )
                )
    return found


assert cheats_deep and cheats_late
_CHEATS = {cheat.id: cheat for cheat in CHEATS}
_VARIANTS = {variant.id: variant for variant in VARIANTS}


def bound(cheat: Cheat, one: Stand) -> float:
    """What a cheat may be paid at most: the worth of its honest part."""
    if isinstance(cheat.base, float):
        return cheat.base
    worth = one.play(cheat.start, cheat.base(one)).score
    # A metric pays trivial outputs up to the task's floor, and lots by luck, whoever makes them.
    lots = one.spec.floor + infer.luck(Context(one.spec, one.instance))
    return worth + (0.5 * lots if cheat.stage is Stage.E2E else 0.0)


def check(cheat: Cheat, one: Stand) -> None:
    """Play a cheat and its honest part, and compare."""
    cells = cheat.make(one)
    if cells is None:
        pytest.skip("makes no sense for this task")
    played = one.play(cheat.start, cells)
    assert played.score <= bound(cheat, one), (
        f"paid {played.score} for: {cheat.about}\n" + "\n".join(played.paid())
    )


@pytest.mark.parametrize(("task_id", "cheat_id", "backend"), parameters(list(_CHEATS)))
def test_a_cheat_pays_no_more_than_nothing(
    task_id: str, cheat_id: str, backend: str, stand: Callable[[str, str], Stand]
) -> None:
    check(_CHEATS[cheat_id], stand(task_id, backend))


@pytest.mark.parametrize(("task_id", "variant_id", "backend"), parameters(list(_VARIANTS)))
def test_honest_work_in_another_form_keeps_full_credit(
    task_id: str, variant_id: str, backend: str, stand: Callable[..., Stand]
) -> None:
    one, variant = stand(task_id, backend), _VARIANTS[variant_id]
    cells = variant.make(one)
    if cells is None:
        pytest.skip("makes no sense for this task")
    played = one.play(variant.stage.name, cells)
    expected = one.play(variant.stage.name, one.honest[variant.stage]).score
    assert played.score >= expected - 2**-19, "\n".join(
        f"{v.item}: {v.message}" for v in played.rubric.verdicts if v.state != "pass"
    )


@pytest.mark.parametrize("task_id", lite_tasks())
def test_honest_work_is_paid_where_cheats_are_not(
    task_id: str, stand: Callable[[str, str], Stand]
) -> None:
    """The control: a stand on which nothing is ever paid would prove nothing."""
    one = stand(task_id, "local")
    for focus, cells in one.honest.items():
        assert one.play(focus.name, cells).score >= 0.99, focus
    for start, focus in (("S1-failure", Stage.S1), ("S2-failure", Stage.S2)):
        assert one.play(start, one.mended[focus]).score >= 0.99, start
    assert one.play("E2E", one.honest[Stage.S1]).score > 0.0


def test_every_predicate_is_needed(stand: Callable[..., Stand]) -> None:
    """Mutation test: with any one predicate always true, at least one cheat is paid."""
    one = stand("seg/kidney_tumor", "local", "pro")
    asleep = {item.id for cheat in CHEATS for item in _contract(one, cheat).items}
    assert len(asleep) == 24  # nine of S1, five of S2, six of S3 with the recovery's, two and two
    # Honest work with one lie in it wakes most; what can wake nothing more is not played.
    for cheat in sorted(CHEATS, key=lambda cheat: isinstance(cheat.base, float), reverse=True):
        contract = _contract(one, cheat)
        left = [item for item in contract.items if item.id in asleep]
        cells = cheat.make(one) if left else None
        if cells is None:
            continue
        played, most = one.play(cheat.start, cells), bound(cheat, one)
        assert played.score <= most, cheat.id
        asleep -= {i.id for i in left if _mutant(contract, i.id, one, played) > most}
    assert not asleep


OF_TIERS = (
    "candidates_of_one",
    "candidates_of_one_model",
    "candidates_that_do_not_exist",
    "plan_of_a_copied_picture",
    "plan_of_no_picture",
    "plan_of_one_colour",
)
"""Cheats at items that the Lite tier does not have."""


@pytest.mark.parametrize(
    ("task_id", "cheat_id", "tier", "backend"),
    [
        pytest.param(
            *(task_id, cheat_id, tier, backend),
            # The stand of the mutation test serves the sample.
            marks=[]
            if (task_id, tier, backend) == ("seg/kidney_tumor", "pro", "local")
            else [pytest.mark.slow, *([pytest.mark.docker] if backend == "docker" else [])],
        )
        for backend in ("local", "docker")
        for task_id in lite_tasks()
        for tier in ("standard", "pro")
        for cheat_id in OF_TIERS
    ],
)
def test_a_cheat_pays_nothing_in_higher_tiers(
    task_id: str, cheat_id: str, tier: str, backend: str, stand: Callable[..., Stand]
) -> None:
    check(_CHEATS[cheat_id], stand(task_id, backend, tier))


def _contract(one: Stand, cheat: Cheat) -> RubricContract:
    outcome = cheat.start.partition("-")[2] or ("success" if cheat.start != "E2E" else None)
    outcome = "failure" if outcome == "ill" else outcome
    return compile_contract(one.spec, tier=one.tier, focus=cheat.stage, outcome=outcome)


def _mutant(contract: RubricContract, item_id: str, one: Stand, played: Played) -> float:
    """The score where one predicate is always true."""

    def always(episode: Episode, ctx: Context, final: bool) -> Verdict:
        return Verdict(item_id, "pass", 1.0)

    items = tuple(
        dataclasses.replace(item, predicate=always) if item.id == item_id else item
        for item in contract.items
    )
    mutant = dataclasses.replace(contract, items=items)
    with pytest.MonkeyPatch.context() as patch:
        # Other predicates may rest on this one.
        check = next(i.predicate for i in contract.items if i.id == item_id).check  # type: ignore
        patch.setattr(sys.modules[check.__module__], check.__name__, lambda *_: "always")
        result = mutant.evaluate(played.episode, Context(one.spec, one.instance), True)
    return result.score or 0.0


def test_the_matrices_are_as_large_as_promised() -> None:
    assert len(_CHEATS) == len(CHEATS) >= 60 and len(_VARIANTS) == len(VARIANTS) >= 30
    assert len(CHEATS) * len(lite_tasks()) >= 300 or len(lite_tasks()) < 7
    assert len(VARIANTS) * len(lite_tasks()) >= 100
    assert {cheat.stage for cheat in CHEATS} == set(Stage)
