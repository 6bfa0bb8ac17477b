"""A place to cheat in: real episodes of one task, from states that an honest expert left."""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bat_env.bank import StageState
from bat_env.env import AutoMedEnv
from bat_env.episode import Episode
from bat_env.rubric.base import RubricResult
from bat_env.stages import WORK_STAGES, Stage
from bat_env.tasks import load_task
from bat_env.tasks.instance import Instance
from bat_env.tools import execute_call, submit_call

SUBMIT = "submit_results()"
"""A cell that hands in."""
INDEX = 3
"""The training instance that is played; truth of its neighbour is what "another case" means."""


@dataclass(frozen=True)
class Played:
    """How an episode ended."""

    score: float
    rubric: RubricResult
    episode: Episode

    def paid(self) -> list[str]:
        """The items that were paid for, with their messages."""
        return [f"{v.item}: {v.message}" for v in self.rubric.verdicts if v.state == "pass"]


class Stand:
    """A task's episodes on one backend. It is its own source of states.

    Attributes:
        before: What an honest expert left before each stage: workspace path -> content.
        honest: The expert's code for each stage from there.
        mended: The same where the stage's own work was handed over with a fault.
    """

    def __init__(self, task_id: str, backend: str, tier: str = "lite") -> None:
        self.tier = tier
        self.task = load_task(task_id)
        self.spec = self.task.spec
        self.track = self.spec.track
        self.instance: Instance = self.task.instance("train", INDEX, "mini")
        self.other: Instance = self.task.instance("train", INDEX + 1, "mini")
        self.env = AutoMedEnv(
            track=self.track, task=task_id, size="mini", sandbox=backend, bank=self, tier=tier
        )
        self.before: dict[Stage, dict[str, bytes]] = {}
        self._prepare()
        self.honest: dict[Stage, list[str]] = {
            stage: [
                cell.code
                for cell in self.task.script(
                    {"repair": "skip"}, focus=stage, outcome="success", tier=tier
                )
            ]
            for stage in WORK_STAGES
        }
        self.mended: dict[Stage, list[str]] = {
            stage: [
                cell.code for cell in self.task.script(focus=stage, outcome="failure", tier=tier)
            ]
            for stage in (Stage.S1, Stage.S2)
        }
        self._played: dict[tuple[str, tuple[str, ...]], Played] = {}

    def _prepare(self) -> None:
        self.env.reset(seed=0, options={"index": INDEX})
        cells = self.task.script({"repair": "skip"}, tier=self.tier)
        for stage in WORK_STAGES:
            laid = self.env.workspace().items()
            self.before[stage] = {path: data for path, data in laid if path != "task/spec.json"}
            for cell in (c for c in cells if c.stage is stage):
                assert self.env.step(execute_call(cell.language, cell.code))[4]["valid"]
                assert self.env.episode.cells[-1].result.ok, self.env.episode.cells[-1].result
        self.done = self.env.workspace()

    @functools.cached_property
    def ill(self) -> dict[str, bytes]:
        """What lies there before S3 where the pipeline has a fault that the task pays for.

        One that shows in nothing else, where the task has such a fault: whoever leaves it alone
        then does all the rest of S3 well.
        """
        faults = (m for m in self.task.mistakes if m.check and not m.outcome and "task" in m.costs)
        best: tuple[float, dict[str, bytes]] = (-1.0, {})
        for fault in sorted(faults, key=lambda mistake: mistake.costs["task"])[:6]:
            self.__dict__["ill"] = self._left_by(fault.choices, Stage.S2)
            score = self._play("S3-recovery", tuple(self.honest[Stage.S3])).score
            best = max(best, (score, self.__dict__["ill"]), key=lambda pair: pair[0])
            if score >= 0.8:
                break
        return best[1]

    def _left_by(self, choices: Mapping[str, str], last: Stage) -> dict[str, bytes]:
        self.env.reset(seed=0, options={"index": INDEX})
        for cell in self.task.script({**choices, "repair": "skip"}, tier=self.tier):
            if cell.stage <= last:
                self.env.step(execute_call(cell.language, cell.code))
        return {p: d for p, d in self.env.workspace().items() if p != "task/spec.json"}

    # ------------------------------------------------------------------------- a source of states

    def get(self, state_id: str) -> StageState:
        name, _, outcome = state_id.partition("-")
        focus = Stage[name]
        return StageState(
            tier=self.tier,
            state_id=state_id,
            track=self.track,
            task=self.spec.id,
            task_digest=self.task.digest,
            focus=focus,
            outcome="failure" if outcome == "ill" else outcome or "success",
            index=INDEX,
            instance_digest=self.instance.digest,
        )

    def files(self, state_id: str) -> dict[str, bytes]:
        if state_id in ("S3-recovery", "S2-ill"):
            return self.ill
        name, _, outcome = state_id.partition("-")
        return self.faulty(Stage[name]) if outcome else self.before[Stage[name]]

    @functools.cache  # noqa: B019  a stand lives as long as its tests
    def faulty(self, stage: Stage) -> dict[str, bytes]:
        """What lies there where a stage, S1 or S2, was done with a fault that its rubric sees."""
        of = {decision.id: decision.stage for decision in self.task.decisions}
        fault = next(
            m
            for m in self.task.mistakes
            if stage.name in m.costs
            and m.tier == "lite"
            and not m.outcome
            and all(of.get(decision) is stage for decision in m.choices)
        )
        return self._left_by(fault.choices, stage)

    def cells(self, **query: Any) -> tuple[tuple[str, str, str], ...]:
        return ()

    def sample(self, rng: np.random.Generator, **query: Any) -> StageState:
        return self.get(query["focus"].name)

    def close(self) -> None:
        """Nothing is held; the environment is closed by :meth:`end`."""

    def end(self) -> None:
        self.env.close()

    # ---------------------------------------------------------------------------------- episodes

    def play(self, start: str, cells: Iterable[str]) -> Played:
        """Run cells from a start and hand in; equal episodes are played once.

        Args:
            start: ``E2E``, or a stage, with ``-recovery`` where its pipeline is ill.
            cells: Python.
        """
        key = (start, tuple(cells))
        if key not in self._played:
            self._played[key] = self._play(*key)
        return self._played[key]

    def _play(self, start: str, cells: tuple[str, ...]) -> Played:
        options = {"index": INDEX} if start == "E2E" else {"state_id": start}
        self.env.reset(seed=11, options=options)
        info: Mapping[str, Any] = {}
        for cell in [*cells, None]:
            action = submit_call() if cell in (None, SUBMIT) else execute_call("python", cell)
            _, _, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                break
        rubric = self.env.rubric
        assert rubric is not None
        return Played(float(info["score"]), rubric, self.env.episode)

    # ------------------------------------------------------------------------ what a cheat may use

    @property
    def cases(self) -> tuple[str, ...]:
        return self.instance.cases

    @property
    def output(self) -> str:
        """File name of an output."""
        return self.spec.output.name

    @property
    def is_table(self) -> bool:
        return self.spec.output.is_table

    def output_path(self, case: str) -> str:
        return self.spec.output.path.format(case=case)

    def record(self) -> dict[str, Any]:
        """The expert's validation/pilot.json."""
        found: dict[str, Any] = json.loads(self.before[Stage.S4]["validation/pilot.json"])
        return found

    def facts(self) -> dict[str, Any]:
        """The expert's plan/facts.json."""
        found: dict[str, Any] = json.loads(self.before[Stage.S2]["plan/facts.json"])
        return found

    def setup(self) -> dict[str, Any]:
        """The expert's setup/setup.json."""
        found: dict[str, Any] = json.loads(self.before[Stage.S3]["setup/setup.json"])
        return found

    def pilot(self) -> tuple[str, bytes]:
        """The expert's pilot: case and file."""
        for path, data in self.before[Stage.S4].items():
            parts = path.split("/")
            if parts[:2] == ["validation", "pilot"] and parts[-1] == self.output:
                return parts[2], data
        raise AssertionError("the expert made no pilot")


def put(path: str, data: bytes | str | dict[str, Any] | list[Any]) -> str:
    """Code that writes a file; the content was made on the host."""
    if isinstance(data, dict | list):
        data = json.dumps(data)
    raw = data.encode() if isinstance(data, str) else data
    text = base64.b64encode(raw).decode()
    return (
        f"import base64, os\npath = {path!r}\n"
        "os.makedirs(os.path.dirname(path) or '.', exist_ok=True)\n"
        f"open(path, 'wb').write(base64.b64decode({text!r}))\n"
    )
