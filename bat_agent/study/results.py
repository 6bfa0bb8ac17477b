"""From rows to results: means and paired differences with intervals, one JSON file, tables.

A row carries the Overall of every held-out instance, so that all of it can be made again from the
rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bat_agent import __version__
from bat_agent.config import RunConfig
from bat_agent.evaluation import CellScore, Evaluation
from bat_agent.files import read_json, write_json, write_text
from bat_agent.loop_state import LoopState
from bat_agent.stats import Interval, seeds_interval
from bat_agent.study.arms import ARMS, Arm
from bat_agent.usage import Cost

ROW_SCHEMA: Final = 1
RESULTS_SCHEMA: Final = 2
COMPARED: Final = (
    ("sft", "base"),
    ("sft-good", "sft"),
    ("grpo-final", "sft"),
    ("bicurl", "sft"),
    ("bicurl", "sft-good"),
    ("bicurl", "grpo-final"),
    *(("bicurl", mix) for mix in ARMS if mix.startswith(("no-", "only-"))),
)
"""(candidate, baseline) of the paired differences."""

Row = Mapping[str, Any]


def row_of(
    arm: Arm,
    config: RunConfig,
    state: LoopState | None,
    scored: Mapping[str, Evaluation],
    frozen: str,
    folder: Path,
    cost: Cost,
) -> dict[str, Any]:
    """One row: what an arm came to with a seed, and what it took."""
    grpo = config.preset.grpo
    updates = grpo.steps_per_round * config.rounds
    first = scored["sampled"]
    return {
        "schema_version": ROW_SCHEMA,
        "arm": arm.name,
        "seed": config.seed,
        "settings": config.digest,
        "demonstrations": frozen,
        "weights": first.checkpoint,
        "suite": {"name": first.target, "digest": first.target_digest},
        "updates": updates,
        "rollouts": updates * grpo.groups_per_batch * grpo.rollouts_per_group,
        "promoted": list(state.promoted) if state is not None else [],
        "rounds": _rounds(folder),
        "scores": {which: _scores(evaluation) for which, evaluation in scored.items()},
        "cost": {"wall_s": round(cost.wall_s, 1), "cpu_s": round(cost.cpu_s, 1)},
    }


def _scores(evaluation: Evaluation) -> dict[str, Any]:
    summary = evaluation.summary()
    names = ("overall", "agentic", "task", "stages", "tracks")
    return {
        **{name: summary[name] for name in names},
        "instances": {
            name: {cell.key: _value(cell, name) for cell in evaluation.cells}
            for name in ("overall", "agentic", "task")
        },
    }


def _value(cell: CellScore, name: str) -> float | None:
    return {"overall": cell.overall, "agentic": cell.agentic, "task": cell.task_score}[name]


def _rounds(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for file in sorted((folder / "rounds").glob("[0-9]*/record.json")):
        record = read_json(file, schema_version=1)
        names = ("round", "target", "promoted", "fallback", "kl_to_best", "rewards")
        row = {name: record[name] for name in names}
        rows.append({**row, "before": record["before"]["mean"], "after": record["after"]["mean"]})
    return rows


# --------------------------------------------------------------------------------------- aggregates


def _grid(
    rows: Sequence[Row], which: str, name: str = "overall"
) -> dict[int, dict[str, dict[str, float]]]:
    """Seed -> track -> instance -> score."""
    grid: dict[int, dict[str, dict[str, float]]] = {}
    for row in rows:
        if which not in row["scores"]:
            continue
        tracks = grid.setdefault(row["seed"], {})
        for key, value in row["scores"][which]["instances"][name].items():
            if value is not None:
                tracks.setdefault(key.split("/")[0], {})[key] = value
    return grid


def arm_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Means over the seeds of one arm, with intervals; and what a seed took."""
    value: dict[str, Any] = {"seeds": len(rows)}
    for which in ("sampled", "greedy"):
        for name in ("overall", "agentic", "task"):
            interval = seeds_interval(_grid(rows, which, name))
            value.setdefault(which, {})[name] = _json(interval)
    stages = [row["scores"]["sampled"]["stages"] for row in rows]
    value["stages"] = {
        stage: sum(s[stage] for s in stages) / len(stages)
        for stage in stages[0]
        if all(s[stage] is not None for s in stages)
    }
    value["curve"] = _curve(rows)
    value["rollouts"] = rows[0]["rollouts"]
    value["audit"] = {name: sum(row["audit"][name] for row in rows) for name in rows[0]["audit"]}
    value["cost"] = {
        name: round(sum(row["cost"][name] for row in rows) / len(rows), 1)
        for name in ("wall_s", "cpu_s")
    }
    return value


