"""``bat-env judge``: ask one question of a judge, and compare judges with the rules."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bat_env.errors import BatError, ConfigError
from bat_env.plain import visible

if TYPE_CHECKING:
    from bat_env.judge import Judge
    from bat_env.judge.agreement import Read, Report

judge_app = typer.Typer(help="The optional LLM judge.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
BaseUrl = Annotated[str | None, typer.Option(help="For example http://127.0.0.1:8000/v1.")]
Model = Annotated[str | None, typer.Option(help="Name that the server knows.")]
KeyVariable = Annotated[
    str | None, typer.Option(help="Environment variable that holds the API key.")
]


@judge_app.command("agree")
def agree(
    trajectories: Annotated[
        list[Path], typer.Argument(help="Trajectory files, or folders of them.")
    ],
    base_url: BaseUrl = None,
    model: Model = None,
    api_key_env: KeyVariable = None,
    seed: Annotated[int, typer.Option(help="Of the intervals.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare a judge with the rules: Cohen's kappa of every item that both decide.

    Reads the answers that were recorded when the episodes were played; with --base-url and --model
    it asks that judge now, also about episodes that were played without one.

    Exit code 1: the judge that was asked had no answer at all about one of them.
    """
    from bat_env.judge.agreement import reports

    judge = _judge(base_url, model, api_key_env) if base_url or model else None
    reads: list[Read] = []
    skipped: list[dict[str, str]] = []
    unanswered: list[dict[str, str]] = []
    for path in _files(trajectories):
        try:
            read, why = _read(path, judge)
        except BatError as error:
            skipped.append({"path": str(path), "why": str(error)})
            continue
        reads.append(read)
        if why:
            unanswered.append({"path": str(path), "why": why})
    if not reads:
        first = skipped[0]["why"] if skipped else "there is no trajectory file"
        raise BatError(
            f"Nothing to compare: {first} Play with judge=..., or give --base-url and --model."
        )
    made = reports(reads, seed=seed)
    if as_json:
        found = {"judges": [report.to_json() for report in made]}
        told = {"skipped": skipped, "unanswered": unanswered}
        print(json.dumps({"schema_version": 1, **found, **told}))
    else:
        for report in made:
            _show(report)
        if skipped:
            why = visible(skipped[0]["why"])
            print(f"{len(skipped)} files were left out, the first because: {why}")
    if unanswered:
        why = visible(unanswered[0]["why"])
        about = f"{len(unanswered)} of {len(reads)} episodes"
        print(f"The judge had no answer about {about}, the first because: {why}", file=sys.stderr)
        raise typer.Exit(1)


@judge_app.command("check")
def check(
    base_url: BaseUrl = None,
    model: Model = None,
    api_key_env: KeyVariable = None,
    as_json: AsJson = False,
) -> None:
    """Ask a judge about two plans, a good one and an empty one, and show what it says."""
    from bat_env.judge.example import example_findings

    judge = _judge(base_url, model, api_key_env)
    found = example_findings(judge)
    ok = all(f.state != "null" for findings in found.values() for f in findings.values())
    if as_json:
        plans = {
            name: {item: f.to_json() for item, f in findings.items()}
            for name, findings in found.items()
        }
        print(json.dumps({"schema_version": 1, "ok": ok, "plans": plans}))
    else:
        for name, findings in found.items():
            print(f"{name}:")
            for item, finding in findings.items():
                where = f"  [{finding.file}:{finding.line}]" if finding.line else ""
                print(visible(f"  {item}  {finding.state}  {finding.message}{where}"))
    if not ok:
        raise typer.Exit(1)


def _judge(base_url: str | None, model: str | None, api_key_env: str | None) -> Judge:
    from bat_env.judge import make_judge

    if not base_url or not model:
        lacking = "--base-url" if not base_url else "--model"
        raise ConfigError(
            f"expected --base-url and --model, got no {lacking}; give both, for example "
            "--base-url http://127.0.0.1:8000/v1 --model my-model"
        )
    judge = make_judge({"base_url": base_url, "model": model, "api_key_env": api_key_env})
    assert judge is not None
    return judge


def _files(paths: list[Path]) -> Iterator[Path]:
    for path in paths:
        yield from sorted(path.rglob("*.json")) if path.is_dir() else [path]


def _read(path: Path, judge: Judge | None) -> tuple[Read, str]:
    """What one file says; asks the judge, if one is given.

    Returns:
        The two verdicts, and why a judge that was asked had no answer at all, or ``""``.
    """
    from bat_env.evidence import rescore
    from bat_env.judge import JudgedContract
    from bat_env.judge.agreement import Read
    from bat_env.rubric import compile_contract
    from bat_env.trajectory import read_trajectory

    scored = rescore(read_trajectory(path).evidence)
    episode, spec = scored.episode, scored.context.spec
    ruled = {
        v.item: v.state == "pass" for v in scored.rubric.verdicts if v.state in ("pass", "fail")
    }
    if not episode.worked or episode.status == "disqualified":
        raise BatError(f"{path}: nothing in this episode can be read.")
    if judge is None:
        recorded = episode.evidence.judge
        if recorded is None:
            raise BatError(f"{path} was played without a judge.")
        states = {
            part: {item: str(finding["state"]) for item, finding in recorded[part].items()}
            for part in ("shared", "findings")
        }
        model, prompt = str(recorded["model"]), str(recorded["prompt_digest"])
        return Read(model, prompt, states["shared"], ruled, states["findings"]), ""
    rules = compile_contract(spec, tier=episode.tier, focus=episode.focus, outcome=episode.outcome)
    contract = judge.contract(rules, spec)
    if not isinstance(contract, JudgedContract):
        raise BatError(f"{path}: a judge reads nothing at focus {episode.focus.name}.")
    found = judge.findings(episode, spec, contract, shared_only=True)
    said = {item: finding.state for item, finding in found.items()}
    lost = [finding.message for finding in found.values() if finding.state == "null"]
    why = lost[0] if lost and len(lost) == len(found) else ""
    return Read(contract.model, contract.prompt_digest, said, ruled), why


def _show(report: Report) -> None:
    from rich.table import Table

    from bat_env.terminal import Terminal

    title = f"{report.model}  prompt {report.prompt_digest[:12]}  {report.episodes} episodes"
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    table.add_column("item")
    for name in ("both", "judge only", "rules only", "neither", "null", "agreed", "kappa"):
        table.add_column(name, justify="right")
    table.add_column("95 %", justify="right")
    for row in report.rows:
        table.add_row(
            row.item,
            *(str(n) for n in (row.both, row.judge_only, row.rules_only, row.neither, row.null)),
            _number(row.agreed),
            _number(row.kappa),
            "-" if row.ci95 is None else f"[{row.ci95[0]:+.2f}, {row.ci95[1]:+.2f}]",
        )
    console = Terminal(highlight=False)
    console.print(table)
    for item, counts in report.prose.items():
        said = ", ".join(f"{state} {count}" for state, count in sorted(counts.items()))
        console.print(f"  prose {item}: {said}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
