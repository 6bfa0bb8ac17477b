"""`bat-agent`: evaluate, train, resume, report. A bad request is one line on stderr and exit 2."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from bat_agent import __version__, leaving
from bat_agent.eval_cli import eval_command
from bat_env import command_line
from bat_env.plain import counted, visible
from bat_env.terminal import Terminal

app = typer.Typer(
    name="bat-agent",
    help="Agents on medical-imaging work: evaluate, train, report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Backend = Annotated[str, typer.Option(help="Sandbox: auto, docker, local or process.")]
LogTo = Annotated[
    str, typer.Option(help="tensorboard, trackio, or both with a comma; metrics.jsonl always.")
]
Suite = Annotated[str, typer.Option(help="lite: a task of each track; seg: the kidney task.")]
Run = Annotated[Path, typer.Argument(help="Folder of a run.", metavar="RUN")]


def _version(value: bool) -> None:
    if value:
        print(f"bat-agent {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
) -> None:
    """Agents on medical-imaging work: evaluate, train, report."""


app.command("eval")(eval_command)


def _tell_unscored(evaluation: Any) -> None:
    """Say which episodes have no score; what the agent broke, or all of them, is exit status 1."""
    unscored = [cell for cell in evaluation.cells if not cell.valid]
    if not unscored:
        return
    broken = [cell for cell in unscored if cell.status == "agent_error"]
    first = (broken or unscored)[0]
    reason = " ".join(first.error.split())
    share = f"{len(unscored)} of {len(evaluation.cells)} episodes have no score"
    if broken:
        where = f"instance {first.index} of {first.task}"
        message = f"agent {evaluation.agent} raised in {where}: {reason}; {share}; see --debug"
    else:
        message = f"{share}; the first: {reason or 'the grader gave none'}"
    print(f"bat-agent: {visible(message)}", file=sys.stderr)
    if broken or len(unscored) == len(evaluation.cells):
        raise typer.Exit(1)


def _print_scores(evaluation: Any, summary: dict[str, Any]) -> None:
    from bat_agent.leaderboard import LEADERBOARD_WIDTH, leaderboard

    console = Terminal()
    told = f"{counted(summary['episodes'], 'episode')}, {summary['invalid']} invalid, "
    told += f"{summary['seconds']:.0f} s"
    if summary["overall"] is None:  # a table of dashes tells nothing
        console.print(told)
        return
    table = Table(title=f"{evaluation.agent} on {evaluation.target}", title_justify="left")
    for column in ("score", "mean", "95 %"):
        table.add_column(column, justify="left" if column == "score" else "right")
    rows = {name: summary[name] for name in ("overall", "agentic", "task")} | summary["stages"]
    for name, mean in rows.items():
        bounds = summary["ci95"][name]
        table.add_row(
            name,
            "-" if mean is None else f"{mean:.3f}",
            "" if bounds is None else f"{bounds[0]:.3f} .. {bounds[1]:.3f}",
        )
    console.print(table)
    # As wide as it must be: a row that is cut in two is no row.
    wide = Terminal(width=max(console.width, LEADERBOARD_WIDTH))
    wide.print(leaderboard([summary], f"Leaderboard row, {evaluation.target} (scores x 100)"))
    console.print(told)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the run.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    rounds: Annotated[
        int | None, typer.Option(help="BiCuRL rounds; default: what fits in 20 minutes.")
    ] = None,
    backend: Backend = "auto",
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """Train an agent, score it before and after, write the report. Safe to interrupt and rerun."""
    from bat_agent.demo import demo_config

    _train(out, demo_config(seed=seed, rounds=rounds, backend=backend), quiet)


@app.command()
def train(
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    preset: Annotated[str, typer.Option(help="Recipe: a name or a JSON file.")] = "tiny-cpu",
    suite: Suite = "lite",
    rounds: Annotated[int, typer.Option(help="BiCuRL rounds.")] = 10,
    seed: Annotated[int, typer.Option(help="Of everything.")] = 0,
    backend: Backend = "auto",
    log_to: LogTo = "",
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """Run BiCuRL with a preset: bank, supervised start, rounds, final evaluation, report."""
    from bat_agent.scopes import run_config

    title = f"BiCuRL, {preset}, {suite}, {rounds} rounds"
    config = run_config(
        suite, title=title, seed=seed, rounds=rounds, backend=backend, preset=preset
    )
    _train(out, _logging(config, log_to), quiet)


@app.command()
def resume(
    run: Run,
    rounds: Annotated[int | None, typer.Option(help="Go on to so many rounds in all.")] = None,
    log_to: LogTo = "",
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """Continue a run where it stopped, or by further rounds."""
    from bat_agent.config import load_config

    config = load_config(run)
    if rounds is not None:
        config = config.model_copy(update={"rounds": max(rounds, config.rounds)})
    _train(run, _logging(config, log_to), quiet)


def _logging(config: Any, log_to: str) -> Any:
    """The settings with trackers; those that there were, if none are named."""
    from bat_agent.run_log import check_trackers

    names = [name for name in (part.strip() for part in log_to.split(",")) if name]
    return config.model_copy(update={"log_to": check_trackers(names)}) if names else config


@app.command()
def status(
    run: Run,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    live: Annotated[bool, typer.Option("--watch", help="Until the run is finished.")] = False,
    every_s: Annotated[
        float, typer.Option(help="Seconds between two looks of --watch.", min=0.1)
    ] = 2.0,
) -> None:
    """Show where a run stands."""
    from bat_agent.status import no_rounds, status_table, watch
    from bat_agent.status import status as read_status

    if live and not as_json:
        watch(run, every_s, Terminal())
        return
    value = read_status(run)
    if as_json:
        print(json.dumps(value))
    else:
        Terminal().print(status_table(value) if value["history"] else no_rounds(value))


@app.command()
def report(
    run: Run,
    out: Annotated[Path | None, typer.Option(help="File; report.html in the run.")] = None,
) -> None:
    """Write the report of a finished run: one self-contained HTML file."""
    from bat_agent.files import check_file
    from bat_agent.report import write_report

    if out is not None:
        check_file(out, "the file of --out")
    print(write_report(run, out))


@app.command()
def verify(
    run: Run,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Score the episodes of a folder's evaluations again from stored evidence, and compare.

    Exit status 1: an episode scores something else, or its evidence is not there.
    """
    from bat_agent.verify import OUTCOMES
    from bat_agent.verify import verify as verified
    from bat_env.plain import visible

    rows = verified(run)
    counts = {name: sum(row.outcome == name for row in rows) for name in OUTCOMES}
    if as_json:
        print(json.dumps({**counts, "cells": [row.to_json() for row in rows]}))
    else:
        for row in rows:
            if row.why:
                where = f"{row.evaluation}: instance {row.index} of {row.task}"
                print(visible(f"{where}: {row.outcome}: {row.why}"))
        print(", ".join(f"{number} {name}" for name, number in counts.items()))
    if counts["different"] or counts["unknown"]:
        raise typer.Exit(1)