def _curve(rows: Sequence[Row]) -> list[float]:
    """Controller Overall at the start and after each round's gate, mean over seeds."""
    curves = []
    for row in rows:
        if not row["rounds"]:
            return []
        points = [row["rounds"][0]["before"]]
        for one in row["rounds"]:
            points.append(one["after"] if one["promoted"] else points[-1])
        curves.append(points)
    return [sum(column) / len(column) for column in zip(*curves, strict=False)]


def comparison(candidate: Sequence[Row], baseline: Sequence[Row], which: str) -> dict[str, Any]:
    """Paired difference of Overall, over the seeds that both have, and seed by seed."""
    left, right = _grid(candidate, which), _grid(baseline, which)
    both = sorted(set(left) & set(right))
    apart = {
        seed: {
            track: {
                key: left[seed][track][key] - right[seed][track][key]
                for key in left[seed][track]
                if key in right[seed].get(track, {})
            }
            for track in left[seed]
        }
        for seed in both
    }
    per_seed = {seed: seeds_interval({seed: apart[seed]}) for seed in both}
    return {
        "all": _json(seeds_interval(apart)),
        "seeds": {str(seed): _json(interval) for seed, interval in per_seed.items()},
        "seeds_above_zero": sum(i is not None and i.above_zero for i in per_seed.values()),
    }


def _json(interval: Interval | None) -> dict[str, float | int] | None:
    return None if interval is None else interval.to_json()


def results_of(rows: Sequence[Row], *, command: str, config: RunConfig) -> dict[str, Any]:
    """The whole document."""
    arms = {name: [row for row in rows if row["arm"] == name] for name in ARMS}
    arms = {name: found for name, found in arms.items() if found}
    return {
        "schema_version": RESULTS_SCHEMA,
        "command": command,
        "version": __version__,
        "backend": config.backend,
        "preset": config.preset.name,
        "rounds": config.rounds,
        "steps_per_round": config.preset.grpo.steps_per_round,
        "suite": config.final.suite,
        "temperature": config.preset.rollout.temperature,
        "arms": {name: arm_summary(found) for name, found in arms.items()},
        "differences": [
            {"candidate": a, "baseline": b, "which": which, **comparison(arms[a], arms[b], which)}
            for a, b in COMPARED
            if a in arms and b in arms
            for which in ("sampled", "greedy")
            if "base" not in (a, b) or which == "sampled"
        ],
        "rows": list(rows),
    }


def write_results(
    out: Path, rows: Sequence[Row], *, command: str, config: RunConfig
) -> dict[str, Any]:
    """Write the JSON file, and tables and figures beside it."""
    from bat_agent.study.figures import figures

    document = results_of(rows, command=command, config=config)
    write_json(out, document)
    drawn = figures(document)
    for name, text in drawn.items():
        write_text(out.with_name(f"{out.stem}-{name}.svg"), text)
    write_text(out.with_suffix(".md"), tables(document, [f"{out.stem}-{n}.svg" for n in drawn]))
    return document


# ------------------------------------------------------------------------------------------- tables


def tables(document: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """The results as Markdown."""
    lines = [
        "# The learning study",
        "",
        f"`{document['command']}`: suite `{document['suite']}`, preset `{document['preset']}`, "
        f"{document['rounds']} rounds of {document['steps_per_round']} updates, sandbox "
        f"{document['backend']}. Scores are held-out means in [0, 1] with 95 % intervals over "
        "seeds and instances; a difference is paired by seed and instance.",
        "",
        "| arm | seeds | rollouts | Overall | Agentic | Task | Overall, greedy | False claims paid "
        "| CPU s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, arm in document["arms"].items():
        shown = [_text(arm["sampled"][part]) for part in ("overall", "agentic", "task")]
        shown.append(_text(arm["greedy"]["overall"]))
        checked = arm["audit"]
        shown.append(f"{checked['paid']} of {checked['false_claims']}")
        lines.append(
            f"| {ARMS[name].label} | {arm['seeds']} | {arm['rollouts']} | {' | '.join(shown)} | "
            f"{arm['cost']['cpu_s']:.0f} |"
        )
    lines += [
        "",
        "| difference of Overall | decoding | mean | seeds above 0 |",
        "|---|---|---|---|",
    ]
    for row in document["differences"]:
        pair = f"{ARMS[row['candidate']].label} - {ARMS[row['baseline']].label}"
        share = f"{row['seeds_above_zero']} of {len(row['seeds'])}"
        lines.append(f"| {pair} | {row['which']} | {_text(row['all'], sign=True)} | {share} |")
    lines += ["", *(f"![{picture}]({picture})" for picture in pictures), ""]
    return "\n".join(lines)


def _text(value: Mapping[str, float] | None, *, sign: bool = False) -> str:
    if value is None:
        return "-"
    form = "+.3f" if sign else ".3f"
    return f"{value['mean']:{form}} ({value['low']:{form}} .. {value['high']:{form}})"
