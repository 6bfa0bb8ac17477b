"""``bat-agent eval``: which agent, which instances, and what it may cost."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bat_env.episode_options import Backend, Tier, Trajectories
from bat_env.errors import ConfigError

if TYPE_CHECKING:
    from bat_agent.evaluate import Request

PRICE_HELP = "US dollars for a million tokens, in and out: 0.5,1.5."


def eval_command(
    agent: Annotated[
        str | None,
        typer.Option(help="Name, module:Class, file.py:Class, or checkpoint or run folder."),
    ] = None,
    suite: Annotated[str | None, typer.Option(help="Frozen held-out suite.")] = None,
    task: Annotated[str | None, typer.Option(help="One task, at full size.")] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Instances of each task; default all.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="Sampling temperature of a policy.")] = 0.7,
    greedy: Annotated[bool, typer.Option(help="A policy takes its most likely token.")] = False,
    tier: Tier = "lite",
    workers: Annotated[int, typer.Option(help="Parallel episodes of a script.")] = 2,
    sandbox: Backend = "auto",
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Also write every cell to this file; the same command goes on."),
    ] = None,
    trajectories: Trajectories = None,
    model: Annotated[str | None, typer.Option(help="chat: name that the server knows.")] = None,
    base_url: Annotated[str | None, typer.Option(help="chat: http://HOST:PORT/v1.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="chat: variable of the key; default BAT_CHAT_API_KEY.")
    ] = None,
    price: Annotated[str | None, typer.Option(help=f"chat: {PRICE_HELP}")] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="chat: US dollars; stops before it, and resumes.")
    ] = None,
    rpm: Annotated[int | None, typer.Option(help="chat: requests a minute.")] = None,
    tpm: Annotated[int | None, typer.Option(help="chat: tokens a minute.")] = None,
    chat_option: Annotated[
        list[str] | None,
        typer.Option(help="chat: KEY=VALUE, as tools=text or max_tokens=2048; repeatable."),
    ] = None,
    harness: Annotated[
        str | None, typer.Option(help="Command that plays over MCP, instead of --agent.")
    ] = None,
    harness_timeout_s: Annotated[
        float, typer.Option(min=1, help="harness: seconds of an episode.")
    ] = 3600.0,
    harness_memory_mb: Annotated[
        int, typer.Option(min=64, help="harness: memory of all its processes.")
    ] = 8192,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Tracebacks of the agent.")] = False,
) -> None:
    """Score an agent on frozen held-out instances."""
    from bat_agent.agents.base import is_foreign
    from bat_agent.agents.chat import KEY_VARIABLE
    from bat_agent.cli import _print_scores, _tell_unscored
    from bat_agent.evaluate import check_request, play
    from bat_agent.files import check_file
    from bat_agent.journal import SUFFIX
    from bat_agent.leaving import watched
    from bat_agent.progress import Phase, RunProgress

    if debug:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("bat_agent.rollout").setLevel(logging.DEBUG)
    if agent is None and harness is None:
        raise ConfigError("expected --agent, got none; give --agent, or --harness COMMAND")
    if agent is not None and harness is not None:
        raise ConfigError("expected one of --agent and --harness, got both; leave one out")
    if agent is not None and not agent.strip():
        raise ConfigError("expected --agent, got an empty one; name an agent, or a file.py:Class")
    if out is not None:
        check_file(out, "the file of --out")
    chat = {
        "model": model,
        "base_url": base_url,
        "api_key_env": api_key_env,
        **_prices(price),
        "max_cost": max_cost,
        "rpm": rpm,
        "tpm": tpm,
        **_options(chat_option or ()),
    }
    if max_cost is not None and out is None:
        raise ConfigError("--max-cost needs --out: there the played episodes are kept.")
    player: Any = agent
    if agent is not None and is_foreign(agent):
        kept = "What was played is kept: the same command goes on." if out else "Nothing was kept."
        watched(f"code of agent {agent}", kept)
    if harness is not None:
        from bat_agent.agents.harness import harness_source

        player = harness_source(
            harness,
            timeout_s=harness_timeout_s,
            memory_mb=harness_memory_mb,
            model=model,
            base_url=base_url,
            api_key_env=api_key_env or KEY_VARIABLE,
        )
    elif agent == "chat":
        from bat_agent.agents.chat import chat_source, make_chat_config

        chat["temperature"] = 0.0 if greedy else temperature
        player = chat_source(make_chat_config(chat))
    elif any(value is not None for value in chat.values()):
        given = sorted(key for key, value in chat.items() if value is not None)
        raise ConfigError(f"{', '.join(given)}: only for --agent chat, came --agent {agent}.")
    request = check_request(
        player,
        suite=suite,
        task=task,
        repeats=repeats,
        temperature=temperature,
        greedy=greedy,
        tier=tier,
        workers=workers,
        sandbox=sandbox,
        seed=seed,
        trajectory_dir=trajectories,
        journal=None if out is None else out.with_name(out.name + SUFFIX),
    )
    if out is not None:
        _spare(out, request)
    show = RunProgress([Phase("eval", f"Evaluate {request.source.name}", 60.0, known=False)])
    with _claimed(out):
        with show, show.phase("eval") as advance:
            evaluation = play(
                request, lambda done, total: advance(done, total, f"{done}/{total} episodes")
            )
        summary = evaluation.summary()
        if as_json:
            print(json.dumps(summary, allow_nan=False))
        else:
            _print_scores(evaluation, summary)
            if evaluation.usage:
                _print_usage(evaluation.usage)
        if out is not None:
            evaluation.save(out)  # After the scores: a disk that refuses must not lose them.
            if request.journal is not None:
                request.journal.unlink(missing_ok=True)
    _tell_unscored(evaluation)


def _claimed(out: Path | None) -> contextlib.AbstractContextManager[None]:
    """One evaluation at a time writes a file and its journal."""
    from bat_agent.files import locked

    if out is None:
        return contextlib.nullcontext()
    return locked(out.with_name(f".{out.name}.lock"), f"the evaluation {out}", keep=False)


def _spare(out: Path, request: Request) -> None:
    """Refuse to write over what is no evaluation, or that of another agent or other instances."""
    from bat_agent.evaluation import Evaluation

    if not out.exists() or out.stat().st_size == 0:
        return
    advice = "Delete it, or give another --out."
    try:
        there = Evaluation.load(out)
    except ConfigError:
        raise ConfigError(f"{out} is there and holds no whole evaluation. {advice}") from None
    plan = request.plan
    for what, has, wants in (
        ("agent", there.agent, request.source.name),
        ("suite or task", there.target, plan.name),
        ("version of the instances", there.target_digest, plan.digest),
        ("number of episodes", len(there.cells), len(plan.targets)),
        (
            "backend, seed or other setting",
            there.settings,
            json.loads(json.dumps(request.settings)),
        ),
    ):
        if has != wants:
            raise ConfigError(
                f"{out} holds an evaluation of another {what}: expected {wants!r:.200}, came "
                f"{has!r:.200}. {advice}"
            )


def _prices(text: str | None) -> dict[str, float]:
    if text is None:
        return {}
    try:
        price_in, price_out = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"Expected --price IN,OUT, came {text!r}. {PRICE_HELP}") from None
    return {"price_in": price_in, "price_out": price_out}


def _options(pairs: list[str] | tuple[str, ...]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for pair in pairs:
        key, sign, text = pair.partition("=")
        if not sign:
            raise ConfigError(f"Expected --chat-option KEY=VALUE, came {pair!r}.")
        try:
            options[key] = json.loads(text)
        except ValueError:
            options[key] = text
    return options


def _print_usage(usage: Any) -> None:
    print(
        f"{usage.get('requests', 0)} answers, {usage.get('failures', 0)} requests without one, "
        f"{usage.get('prompt_tokens', 0)} tokens in, {usage.get('completion_tokens', 0)} out, "
        f"{usage.get('cost', 0.0):.4f} USD",
        file=sys.stderr,
    )