@app.command()
def export(
    run: Run,
    out: Annotated[Path, typer.Option(help="Folder to make.")],
    name: Annotated[str | None, typer.Option(help="Of the agent; the run folder's.")] = None,
) -> None:
    """Package the best policy of a run: weights, stage skills, settings, model card."""
    from bat_agent.export import export_agent
    from bat_env.extras import require

    require("train", "Exporting")
    print(export_agent(run, out, name=name))


@app.command()
def preset(
    name: Annotated[str, typer.Argument(help="A name or a JSON file.", metavar="PRESET")],
    accelerate: Annotated[
        bool, typer.Option("--accelerate", help="Its settings for accelerate, as YAML, instead.")
    ] = False,
) -> None:
    """Print a preset as JSON: to read, or to change and give to `train --preset`."""
    from bat_agent.launch import accelerate_yaml
    from bat_agent.presets import load_preset

    recipe = load_preset(name)
    print((accelerate_yaml(recipe) if accelerate else recipe.model_dump_json(indent=1)).rstrip())


@app.command()
def learn(
    out: Annotated[Path, typer.Option(help="JSON file.")] = Path("docs/results/learn.json"),
    runs: Annotated[Path, typer.Option(help="Folder of the runs.")] = Path("runs/learn"),
    arms: Annotated[
        str, typer.Option(help="headline, mixes, all, or names with commas between them.")
    ] = "headline",
    seeds: Annotated[int, typer.Option(help="Number of seeds.")] = 3,
    suite: Suite = "lite",
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of every arm that trains; default: the suite's.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Updates of a round; default: the suite's.")
    ] = None,
    preset: Annotated[str, typer.Option(help="Recipe: a name or a JSON file.")] = "tiny-cpu",
    backend: Backend = "auto",
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
) -> None:
    """Compare ways of training at equal rollout budgets, over seeds. Safe to rerun."""
    from bat_agent.study import Study, parse_arms, study_config

    config = study_config(suite, rounds=rounds, steps=steps, backend=backend, preset=preset)
    command = shlex.join(["bat-agent", *sys.argv[1:]])
    study = Study(
        runs, out, config, arms=parse_arms(arms), seeds=seeds, command=command, quiet=quiet
    )
    document = study.run(None if quiet else lambda text: print(f"== {text}", file=sys.stderr))
    _print_study(document, Terminal())
    print(out)


