"""The README's example runs as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path


def test_quickstart_runs_and_prints_the_score(repo_root: Path) -> None:
    script = repo_root / "examples" / "quickstart.py"
    assert len(script.read_text().splitlines()) < 25
    out = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=repo_root,
        env={**os.environ, "BAT_SANDBOX": "local"},
    )
    assert out.returncode == 0, out.stderr
    score = re.search(r"score (\d\.\d+)$", out.stdout.strip())
    assert score and float(score[1]) >= 0.7, out.stdout
    assert not out.stderr
