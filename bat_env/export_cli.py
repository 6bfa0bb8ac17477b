"""``bat-env export``: tasks in the formats of others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bat_env.episode_options import Tier

export_app = typer.Typer(help="Tasks in the formats of others.", no_args_is_help=True)


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
    tier: Tier = "lite",
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
