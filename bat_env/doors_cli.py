"""``bat-env serve openenv`` and ``bat-env export harbor``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from bat_env.extras import require

export_app = typer.Typer(help="Tasks in the formats of others.", no_args_is_help=True)


def serve_openenv(
    task: Annotated[str, typer.Option(help="Task id or name.")] = "kidney_tumor",
    tier: Annotated[str, typer.Option(help="lite, standard or pro.")] = "lite",
    split: Annotated[str, typer.Option(help="train, dev or heldout.")] = "train",
    size: Annotated[str, typer.Option(help="full or mini.")] = "full",
    seed: Annotated[int, typer.Option(min=0, help="Where the client gives none.")] = 0,
    sandbox: Annotated[str, typer.Option(help="auto, docker, local or process.")] = "auto",
    trajectories: Annotated[Path | None, typer.Option(help="Folder for the episodes.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one.")] = 8000,
    max_sessions: Annotated[int, typer.Option(min=1, help="Episodes at once.")] = 4,
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


@export_app.callback()
def _export() -> None:
    """Tasks in the formats of others."""


@export_app.command("harbor")
def export_harbor(
    out: Annotated[Path, typer.Option(help="New or empty folder.")],
    suite: Annotated[str, typer.Option(help="Frozen suite.")] = "lite-mini",
    task: Annotated[list[str] | None, typer.Option(help="Only this task; repeatable.")] = None,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Instances of each task; default all.")
    ] = None,
    tier: Annotated[str, typer.Option(help="lite, standard or pro.")] = "lite",
    image: Annotated[
        str | None, typer.Option(help="Docker image of the agent; default: one is built.")
    ] = None,
) -> None:
    """Write held-out instances as Harbor task folders, with our grader as verifier.

    Whoever has the folders has the truth: it lies under tests/, which Harbor gives to the verifier
    alone.
    """
    from bat_env.serve.harbor import export_harbor as export
    from bat_env.tasks import load_suite, load_task

    frozen = load_suite(suite)
    if task is not None:
        frozen = frozen.of_tasks([load_task(name).id for name in task])
    if repeats is not None:
        frozen = frozen.first(repeats)
    made = export(frozen, out, tier=tier, image=image)
    print(f"{len(made)} tasks in {out}: try harbor run -p {out} -a oracle")