def _print_study(document: dict[str, Any], console: Terminal) -> None:
    from bat_agent.study import ARMS

    table = Table(title="Held-out Overall, 95 % intervals over seeds", title_justify="left")
    for column in ("arm", "seeds", "rollouts", "sampled", "greedy"):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for name, row in document["arms"].items():
        table.add_row(
            ARMS[name].label,
            str(row["seeds"]),
            str(row["rollouts"]),
            *(_interval_text(row[which]["overall"]) for which in ("sampled", "greedy")),
        )
    console.print(table)
    for pair in document["differences"]:
        console.print(
            f"{pair['candidate']} - {pair['baseline']}, {pair['which']}: "
            f"{_interval_text(pair['all'], '+.3f')}",
            highlight=False,
            markup=False,
        )


def _interval_text(value: Any, form: str = ".3f") -> str:
    if value is None:
        return "-"
    return f"{value['mean']:{form}} [{value['low']:{form}}, {value['high']:{form}}]"


def _train(out: Path, config: Any, quiet: bool) -> None:
    from bat_agent.pipeline import LABELS, Pipeline

    command = shlex.join(["bat-agent", *sys.argv[1:]])
    results = Pipeline(out, config, command=command, quiet=quiet).run()
    table = Table(title="Held-out scores (95 % intervals over instances)", title_justify="left")
    for column in ("agent", "Overall", "Agentic", "Task", "Overall, greedy"):
        table.add_column(column, justify="left" if column == "agent" else "right")
    for key, label in LABELS.items():
        evaluation = results.evaluations[key, "sampled"]
        greedy = results.evaluations.get((key, "greedy"))
        summary = evaluation.summary()
        table.add_row(
            Text(label, style="bold" if key == "bat" else ""),
            *(_with_bounds(summary, name) for name in ("overall", "agentic", "task")),
            "" if greedy is None else _with_bounds(greedy.summary(), "overall"),
        )
    console = Terminal()
    if not console.is_terminal:
        console = Terminal(width=110)  # a log file has no width to fit into
    console.print(table)
    for which, interval in results.differences.items():
        if interval is not None:
            console.print(
                f"BaT - SFT, {which}: {interval.mean:+.3f} "
                f"[{interval.low:+.3f}, {interval.high:+.3f}] over {interval.n} instances",
                highlight=False,
                markup=False,
            )
    print(results.report.resolve())


def _with_bounds(summary: dict[str, Any], name: str) -> str:
    mean, bounds = summary[name], summary["ci95"][name]
    if mean is None or bounds is None:
        return "-"
    return f"{mean:.3f} ({bounds[0]:.3f}-{bounds[1]:.3f})"


def main() -> None:
    """Entry point: bad requests end in one line and exit 2, an interrupt in 130 (SIGTERM: 143)."""
    termination = leaving.Termination()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    # Nothing here is downloaded by a hub client; a look-up would only wait for a network.
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.captureWarnings(True)
    command_line.run(
        app,
        "bat-agent",
        interrupted="interrupted; the same command continues.",
        status=lambda: termination.status,
    )


if __name__ == "__main__":
    main()
