"""A recorded episode as steps for the page: code, observation, verdict changes, reward."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bat_agent.report.text import visible
from bat_env.errors import BatError, ConfigError
from bat_env.trajectory import read_trajectory

_PNG: Final = b"\x89PNG\r\n\x1a\n"
_STATES: Final = ("pass", "fail", "pending", "na", "null")


@dataclass(frozen=True, slots=True)
class VerdictView:
    """A rubric item: id, state, value, and whether this step changed it."""

    item: str
    state: str
    value: float


@dataclass(frozen=True, slots=True)
class StepView:
    """One agent step. All texts are plain and still to be escaped by the template.

    Attributes:
        number: 1-based.
        tool: Tool name, or "text" for an answer that was no tool call.
        language: Of the code.
        code: What the agent sent.
        title: Its first line that does something, for the folded step.
        observation: What it read.
        reward: Change of the score.
        score: Score after the step, or ``None``.
        error: Why the call was not valid, or "".
        changes: Items whose verdict this step changed.
    """

    number: int
    tool: str
    language: str
    code: str
    title: str
    observation: str
    reward: float
    score: float | None
    error: str
    changes: tuple[VerdictView, ...]


@dataclass(frozen=True, slots=True)
class TrajectoryView:
    """One episode.

    Attributes:
        label: Which agent.
        colour: CSS class suffix.
        brief: The reset observation.
        steps: In order.
        score, agentic, task: Final scores, or ``None``.
        stages: Final stage scores.
        status: How it ended.
        verdicts: All items at the end.
        images: ``(caption, data URI)`` of its pictures.
    """

    label: str
    colour: str
    brief: str
    steps: tuple[StepView, ...]
    score: float | None
    agentic: float | None
    task: float | None
    stages: Mapping[str, float | None]
    status: str
    verdicts: tuple[VerdictView, ...]
    images: tuple[tuple[str, str], ...]


def data_uri(path: Path) -> str:
    """A PNG file as a ``data:`` URI.

    Raises:
        ConfigError: If the file is missing or is no PNG.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"Expected a picture {path}, came: {error.strerror}.") from None
    if not data.startswith(_PNG):
        raise ConfigError(f"Expected a PNG in {path}, came something else.")
    return "data:image/png;base64," + base64.b64encode(data).decode("ascii")


def view_trajectory(
    path: Path, *, label: str, colour: str, images: Mapping[str, str] | None = None
) -> TrajectoryView:
    """Read one trajectory file for the page.

    Args:
        path: The file.
        label: Which agent played.
        colour: CSS class suffix of that agent.
        images: Caption -> data URI.

    Raises:
        BatError: If the file is no complete trajectory.
    """
    trajectory = read_trajectory(path)
    try:
        steps: list[StepView] = []
        before: dict[str, VerdictView] = {}
        for step in trajectory.steps:
            if step.get("source") == "agent":
                steps.append(_step(len(steps) + 1, step, before))
        result = trajectory.result or {}
        brief = trajectory.steps[0].get("message", "") if trajectory.steps else ""
        return TrajectoryView(
            label=label,
            colour=colour,
            brief=visible(brief),
            steps=tuple(steps),
            score=_number(result.get("score")),
            agentic=_number(result.get("agentic")),
            task=_number(result.get("task")),
            stages={str(k): _number(v) for k, v in (result.get("stages") or {}).items()},
            status=visible(trajectory.status, 80),
            verdicts=tuple(before.values()),
            images=tuple((visible(c, 200), uri) for c, uri in (images or {}).items()),
        )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise BatError(f"{path} is no complete trajectory of this project: {error!r}.") from None


def _step(number: int, step: Mapping[str, Any], before: dict[str, VerdictView]) -> StepView:
    extra = step.get("extra", {})
    calls = step.get("tool_calls") or []
    tool, language, code = "text", "", str(step.get("message", ""))
    if calls:
        tool = str(calls[0]["function_name"])
        arguments = calls[0].get("arguments") or {}
        language = str(arguments.get("language", ""))
        code = str(arguments.get("code", "")) or ("" if not arguments else repr(arguments))
    results = (step.get("observation") or {}).get("results") or [{}]
    changes = []
    for item, verdict in (extra.get("items") or {}).items():
        now = VerdictView(visible(item, 80), _state(verdict[0]), _number(verdict[1]) or 0.0)
        if item not in before and now.state in ("pending", "na"):
            before[item] = now
        elif before.get(item) != now:
            changes.append(now)
            before[item] = now
    return StepView(
        number=number,
        tool=visible(tool, 80),
        language=visible(language, 20),
        code=visible(code),
        title=visible(_title(code) or tool, 160),
        observation=visible(results[0].get("content", "")),
        reward=_number(extra.get("reward")) or 0.0,
        score=_number(extra.get("score")),
        error=visible(extra.get("error") or "", 400),
        changes=tuple(changes),
    )


def _title(code: str) -> str:
    lines = [line.strip() for line in code[:4000].splitlines() if line.strip()]
    telling = [line for line in lines if not line.startswith(("import ", "from "))]
    return (telling or lines or [""])[0]


def _state(value: object) -> str:
    return str(value) if value in _STATES else "null"


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
