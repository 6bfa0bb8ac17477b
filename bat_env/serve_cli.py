"""``bat-env serve``: the environment over protocols of others."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from bat_env.errors import ConfigError
from bat_env.extras import require

serve_app = typer.Typer(help="The environment over other protocols.", no_args_is_help=True)


@serve_app.command("mcp")
def serve_mcp(
    task: Annotated[str, typer.Option(help="Task id or name.")] = "kidney_tumor",
    tier: Annotated[str, typer.Option(help="lite, standard or pro.")] = "lite",
    split: Annotated[str, typer.Option(help="train, dev or heldout.")] = "train",
    size: Annotated[str, typer.Option(help="full or mini.")] = "full",
    stage: Annotated[str | None, typer.Option(help="Start in the Stage Bank: S1 .. S5.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first episode; the next adds 1.")] = 0,
    index: Annotated[
        int | None, typer.Option(min=0, help="The same instance in every episode.")
    ] = None,
    sandbox: Annotated[str, typer.Option(help="auto, docker, local or process.")] = "auto",
    trajectories: Annotated[Path | None, typer.Option(help="Folder for the episodes.")] = None,
    http: Annotated[bool, typer.Option("--http", help="Streamable HTTP, not stdio.")] = False,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8765,
    max_sessions: Annotated[int, typer.Option(min=1, help="Open episodes at once.")] = 4,
    idle_s: Annotated[
        float, typer.Option(min=1, help="Seconds without a request that end a session.")
    ] = 1800.0,
    connect: Annotated[
        str | None, typer.Option(help="Be the stdio end of the HTTP server at this URL.")
    ] = None,
) -> None:
    """Serve episodes over the Model Context Protocol: one a session.

    The bearer token of an HTTP server, if it shall ask for one, is BAT_SERVE_TOKEN in the
    environment. Scores go to the trajectories only.
    """
    require("serve", "`bat-env serve mcp`")
    if connect is not None:
        from bat_env.serve.bridge import bridge

        bridge(connect)
        return
    from bat_env.serve.stdio import CHILD, detached

    if not http and CHILD not in os.environ:
        raise typer.Exit(detached([sys.executable, "-m", "bat_env.cli", *sys.argv[1:]]))
    from bat_env.serve import EnvDoor, EpisodePlan

    plan = EpisodePlan(
        task=task,
        tier=tier,
        split=split,
        size=size,
        stage=stage,
        seed=seed,
        index=index,
        sandbox=sandbox,
        trajectory_dir=trajectories,
        pool_size=max_sessions + 1 if http else None,
    )
    if not http:
        from bat_env.serve.stdio import run_stdio

        run_stdio(EnvDoor(plan))
        return
    from bat_env.serve.http import LOOPBACK, PATH, http_app, serve_http

    token = os.environ.get("BAT_SERVE_TOKEN") or None
    if host not in LOOPBACK and token is None:
        raise ConfigError(
            f"Expected a token for a server that others can reach ({host}), came none. Set "
            "BAT_SERVE_TOKEN, or listen at 127.0.0.1."
        )
    app = http_app(
        lambda number: EnvDoor(plan, number),
        host=host,
        token=token,
        idle_s=idle_s,
        max_sessions=max_sessions,
    )
    serve_http(
        app,
        host=host,
        port=port,
        ready=lambda address: print(f"{address}{PATH}", file=sys.stderr, flush=True),
    )
