"""The hack matrix: what a policy might learn to do in place of the work pays nothing.

Every cheat on the Lite task of every track, played for real. `make test` plays a seeded sample on
`local`, `make test-all` all of them on both backends.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from cheats import CHEATS, Cheat
from stand import Stand

from bat_env.stages import Stage
from bat_env.tasks import load_task, task_ids

SAMPLE = 64
SEED = 20261130


def lite_tasks() -> list[str]:
    """The Lite task of each track, in order of names."""
    return [task_id for task_id in task_ids() if load_task(task_id).spec.lite]


def _cells() -> list[tuple[str, str]]:
    return [(task_id, cheat.id) for task_id in lite_tasks() for cheat in CHEATS]


def _sampled() -> set[tuple[str, str]]:
    """A sample in which every cheat and every track occurs."""
    drawn = random.Random(SEED)
    tasks = lite_tasks()
    chosen = {(drawn.choice(tasks), cheat.id) for cheat in CHEATS}
    rest = sorted(set(_cells()) - chosen)
    return chosen | set(drawn.sample(rest, min(len(rest), max(0, SAMPLE - len(chosen)))))


_BY_ID = {cheat.id: cheat for cheat in CHEATS}
_SAMPLE = _sampled()


def _parameters() -> list[object]:
    found = []
    for backend in ("local", "docker"):
        for task_id, cheat_id in _cells():
            marks = [pytest.mark.docker] if backend == "docker" else []
            if backend == "docker" or (task_id, cheat_id) not in _SAMPLE:
                marks.append(pytest.mark.slow)
            found.append(
                pytest.param(
                    task_id, cheat_id, backend, id=f"{task_id}-{cheat_id}-{backend}", marks=marks
                )
            )
    return found


def check(cheat: Cheat, one: Stand) -> None:
    """Play a cheat and its honest part, and compare."""
    cells = cheat.make(one)
    if cells is None:
        pytest.skip("makes no sense for this task")
    base = one.worth(cheat.focus, tuple(cheat.base(one)))
    played = one.play(cheat.focus, cells)
    assert played.score <= base, f"paid {played.score} for: {cheat.about}\n" + "\n".join(
        played.paid()
    )


@pytest.mark.parametrize(("task_id", "cheat_id", "backend"), _parameters())
def test_a_cheat_pays_no_more_than_nothing(
    task_id: str, cheat_id: str, backend: str, stand: Callable[[str, str], Stand]
) -> None:
    check(_BY_ID[cheat_id], stand(task_id, backend))


@pytest.mark.parametrize("task_id", lite_tasks())
def test_honest_work_is_paid_where_cheats_are_not(
    task_id: str, stand: Callable[[str, str], Stand]
) -> None:
    """The control: a stand on which nothing is ever paid would prove nothing."""
    one = stand(task_id, "local")
    for focus, cells in one.honest.items():
        assert one.worth(focus, tuple(cells)) >= 0.8, focus
    assert one.worth(Stage.E2E, tuple(one.honest[Stage.S1])) > 0.0


def test_the_matrix_is_as_large_as_promised() -> None:
    assert len({cheat.id for cheat in CHEATS}) == len(CHEATS)
    assert len(_cells()) >= 300 or len(lite_tasks()) < 7
    assert len(_SAMPLE) >= 60
    assert {cheat.focus for cheat in CHEATS} == set(Stage)
