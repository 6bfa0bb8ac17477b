"""Builder and trainer killed at random: nothing is lost, nothing is there twice.

After every kill: each row whole and once, as it was; each finished job has its row; each round was
trained on admitted states, those of its plan. At the end: no file that no row names, and the same
bytes as of a bank whose builder nobody disturbed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bat_env.sandbox import resolve_backend

SCRIPT = Path(__file__).with_name("killed_bank.py")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("events", "seed"), [(2, 5), pytest.param(20, 6, marks=pytest.mark.slow)])
def test_kills_lose_and_double_nothing(events: int, seed: int, tmp_path: Path) -> None:
    assert resolve_backend("local") == "local"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), str(events), str(seed)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1700,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    assert sum(told["kills"].values()) == events and told["rounds"] == events + 1
