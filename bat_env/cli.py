"""The ``bat-env`` command. Heavy rooms load only in the commands that need them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bat_env import __version__, command_line
from bat_env.bank_cli import bank_app
from bat_env.data_cli import data_app
from bat_env.doctor_cli import doctor
from bat_env.export_cli import export_app
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
app.add_typer(export_app, name="export")
app.command()(doctor)
app.command("explain")(explain)
app.command("play")(play)
app.command("rescore")(rescore)

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


if __name__ == "__main__":
    main()
