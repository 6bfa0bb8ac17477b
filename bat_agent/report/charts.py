"""Charts as inline SVG: no plotting library, no script, crisp on paper.

Every text that enters a chart is escaped; colours are CSS variables of the page, so that the same
drawing works on light and dark screens and in print.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from markupsafe import Markup, escape

STAGE_TITLES: Final[Mapping[str, str]] = {
    "S1": "Plan",
    "S2": "Setup",
    "S3": "Validate",
    "S4": "Infer",
    "S5": "Submit",
}


@dataclass(frozen=True, slots=True)
class Series:
    """One line or row of a chart.

    Attributes:
        name: Label.
        colour: CSS class suffix: ``base``, ``sft``, ``bat``, ``naive``, ``oracle``.
        values: Scores in [0, 1]; ``None`` where missing.
    """

    name: str
    colour: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A controller evaluation on the learning curve: after ``step`` updates, with its interval."""

    step: int
    mean: float
    low: float
    high: float
    label: str
    promoted: bool = True


@dataclass(frozen=True, slots=True)
class Curve:
    """The learning curve.

    Attributes:
        rewards: Mean training reward of each update, in order.
        points: Controller evaluations.
        rounds: First update of each round, with the round's label.
        references: Name -> Overall of scripted agents, drawn as lines.
    """

    rewards: Sequence[float]
    points: Sequence[CurvePoint]
    rounds: Sequence[tuple[int, str]] = ()
    references: Mapping[str, float] = field(default_factory=dict)


def whisker(mean: float | None, low: float, high: float, colour: str, title: str) -> Markup:
    """A dot with its interval on a 0-1 axis, for a table cell."""
    if mean is None:
        return Markup("")
    width, height = 180, 22
    x = [_clip(v) * (width - 12) + 6 for v in (mean, low, high)]
    ticks = "".join(
        f'<line x1="{6 + t * (width - 12):.1f}" x2="{6 + t * (width - 12):.1f}" y1="3" y2="19" '
        'class="grid"/>'
        for t in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    return Markup(
        f'<svg class="whisker" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">{ticks}'
        f'<line x1="{x[1]:.1f}" x2="{x[2]:.1f}" y1="11" y2="11" class="bar c-{colour}"/>'
        f'<circle cx="{x[0]:.1f}" cy="11" r="5" class="dot c-{colour}"/></svg>'
    )


def learning_curve(curve: Curve) -> Markup:
    """Training reward per update, controller Overall at the round boundaries, reference lines."""
    width, height = 860, 340
    left, right, top, bottom = 46, 110, 18, 40
    last = max([len(curve.rewards), *(p.step for p in curve.points), 1])

    def x(step: float) -> float:
        return left + step / last * (width - left - right)

    def y(value: float) -> float:
        return top + (1.0 - _clip(value)) * (height - top - bottom)

    parts = [
        f'<svg class="chart" id="learning-curve" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="Learning curve: training reward and held-out controller score">'
    ]
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
            f'class="grid"/><text x="{left - 8}" y="{y(tick) + 4:.1f}" class="tick end">'
            f"{tick:.1f}</text>"
        )
    for step in _ticks(last):
        parts.append(
            f'<text x="{x(step):.1f}" y="{height - bottom + 18}" class="tick mid">{step}</text>'
        )
    parts.append(
        f'<text x="{(left + width - right) / 2:.0f}" y="{height - 4}" class="tick mid">'
        "policy updates</text>"
    )
    for start, label in curve.rounds:
        parts.append(
            f'<line x1="{x(start):.1f}" x2="{x(start):.1f}" y1="{top}" y2="{height - bottom}" '
            f'class="round"/><text x="{x(start) + 5:.1f}" y="{top + 10}" class="tick">'
            f"{escape(label)}</text>"
        )
    ends = _spread([(name, y(value)) for name, value in sorted(curve.references.items())])
    for name, value in sorted(curve.references.items()):
        parts.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            f'class="reference s-{escape(name)}"/><text x="{width - right + 6}" '
            f'y="{ends[name] + 4:.1f}" class="tick">{escape(name)} {value:.2f}</text>'
        )
    if curve.rewards:
        raw = " ".join(f"{x(i + 1):.1f},{y(v):.1f}" for i, v in enumerate(curve.rewards))
        parts.append(f'<polyline points="{raw}" class="raw"/>')
        smooth = _smooth(curve.rewards)
        line = " ".join(f"{x(i + 1):.1f},{y(v):.1f}" for i, v in enumerate(smooth))
        parts.append(f'<polyline points="{line}" class="smooth"/>')
    if len(curve.points) > 1:
        kept = [p for p in curve.points if p.promoted]
        line = " ".join(f"{x(p.step):.1f},{y(p.mean):.1f}" for p in kept)
        parts.append(f'<polyline points="{line}" class="overall"/>')
    for point in curve.points:
        cx, title = x(point.step), escape(f"{point.label}: {point.mean:.3f}")
        parts.append(
            f'<g class="point"><title>{title}</title>'
            f'<line x1="{cx:.1f}" x2="{cx:.1f}" y1="{y(point.low):.1f}" y2="{y(point.high):.1f}" '
            f'class="bar c-bat"/><circle cx="{cx:.1f}" cy="{y(point.mean):.1f}" r="6" '
            f'class="{"dot" if point.promoted else "hollow"} c-bat"/>'
            f'<text x="{cx:.1f}" y="{y(point.high) - 8:.1f}" class="value mid">'
            f"{point.mean:.2f}</text></g>"
        )
    return Markup("".join([*parts, "</svg>"]))


