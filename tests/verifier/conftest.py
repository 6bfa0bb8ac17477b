"""Real episodes: scripts run in a real sandbox, and a real verifier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from bat_env.episode import CellRecord, Episode
from bat_env.errors import SandboxUnavailableError
from bat_env.grader import shared_grader
from bat_env.rubric import Context, RubricResult, compile_contract
from bat_env.sandbox import SandboxPool
from bat_env.sandbox.base import Cell, Sandbox
from bat_env.stages import Stage
from bat_env.tasks import Task, load_task, stage_files
from bat_env.tasks.instance import Instance
from bat_env.verifier import Verifier


@pytest.fixture(scope="session")
def task() -> Task:
    return load_task("kidney_tumor")


@pytest.fixture(scope="session")
def instance(task: Task) -> Instance:
    return task.instance("train", 1, "mini")


@pytest.fixture(scope="session")
def pool(task: Task) -> Iterator[SandboxPool]:
    """Local sandboxes, or plain processes where namespaces are not allowed."""
    made = SandboxPool("local", task.spec.limits, size=2)
    try:
        made.release(made.acquire())
    except SandboxUnavailableError:
        made.close()
        made = SandboxPool("process", task.spec.limits, size=2)
    yield made
    made.close()


@dataclass
class Ran:
    """A played episode, not yet handed in."""

    episode: Episode
    sandbox: Sandbox
    task: Task
    instance: Instance
    initial: Mapping[str, bytes]

    def gather(self, verifier: Verifier, **options: Any) -> Ran:
        options.setdefault("initial", self.initial or None)
        verifier.gather(self.episode, self.task, self.instance, self.sandbox, **options)
        return self

    def result(self) -> RubricResult:
        contract = compile_contract(
            self.task.spec,
            tier=self.episode.tier,
            focus=self.episode.focus,
            outcome=self.episode.outcome,
        )
        return contract.evaluate(self.episode, Context(self.task.spec, self.instance), True)

    def state(self, item: str) -> tuple[str, str]:
        verdict = next(v for v in self.result().verdicts if v.item == item)
        return verdict.state, verdict.message


class Player:
    """Plays cells in a leased sandbox."""

    def __init__(self, pool: SandboxPool, task: Task, instance: Instance) -> None:
        self.pool, self.task, self.instance = pool, task, instance
        self.leased: list[Sandbox] = []

    def __call__(
        self,
        focus: Stage = Stage.E2E,
        *,
        choices: Mapping[str, str] | None = None,
        cells: Iterable[str] | None = None,
        initial: Mapping[str, bytes] | None = None,
        outcome: str | None = None,
        tier: str = "lite",
        seed: int = 11,
        task: Task | None = None,
    ) -> Ran:
        task = task or self.task
        if cells is None:
            made = task.script(choices, focus=focus, tier=tier, outcome=outcome)
            steps = [(cell.language, cell.code) for cell in made]
        else:
            steps = [("python", code) for code in cells]
        sandbox = self.pool.acquire()
        self.leased.append(sandbox)
        files = stage_files(task, self.instance, tier, focus)
        files |= {f"workspace/{p}": d for p, d in (initial or {}).items()}
        sandbox.reset(files)
        where = self.instance
        episode = Episode(
            task.spec.id, tier, where.split, where.size, where.seed, seed, focus, outcome
        )
        episode.cases = where.cases
        episode.initial = sandbox.manifest()
        for n, (language, code) in enumerate(steps):
            result = sandbox.run(Cell(language, code, n))
            assert cells is not None or result.ok, result.stderr
            episode.cells.append(CellRecord(n, n, language, code, result))
        episode.current = sandbox.manifest()
        return Ran(episode, sandbox, task, where, dict(initial or {}))

    def close(self) -> None:
        for sandbox in self.leased:
            self.pool.release(sandbox)


@pytest.fixture
def play(pool: SandboxPool, task: Task, instance: Instance) -> Iterator[Player]:
    player = Player(pool, task, instance)
    yield player
    player.close()


@pytest.fixture(scope="session")
def verifier(pool: SandboxPool) -> Verifier:
    return Verifier(pool, shared_grader())
