"""Reads a finished run from its folder: everything that the report shows is a file of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bat_agent.curriculum.scores import STAGE_NAMES
from bat_agent.evaluation import Evaluation
from bat_agent.files import read_json
from bat_agent.report.charts import Curve, CurvePoint, Series
from bat_agent.report.text import visible
from bat_agent.report.trajectories import TrajectoryView, data_uri, view_trajectory
from bat_agent.stats import Interval
from bat_env.bank import Bank
from bat_env.errors import BatError, ConfigError

RESULTS_SCHEMA: Final = 1
ROUND_SCHEMA: Final = 1
AGENT_KEYS: Final[tuple[str, ...]] = ("base", "sft", "bat", "naive", "oracle")


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One line of the scoreboard: an agent, sampled and (for a policy) greedy."""

    key: str
    label: str
    sampled: Evaluation
    greedy: Evaluation | None

    def interval(self, which: str) -> Interval | None:
        """``overall``, ``agentic`` or ``task`` of the sampled evaluation, with its interval."""
        picks = {"agentic": lambda c: c.agentic, "task": lambda c: c.task_score}
        return self.sampled.interval(picks.get(which, lambda c: c.overall))


@dataclass(frozen=True, slots=True)
class RunData:
    """All of a run that the page shows; ``missing``: what it lacks, a sentence each."""

    title: str
    agents: tuple[AgentRow, ...]
    differences: Mapping[str, Interval]
    curve: Curve
    stages: tuple[Series, ...]
    trajectories: tuple[TrajectoryView, ...]
    choice: str
    rounds: tuple[Mapping[str, Any], ...]
    provenance: tuple[tuple[str, str], ...]
    usage: Mapping[str, float] | None = None
    missing: tuple[str, ...] = ()
    bank: Mapping[str, Mapping[str, Mapping[str, int]]] | None = None


def collect(run: Path) -> RunData:
    """Read a run.

    Raises:
        ConfigError: If the folder holds no finished run, or a file with scores is damaged.
    """
    if not (run / "results.json").is_file():
        known = "is no run" if not (run / "config.json").is_file() else "is not finished"
        raise ConfigError(
            f"Expected a finished run with results.json in {run}; it {known}. "
            "Finish it with `bat-agent resume`, or start one with `bat-agent demo`."
        )
    results = read_json(run / "results.json", schema_version=RESULTS_SCHEMA)
    try:
        return _collect(run, results)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{run / 'results.json'} or a file that it names is damaged: {error!r}. Delete it "
            "and run `bat-agent resume` again."
        ) from error


def _collect(run: Path, results: Mapping[str, Any]) -> RunData:
    agents = tuple(
        AgentRow(
            key=_known_key(row["key"]),
            label=visible(row["label"], 80),
            sampled=Evaluation.load(_inside(run, row["sampled"])),
            greedy=Evaluation.load(_inside(run, row["greedy"])) if row.get("greedy") else None,
        )
        for row in results["agents"]
    )
    rounds = tuple(_rounds(run))
    missing: list[str] = []
    references = {
        row.label: row.sampled.overall
        for row in agents
        if row.key in ("naive", "oracle") and row.sampled.overall is not None
    }
    return RunData(
        title=visible(results["title"], 200),
        agents=agents,
        differences={
            name: Interval(d["mean"], d["low"], d["high"], d["n"])
            for name, d in results["differences"].items()
            if d is not None
        },
        curve=_curve(rounds, {k: float(v) for k, v in references.items()}),
        stages=tuple(
            Series(r.label, r.key, [r.sampled.stages()[s] for s in STAGE_NAMES]) for r in agents
        ),
        trajectories=tuple(
            view
            for item in results["trajectories"]
            if (view := _trajectory(run, item, missing)) is not None
        ),
        choice=visible(results.get("choice", ""), 600),
        rounds=rounds,
        provenance=tuple(
            (visible(k, 80), visible(v if isinstance(v, str) else json.dumps(v), 2000))
            for k, v in results["provenance"].items()
        ),
        usage=_usage(results.get("usage")),
        missing=tuple(missing),
        bank=_bank(run),
    )


def _bank(run: Path) -> Mapping[str, Mapping[str, Mapping[str, int]]] | None:
    """Track -> focus -> outcome -> states of the run's bank, as far as it is still there."""
    try:
        with Bank.open(run / "bank") as bank:
            return bank.status().grid
    except BatError:
        return None


def _trajectory(run: Path, item: Mapping[str, Any], missing: list[str]) -> TrajectoryView | None:
    """One episode with the pictures that are whole; what is not is added to ``missing``.

    Scores do not come from here, so the rest of the page is as true without.
    """
    images = {}
    for caption, relative in item["images"].items():
        path = _inside(run, relative)
        try:
            images[caption] = data_uri(path)
        except ConfigError as error:
            missing.append(_line(str(error)))
    file = _inside(run, item["file"])
    label, key = visible(item["label"], 120), _known_key(item["key"])
    try:
        return view_trajectory(file, label=label, colour=key, images=images)
    except BatError as error:
        missing.append(_line(f"The episode of {label} is not shown. {error}"))
        return None


def _usage(value: Mapping[str, Any] | None) -> Mapping[str, float] | None:
    """What the run cost; runs of an earlier version do not say."""
    if value is None:
        return None
    names = ("wall_s", "cpu_s", "peak_memory_mb", "disk_mb", "starts", "containers")
    return {name: float(value[name]) for name in names}


def _rounds(run: Path) -> list[dict[str, Any]]:
    found = []
    for folder in sorted((run / "rounds").glob("[0-9]*")):
        if not (folder / "record.json").is_file():
            continue
        record = read_json(folder / "record.json", schema_version=ROUND_SCHEMA)
        record["report"] = read_json(folder / "report.json", schema_version=1)
        found.append(record)
    return found


def _curve(rounds: tuple[Mapping[str, Any], ...], references: Mapping[str, float]) -> Curve:
    rewards: list[float] = []
    points: list[CurvePoint] = []
    starts: list[tuple[int, str]] = []
    for record in rounds:
        if not points:
            before = record["before"]
            points.append(
                CurvePoint(0, before["mean"], before["low"], before["high"], "start (SFT)")
            )
        starts.append((len(rewards), f"round {record['round']}: {record['target']}"))
        rewards += [float(r) for r in record["rewards"]]
        after = record["after"]
        label = f"round {record['round']} {'promoted' if record['promoted'] else 'held'}"
        points.append(
            CurvePoint(
                len(rewards),
                after["mean"],
                after["low"],
                after["high"],
                label,
                bool(record["promoted"]),
            )
        )
    return Curve(rewards, points, starts, references)


def _line(text: str) -> str:
    return " ".join(visible(text, 800).split())


def _known_key(value: object) -> str:
    # Keys become CSS class names: only known ones may.
    if value not in AGENT_KEYS:
        raise ConfigError(f"Expected one of {', '.join(AGENT_KEYS)} as agent key, came {value!r}.")
    return str(value)


def _inside(run: Path, relative: str) -> Path:
    path = (run / relative).resolve()
    if not path.is_relative_to(run.resolve()):
        raise ConfigError(f"Expected a path inside the run, came {relative!r}.")
    return path
