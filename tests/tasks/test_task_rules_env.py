"""Rules of task folders that need whole episodes: what careful and careless work score.

Every task found plays on real sandboxes, on the reduced size unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from bat_env.bank import Bank, StageState
from bat_env.env import AutoMedEnv
from bat_env.rubric import compile_contract
from bat_env.stages import WORK_STAGES, Stage
from bat_env.tasks import Task, load_task, task_ids
from bat_env.tasks.scripts import Mistake
from bat_env.tools import execute_call, submit_call

INDEX = 11
MISTAKES = [(i, m.id) for i in task_ids() for m in load_task(i).mistakes]


@dataclass(frozen=True)
class Played:
    """The result of an episode, with 'task' beside the stages in ``parts``."""

    score: float
    task: float | None
    parts: Mapping[str, float]
    failed_cells: int
    valid: bool


@pytest.fixture(scope="module")
def envs() -> Iterator[dict[tuple[str, ...], AutoMedEnv]]:
    made: dict[tuple[str, ...], AutoMedEnv] = {}
    yield made
    for env in made.values():
        env.close()


def play(
    envs: dict[tuple[str, ...], AutoMedEnv],
    task: Task,
    choices: Mapping[str, str],
    *,
    size: str = "mini",
    tier: str = "lite",
    bank: Bank | None = None,
    state: StageState | None = None,
    index: int = INDEX,
) -> Played:
    key = (task.id, size, tier, "" if bank is None else "bank")
    if key not in envs:
        envs[key] = AutoMedEnv(
            track=task.spec.track, task=task.id, size=size, tier=tier, sandbox="local", bank=bank
        )
    env = envs[key]
    options: dict[str, Any] = {"index": index} if state is None else {"state_id": state.state_id}
    env.reset(seed=1, options=options)
    focus = Stage.E2E if state is None else state.focus
    outcome = None if state is None else state.outcome
    cells = task.script(choices, focus=focus, tier=tier, outcome=outcome)
    for action in [*(execute_call(c.language, c.code) for c in cells), submit_call()]:
        _, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    result = info["result"]
    grade = env.episode.evidence.grade
    return Played(
        score=result["score"],
        task=result["task"],
        parts={**result["stages"], "task": result["task"]},
        failed_cells=result["errors"]["failed_cells"],
        valid=grade is not None and all(grade.valid.values()),
    )


@pytest.fixture(scope="module")
def careful(envs: Any) -> Any:
    @cache
    def played(task_id: str, tier: str = "lite", size: str = "mini") -> Played:
        return play(envs, load_task(task_id), {}, tier=tier, size=size)

    return played


@pytest.mark.parametrize("task_id", task_ids())
@pytest.mark.parametrize("size", ["mini", "full"])
def test_careful_work_scores_high(careful: Any, task_id: str, size: str) -> None:
    done = careful(task_id, "lite", size)
    assert done.failed_cells == 0 and done.valid
    assert done.score >= 0.80 and done.task >= 0.65
    assert all(done.parts[stage.name] == 1.0 for stage in WORK_STAGES), done.parts


@pytest.mark.parametrize("task_id", task_ids())
@pytest.mark.parametrize("tier", ["standard", "pro"])
def test_careful_work_scores_high_in_every_tier(careful: Any, task_id: str, tier: str) -> None:
    done = careful(task_id, tier)
    assert done.score >= 0.80 and done.parts["S1"] == 1.0


@pytest.mark.parametrize("task_id", task_ids())
def test_careless_work_finishes_and_loses_in_every_stage(
    envs: Any, careful: Any, task_id: str
) -> None:
    task = load_task(task_id)
    for size in ("mini", "full"):
        done = play(envs, task, task.naive_choices, size=size)
        good = careful(task_id, "lite", size)
        assert done.failed_cells == 0 and done.valid, "it completes all stages with valid outputs"
        assert 0.15 <= done.score <= 0.45
        for stage in WORK_STAGES:
            assert done.parts[stage.name] <= good.parts[stage.name] - 0.2, (size, stage)


def _mistake(task_id: str, mistake_id: str) -> tuple[Task, Mistake]:
    task = load_task(task_id)
    return task, next(m for m in task.mistakes if m.id == mistake_id)


@pytest.mark.parametrize(("task_id", "mistake_id"), MISTAKES)
def test_each_mistake_costs_where_it_should(
    envs: Any, careful: Any, task_id: str, mistake_id: str
) -> None:
    task, mistake = _mistake(task_id, mistake_id)
    if mistake.outcome:
        pytest.skip("shows from a faulty start state only: see below")
    done = play(envs, task, mistake.choices, tier=mistake.tier)
    good = careful(task_id, mistake.tier)
    lost = {part: good.parts[part] - done.parts[part] for part in good.parts}
    for part, least in mistake.costs.items():
        assert lost[part] >= least, (part, lost)
    assert good.score - done.score >= 0.004, "the episode pays too"
    for part, loss in lost.items():
        expected = part in mistake.costs or part in ("S5", "task")
        assert expected or loss < 0.3, f"it should not cost this much in {part}: {lost}"


# ----------------------------------------------------------------------- starts from states


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bank, dict[str, Any]]]:
    """A bank with a success state per stage and a recovery state of S3 to S5 for every task."""
    bank = Bank.open(tmp_path_factory.mktemp("bank"), create=True)
    made: dict[str, Any] = {}
    for task_id in task_ids():
        task = load_task(task_id)
        broken = next(m for m in task.mistakes if m.check and m.costs.get("task", 0) >= 0.2)
        made[task_id, "fault"] = broken
        for outcome, choices in (("success", {}), ("recovery", broken.choices)):
            for stage in WORK_STAGES if outcome == "success" else WORK_STAGES[2:]:
                made[task_id, stage, outcome] = _state(bank, task, stage, outcome, choices)
    yield bank, made
    bank.close()


def _state(
    bank: Bank, task: Task, stage: Stage, outcome: str, choices: Mapping[str, str]
) -> StageState:
    env = AutoMedEnv(track=task.spec.track, task=task.id, sandbox="local", size="mini")
    try:
        env.reset(seed=0, options={"index": INDEX})
        for cell in task.script(choices):
            if cell.stage < stage:
                assert env.step(execute_call(cell.language, cell.code))[4]["valid"]
        files = {p: d for p, d in env.workspace().items() if p != "task/spec.json"}
        state = StageState(
            track=task.spec.track,
            task=task.id,
            task_digest=task.digest,
            index=INDEX,
            instance_digest=env.instance.digest,
            focus=stage,
            outcome=outcome,  # type: ignore[arg-type]
            exposed="the check printed this" if outcome == "recovery" else "",
            rubric_digest=compile_contract(
                task.spec, tier="lite", focus=stage, outcome=outcome
            ).digest,
        )
    finally:
        env.close()
    return bank.add(state, files)


@pytest.mark.parametrize("task_id", task_ids())
@pytest.mark.parametrize("stage", WORK_STAGES)
def test_careless_work_loses_also_from_a_success_state(
    envs: Any, states: Any, task_id: str, stage: Stage
) -> None:
    bank, made = states
    task = load_task(task_id)
    state = made[task_id, stage, "success"]
    good = play(envs, task, {}, bank=bank, state=state)
    poor = play(envs, task, task.naive_choices, bank=bank, state=state)
    assert good.score >= 0.9 and good.failed_cells == 0
    assert poor.score <= good.score - 0.2


@pytest.mark.parametrize("task_id", task_ids())
@pytest.mark.parametrize("stage", WORK_STAGES[2:])
def test_repair_cures_a_faulty_start_and_skipping_it_costs(
    envs: Any, states: Any, task_id: str, stage: Stage
) -> None:
    bank, made = states
    task = load_task(task_id)
    state = made[task_id, stage, "recovery"]
    cured = play(envs, task, {}, bank=bank, state=state)
    assert cured.score >= 0.9, cured
    if stage is Stage.S4:
        return  # S4 asks for valid, reproducible outputs; how good they are is S5's and Task's.
    skip = [m for m in task.mistakes if m.outcome == "recovery" and stage.name in m.costs]
    assert skip or stage is not Stage.S3
    for mistake in skip:
        left = play(envs, task, mistake.choices, bank=bank, state=state)
        assert cured.score - left.score >= mistake.costs[stage.name]


# ------------------------------------------------------------------------------- checks


def _printed(env: AutoMedEnv, check: str) -> str:
    env.step(execute_call("python", check))
    result = env.episode.cells[-1].result
    assert result.ok, result.stderr
    assert 0 < len(result.stdout) < 1200 and not result.stderr
    return result.stdout


def _replay(env: AutoMedEnv, task: Task, choices: Mapping[str, str], last: Stage) -> None:
    env.reset(seed=1, options={"index": INDEX})
    for cell in task.script(choices):
        if cell.stage <= last:
            env.step(execute_call(cell.language, cell.code))


@pytest.mark.parametrize("task_id", task_ids())
def test_checks_expose_their_mistakes(task_id: str) -> None:
    task = load_task(task_id)
    checked = [m for m in task.mistakes if m.check]
    assert {m.id for m in checked if m.costs.get("task")}, "some must serve pipelines"
    env = AutoMedEnv(track=task.spec.track, task=task.id, size="mini", sandbox="local")
    try:
        clean: dict[str, str] = {}
        for start in range(0, len(checked), 8):
            _replay(env, task, {}, Stage.S4)
            for mistake in checked[start : start + 8]:
                clean[mistake.id] = _printed(env, mistake.check)
        for mistake in checked:
            last = max(d.stage for d in task.decisions if d.id in mistake.choices)
            _replay(env, task, mistake.choices, last)
            assert _printed(env, mistake.check) != clean[mistake.id], mistake.id
    finally:
        env.close()
