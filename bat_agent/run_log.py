"""What a run measured, in one place: ``metrics.jsonl``, and whoever else is to be told.

The rows are made from the logs of the run's phases, which a kill leaves exact, so that this file
never holds a step twice.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol

from bat_agent.files import read_json, write_json, write_text
from bat_agent.steps import read_steps
from bat_env.errors import ConfigError, unknown_name

METRICS: Final = "metrics.jsonl"
SENT: Final = "metrics.sent.json"
_EVERY_S: Final = 5.0

Row = dict[str, Any]


def run_metrics(run: Path) -> list[Row]:
    """All rows of a run, in order.

    Returns:
        One row an optimiser step (``phase`` ``"sft"`` or ``"round"``, ``update`` counted over all
        of them) and one a gate decision (``phase`` ``"gate"``: controller Overall before and
        after).
    """
    rows: list[Row] = []

    def add(phase: str, folder: Path, **facts: Any) -> None:
        for metrics in read_steps(folder):
            rows.append({"phase": phase, **facts, "update": len(rows) + 1 - gates, **metrics})

    gates = 0
    add("sft", run / "sft")
    for folder in sorted((run / "rounds").glob("[0-9]*")):
        number = int(folder.name)
        add("round", folder / "train", round=number)
        if (folder / "record.json").is_file():
            record = read_json(folder / "record.json", schema_version=1)
            rows.append(
                {
                    "phase": "gate",
                    "round": number,
                    "update": len(rows) - gates,
                    "target": record["target"],
                    "promoted": record["promoted"],
                    "overall_before": record["before"]["mean"],
                    "overall_after": record["after"]["mean"],
                    "kl_to_best": record["kl_to_best"],
                }
            )
            gates += 1
    return rows


class Writer(Protocol):
    """Takes the numbers of one update."""

    def __call__(self, values: Mapping[str, float], update: int) -> None:
        """Tell it."""


def _tensorboard(run: Path, first: int) -> tuple[Writer, Callable[[], None]]:
    from torch.utils.tensorboard import SummaryWriter

    made: Any = SummaryWriter(str(run / "tensorboard"), purge_step=first)

    def write(values: Mapping[str, float], update: int) -> None:
        for name, value in values.items():
            made.add_scalar(name, value, update)
        made.flush()

    return write, made.close


def _trackio(run: Path, first: int) -> tuple[Writer, Callable[[], None]]:
    made: Any = importlib.import_module("trackio")
    made.init(project="automed-bat", name=run.resolve().name, resume="allow")

    def write(values: Mapping[str, float], update: int) -> None:
        made.log(dict(values), step=update)

    return write, made.finish


TRACKERS: Final[Mapping[str, Callable[[Path, int], tuple[Writer, Callable[[], None]]]]] = (
    MappingProxyType({"tensorboard": _tensorboard, "trackio": _trackio})
)


def check_trackers(names: Sequence[str]) -> tuple[str, ...]:
    """The names, once each, if their packages are there.

    Raises:
        UnknownNameError: If a name is no tracker.
        ConfigError: If its package is not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise unknown_name("tracker", name, TRACKERS)
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"Expected the package {name} for --log-to {name}, it is not installed. "
                f"Run `pip install {name}`."
            )
    return tuple(dict.fromkeys(names))


class RunLog:
    """Keeps ``metrics.jsonl`` up to date and tells trackers what is new.

    Args:
        run: Folder of the run.
        trackers: Names of :data:`TRACKERS`.
    """

    def __init__(self, run: Path, trackers: Sequence[str] = ()) -> None:
        self._run, self._names = run, tuple(trackers)
        self._told: list[tuple[Writer, Callable[[], None]]] | None = None
        self._last = 0.0

    def beat(self) -> None:
        """Bring it up to date, if that was not done a moment ago."""
        if time.monotonic() - self._last >= _EVERY_S:
            self.sync()

    def sync(self) -> None:
        """Bring it up to date."""
        self._last = time.monotonic()
        rows = run_metrics(self._run)
        lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
        file = self._run / METRICS
        if not file.is_file() or file.read_text(encoding="utf-8") != lines:
            write_text(file, lines)
        if self._names:
            self._tell(rows)

    def _tell(self, rows: Sequence[Row]) -> None:
        file = self._run / SENT
        sent = read_json(file, schema_version=1)["rows"] if file.is_file() else 0
        fresh = rows[sent:]
        if not fresh:
            return
        if self._told is None:
            first = int(fresh[0]["update"])
            self._told = [TRACKERS[name](self._run, first) for name in self._names]
        for row in fresh:
            values = {
                f"{row['phase']}/{name}": float(value)
                for name, value in row.items()
                if isinstance(value, int | float) and name not in ("update", "step", "round")
            }
            for write, _ in self._told:
                write(values, int(row["update"]))
        write_json(file, {"schema_version": 1, "rows": len(rows)})

    def close(self) -> None:
        """Bring it up to date and let trackers finish."""
        self.sync()
        for _, finish in self._told or ():
            finish()
        self._told = None