def stage_bars(series: Sequence[Series], stages: Sequence[str]) -> Markup:
    """Grouped bars: one group a stage, one bar an agent."""
    width, height = 860, 300
    left, top, bottom = 46, 14, 46
    group = (width - left - 10) / max(1, len(stages))
    bar = min(26.0, group * 0.8 / max(1, len(series)))

    def y(value: float) -> float:
        return top + (1.0 - _clip(value)) * (height - top - bottom)

    parts = [
        f'<svg class="chart" id="stage-bars" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="Mean score of each stage for each agent">'
    ]
    for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        parts.append(
            f'<line x1="{left}" x2="{width - 10}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
            f'class="grid"/><text x="{left - 8}" y="{y(tick) + 4:.1f}" class="tick end">'
            f"{tick:.1f}</text>"
        )
    for g, stage in enumerate(stages):
        start = left + g * group + (group - bar * len(series)) / 2
        for s, row in enumerate(series):
            value = row.values[g]
            if value is None:
                continue
            label = escape(f"{row.name} {stage}: {value:.3f}")
            top_of_bar = min(y(value), height - bottom - 1.0)
            parts.append(
                f'<g class="stage-bar"><title>{label}</title><rect x="{start + s * bar + 1:.1f}" '
                f'y="{top_of_bar:.1f}" width="{bar - 2:.1f}" '
                f'height="{height - bottom - top_of_bar:.1f}" rx="2" class="fill c-{row.colour}"/>'
                f'<text x="{start + (s + 0.5) * bar:.1f}" y="{top_of_bar - 3:.1f}" '
                f'class="tiny mid">{f"{value:.2f}".lstrip("0") or "0"}</text></g>'
            )
        parts.append(
            f'<text x="{left + (g + 0.5) * group:.1f}" y="{height - bottom + 20}" '
            f'class="name mid">{escape(stage)}</text><text x="{left + (g + 0.5) * group:.1f}" '
            f'y="{height - bottom + 36}" class="tick mid">'
            f"{escape(STAGE_TITLES.get(stage, ''))}</text>"
        )
    return Markup("".join([*parts, "</svg>"]))


def _clip(value: float) -> float:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else 0.0


def _smooth(values: Sequence[float], window: int = 5) -> list[float]:
    half = window // 2
    return [
        sum(values[max(0, i - half) : i + half + 1]) / len(values[max(0, i - half) : i + half + 1])
        for i in range(len(values))
    ]


def _ticks(last: int) -> list[int]:
    step = max(1, 10 ** int(math.log10(max(1, last))))
    while last / step < 4 and step > 1:
        step = max(1, step // 2)
    return list(range(0, last + 1, step))


def _spread(ends: list[tuple[str, float]], gap: float = 14.0) -> dict[str, float]:
    """Label positions that do not overlap, in the order of their lines."""
    placed: dict[str, float] = {}
    last = -math.inf
    for name, position in sorted(ends, key=lambda end: end[1]):
        last = max(position, last + gap)
        placed[name] = last
    return placed
