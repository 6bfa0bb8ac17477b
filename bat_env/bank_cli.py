"""``bat-env bank``: fill the Stage Bank, look at it, and prove that it holds."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from bat_env import bank_upkeep_cli
from bat_env.command_line import PRESSED_TWICE_S, TERMINATED, leave
from bat_env.plain import counted, sized

if TYPE_CHECKING:
    from bat_env.bank.status import BankStatus

bank_app = typer.Typer(help="The Stage Bank.", no_args_is_help=True)
bank_upkeep_cli.register(bank_app)

Backend = Annotated[str, typer.Option(help="auto, docker, local, process or a registered name.")]
BankPath = Annotated[
    Path | None, typer.Option("--path", help="Folder of the bank; default $BAT_BANK.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@bank_app.command("status")
def bank_status(path: BankPath = None, as_json: AsJson = False) -> None:
    """Show how many states each cell of the Stage Bank holds, as a heat map."""
    from bat_env.bank import Bank
    from bat_env.bank.slices import count_slices

    with Bank.open(path) as bank:
        status = bank.status()
        rows = count_slices(bank.demonstrations()).rows
        if as_json:
            print(json.dumps({**status.to_json(), "rows": rows}))
            return
        print(f"{bank.path}: {counted(status.states, 'state')}, {sized(status.bytes_on_disk)}")
    _show(status, rows)


def _show(status: BankStatus, rows: int) -> None:
    from bat_env.bank.heatmap import heatmap
    from bat_env.tasks.scaffold import TRACKS
    from bat_env.terminal import Terminal

    Terminal(highlight=False).print(heatmap(status.grid, TRACKS))
    full = 18 * len(TRACKS)
    cells = sum(1 for t in status.grid.values() for f in t.values() for n in f.values() if n)
    print(
        f"{cells} of {full} cells have a state; {sum(status.demonstrations.values())} "
        f"demonstrations give {rows} SFT rows"
    )
    for reason, count in status.rejections.items():
        print(f"  refused {count}: {reason}")


@bank_app.command("build")
def bank_build(
    path: BankPath = None,
    task: Annotated[
        list[str] | None, typer.Option(help="Task; repeatable; default the seven Lite tasks.")
    ] = None,
    size: Annotated[list[str] | None, typer.Option(help="full or mini; repeatable.")] = None,
    stage: Annotated[
        list[str] | None, typer.Option(help="Focus of states; repeatable; default all six.")
    ] = None,
    target: Annotated[
        int, typer.Option("--target", "--per-cell", min=1, help="States wanted in each cell.")
    ] = 2,
    demos: Annotated[int, typer.Option(min=0, help="Mixed demonstrations of each task.")] = 8,
    trajectories: Annotated[
        int, typer.Option(min=0, help="Teacher trajectories of each task and style.")
    ] = 2,
    style: Annotated[
        list[str] | None, typer.Option(help="Teacher style; repeatable; default all.")
    ] = None,
    briefs: Annotated[
        str, typer.Option(help="plain, varied (worded by rule) or teacher (by an LLM).")
    ] = "varied",
    teacher_url: Annotated[
        str | None, typer.Option(help="OpenAI-compatible endpoint, e.g. http://127.0.0.1:8000/v1.")
    ] = None,
    teacher_model: Annotated[str, typer.Option(help="Name of its model.")] = "teacher",
    seed: Annotated[int, typer.Option(help="Decides everything that is drawn.")] = 0,
    backend: Backend = "auto",
    workers: Annotated[int, typer.Option(min=1, help="Sandboxes at work at once.")] = 2,
    background: Annotated[
        bool, typer.Option("--background", help="Niced; wait while others want the cores.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fill the Stage Bank, the emptiest cells first. Safe to stop: run it again and it goes on."""
    from bat_env.bank import Bank
    from bat_env.bank.build import build
    from bat_env.bank.styles import STYLES
    from bat_env.config import one_of
    from bat_env.tasks.instance import SIZES, Size

    for name in size or ():
        one_of("size", name, SIZES)
    asked = {"base_url": teacher_url, "model": teacher_model} if teacher_url else None
    with _terminable():
        report = build(
            path,
            tasks=task or _lite_tasks(),
            sizes=cast("list[Size]", size or ["mini"]),
            stages=stage,
            per_cell=target,
            demos=demos,
            trajectories=trajectories,
            styles=style or STYLES,
            briefs="teacher" if asked else briefs,
            teacher=asked,
            seed=seed,
            backend=backend,
            workers=workers,
            background=background,
            progress=not as_json,
        )
    if as_json:
        print(json.dumps(report.to_json()))
        return
    with Bank.open(path) as bank:
        _show(bank.status(), report.rows)
    print(
        f"{counted(len(report.states), 'state')} with "
        f"{counted(len(report.faults), 'kind')} of fault, "
        f"{counted(report.demonstrations, 'demonstration')}; "
        f"{counted(report.resumed, 'job')} done before, "
        f"{len(report.rejected)} candidates refused"
    )
    for cell, have in report.short.items():
        print(f"  short: {' '.join(map(str, cell))} has {have}")


def _lite_tasks() -> list[str]:
    from bat_env.tasks import load_task, task_ids

    return [name for name in task_ids() if load_task(name).spec.lite]


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a build as Ctrl-C does; a second Ctrl-C leaves at once."""
    owner, pressed, told = os.getpid(), 0.0, 0

    def stop(number: int, frame: Any) -> None:
        nonlocal pressed, told
        if os.getpid() != owner:  # A forked child has nothing to give back.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not pressed:
            pressed, told = time.monotonic(), number
            raise KeyboardInterrupt
        elif number == signal.SIGINT and time.monotonic() - pressed > PRESSED_TWICE_S:
            leave()

    numbers = [signal.SIGTERM]
    # Whoever starts us in the background may have Ctrl-C ignored.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        numbers.append(signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("What was finished is stored: the same command goes on.", err=True)
        if told == signal.SIGTERM:
            raise typer.Exit(TERMINATED) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@bank_app.command("verify")
def bank_verify(
    path: BankPath = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Also make states again and play them.")
    ] = False,
    backend: Backend = "auto",
    sample: Annotated[
        int, typer.Option(min=0, help="States to replay, spread over the cells; 0 for all.")
    ] = 18,
    seed: Annotated[int, typer.Option(help="Picks the sample.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Read every row and file of the bank; with --replay make states again and compare them."""
    from bat_env.bank import Bank
    from bat_env.bank.progress import reporter
    from bat_env.bank.replaying import replay_states

    with Bank.open(path) as bank:
        report = bank.verify()
        problems = list(report.problems)
        document: dict[str, Any] = {
            "schema_version": 1,
            "states": report.states,
            "demonstrations": report.demonstrations,
            "blobs": report.blobs,
            "problems": problems,
        }
        said = f"{counted(report.states, 'state')}, "
        said += f"{counted(report.demonstrations, 'demonstration')}, "
        said += f"{counted(report.blobs, 'file')} read"
        if replay:
            with reporter(not as_json) as told:
                again = replay_states(
                    bank,
                    backend=backend,
                    sample=sample or None,
                    seed=seed,
                    progress=functools.partial(told, "replayed"),
                )
            document["replay"] = again.to_json()
            problems += again.problems
            said += f"; {again.told()}"
    if as_json:
        print(json.dumps(document))
    else:
        print(said)
        for problem in problems:
            print(f"  {problem}")
    if problems:
        raise typer.Exit(1)
