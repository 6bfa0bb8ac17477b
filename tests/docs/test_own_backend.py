"""docs/backend.md, followed to the letter: class and project file make a backend that holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "backend.md").read_text(encoding="utf-8")


def _block(language: str, number: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)[number]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a machine where the page's package is installed."""
    folder = tmp_path_factory.mktemp("audit")
    (folder / "audit_sandbox.py").write_text(_block("python"), encoding="utf-8")
    (folder / "pyproject.toml").write_text(_block("toml"), encoding="utf-8")
    site = folder / "site"
    words = ("install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    pip = [sys.executable, "-m", "pip", *words, "--target", str(site), str(folder)]
    subprocess.run(pip, check=True, capture_output=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    log = {"AUDIT_LOG": str(folder / "audit.jsonl")}
    return {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "PATH": path, **log}


# The second is `bat-env sandbox check`, which other tests run on the backend behind this one.
@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.slow), 2])
def test_each_command_of_the_page_holds(
    number: int, installed: dict[str, str], tmp_path: Path
) -> None:
    [commands] = [b for b in re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S) if "check" in b]
    line = commands.splitlines()[number]
    if line.startswith("python "):
        line = f"{sys.executable} {line.removeprefix('python ')}"
    done = subprocess.run(
        ["bash", "-c", line], env=installed, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    if line.startswith("bat-agent"):
        rows = [json.loads(r) for r in Path(installed["AUDIT_LOG"]).read_text().splitlines()]
        assert any("predict" in row["code"] and row["exit_code"] == 0 for row in rows)


def test_the_backend_is_found(installed: dict[str, str], tmp_path: Path) -> None:
    code = (
        "from bat_env.sandbox import resolve_backend; print(resolve_backend())\n"
        "from bat_env.doctor_cli import _auto_row; print(_auto_row()['found'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**installed, "BAT_SANDBOX": "Audit"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == ["audit", "audit, by BAT_SANDBOX"], done.stderr
