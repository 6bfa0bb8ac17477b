"""The result of an evaluation: one row per episode, and the aggregates made of them.

A cell without a score is null. It is run again, it is counted in ``invalid``, and it enters no
mean; it is never a zero.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import stdev
from typing import Any, Final

from bat_agent.curriculum.scores import FAILURE_CLASSES, STAGE_NAMES, ControllerScores
from bat_agent.files import digest_of, read_json, write_json
from bat_agent.stats import Interval, bootstrap_interval, paired_difference, track_mean
from bat_env.errors import ConfigError

SCHEMA_VERSION: Final = 1
WEAK: Final = 0.5
"""A stage or task score below this names the failure class of an episode."""


@dataclass(frozen=True, slots=True)
class CellScore:
    """One evaluated episode.

    Attributes:
        task, track, index, repeat: Which held-out instance, and which repeat of the task it is.
        seed: Episode seed.
        status: Of the episode; ``"invalid"`` where infrastructure failed at every attempt,
            ``"agent_error"`` where the agent's own code raised.
        overall, agentic, task_score: In [0, 1], or ``None``.
        stages: Applicable stages.
        failure: One of the failure classes, or ``"invalid"``.
        turns, tokens: Spent; tokens are the policy's own.
        seconds: Wall time; never part of a score.
        cost: Money spent on a paid endpoint, in the endpoint's unit.
        attempts: How often it was run.
        trajectory: File name of the recorded trajectory inside the trajectory folder, or "".
        error: What ended the last attempt of an episode without a score, or "".
    """

    task: str
    track: str
    index: int
    repeat: int
    seed: int
    status: str
    overall: float | None
    agentic: float | None
    task_score: float | None
    stages: Mapping[str, float | None] = field(default_factory=dict)
    failure: str = "none"
    turns: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    attempts: int = 1
    trajectory: str = ""
    error: str = ""

    @property
    def valid(self) -> bool:
        """Whether the cell has a score."""
        return self.overall is not None

    @property
    def key(self) -> str:
        """Names the instance; cells of two evaluations pair by it."""
        return f"{self.task}#{self.index}"


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All cells of one agent on one suite or task.

    Attributes:
        agent: Name of the agent.
        checkpoint: Digest of its weights, or "" for a scripted agent.
        target: Name of the suite or id of the task.
        target_digest: Digest of the frozen instances.
        settings: What else the scores depend on: repeats, temperature, greedy, tier, backend.
        cells: In suite order.
        seconds: Wall time.
        usage: What the agent says that it spent in all, lost episodes included; empty for agents
            that keep no books.
    """

    agent: str
    target: str
    target_digest: str
    cells: tuple[CellScore, ...]
    checkpoint: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    usage: Mapping[str, Any] = field(default_factory=dict)

    # ------------------------------------------------------------------------------- aggregates

    def values(self, pick: Callable[[CellScore], float | None]) -> dict[str, list[float]]:
        """Track -> scores of its valid cells, in suite order."""
        groups: dict[str, list[float]] = {}
        for cell in self.cells:
            value = pick(cell) if cell.valid else None
            if value is not None:
                groups.setdefault(cell.track, []).append(value)
        return groups

    def mean(self, pick: Callable[[CellScore], float | None]) -> float | None:
        """Mean over tracks of the mean within each; ``None`` without a valid cell."""
        return track_mean(self.values(pick))

    def interval(self, pick: Callable[[CellScore], float | None], seed: int = 0) -> Interval | None:
        """The mean with its 95 % bootstrap interval."""
        return bootstrap_interval(self.values(pick), seed=seed)

    @property
    def overall(self) -> float | None:
        """Mean Overall in [0, 1]."""
        return self.mean(_pick_overall)

    @property
    def invalid(self) -> int:
        """Cells that have no score after all attempts."""
        return sum(not cell.valid for cell in self.cells)

    @property
    def failures(self) -> dict[str, int]:
        """Failure class -> number of cells."""
        return dict(sorted(Counter(cell.failure for cell in self.cells).items()))

    def stages(self) -> dict[str, float | None]:
        """Stage -> mean over tracks; ``None`` where no valid cell has the stage."""
        return {name: self.mean(_stage(name)) for name in STAGE_NAMES}

    def summary(self) -> dict[str, Any]:
        """The JSON object that ``bat-agent eval --json`` prints."""
        picks: dict[str, Callable[[CellScore], float | None]] = {
            "overall": _pick_overall,
            "agentic": _pick_agentic,
            "task": _pick_task,
        }
        picks |= {name: _stage(name) for name in STAGE_NAMES}
        intervals = {name: self.interval(pick) for name, pick in picks.items()}
        tracks = self.values(_pick_overall)
        return {
            "agent": self.agent,
            "target": self.target,
            "overall": self.mean(_pick_overall),
            "agentic": self.mean(_pick_agentic),
            "task": self.mean(_pick_task),
            "stages": self.stages(),
            "tracks": {name: track_mean({name: tracks[name]}) for name in sorted(tracks)},
            "ci95": {
                name: [value.low, value.high] if value else None
                for name, value in intervals.items()
            },
            "episodes": len(self.cells),
            "invalid": self.invalid,
            "seconds": round(self.seconds, 3),
            "tokens": sum(cell.tokens for cell in self.cells),
            "cost": self.usage.get("cost", sum(cell.cost for cell in self.cells)),
            **({"usage": dict(self.usage)} if self.usage else {}),
        }

    def difference(self, baseline: Evaluation, seed: int = 0) -> Interval | None:
        """Paired Overall difference ``self - baseline`` over instances.

        Raises:
            ConfigError: If the two do not cover exactly the same valid instances.
        """
        return paired_difference(self._by_instance(), baseline._by_instance(), seed=seed)

    def _by_instance(self) -> dict[str, dict[Any, float]]:
        sums: dict[str, dict[str, list[float]]] = {}
        for cell in self.cells:
            if cell.overall is not None:
                sums.setdefault(cell.track, {}).setdefault(cell.key, []).append(cell.overall)
        return {
            track: {key: sum(values) / len(values) for key, values in cells.items()}
            for track, cells in sums.items()
        }

    # --------------------------------------------------------------------------------- firewall

    @property
    def pairing(self) -> str:
        """Digest of the cells and settings: equal where two evaluations may be compared."""
        return digest_of(
            {
                "target": self.target,
                "digest": self.target_digest,
                "cells": [[c.task, c.index, c.repeat, c.seed] for c in self.cells],
                "settings": dict(self.settings),
            }
        )

    def scores(self) -> ControllerScores:
        """What crosses to the curriculum: aggregates, and nothing of single cells.

        Raises:
            ConfigError: If a cell has no score; it must be run again first.
        """
        overall, agentic, task = (self.mean(p) for p in (_pick_overall, _pick_agentic, _pick_task))
        if self.invalid or overall is None or agentic is None or task is None:
            raise ConfigError(
                f"Expected a score for every cell of {self.target}, came {self.invalid} without "
                "one. A null cell cannot enter the curriculum: evaluate again."
            )
        tracks = self.values(_pick_overall)
        by_stage = {name: self.values(_stage(name)) for name in STAGE_NAMES}
        submitted = Counter(c.track for c in self.cells if c.status == "submitted")
        return ControllerScores(
            overall=overall,
            agentic=agentic,
            task=task,
            stages={s: v for s, v in self.stages().items() if v is not None},
            tracks={t: sum(v) / len(v) for t, v in tracks.items()},
            errors={t: stdev(v) / math.sqrt(len(v)) for t, v in tracks.items() if len(v) > 1},
            track_stages={
                t: {s: sum(by[t]) / len(by[t]) for s, by in by_stage.items() if by.get(t)}
                for t in tracks
            },
            episodes={t: len(v) for t, v in tracks.items()},
            completed={t: submitted[t] for t in tracks},
            failures={k: v for k, v in self.failures.items() if k in FAILURE_CLASSES},
            pairing=self.pairing,
        )

    # ------------------------------------------------------------------------------------- disk

    def to_json(self) -> dict[str, Any]:
        """Everything, for the file on disk."""
        return {
            "schema_version": SCHEMA_VERSION,
            "agent": self.agent,
            "checkpoint": self.checkpoint,
            "target": self.target,
            "target_digest": self.target_digest,
            "settings": dict(self.settings),
            "seconds": self.seconds,
            "usage": dict(self.usage),
            "summary": self.summary(),
            "failures": self.failures,
            "pairing": self.pairing,
            "cells": [asdict(cell) for cell in self.cells],
        }

    def save(self, path: Path) -> None:
        """Write the file, all or nothing."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Evaluation:
        """Read what :meth:`save` wrote.

        Raises:
            ConfigError: If the file is missing or damaged.
        """
        value = read_json(path, schema_version=SCHEMA_VERSION)
        try:
            evaluation = cls(
                agent=value["agent"],
                checkpoint=value["checkpoint"],
                target=value["target"],
                target_digest=value["target_digest"],
                settings=value["settings"],
                seconds=value["seconds"],
                cells=tuple(CellScore(**cell) for cell in value["cells"]),
                usage=value.get("usage", {}),
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(f"Not an evaluation: {path} ({error!r}). Delete it.") from None
        if evaluation.pairing != value.get("pairing"):
            raise ConfigError(f"The cells in {path} were changed after it was written. Delete it.")
        return evaluation


def classify(status: str, result: Mapping[str, Any] | None) -> str:
    """The failure class of one episode: the first thing that went wrong, in workflow order."""
    if result is None or result.get("score") is None:
        return "invalid"
    if status == "disqualified":
        return "disqualified"
    if result["score"] == 0.0:
        return "nothing_done"
    if status == "truncated":
        return "out_of_budget"
    stages = result.get("stages") or {}
    for name in STAGE_NAMES:
        value = stages.get(name)
        if value is not None and value < WEAK:
            return f"weak_{name}"
    task = result.get("task")
    return "weak_task" if task is not None and task < WEAK else "none"


def _pick_overall(cell: CellScore) -> float | None:
    return cell.overall


def _pick_agentic(cell: CellScore) -> float | None:
    return cell.agentic


def _pick_task(cell: CellScore) -> float | None:
    return cell.task_score


def _stage(name: str) -> Callable[[CellScore], float | None]:
    return lambda cell: cell.stages.get(name)
