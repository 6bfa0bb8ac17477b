"""``bat-env bank``: fill the Stage Bank and look at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, cast

import typer

bank_app = typer.Typer(help="The Stage Bank.", no_args_is_help=True)

Backend = Annotated[str, typer.Option(help="auto, docker, local, process or a registered name.")]
BankPath = Annotated[
    Path | None, typer.Option("--path", help="Folder of the bank; default $BAT_BANK.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@bank_app.command("status")
def bank_status(path: BankPath = None, as_json: AsJson = False) -> None:
    """Show how many states each cell of the Stage Bank holds."""
    from bat_env.bank import Bank

    with Bank.open(path) as bank:
        status = bank.status()
        if as_json:
            print(json.dumps(status.to_json()))
            return
        print(f"{bank.path}: {status.states} states, {status.bytes_on_disk / 2**20:.1f} MiB")
        for track, foci in status.grid.items():
            for focus, outcomes in foci.items():
                counts = "  ".join(f"{name} {count}" for name, count in outcomes.items())
                print(f"  {track:7} {focus:4} {counts}")


@bank_app.command("build")
def bank_build(
    path: BankPath = None,
    task: Annotated[list[str] | None, typer.Option(help="Task; repeatable; default all.")] = None,
    size: Annotated[list[str] | None, typer.Option(help="full or mini; repeatable.")] = None,
    per_cell: Annotated[int, typer.Option(min=1, help="States in each cell.")] = 3,
    demos: Annotated[int, typer.Option(min=0, help="Demonstrations of each task.")] = 240,
    seed: Annotated[int, typer.Option(help="Decides everything that is drawn.")] = 0,
    backend: Backend = "auto",
    workers: Annotated[int, typer.Option(min=1, help="Sandboxes at work at once.")] = 2,
    as_json: AsJson = False,
) -> None:
    """Fill the Stage Bank. Safe to interrupt: run it again and it goes on."""
    from bat_env.bank.build import build
    from bat_env.config import one_of
    from bat_env.tasks.instance import SIZES, Size

    for name in size or ():
        one_of("size", name, SIZES)
    report = build(
        path,
        tasks=task,
        sizes=cast("list[Size]", size or ["mini"]),
        per_cell=per_cell,
        demos=demos,
        seed=seed,
        backend=backend,
        workers=workers,
        progress=not as_json,
    )
    if as_json:
        print(json.dumps(report.to_json()))
        return
    print(
        f"{len(report.states)} states, {report.demonstrations} demonstrations, "
        f"{report.resumed} jobs done before, {len(report.rejected)} candidates refused"
    )
    for cell, have in report.short.items():
        print(f"  short: {' '.join(map(str, cell))} has {have}")
