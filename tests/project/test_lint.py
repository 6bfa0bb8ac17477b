"""Lint is a test: format, style, types and the architecture's import rules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LINT_IMPORTS = "from importlinter.cli import lint_imports_command as run; run()"
COMMANDS = {
    "format": ["-m", "ruff", "format", "--check", "."],
    "style": ["-m", "ruff", "check", "."],
    "types": ["-m", "mypy"],
    "architecture": ["-c", LINT_IMPORTS],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_lint(name: str, repo_root: Path) -> None:
    done = subprocess.run(
        [sys.executable, *COMMANDS[name]], cwd=repo_root, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
