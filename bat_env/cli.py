"""The ``bat-env`` command. Heavy rooms load only in the commands that need them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bat_env import __version__, command_line
from bat_env.bank_cli import bank_app
from bat_env.data_cli import data_app
from bat_env.doors_cli import export_app, serve_openenv
from bat_env.errors import BatError, SandboxUnavailableError
from bat_env.extras import ALONE, DOORS, EXTRAS, HOST_BACKENDS, install, missing, there
from bat_env.judge_cli import judge_app
from bat_env.play_cli import play
from bat_env.serve_cli import serve_app
from bat_env.tasks_cli import tasks_app
from bat_env.trajectory_cli import explain, rescore

app = typer.Typer(
    name="bat-env",
    help="The BaT environment suite: tasks, sandboxes and the Stage Bank.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
sandbox_app = typer.Typer(help="Sandbox backends.", no_args_is_help=True)
image_app = typer.Typer(help="The Docker sandbox image.", no_args_is_help=True)
app.add_typer(sandbox_app, name="sandbox")
app.add_typer(image_app, name="image")
app.add_typer(bank_app, name="bank")
app.add_typer(tasks_app, name="tasks")
app.add_typer(data_app, name="data")
app.add_typer(judge_app, name="judge")
app.add_typer(serve_app, name="serve")
serve_app.command("openenv")(serve_openenv)
app.add_typer(export_app, name="export")
app.command("explain")(explain)
app.command("play")(play)
app.command("rescore")(rescore)

Backend = Annotated[str, typer.Option(help="auto, docker, local, process or a registered name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def main() -> None:
    """Run the command line; one clear line and exit code 2 for a mistake of the user."""
    command_line.run(app, "bat-env")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"bat-env {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """The BaT environment suite: tasks, sandboxes and the Stage Bank."""


@sandbox_app.command("check")
def sandbox_check(
    backend: Annotated[
        str | None, typer.Option(help="One backend; default: the one that auto chooses.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the self-check suite against a backend and print what holds and what does not."""
    from bat_env.sandbox import resolve_backend
    from bat_env.sandbox.check import check_sandbox

    report = check_sandbox(resolve_backend(backend or "auto"))
    if as_json:
        print(json.dumps(report.as_dict()))
    else:
        print(report)
    if not report.ok:
        raise typer.Exit(1)


@image_app.command("build")
def image_build(
    tag: Annotated[str | None, typer.Option(help="Name of the image.")] = None,
    base_image: Annotated[
        str | None, typer.Option(help="Base; default: the best there is.")
    ] = None,
    wheelhouse: Annotated[Path | None, typer.Option(help="Folder of wheels to install.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Build even if it is up to date.")] = False,
) -> None:
    """Build the Docker sandbox image, unless one with equal inputs is there."""
    from bat_env.image import build

    print(build(tag=tag, base_image=base_image, wheelhouse=wheelhouse, force=force))


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what works on this machine and how to get the rest."""
    rows = _findings()
    if as_json:
        print(json.dumps({"schema_version": 1, "checks": rows}))
    else:
        for row in rows:
            mark = "ok " if row["ok"] else "-- "
            print(f"{mark} {row['name']}: {row['found']}")
            if row["advice"]:
                print(f"      {row['advice']}")
    if not any(row["ok"] for row in rows if row["name"].startswith("sandbox ")):
        raise typer.Exit(1)


def _findings() -> list[dict[str, Any]]:
    """One row a check: name, ok, found, advice."""
    rows = [_row("automed-bat", True, f"{__version__} on Python {sys.version.split()[0]}")]
    for module, extra in (("torch", "sandbox-local"), ("monai", "sandbox-local"), ("trl", "train")):
        found = there(module)
        what = importlib.metadata.version(module) if found else "not installed"
        advice = "" if found else install(extra)
        rows.append(_row(f"package {module}", found, what, advice))
    rows += _door_rows()
    rows.append(_docker_row())
    for backend, advice in (
        ("docker", "start a Docker daemon and run `bat-env image build`"),
        ("local", "needs Linux with user namespaces, and " + install("sandbox-local")),
    ):
        rows.append(_sandbox_row(backend, advice))
    rows.append(_bank_row())
    free = shutil.disk_usage(Path.home() if Path.home().exists() else Path("/")).free / 2**30
    enough = free >= 5
    rows.append(
        _row("disk", enough, f"{free:.1f} GiB free", "" if enough else "the demo needs 5 GB")
    )
    rows.append(
        _row(
            "cores",
            True,
            str(
                len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
            ),
        )
    )
    return rows


def _door_rows() -> list[dict[str, Any]]:
    rows = []
    for door, (extra, opened) in DOORS.items():
        lacking = missing(extra)
        advice = install(extra) + (", in an environment of its own" if extra in ALONE else "")
        found = f"missing: {', '.join(lacking)}" if lacking else opened
        rows.append(_row(f"door {door}", not lacking, found, advice if lacking else ""))
    return [*rows, _row("door harbor", True, "bat-env export harbor")]


def _row(name: str, ok: bool, found: str, advice: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "found": found, "advice": advice}


def _docker_row() -> dict[str, Any]:
    from bat_env.image import default_tag, image_exists

    try:
        if image_exists():
            return _row("image", True, default_tag())
        return _row("image", False, "not built", "bat-env image build")
    except SandboxUnavailableError:
        return _row(
            "image", False, "optional; no Docker daemon answers", "start one, then: make image"
        )
    except BatError as error:
        return _row("image", False, str(error), "bat-env image build")


def _docker_missing(error: SandboxUnavailableError) -> str:
    """One short sentence: which part of Docker is missing and how to get it."""
    if isinstance(error.__cause__, ImportError):
        return install()
    if "image" in str(error).partition(".")[0]:
        return "image not built: bat-env image build"
    return "start a Docker daemon, then: bat-env image build"


_LOOK: Final = """
import importlib.util
print(6 * 7, *(m for m in {modules} if importlib.util.find_spec(m) is None))
"""


def _sandbox_row(backend: str, advice: str) -> dict[str, Any]:
    from bat_env.sandbox import make_sandbox
    from bat_env.sandbox.base import Cell

    try:
        sandbox = make_sandbox(backend)
        try:
            sandbox.start()
            sandbox.reset({})
            result = sandbox.run(Cell("python", _LOOK.format(modules=EXTRAS["sandbox-local"])))
        finally:
            sandbox.close()
    except BatError as error:
        if backend == "docker" and isinstance(error, SandboxUnavailableError):
            return _row("sandbox docker", False, "optional", _docker_missing(error))
        return _row(f"sandbox {backend}", False, str(error), advice)
    words = result.stdout.split()
    if not result.ok or words[:1] != ["42"]:
        return _row(f"sandbox {backend}", False, result.stderr[-200:], advice)
    if len(words) > 1:
        found = f"runs cells, but they lack imaging packages that tasks need: {' '.join(words[1:])}"
        get = install("sandbox-local") if backend in HOST_BACKENDS else "bat-env image build"
        return _row(f"sandbox {backend}", False, found, get)
    return _row(f"sandbox {backend}", True, "runs cells")


def _bank_row() -> dict[str, Any]:
    from bat_env.bank import Bank

    try:
        with Bank.open() as bank:
            return _row("stage bank", True, f"{bank.status().states} states at {bank.path}")
    except BatError as error:
        return _row("stage bank", False, str(error), "bat-env bank build")


if __name__ == "__main__":
    main()
