"""``bat-env play``: an episode for a person."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from bat_env.command_line import INTERRUPTED
from bat_env.episode_options import Backend, Focus, Size, Split, TaskName, Tier, Trajectories


def play(
    task: TaskName = "kidney_tumor",
    tier: Tier = "lite",
    size: Size = "mini",
    split: Split = "train",
    stage: Focus = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the episode.")] = 0,
    sandbox: Backend = "auto",
    trajectories: Trajectories = None,
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
