"""Renders a run as one self-contained HTML page.

No request leaves the page: styles, drawings and pictures are inside, and its content security
policy forbids everything else. Text from trajectories is hostile by assumption; the template
escapes all of it, and the policy would stop what got through.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from bat_agent.curriculum.scores import STAGE_NAMES
from bat_agent.files import write_text
from bat_agent.report.charts import STAGE_TITLES, learning_curve, stage_bars, whisker
from bat_agent.report.collect import RunData, collect
from bat_agent.stats import Interval
from bat_env.bank.heatmap import ORDER, shade
from bat_env.stages import OUTCOMES

REPORT_NAME: Final = "report.html"


def write_report(run: Path, out: Path | None = None) -> Path:
    """Write the report of a finished run.

    Episodes and pictures that are missing or damaged are left out, and named in the page and on
    stderr.

    Args:
        run: Folder of the run.
        out: File to write; ``report.html`` in the run if ``None``.

    Returns:
        The file.

    Raises:
        ConfigError: If the run is not finished or damaged.
    """
    target = out if out is not None else run / REPORT_NAME
    data = collect(run)
    write_text(target, render(data))
    for line in data.missing:
        print(f"bat-agent: left out of the report: {line}", file=sys.stderr)
    return target


def render(data: RunData) -> str:
    """The page of a run, as text."""
    environment = Environment(
        loader=PackageLoader("bat_agent.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"score": _score, "signed": _signed, "interval": _interval}
    loader = environment.loader
    assert loader is not None
    style = loader.get_source(environment, "report.css")[0]
    script = loader.get_source(environment, "report.js")[0]
    # The policy names the one script by its digest, so that no other can ever run.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.j2").render(
        data=data,
        style=Markup(style),
        script=Markup(script),
        script_digest=digest,
        curve=learning_curve(data.curve),
        bars=stage_bars(data.stages, STAGE_NAMES),
        rows=[_row(row) for row in data.agents],
        headline=_headline(data),
        stage_names=STAGE_NAMES,
        stage_titles=STAGE_TITLES,
        has_greedy=any(row.greedy is not None for row in data.agents),
        heat=_heat(data.bank or {}),
        outcomes=OUTCOMES,
        foci=[focus.name for focus in ORDER],
    )


def _heat(grid: Mapping[str, Mapping[str, Mapping[str, int]]]) -> list[dict[str, Any]]:
    """Rows of the bank's heat map: a track, and count and shade (0 to 4) of its 18 cells."""
    most = max((n for t in grid.values() for f in t.values() for n in f.values()), default=0)
    return [
        {
            "track": track,
            "cells": [
                {"count": count, "shade": shade(count, most)}
                for focus in ORDER
                for outcome in OUTCOMES
                for count in [foci[focus.name][outcome]]
            ],
        }
        for track, foci in sorted(grid.items())
    ]


def _row(row: Any) -> dict[str, Any]:
    overall = row.interval("overall")
    title = f"{row.label} Overall {_score(row.sampled.overall)} {_interval(overall)}"
    greedy = row.greedy.interval(lambda c: c.overall) if row.greedy else None
    return {
        "key": row.key,
        "label": row.label,
        "overall": overall,
        "agentic": row.interval("agentic"),
        "task": row.interval("task"),
        "greedy": greedy,
        "episodes": len(row.sampled.cells),
        "invalid": row.sampled.invalid,
        "failures": row.sampled.failures,
        "whisker": whisker(overall.mean, overall.low, overall.high, row.key, title)
        if overall
        else "",
    }


def _headline(data: RunData) -> dict[str, Any]:
    by_key = {row.key: row for row in data.agents}
    sft, bat = by_key.get("sft"), by_key.get("bat")
    before = sft.sampled.overall if sft else None
    after = bat.sampled.overall if bat else None
    return {
        "before": before,
        "after": after,
        "ratio": after / before if before and after is not None else None,
        "difference": data.differences.get("sampled"),
        "greedy": data.differences.get("greedy"),
        "instances": len(bat.sampled.cells) if bat else 0,
        "promoted": sum(bool(r["promoted"]) for r in data.rounds),
        "rounds": len(data.rounds),
    }


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.3f}".replace("-", "−")


def _interval(value: Interval | None) -> str:
    return "" if value is None else f"[{value.low:.3f}, {value.high:.3f}]".replace("-", "−")
