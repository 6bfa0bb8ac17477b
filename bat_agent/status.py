"""What a run folder says about itself, for `bat-agent status`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from bat_agent.config import load_config
from bat_agent.files import read_json
from bat_agent.loop_state import STATE_SCHEMA, LoopState
from bat_agent.run_log import run_metrics


def status(run: Path) -> dict[str, Any]:
    """Where a run stands, as plain values.

    Raises:
        ConfigError: If ``run`` is no run folder.
    """
    config = load_config(run)
    value: dict[str, Any] = {
        "schema_version": STATE_SCHEMA,
        "run": str(run),
        "seed": config.seed,
        "backend": config.backend,
        "preset": config.preset.name,
        "rounds": config.rounds,
        "phase": "bank" if not (run / "bank.json").is_file() else "sft",
        "finished": (run / "report.html").is_file() and (run / "results.json").is_file(),
        "history": [],
    }
    if (run / "state.json").is_file():
        state = LoopState.load(run / "state.json")
        over = state.round > config.rounds
        value["round"] = state.round
        value["phase"] = f"round {state.round}: {state.phase}" if not over else "final evaluation"
        value["best"] = {"path": state.best.path, "overall": state.best_overall}
    for record in sorted((run / "rounds").glob("[0-9]*/record.json")):
        row = read_json(record, schema_version=1)
        value["history"].append(
            {
                "round": row["round"],
                "target": row["target"],
                "before": row["before"]["mean"],
                "after": row["after"]["mean"],
                "promoted": row["promoted"],
                "reasons": row["reasons"],
                "fallback": row["fallback"],
            }
        )
    value["update"] = _last_update(run)
    if value["finished"]:
        value["phase"] = "done"
    return value


def _last_update(run: Path) -> dict[str, Any] | None:
    """The optimiser step that was made last, and where it belongs."""
    rows = [row for row in run_metrics(run) if row["phase"] != "gate"]
    if not rows:
        return None
    last = rows[-1]
    names = ("phase", "round", "update", "step", "loss", "reward", "kl", "wall_s")
    return {name: last[name] for name in names if name in last}


def status_table(value: dict[str, Any]) -> Table:
    """The same for people."""
    table = Table(title=f"{value['run']} · {value['phase']}", title_justify="left")
    for name in ("round", "target", "controller before", "after", "gate"):
        table.add_column(
            name, justify="right" if name in ("controller before", "after") else "left"
        )
    for row in value["history"]:
        verdict = "promoted" if row["promoted"] else "held: " + ", ".join(row["reasons"])
        table.add_row(
            str(row["round"]),
            row["target"],
            f"{row['before']:.3f}",
            f"{row['after']:.3f}",
            verdict + (" · fallback" if row["fallback"] else ""),
        )
    if value.get("update"):
        table.caption = update_line(value["update"])
        table.caption_justify = "left"
    return table


def update_line(update: dict[str, Any]) -> str:
    """The last optimiser step in one line."""
    where = f"round {update['round']}" if "round" in update else "supervised start"
    numbers = [f"{name} {update[name]:.3f}" for name in ("reward", "loss", "kl") if name in update]
    return f"last update: {where}, step {int(update['step'])}: " + ", ".join(numbers)


def no_rounds(value: dict[str, Any]) -> Text:
    """The same while no round is over."""
    what = f"no round of {value['rounds']} is over yet"
    parts = [value["run"], value["phase"], what]
    if value.get("update"):
        parts.append(update_line(value["update"]))
    return Text(" · ".join(parts), overflow="fold")


def watch(run: Path, every_s: float, console: Console) -> None:
    """Show the table until the run is finished, made anew every few seconds.

    Raises:
        ConfigError: If ``run`` is no run folder.
    """
    value = status(run)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(status_table(value) if value["history"] else no_rounds(value), refresh=True)
            if value["finished"]:
                return
            time.sleep(every_s)
            value = status(run)
