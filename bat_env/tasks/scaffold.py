"""A new task folder from an existing one of the same track: it works from the first minute.

The copy has its own id, model name and fictional world, so its instances are new; the author then
changes one file after another, and ``bat-env tasks check`` says after each what is broken.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

import yaml

from bat_env.errors import TaskError, unknown_name
from bat_env.tasks.discovery import Task, load_task, task_ids
from bat_env.tasks.fiction import all_fiction, make_fiction

TRACKS: Final = ("seg", "enh", "det", "cls", "vqa", "report", "synth")
_TEXT: Final = {".py", ".yaml", ".md", ".j2", ".json"}


def new_task(task_id: str, root: Path, like: str | None = None) -> Path:
    """Make the folder ``root/<track>/<name>``.

    Args:
        task_id: ``<track>/<name>``.
        root: A folder of tasks: ``envs`` of a checkout, or one on BAT_TASKS_PATH.
        like: The task to start from; default: the track's Lite task.

    Returns:
        The new folder.

    Raises:
        TaskError: If the id is malformed, the folder exists, or the track has no task to copy.
        UnknownNameError: If ``like`` does not exist.
    """
    if not re.fullmatch(rf"({'|'.join(TRACKS)})/[a-z][a-z0-9_]*", task_id):
        raise TaskError(
            f"Expected a task id like 'seg/my_task', with a track of {', '.join(TRACKS)} and a "
            f"name of lower-case letters, digits and _ that begins with a letter, got {task_id!r}."
        )
    target = root / task_id
    if target.exists() or task_id in task_ids():
        raise TaskError(f"The task {task_id} exists already. Choose another name.")
    source = _source(task_id.split("/", 1)[0], like)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as folder:
        draft = Path(folder) / "task"
        shutil.copytree(source.folder, draft, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        _rename(draft, source, task_id)
        _renew_fiction(draft / "task.yaml", task_id)
        draft.replace(target)
    return target


def _source(track: str, like: str | None) -> Task:
    if like is not None:
        return load_task(like)
    loaded = [load_task(name) for name in task_ids() if name.startswith(f"{track}/")]
    if not loaded:
        raise unknown_name(
            "track with a task to start from",
            track,
            {name.split("/", 1)[0] for name in task_ids()},
            "Name a task to copy with --like.",
        )
    return next((task for task in loaded if task.spec.lite), loaded[0])


def _rename(folder: Path, source: Task, task_id: str) -> None:
    name = task_id.split("/", 1)[1]
    old, model, new_model = source.id, source.spec.model.name, f"{name}_net"
    (folder / "model" / model).rename(folder / "model" / new_model)
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix in _TEXT:
            text = path.read_text("utf-8")
            text = text.replace(old, task_id).replace(model, new_model)
            path.write_text(text.replace(f"envs/{old}", f"envs/{task_id}"), "utf-8")


def _renew_fiction(path: Path, task_id: str) -> None:
    """Replace the block ``fiction:`` of task.yaml; comments and order elsewhere stay."""
    taken = all_fiction([load_task(name).spec for name in task_ids()])
    text = path.read_text("utf-8")
    rows = yaml.safe_load(text)["fiction"]["train"][0]
    device = next((key for key in rows if key not in ("institution", "prefix", "study")), "scanner")
    block = fiction_yaml(make_fiction(task_id, taken, device))
    text = re.sub(r"(?m)^fiction:\n(?:[ \t].*\n|\n)*", lambda _: block, text)
    text = re.sub(r"(?m)^lite: true\n", "", text)
    path.write_text(text, "utf-8")


def fiction_yaml(fiction: dict[str, list[dict[str, str]]]) -> str:
    """The block of task.yaml, one line an institution."""
    lines = ["fiction:"]
    for split, rows in fiction.items():
        lines.append(f"  {split}:")
        for row in rows:
            inner = ", ".join(f"{key}: {value}" for key, value in row.items())
            lines.append(f"    - {{{inner}}}")
    return "\n".join(lines) + "\n"
