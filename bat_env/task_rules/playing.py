"""Scripted episodes of one task, from scratch and from the states that a script leaves behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bat_env.bank.memory import States
from bat_env.bank.state import StageState
from bat_env.env import AutoMedEnv
from bat_env.rubric.base import Context
from bat_env.rubric.infer import nothing
from bat_env.sandbox.base import CellResult
from bat_env.stages import Stage
from bat_env.task_rules.cpu import tree_cpu_s
from bat_env.tasks import Task
from bat_env.tools import execute_call, submit_call

INDEX: Final = 11
"""Training instance on which scripts are played."""
FURTHER: Final = (12, 13)
"""Others, for what may hang on the instance."""

SLIGHT: Final = 0.1
"""Task score above a trivial answer's that hangs on the instance."""


@dataclass(frozen=True)
class Played:
    """The result of a scripted episode.

    Attributes:
        score: Episode score.
        parts: ``"S1"`` .. ``"S5"`` and ``"task"`` -> score; what was not scored is left out.
        failed_cells: Cells that ended with an error.
        valid: Whether every output is valid.
        notes: Messages of the items that are not met.
        cpu_s: CPU seconds of the episode in all processes, or ``None`` where unknown.
        check: What the check cell gave, if one was asked for.
        worthless: Whether its outputs, or clean runs of its pipeline, are worth no more than a
            trivial answer, or so little more that the next instance may have it otherwise.
    """

    score: float
    parts: Mapping[str, float]
    failed_cells: int
    valid: bool
    notes: str
    cpu_s: float | None
    check: CellResult | None = None
    worthless: bool = False


