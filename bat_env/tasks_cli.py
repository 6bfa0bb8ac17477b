"""``bat-env tasks``: list, show, check and start task folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from bat_env.tasks import Mistake, Task
    from bat_env.tasks.instance import Instance

tasks_app = typer.Typer(help="Tasks: list, show, check, new.", invoke_without_command=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Name = Annotated[str, typer.Argument(help="Task id, or its name where that is unique.")]


@tasks_app.callback()
def tasks(context: typer.Context, as_json: AsJson = False) -> None:
    """List the tasks that are installed, or do one of the commands."""
    if context.invoked_subcommand is None:
        list_tasks(as_json)


@tasks_app.command("list")
def list_tasks(as_json: AsJson = False) -> None:
    """List the tasks that are installed. Exit code 1: one cannot be loaded."""
    from bat_env.errors import BatError
    from bat_env.tasks import load_task, task_ids
    from bat_env.tasks.discovery import empty_roots

    rows: list[dict[str, Any]] = []
    broken: list[dict[str, str]] = []
    for name in task_ids():
        try:
            spec = load_task(name).spec
        except BatError as error:
            broken.append({"id": name, "why": str(error)})
            continue
        rows.append(
            {"id": name, "version": spec.version, "lite": spec.lite, "tiers": list(spec.tiers)}
            | {"sizes": list(spec.sizes), "title": spec.title}
        )
    if as_json:
        print(json.dumps({"schema_version": 1, "tasks": rows, "broken": broken}))
    else:
        for row in rows:
            mark = "  (lite)" if row["lite"] else ""
            tiers = ", ".join(row["tiers"])
            print(f"{row['id']}  v{row['version']}  {tiers}  {row['title']}{mark}")
    for root in empty_roots():
        there = "holds no task" if root.is_dir() else "does not exist"
        typer.echo(f"BAT_TASKS_PATH names {root}, which {there}.", err=True)
    for fault in broken:
        typer.echo(f"{fault['id']}  cannot be loaded: {fault['why']}", err=True)
    if broken:
        raise typer.Exit(1)


@tasks_app.command("show")
def show(
    name: Name,
    size: Annotated[str, typer.Option(help="full or mini.")] = "full",
    index: Annotated[int, typer.Option(min=0, help="Training instance.")] = 0,
    picture: Annotated[
        Path | None,
        typer.Option(help="Write a picture of its first three cases, with their truth, here."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a task: its contract, an instance and, where asked, a picture of three cases."""
    from bat_env.config import one_of
    from bat_env.stages import Stage
    from bat_env.tasks import load_task, public_spec, render_brief
    from bat_env.tasks.instance import SIZES

    one_of("size", size, SIZES)
    task = load_task(name)
    drawn = task.instance("train", index, size)  # type: ignore[arg-type]
    if picture is not None:
        _save_picture(task, drawn, picture)
    if as_json:
        shown = {
            "schema_version": 1,
            "id": task.id,
            "digest": task.digest,
            "instance_digest": drawn.digest,
            "cases": list(drawn.cases),
            "contract": public_spec(task.spec),
            "picture": str(picture) if picture is not None else None,
        }
        print(json.dumps(shown))
        return
    tier = next(iter(task.spec.tiers))
    print(render_brief(task, drawn, tier=tier, focus=Stage.E2E))
    print(f"\n{len(task.decisions)} decisions, {len(task.mistakes)} listed mistakes:")
    for mistake in task.mistakes:
        print(f"  {mistake.id}: {mistake.title} ({mistake.source}; costs {_costs(mistake.costs)})")
    if picture is None:
        print("For a picture of three cases with their truth: --picture FILE.png")
    else:
        print(f"Picture of three cases with their truth: {picture}")


def _save_picture(task: Task, drawn: Instance, file: Path) -> None:
    """Write the inputs of three cases with their truth, whole or not at all."""
    from PIL import Image

    from bat_env.grader import shared_grader
    from bat_env.metrics.floors import cases_of
    from bat_env.metrics.truths import true_files
    from bat_env.montage import montage

    files = true_files(task.spec, cases_of(drawn))
    truths = {case: files[task.spec.output.path.format(case=case)] for case in drawn.cases}
    image = Image.fromarray(montage(task, drawn, truths, shared_grader(), cases=3))
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.new")
    image.save(temporary, "PNG")
    temporary.replace(file)


def _costs(by_part: Mapping[str, float]) -> str:
    return ", ".join(f"{part} {cost:g}" for part, cost in by_part.items()) or "nothing"


@tasks_app.command("check")
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Tasks; default: all.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Play no episodes.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Play a sample of them.")] = False,
    sandbox: Annotated[str, typer.Option(help="Backend of the episodes.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Check every rule of a task folder, with its scripts played; says what mistakes cost."""
    from bat_env.task_rules import Depth
    from bat_env.tasks import load_task, task_ids
    from bat_env.testing import task_findings

    depth: Depth = "files" if fast else "quick" if quick else "all"
    rows: list[dict[str, str]] = []
    costs: dict[str, dict[str, dict[str, float]]] = {}
    for task_id in [load_task(name).id for name in names] if names else task_ids():
        task, paid = load_task(task_id), costs.setdefault(task_id, {})

        def on_cost(
            mistake: Mistake,
            lost: Mapping[str, float],
            paid: dict[str, dict[str, float]] = paid,
        ) -> None:
            paid[mistake.id] = {part: loss for part, loss in lost.items() if loss > 0}
            if not as_json:
                print(
                    f"    {mistake.id}: {_costs(paid[mistake.id])} (lists {_costs(mistake.costs)})"
                )

        for rule, wrong in task_findings(task, depth=depth, sandbox=sandbox, on_cost=on_cost):
            rows.append({"task": task_id, "rule": rule, "wrong": wrong})
            if not as_json:
                print(f"{'--' if wrong else 'ok'}  {task_id}  {rule}  {wrong}".rstrip(), flush=True)
    ok = not any(row["wrong"] for row in rows)
    if as_json:
        print(json.dumps({"schema_version": 1, "ok": ok, "rules": rows, "costs": costs}))
    if not ok:
        raise typer.Exit(1)


@tasks_app.command("new")
def new(
    task_id: Annotated[str, typer.Argument(help="<track>/<name>")],
    root: Annotated[
        Path | None, typer.Option(help="Folder of tasks; default: that of this installation.")
    ] = None,
    like: Annotated[str | None, typer.Option(help="Task to start from.")] = None,
) -> None:
    """Start a task folder: a working copy of the track's Lite task under a new id."""
    from bat_env.tasks.discovery import builtin_root
    from bat_env.tasks.scaffold import new_task

    folder = new_task(task_id, root or builtin_root(), like)
    print(f"{folder}: change its files, then run: bat-env tasks check {task_id}")
    if root is not None:
        print(f"Found where BAT_TASKS_PATH holds {root}")
