"""Command-line options that say which episode is played, and where; the same for every command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

TaskName: TypeAlias = Annotated[str, typer.Option("--task", help="Task id or name.")]
Tier: TypeAlias = Annotated[str, typer.Option("--tier", help="lite, standard or pro.")]
Split: TypeAlias = Annotated[str, typer.Option("--split", help="train, dev or heldout.")]
Size: TypeAlias = Annotated[str, typer.Option("--size", help="full or mini.")]
Focus: TypeAlias = Annotated[
    str | None, typer.Option("--stage", help="Start in the Stage Bank: S1 .. S5.")
]
Backend: TypeAlias = Annotated[
    str,
    typer.Option("--sandbox", help="auto, docker, local, process or a registered name."),
]
Trajectories: TypeAlias = Annotated[
    Path | None, typer.Option("--trajectories", help="Folder for the episodes.")
]
Host: TypeAlias = Annotated[str, typer.Option("--host", help="Address to listen at.")]
Port: TypeAlias = Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one.")]
Sessions: TypeAlias = Annotated[
    int, typer.Option("--max-sessions", min=1, help="Open episodes at once.")
]
