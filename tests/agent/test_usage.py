"""What a run costs, measured on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from bat_agent.files import read_json, write_json
from bat_agent.usage import FILE, Usage, disk_bytes, tree_cpu_s, tree_memory_bytes

HOLD = "x = bytearray(b'1') * (96 << 20); print('held', flush=True); input()"
FORKED = "import os\nx = bytearray(b'1') * (96 << 20)\nos.fork()\nprint(1, flush=True)\ninput()"
BURN = "import time\nwhile time.process_time() < 0.6: pass"


def held(code: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None and child.stdout.readline()
    return child


def ended(child: subprocess.Popen[bytes]) -> None:
    child.communicate(b"\n\n")


def test_memory_counts_descendants_and_shared_pages_once() -> None:
    before = tree_memory_bytes()
    assert before > 5 << 20
    for code in (HOLD, FORKED):
        child = held(code)
        grown = tree_memory_bytes() - before
        ended(child)
        assert 90 << 20 < grown < 150 << 20, code


def test_cpu_counts_children_that_ended() -> None:
    before = tree_cpu_s()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert 0.5 < tree_cpu_s() - before < 5.0


def test_disk_counts_a_hard_link_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(1 << 20))
    one = disk_bytes(tmp_path)
    os.link(tmp_path / "a", tmp_path / "b")
    assert one == disk_bytes(tmp_path) >= 1 << 20


def test_a_peak_is_kept_and_starts_are_summed(tmp_path: Path) -> None:
    with Usage(tmp_path, period_s=0.05) as usage:
        base = usage.cost().peak_memory_mb
        child = held(HOLD)
        time.sleep(1.5)
        ended(child)
        time.sleep(0.2)
    first = read_json(tmp_path / FILE, schema_version=1)
    assert first["starts"] == 1 and first["wall_s"] >= 1.7 and first["cpu_s"] > 0
    assert first["peak_memory_mb"] > base + 60
    with Usage(tmp_path, period_s=0.05):
        time.sleep(0.5)
    second = read_json(tmp_path / FILE, schema_version=1)
    assert second["starts"] == 2 and second["wall_s"] >= first["wall_s"] + 0.4
    assert second["peak_memory_mb"] == first["peak_memory_mb"]
    write_json(tmp_path / FILE, {"schema_version": 1, "wall_s": "x"})
    with Usage(tmp_path) as usage:
        assert usage.cost().starts == 1  # damaged: only a measure
