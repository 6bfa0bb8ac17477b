"""A session's cgroup on ``local``: limits, verdicts, and nothing left in the hierarchy."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bat_env.sandbox import Cell, Limits, make_sandbox
from bat_env.sandbox.embedded import close_workers
from bat_env.sandbox.local import LocalSandbox
from bat_env.sandbox.worker import cgroups

LIMITS = Limits(memory_mb=256, pids=16, workspace_mb=16, tmp_mb=8, cell_timeout_s=30)
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def grouped(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Folders of the hierarchy; the fresh local worker of the test uses it."""
    monkeypatch.setenv("BAT_SANDBOX_CGROUP", "always")
    plan = cgroups.find()
    if plan is None:
        pytest.skip("no cgroup may be made here")
    close_workers()
    yield plan["folders"]
    close_workers()


def _groups(folders: dict[str, str], pid: int) -> list[str]:
    return [g.name for f in folders.values() for g in Path(f).glob(f"bat-{pid}-*")]


def test_a_session_has_a_group_of_its_own(grouped: dict[str, str]) -> None:
    boxes = [make_sandbox("local", LIMITS, preload=()) for _ in range(2)]
    names = []
    for box in boxes:
        assert isinstance(box, LocalSandbox)
        assert box.enforcement in ("cgroup v1", "cgroup v2")
        box.reset({})
        seen = box.run(Cell("bash", "cat /proc/self/cgroup")).stdout
        names.append({word for word in seen.replace("/", " ").split() if word.startswith("bat-")})
    assert len(names[0]) == len(names[1]) == 1 and names[0] != names[1]
    assert _groups(grouped, os.getpid())
    for box in boxes:
        box.close()
    assert _groups(grouped, os.getpid()) == []


def test_the_kernel_holds_the_limits(grouped: dict[str, str]) -> None:
    box = make_sandbox("local", LIMITS, preload=())
    try:
        box.reset({})
        # Each below its own limit, together over the session's, faster than a look every 100 ms.
        child = "b = bytearray(200 << 20); import time; time.sleep(9)"
        code = f"import subprocess, sys\nc = [sys.executable, '-c', {child!r}]\n"
        code += "p = [subprocess.Popen(c) for _ in range(8)]\nprint([q.wait() for q in p])"
        assert box.run(Cell("python", code)).limit == "memory"
        bomb = "import os, time\nfor _ in range(200):\n    if os.fork() == 0: time.sleep(5); break"
        assert box.run(Cell("python", bomb)).limit == "pids"
        full = box.run(Cell("python", "open('f', 'wb').write(bytes(12 << 20)); print('up')"))
        assert (full.stdout, full.limit) == ("up\n", None)
        for _ in range(3):
            box.reset({})
        assert box.run(Cell("python", "print('up')")).stdout == "up\n"
    finally:
        box.close()


_HOST = """
from bat_env.sandbox import Cell, make_sandbox
box = make_sandbox("local", preload=())
box.reset({})
print("ready", flush=True)
box.run(Cell("bash", "sleep 300"))
"""


def test_groups_of_a_killed_host_go_with_the_next_start(grouped: dict[str, str]) -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", _HOST], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert host.stdout is not None
    with host.stdout:
        assert host.stdout.readline() == "ready\n"
    assert _groups(grouped, host.pid)
    host.kill()
    host.wait()
    for _ in range(50):
        assert cgroups.find() is not None
        if not _groups(grouped, host.pid):
            break
    assert _groups(grouped, host.pid) == []


def test_never_means_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAT_SANDBOX_CGROUP", "never")
    assert cgroups.find() is None
    close_workers()
    box = make_sandbox("local", LIMITS, preload=())
    assert isinstance(box, LocalSandbox) and box.enforcement.startswith("resource limits")
    box.close()
    close_workers()
