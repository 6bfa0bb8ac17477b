"""The study's figures as SVG files that stand alone: no script, no request, no plotting library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from bat_agent.study.arms import ARMS

WIDTH: Final = 760
COLOURS: Final = ("#4c6a92", "#c17d3a", "#5d8f5c", "#a1548a", "#b8860b", "#3f8f8f", "#8a6d5a")
_STYLE: Final = (
    "text{font:12px sans-serif;fill:#222}.grid{stroke:#ddd}.axis{stroke:#888}"
    ".whisker{stroke:#222;stroke-width:1.5}line.curve,polyline{fill:none;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.grid{stroke:#444}.whisker{stroke:#ddd}}"
)


def figures(document: Mapping[str, Any]) -> dict[str, str]:
    """Name -> SVG of every figure that the results have data for."""
    arms = document["arms"]
    drawn = {
        "overall": intervals(
            "Held-out Overall by arm, 95 % intervals",
            [(ARMS[n].label, arm["sampled"]["overall"]) for n, arm in arms.items()],
        ),
        "stages": stages(
            "Held-out stage scores by arm",
            {ARMS[name].label: arm["stages"] for name, arm in arms.items()},
        ),
    }
    curves = {ARMS[name].label: arm["curve"] for name, arm in arms.items() if arm["curve"]}
    if curves:
        drawn["rounds"] = lines("Controller Overall by round, mean over seeds", curves)
    return drawn


def intervals(title: str, rows: Sequence[tuple[str, Mapping[str, float] | None]]) -> str:
    """Horizontal bars with their intervals, on a scale from 0 to 1."""
    left, step, top = 230, 30, 40
    height = top + step * len(rows) + 30
    parts = _grid_x(left, top, height - 30)
    for number, (label, value) in enumerate(rows):
        y = top + step * number
        parts.append(f'<text x="{left - 8}" y="{y + 18}" text-anchor="end">{escape(label)}</text>')
        if value is None:
            continue
        x = [left + _clip(value[name]) * (WIDTH - left - 60) for name in ("mean", "low", "high")]
        parts.append(
            f'<rect x="{left}" y="{y + 5}" width="{x[0] - left:.1f}" height="{step - 12}" '
            f'fill="{_colour(number)}"/><line class="whisker" x1="{x[1]:.1f}" x2="{x[2]:.1f}" '
            f'y1="{y + 14}" y2="{y + 14}"/><text x="{x[2] + 6:.1f}" y="{y + 18}">'
            f"{value['mean']:.2f}</text>"
        )
    return _svg(title, height, parts)


def lines(title: str, series: Mapping[str, Sequence[float]]) -> str:
    """One line a name: scores in [0, 1] by round."""
    left, top, high = 50, 40, 260
    last = max(1, max(len(values) for values in series.values()) - 1)
    right = WIDTH - 230
    parts = []
    for tick in range(6):
        y = top + high * (1 - tick / 5)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{tick / 5:.1f}</text>'
        )
    for step in range(last + 1):
        x = left + step / last * (right - left)
        parts.append(f'<text x="{x:.1f}" y="{top + high + 20}" text-anchor="middle">{step}</text>')
    for number, (label, values) in enumerate(series.items()):
        colour = _colour(number)
        points = " ".join(
            f"{left + i / last * (right - left):.1f},{top + high * (1 - _clip(v)):.1f}"
            for i, v in enumerate(values)
        )
        y = top + 16 + 20 * number
        parts.append(
            f'<polyline points="{points}" stroke="{colour}"/>'
            f'<rect x="{right + 20}" y="{y - 10}" width="12" height="12" fill="{colour}"/>'
            f'<text x="{right + 38}" y="{y}">{escape(label)}</text>'
        )
    return _svg(title, top + high + 40, parts)


def stages(title: str, arms: Mapping[str, Mapping[str, float]]) -> str:
    """A table of shaded squares: one row an arm, one column a stage."""
    names = sorted({stage for scores in arms.values() for stage in scores})
    left, top, side, step = 230, 64, 84, 28
    parts = [
        f'<text x="{left + side * (i + 0.5):.0f}" y="{top - 8}" text-anchor="middle">{name}</text>'
        for i, name in enumerate(names)
    ]
    for number, (label, scores) in enumerate(arms.items()):
        y = top + step * number
        parts.append(f'<text x="{left - 8}" y="{y + 18}" text-anchor="end">{escape(label)}</text>')
        for i, name in enumerate(names):
            if name not in scores:
                continue
            value, x = _clip(scores[name]), left + side * i
            ink = "#fff" if value > 0.55 else "#222"
            parts.append(
                f'<rect x="{x + 1}" y="{y + 1}" width="{side - 2}" height="{step - 2}" '
                f'fill="rgb({235 - 170 * value:.0f},{238 - 130 * value:.0f},'
                f'{242 - 90 * value:.0f})"/><text x="{x + side / 2:.0f}" y="{y + 18}" '
                f'text-anchor="middle" style="fill:{ink}">{scores[name]:.2f}</text>'
            )
    return _svg(title, top + step * len(arms) + 16, parts)


def _grid_x(left: int, top: int, bottom: int) -> list[str]:
    return [
        f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>'
        f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick / 5:.1f}</text>'
        for tick in range(6)
        for x in [left + tick / 5 * (WIDTH - left - 60)]
    ]


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        f'role="img" aria-label="{escape(title)}"><style>{_STYLE}</style>'
        f'<text x="12" y="22" style="font-weight:bold">{escape(title)}</text>'
        + "".join(parts)
        + "</svg>\n"
    )


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value))
