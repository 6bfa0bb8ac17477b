"""The command line: what it prints, and one clear line for an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bat_env


def _run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    code = "from bat_env.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=300,
    )


def test_version_and_tasks() -> None:
    assert _run("--version").stdout == f"bat-env {bat_env.__version__}\n"
    rows = json.loads(_run("tasks", "--json").stdout)["tasks"]
    assert "seg/kidney_tumor" in [row["id"] for row in rows]
    assert "seg/kidney_tumor  v0" in _run("tasks").stdout


def test_errors_are_one_line(tmp_path: Path) -> None:
    for args in (
        ("bank", "status", "--path", str(tmp_path / "none")),
        ("sandbox", "check", "--backend", "dcoker"),
        ("bank", "build", "--path", str(tmp_path), "--task", "kidney_tumr"),
        ("bank", "build", "--path", "/proc/no-such"),
        ("bank", "build", "--target", "0"),
        ("bank", "biuld"),
        ("tasks", "--jsn"),
        ("no-such-command",),
    ):
        out = _run(*args)
        assert out.returncode == 2 and out.stdout == "", out.stderr
        assert out.stderr.startswith("error: ") and out.stderr.count("\n") == 1


def test_usage_errors_say_what_was_expected_what_came_and_what_to_do() -> None:
    assert _run("bank", "build", "--target", "0").stderr == (
        "error: expected a value greater than or equal to 1 for --target, got '0'; give another "
        "value, or see `bat-env bank build --help`\n"
    )
    assert _run("bank", "biuld").stderr == (
        "error: expected a command of `bat-env bank`, got 'biuld'; did you mean 'build'? Else see "
        "`bat-env bank --help`\n"
    )


def test_doctor_says_what_works_and_how_to_get_the_rest(tmp_path: Path) -> None:
    out = _run("doctor", "--json", BAT_BANK=str(tmp_path / "none"))
    checks = {row["name"]: row for row in json.loads(out.stdout)["checks"]}
    assert out.returncode == 0
    assert checks["sandbox local"]["ok"]
    assert not checks["stage bank"]["ok"]
    assert "bat-env bank build" in checks["stage bank"]["advice"]
    assert all(row["ok"] or row["advice"] for row in checks.values())


@pytest.mark.parametrize(
    ("variable", "value", "row", "said"),
    [
        ("BAT_SANDBOX", "lokal", "sandbox auto", "Did you mean 'local'?"),
        ("BAT_SANBOX", "local", "environment", "BAT_SANBOX is set, and means nothing here"),
    ],
)
def test_doctor_sees_a_misspelt_variable(
    variable: str, value: str, row: str, said: str, tmp_path: Path
) -> None:
    out = _run("doctor", "--json", BAT_BANK=str(tmp_path / "none"), **{variable: value})
    found = {each["name"]: each for each in json.loads(out.stdout)["checks"]}[row]
    assert not found["ok"] and said in found["found"] and found["advice"]
    assert out.returncode == (1 if row == "sandbox auto" else 0)
