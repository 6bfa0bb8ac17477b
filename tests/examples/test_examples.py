"""Every example runs as a person would run it, and stays short."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))


def test_there_are_examples() -> None:
    wanted = {"quickstart", "custom_agent", "custom_backend", "custom_task", "random_agent"}
    wanted |= {"scripted_agent", "train_your_model", "vector_rollouts"}
    assert wanted <= {path.stem for path in SCRIPTS}


SLOW = {"train_your_model.py"}
"""Their doors have tests of their own, which run every time."""


@pytest.mark.parametrize(
    "script",
    [pytest.param(p, id=p.name, marks=[pytest.mark.slow] * (p.name in SLOW)) for p in SCRIPTS],
)
def test_example_runs(script: Path, tmp_path: Path) -> None:
    assert len(script.read_text().splitlines()) <= 60
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip()
