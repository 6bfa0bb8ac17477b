"""``bat-env serve``: the environment over protocols of others."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from bat_env.episode_options import (
    Backend,
    Focus,
    Host,
    Port,
    Sessions,
    Size,
    Split,
    TaskName,
    Tier,
    Trajectories,
)
from bat_env.errors import ConfigError
from bat_env.extras import require

serve_app = typer.Typer(help="The environment over other protocols.", no_args_is_help=True)


@serve_app.command("mcp")
def serve_mcp(
    task: TaskName = "kidney_tumor",
    tier: Tier = "lite",
    split: Split = "train",
    size: Size = "full",
    stage: Focus = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the first episode; the next adds 1.")] = 0,
    index: Annotated[
        int | None, typer.Option(min=0, help="The same instance in every episode.")
    ] = None,
    sandbox: Backend = "auto",
    trajectories: Trajectories = None,
    http: Annotated[bool, typer.Option("--http", help="Streamable HTTP, not stdio.")] = False,
    host: Host = "127.0.0.1",
    port: Port = 8765,
    max_sessions: Sessions = 4,
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


@serve_app.command("openenv")
def serve_openenv(
    task: TaskName = "kidney_tumor",
    tier: Tier = "lite",
    split: Split = "train",
    size: Size = "full",
    seed: Annotated[int, typer.Option(min=0, help="Where the client gives none.")] = 0,
    sandbox: Backend = "auto",
    trajectories: Trajectories = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    max_sessions: Sessions = 4,
) -> None:
    """Serve episodes over OpenEnv's protocol, to trainers: it has no password.

    The client resets, with the reset options of the environment, and reads the score when an
    episode is over. The address is printed once it listens.
    """
    require("openenv", "`bat-env serve openenv`")
    from bat_env.serve import EpisodePlan
    from bat_env.serve.openenv import serve_openenv as serve

    plan = EpisodePlan(
        task=task,
        tier=tier,
        split=split,
        size=size,
        seed=seed,
        sandbox=sandbox,
        trajectory_dir=trajectories,
        pool_size=max_sessions + 1,
    )
    serve(
        plan,
        host=host,
        port=port,
        max_sessions=max_sessions,
        ready=lambda address: print(address, file=sys.stderr, flush=True),
    )
