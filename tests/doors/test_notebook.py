"""The example notebook runs from top to bottom, and is kept without outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any


def test_the_notebook_runs(drive: Callable[..., Any], repo_root: Path) -> None:
    notebook = repo_root / "examples" / "quickstart.ipynb"
    done = drive("notebook", "notebook_driver.py", {"notebook": str(notebook)})
    assert not any(done["stored"])
    said = "\n".join(done["texts"])
    assert "S1: reward" in said and "'score': 0.9" in said and ", 384, 3)" in said
