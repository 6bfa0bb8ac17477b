"""What a run folder says about itself, for `bat-agent status`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from bat_agent.config import load_config
from bat_agent.files import read_json
from bat_agent.loop_state import STATE_SCHEMA, LoopState


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
    if value["finished"]:
        value["phase"] = "done"
    return value


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
    return table


def no_rounds(value: dict[str, Any]) -> Text:
    """The same while no round is over."""
    what = f"no round of {value['rounds']} is over yet"
    return Text(f"{value['run']} · {value['phase']} · {what}", overflow="fold")
