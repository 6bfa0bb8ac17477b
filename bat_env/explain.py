"""An episode explained from its evidence: every item, why it stands as it does, and what it saw."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bat_env.evidence import Rescored
from bat_env.recorded import differences
from bat_env.render import MARKS
from bat_env.rubric import compile_contract
from bat_env.rubric.base import Item, Verdict
from bat_env.rubric.claims import matching, own_paths
from bat_env.taxonomy import Fault, faults
from bat_env.trajectory import Trajectory

_SHOWN_FILES: Final = 3


def explained(trajectory: Trajectory, scored: Rescored) -> dict[str, Any]:
    """What :func:`explanation` shows, JSON-able.

    Args:
        trajectory: The file.
        scored: Its episode, scored again from the evidence.
    """
    episode, rubric = scored.episode, scored.rubric
    return {
        "path": str(trajectory.path),
        "task": episode.task,
        "tier": episode.tier,
        "focus": episode.focus.name,
        "outcome": episode.outcome,
        "status": episode.status,
        "end_reason": episode.end_reason,
        "score": scored.score,
        "agentic": rubric.agentic,
        "task_score": rubric.task,
        "rubric_digest": scored.digest,
        "same_rubric": scored.same_rubric,
        "differences": list(differences(trajectory, scored)),
        "stages": {
            stage.name: {"score": r.score, "eta": r.eta, "reward": r.reward}
            for stage, r in sorted(rubric.stages.items())
        },
        "items": [
            {
                "item": verdict.item,
                "state": verdict.state,
                "value": verdict.value,
                "message": verdict.message,
                "false_claim": verdict.false_claim,
                "evidence": _seen(scored, item),
            }
            for item, verdict in _pairs(scored)
        ],
        "faults": [
            {"kind": f.kind, "stage": f.stage, "source": f.source, "message": f.message}
            for f in _faults(scored)
        ],
        "rewards": list(scored.rewards),
    }


def _faults(scored: Rescored) -> tuple[Fault, ...]:
    return faults(scored.episode, scored.rubric, scored.context.spec)


def _pairs(scored: Rescored) -> Iterable[tuple[Item | None, Verdict]]:
    episode = scored.episode
    contract = compile_contract(
        scored.context.spec, tier=episode.tier, focus=episode.focus, outcome=episode.outcome
    )
    items = {item.id: item for item in contract.items}
    return [(items.get(verdict.item), verdict) for verdict in scored.rubric.verdicts]


def _seen(scored: Rescored, item: Item | None) -> list[dict[str, Any]]:
    """The files that an item rests on, who wrote them last, and what they hold."""
    episode, found = scored.episode, []
    own = own_paths(episode)
    for pattern in item.evidence if item is not None else ():
        paths = matching(list(episode.current), pattern) or [pattern]
        for path in paths:
            entry = episode.current.get(path)
            call = own.get(path)
            found.append(
                {
                    "file": path,
                    "sha256": entry.sha256 if entry is not None else None,
                    "cell": call,
                    "turn": None if call is None else episode.cells[call].turn,
                }
            )
    return found


def explanation(trajectory: Trajectory, scored: Rescored) -> RenderableType:
    """An episode for people: the head, every item with its evidence, the faults, the rewards."""
    facts = explained(trajectory, scored)
    head = Text()
    outcome = f" {facts['outcome']}" if facts["outcome"] else ""
    head.append(f"{facts['task']}  {facts['tier']}  {facts['focus']}{outcome}\n", "bold")
    head.append(f"{facts['status']} ({facts['end_reason']})  score {facts['score']:.4f}")
    for name in ("agentic", "task_score"):
        if facts[name] is not None:
            head.append(f"  {name.removesuffix('_score')} {facts[name]:.4f}")
    if not facts["same_rubric"]:
        head.append("\nplayed under another rubric than today's: the scores may differ", "yellow")
    for difference in facts["differences"]:
        head.append(f"\nnot what the file says: {difference}", "yellow")
    parts: list[RenderableType] = [head, _stages(facts), _items(facts)]
    if facts["faults"]:
        parts += [Text("\nWhat went wrong", "bold"), _fault_table(facts)]
    parts.append(_rewards(facts))
    return Group(*parts)


def _table(*columns: str) -> Table:
    """A table whose last column takes the room; the others, of short words, are never broken."""
    table = Table(expand=True, show_edge=False, pad_edge=False)
    for column in columns:
        last = column == columns[-1]
        table.add_column(column, overflow="fold", no_wrap=not last, ratio=1 if last else None)
    return table


def _number(value: float | None) -> str:
    return "null" if value is None else f"{value:.4f}"


def _stages(facts: dict[str, Any]) -> Table:
    table = _table("stage", "score", "evidence (eta)", "reward")
    for name, row in facts["stages"].items():
        table.add_row(name, _number(row["score"]), _number(row["eta"]), _number(row["reward"]))
    return table


def _items(facts: dict[str, Any]) -> Table:
    table = _table("item", "verdict", "why, and the evidence")
    for row in facts["items"]:
        label, colour = MARKS[row["state"]]
        value = f" {row['value']:.2f}" if row["state"] in ("pass", "fail") else ""
        claim = " (false claim)" if row["false_claim"] else ""
        table.add_row(
            Text(row["item"]),
            Text(label + value, style=colour),
            Text("\n").join(
                [
                    Text(row["message"] + claim),
                    *(Text(line, style="bright_black") for line in _lines(row["evidence"])),
                ]
            ),
        )
    return table


def _lines(evidence: list[dict[str, Any]]) -> list[str]:
    lines = []
    for seen in evidence[:_SHOWN_FILES]:
        if seen["sha256"] is None:
            lines.append(f"{seen['file']}: missing")
        elif seen["cell"] is None:
            lines.append(f"{seen['file']}: from the start, not this episode's work")
        else:
            lines.append(f"{seen['file']}: cell {seen['cell']}, {seen['sha256'][:12] or 'unread'}")
    if len(evidence) > _SHOWN_FILES:
        lines.append(f"and {len(evidence) - _SHOWN_FILES} more")
    return lines


def _fault_table(facts: dict[str, Any]) -> Table:
    table = _table("kind", "stage", "where", "what")
    alike: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for row in facts["faults"]:
        # What is said of one case is said of many: they differ in its name alone.
        name = row["source"].removeprefix("case ") if row["source"].startswith("case ") else ""
        said = row["message"].replace(name, "") if name else row["message"]
        alike.setdefault((row["kind"], row["stage"], name and "case", said), []).append(row)
    for rows in alike.values():
        first, more = rows[0], len(rows) - 1
        where = Text(first["source"] + (f" and {more} more" if more else ""))
        table.add_row(Text(first["kind"]), Text(first["stage"]), where, Text(first["message"]))
    return table


def _rewards(facts: dict[str, Any]) -> Text:
    parts = [f"{number}: {reward:+.4f}" for number, reward in enumerate(facts["rewards"]) if reward]
    return Text("\nRewards by step: " + (", ".join(parts) or "none but 0"))
