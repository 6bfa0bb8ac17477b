"""``bat-env doctor``: what works on this machine, and how to get the rest."""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from bat_env import __version__
from bat_env.errors import BatError, SandboxUnavailableError
from bat_env.extras import ALONE, DOORS, EXTRAS, HOST_BACKENDS, install, missing, there

VARIABLES: Final = (
    *("BAT_BANK", "BAT_HOME", "BAT_TASKS_PATH"),
    *("BAT_SANDBOX", "BAT_SANDBOX_CGROUP", "BAT_SANDBOX_IMAGE", "BAT_SANDBOX_MEMORY_MB"),
    *("BAT_DOCKER_RUNTIME", "BAT_SERVE_TOKEN"),
    *("BAT_CHAT_API_KEY", "BAT_CHAT_BASE_URL", "BAT_CHAT_MODEL"),
    *("BAT_JUDGE_API_KEY", "BAT_TEACHER_API_KEY"),
)
"""Environment variables that people set."""

_AUTO: Final = "sandbox auto"


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
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
    works = {row["name"]: row["ok"] for row in rows if row["name"].startswith("sandbox ")}
    if not works.pop(_AUTO) or not any(works.values()):
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
    rows.append(_environment_row())
    rows.append(_docker_row())
    rows.append(_auto_row())
    rows += [_sandbox_row(backend, advice) for backend, advice in _backends().items()]
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


def _backends() -> dict[str, str]:
    """Backends that isolate -> what to do where one does not work; those of plug-ins too."""
    from bat_env.sandbox import backend_names

    ours = {
        "docker": "start a Docker daemon and run `bat-env image build`",
        "local": "needs Linux with user namespaces, and " + install("sandbox-local"),
    }
    plugged = [name for name in backend_names() if name not in (*ours, "process")]
    return ours | dict.fromkeys(plugged, "see the documentation of the package that brings it")


def _environment_row() -> dict[str, Any]:
    """Variables of ours that are set; a misspelt one does nothing, and says nothing."""
    given = sorted(name for name in os.environ if name.startswith("BAT_"))
    for name in given:
        close = difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.85)
        if close and name not in VARIABLES:
            what = f"{name} is set, and means nothing here"
            return _row("environment", False, what, f"did you mean {close[0]}?")
    return _row("environment", True, ", ".join(given) or "no BAT_ variable is set")


def _auto_row() -> dict[str, Any]:
    """What ``sandbox="auto"`` comes to here; BAT_SANDBOX may name something that is not there."""
    from bat_env.sandbox import resolve_backend

    told = os.environ.get("BAT_SANDBOX", "")
    try:
        found = resolve_backend("auto")
    except BatError as error:
        advice = f"BAT_SANDBOX is {told!r}: correct or unset it" if told else ""
        return _row(_AUTO, False, str(error), advice)
    return _row(_AUTO, True, f"{found}, by BAT_SANDBOX" if told else found)


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
