"""``bat-env play``: an episode for a person."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from bat_env.command_line import INTERRUPTED


def play(
    task: Annotated[str, typer.Option(help="Task id or name.")] = "kidney_tumor",
    tier: Annotated[str, typer.Option(help="lite, standard or pro.")] = "lite",
    size: Annotated[str, typer.Option(help="full or mini.")] = "mini",
    split: Annotated[str, typer.Option(help="train, dev or heldout.")] = "train",
    stage: Annotated[str | None, typer.Option(help="Start in the Stage Bank: S1 .. S5.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the episode.")] = 0,
    sandbox: Annotated[str, typer.Option(help="auto, docker, local or process.")] = "auto",
    trajectories: Annotated[Path | None, typer.Option(help="Folder for the episode.")] = None,
) -> None:
    """Play an episode in the terminal, with the tools and the texts of an agent."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (makes input() editable)

    from bat_env.env import AutoMedEnv
    from bat_env.play import Player, scores_of
    from bat_env.terminal import Terminal

    console = Terminal(highlight=False)
    env = AutoMedEnv(
        track=None,
        task=task,
        tier=tier,
        size=size,
        split=split,
        stage=stage,
        sandbox=sandbox,
        trajectory_dir=trajectories,
    )
    try:
        env.name_agent("human")
        observation, _ = env.reset(seed=seed)
        read = input if sys.stdin.isatty() else _piped
        result = Player(env, str(observation["text"]), console, read).play()
        if result is not None:
            console.print(scores_of(result), style="bold")
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        env.close()


def _piped(_: str) -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")
