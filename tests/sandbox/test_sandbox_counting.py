"""A cell's memory, counted exactly; deadlines that hold while the cell is in the way of it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from bat_env.sandbox import CellResult, Sandbox
from bat_env.sandbox.worker import counting, proc
from bat_env.sandbox.worker.isolation import Plain

Run = Callable[..., CellResult]

STORM = """
import os
for _ in range({doublings}): os.fork()
while True:
    try:
        if os.fork() == 0 and {short}: os._exit(0)
        if {short}: os.waitpid(-1, os.WNOHANG)
    except OSError: pass
"""
HOLDER = """
import os, time
held = b"x" * (64 << 20)
os.fork()
os.write(1, b"%d " % os.getpid())
time.sleep(60)
"""


@pytest.fixture
def busy() -> Iterator[None]:
    """Two processes that want a core each, beside the test."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.parametrize("short", [True, False], ids=["short lives", "bomb"])
def test_verdicts_come_while_processes_fork(
    walled: Sandbox, python: Run, busy: None, short: bool
) -> None:
    """Each fork locks the memory map of a large process, and nobody must wait for that."""
    timeout, limit = (2.0, "timeout") if short else (60.0, "pids")
    code, late = STORM.format(doublings=4 if short else 0, short=short), []
    for _ in range(3):  # others may use the machine, too: the best try counts
        seen = python(walled, code, timeout)
        assert seen.limit == limit
        late.append(seen.wall_s - (timeout if short else 0.0))
        if late[-1] < 3.0:
            return
    pytest.fail(f"{late} seconds until the verdict")


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _collected() -> bool:
    counting.collect()
    return not counting._ending


def test_a_page_is_counted_once() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        words: list[bytes] = []
        while len(words) < 2:
            words += os.read(holder.stdout.fileno(), 100).split()
        pids = [int(word) for word in words]
        try:
            members = [p for p in proc.processes(pidns=False) if p.pid in pids]
            count = counting.Count(Plain({}), members)
            while not count.take():
                assert select.select([count.fd], [], [], 20.0)[0]
            count.close()
        finally:
            for pid in pids:
                os.kill(pid, 9)
    assert sum(p.anon for p in members) > 128 << 10
    shares = [share for share in count.shares if share is not None]
    assert len(shares) == 2 and 64 << 10 < sum(shares) < 96 << 10
    assert 0.0 < count.cost < 0.2
    _until(_collected)


def test_a_count_that_is_held_up_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel may keep whoever looks at a process waiting for as long as the process likes."""
    sizes = (3, 1, 2)
    members = [proc.Process(pid, 1, 0, 1, 10, size, 0) for pid, size in enumerate(sizes)]
    monkeypatch.setattr(counting, "_PATIENCE_S", 1.0)
    monkeypatch.setattr(proc, "proportional", lambda pid: time.sleep(600) if pid == 2 else pid)
    began = time.monotonic()
    count = counting.Count(Plain({}), members)
    _until(lambda: count.take() or bool(count.shares))
    assert [p.anon for p in count.members] == [1, 2, 3] and count.shares == [1]
    assert not count.take() and not count.overdue
    _until(lambda: count.overdue)
    count.close()
    assert time.monotonic() - began < 10.0
    _until(_collected)