class Player:
    """Plays scripts of one task; one environment is open at a time.

    Args:
        task: The task.
        sandbox: Backend name.

    Attributes:
        lost: Mistake id -> part -> what it lost against careful work, of the mistakes played.
        cheapest: What careful work took at least, CPU seconds: by size (lite tier, from scratch)
            and by the id of the start state.
    """

    def __init__(self, task: Task, sandbox: str = "auto") -> None:
        self.task = task
        self.sandbox = sandbox
        self._env: tuple[str, AutoMedEnv] | None = None
        self._index = INDEX
        self._careful: dict[tuple[str, str, int], Played] = {}
        self._states = States()
        self.lost: dict[str, dict[str, float]] = {}
        self.cheapest: dict[str, float] = {}

    def play(
        self,
        choices: Mapping[str, str],
        size: str = "mini",
        tier: str = "lite",
        *,
        state: StageState | None = None,
        check: str = "",
        keep: str = "",
    ) -> Played:
        """Play a whole episode.

        Args:
            choices: Decision id -> option.
            size: ``full`` or ``mini``, where the episode starts from scratch.
            tier: Its tier.
            state: Start state; its stage is the focus.
            check: Cell to run before the submission.
            keep: Outcome under which the workspace before each stage is kept as a start state.
        """
        env = self._opened(tier)
        before = tree_cpu_s()
        if state is None:
            focus, outcome = Stage.E2E, None
            env.reset(seed=1, options={"index": self._index, "size": size})
        else:
            focus, outcome = state.focus, state.outcome
            env.reset(seed=1, options={"state_id": state.state_id})
        cells = self.task.script(choices, focus=focus, tier=tier, outcome=outcome)
        info: dict[str, Any] = {}
        done: set[Stage] = set()
        over = False
        for cell in cells:
            if keep and cell.stage not in done:
                self._keep(env, cell.stage, keep)
                done.add(cell.stage)
            over, info = _step(env, execute_call(cell.language, cell.code))
            if over:
                break
        checked = None
        if check and not over:
            over, info = _step(env, execute_call("python", check))
            checked = env.episode.cells[-1].result
        if not over:
            over, info = _step(env, submit_call())
        after = tree_cpu_s()
        cpu_s = None if before is None or after is None else after - before
        if cpu_s is not None and not choices and not check and tier == "lite":
            key = size if state is None else state.state_id
            self.cheapest[key] = min(cpu_s, self.cheapest.get(key, cpu_s))
        return _played(self.task, env, info, cpu_s, checked)

    def printed(self, checks: Mapping[str, str]) -> dict[str, str]:
        """What check cells print in the workspace that careful work leaves, key by key."""
        env, said = self._opened("lite"), {}
        room = self.task.spec.budgets.calls - len(self.task.script()) - 1
        for number, (key, check) in enumerate(checks.items()):
            if number % room == 0:
                env.reset(seed=1, options={"index": self._index, "size": "mini"})
                for cell in self.task.script():
                    if cell.stage <= Stage.S4:
                        _step(env, execute_call(cell.language, cell.code))
            _step(env, execute_call("python", check))
            said[key] = env.episode.cells[-1].result.stdout
        return said

    def careful(self, size: str = "mini", tier: str = "lite") -> Played:
        """The oracle's episode, played once."""
        key = (size, tier, self._index)
        if key not in self._careful:
            keep = "success" if key == ("mini", "lite", INDEX) else ""
            self._careful[key] = self.play({}, size, tier, keep=keep)
        return self._careful[key]

    @contextmanager
    def on(self, index: int) -> Iterator[None]:
        """Episodes from scratch are played on another training instance meanwhile."""
        self._index = index
        try:
            yield
        finally:
            self._index = INDEX

    def state(self, focus: Stage, outcome: str = "success") -> StageState:
        """A start state that :meth:`play` kept."""
        if outcome == "success":
            self.careful()
        return self._states.get(f"{outcome} {focus.name}")

    def _keep(self, env: AutoMedEnv, focus: Stage, outcome: str) -> None:
        state = StageState(
            state_id=f"{outcome} {focus.name}",
            track=self.task.spec.track,
            task=self.task.id,
            task_digest=self.task.digest,
            index=INDEX,
            instance_digest=env.instance.digest,
            focus=focus,
            outcome=outcome,
            exposed="the check printed this" if outcome == "recovery" else "",
        )
        files = env.workspace()
        self._states.add(state, {p: d for p, d in files.items() if p != "task/spec.json"})

    def _opened(self, tier: str) -> AutoMedEnv:
        """The environment of this tier; another one gives its sandbox back first."""
        if self._env is None or self._env[0] != tier:
            self.close()
            made = AutoMedEnv(
                track=self.task.spec.track,
                task=self.task.id,
                tier=tier,
                sandbox=self.sandbox,
                bank=self._states,
            )
            self._env = (tier, made)
        return self._env[1]

    def close(self) -> None:
        """Close the environment, if one is open."""
        if self._env is not None:
            self._env[1].close()
        self._env = None


def _step(env: AutoMedEnv, action: dict[str, Any]) -> tuple[bool, dict[str, Any]]:
    _, _, terminated, truncated, info = env.step(action)
    return terminated or truncated, info


def _played(
    task: Task,
    env: AutoMedEnv,
    info: Mapping[str, Any],
    cpu_s: float | None,
    check: CellResult | None,
) -> Played:
    result = info["result"]
    grade = env.episode.evidence.grade
    verdicts = env.rubric.verdicts if env.rubric is not None else ()
    errors = [c.result.stderr[-300:] for c in env.episode.cells if not c.result.ok]
    missed = [f"{v.item}: {v.message}" for v in verdicts if v.state != "pass"]
    parts = {**result["stages"], "task": result["task"]}
    bar = nothing(Context(task.spec, env.instance)) + SLIGHT
    pilot = env.episode.evidence.pilot or {}
    return Played(
        score=float(result["score"]),
        parts={part: float(value) for part, value in parts.items() if value is not None},
        failed_cells=int(result["errors"]["failed_cells"]),
        valid=grade is not None and all(grade.valid.values()),
        notes="; ".join([*errors, *missed])[:1500],
        cpu_s=cpu_s,
        check=check,
        worthless=bool(pilot.get("worthless")) or (grade is not None and grade.score <= bar),
    )
