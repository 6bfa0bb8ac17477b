"""The loop killed with SIGKILL at random points ends with the same weights and tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bat_agent.files import UNFINISHED

pytestmark = pytest.mark.train
SCRIPT = Path(__file__).with_name("toy_loop.py")


def tables(run: Path) -> dict[str, str]:
    """What the run came to: state, plans, records, controller scores, digests of the weights."""
    files = [
        run / "state.json",
        *(run / "rounds").glob("*/*.json"),
        *(run / "controller").iterdir(),
    ]
    found = {f.relative_to(run).as_posix(): f.read_text() for f in sorted(files)}
    for seal in sorted((run / "rounds").glob("*/train/final/bat.json")):
        name = seal.relative_to(run).as_posix()
        found[name] = json.loads(seal.read_text())["weights_digest"]
    return found


KILLS, SEED = 20, 2


def test_killed_at_random_points(toy_start: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(toy_start), str(tmp_path), str(KILLS), str(SEED)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    print(told)
    assert told["kills"] >= 0.75 * KILLS
    whole = tables(tmp_path / "whole")
    assert len([name for name in whole if name.endswith("bat.json")]) == 2
    assert tables(tmp_path / "killed") == whole
    assert not list((tmp_path / "killed").rglob(f".*{UNFINISHED}"))
