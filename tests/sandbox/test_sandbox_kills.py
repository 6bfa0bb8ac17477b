"""Random kills: of hosts, containers, and every process of a worker. Nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from bat_env.errors import SandboxError
from bat_env.image import connect
from bat_env.sandbox import Cell, Limits, Sandbox, SandboxPool, reaper
from bat_env.sandbox.budget import Budget
from bat_env.sandbox.embedded import close_workers

LIMITS = Limits(memory_mb=256, workspace_mb=16, tmp_mb=8, cell_timeout_s=60)
REPOSITORY = Path(__file__).parents[2]
SLEEP = "sleep 300.97"
BUSY = f"({SLEEP} &) ; (setsid {SLEEP} &) ; echo x > f; for i in 1 2 3 4 5 6; do sleep .1; done"
PATIENCE_S = 30.0

HOST = """
import sys, time
from bat_env.sandbox import Cell, Limits, SandboxPool
pool = SandboxPool(sys.argv[1], Limits(memory_mb=256, workspace_mb=16, tmp_mb=8), preload=())
with pool.lease() as box:
    box.reset({"data/x": b"1", "workspace/y": b"2"})
    print("ready", getattr(box, "container", ""), flush=True)
    while True:
        box.run(Cell("bash", sys.argv[2]))
"""


def _processes() -> dict[int, tuple[int, str, str]]:
    """Process id -> parent, start time and command of all live processes."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if fields[0] != "Z":
                    found[int(entry.name)] = (int(fields[1]), fields[19], command.strip())
    return found


def _below(pid: int) -> dict[int, str]:
    """Processes below ``pid``, with their start times."""
    table, found, frontier = _processes(), {}, {pid}
    while frontier:
        frontier = {child for child, row in table.items() if row[0] in frontier}
        found.update({child: table[child][1] for child in frontier})
    return found


class Watch:
    """Everything that was seen to live below a sandbox, to be gone at the end."""

    def __init__(self) -> None:
        self.seen: set[tuple[int, str]] = set()
        self.containers: set[str] = set()

    def _folders(self) -> set[str]:
        """Temporary folders of the ``process`` workers that were seen."""
        there = Path(tempfile.gettempdir()).glob("bat-process-*")
        pids = {str(pid) for pid, _ in self.seen}
        return {path.name for path in there if path.name.split("-")[2] in pids}

    @staticmethod
    def _mounts() -> set[str]:
        """Mounts of a worker that leaked out of its namespace."""
        return {m for m in Path("/proc/mounts").read_text().splitlines() if m.startswith("bat ")}

    def note(self, pid: int) -> list[int]:
        below = _below(pid)
        self.seen |= set(below.items())
        return sorted(below)

    def left(self, *, docker: bool) -> list[str]:
        table = _processes()
        rows = [
            f"{pid} {row[2]}"
            for pid, row in table.items()
            if (pid, row[1]) in self.seen or row[2] == SLEEP
        ]
        rows += sorted(self._mounts() | self._folders())
        if docker:
            with contextlib.closing(connect(20.0)) as client:
                reaper.reap(client)
                there = {found["Id"] for found in client.api.containers(all=True)}
            rows += sorted(self.containers & there)
        return rows

    def assert_nothing_left(self, *, docker: bool) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (rows := self.left(docker=docker)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not rows, "left behind:\n" + "\n".join(rows)


def _outer(box: Sandbox) -> int:
    return int(box.worker._transport._process.pid)  # type: ignore[attr-defined]


def _container_pids(container: str) -> list[int]:
    seen = subprocess.run(
        ["docker", "top", container, "-o", "pid"], capture_output=True, text=True, check=False
    )
    return [int(word) for word in seen.stdout.split()[1:] if word.isdigit()]


def _kill_inside(pool: SandboxPool, rng: random.Random, watch: Watch) -> None:
    """One lease whose sandbox loses a random process while a cell runs."""
    docker = pool.backend == "docker"
    box = pool.acquire()
    container = box.container if docker else ""  # type: ignore[attr-defined]
    if docker:
        watch.containers.add(container)
    outer = 0 if docker else _outer(box)
    wait, choice, whole = rng.uniform(0.0, 0.5), rng.random(), rng.random() < 0.3

    def strike() -> None:
        time.sleep(wait)
        if docker and whole:
            subprocess.run(["docker", "kill", container], capture_output=True, check=False)
            return
        pids = _container_pids(container) if docker else [outer, *watch.note(outer)]
        if pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[int(choice * len(pids))], signal.SIGKILL)

    striker = threading.Thread(target=strike)
    striker.start()
    try:
        box.run(Cell("bash", BUSY), 30.0)
    except SandboxError as error:
        assert "Expected" in str(error) or "sandbox worker" in str(error)
    finally:
        striker.join()
        pool.release(box)


def _kill_host(backend: str, rng: random.Random, watch: Watch) -> None:
    """A host process with a running cell is killed."""
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, backend, BUSY],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert host.stdout is not None
    with host.stdout:
        word, _, container = host.stdout.readline().strip().partition(" ")
        assert word == "ready"
        if container:
            watch.containers.add(container)
        time.sleep(rng.uniform(0.0, 0.6))
        watch.note(host.pid)
        host.kill()
        host.wait()


def _rounds(count: int, kinds: list[tuple[str, str]], seed: int) -> None:
    rng, watch = random.Random(seed), Watch()
    pools = {
        backend: SandboxPool(backend, LIMITS, budget=Budget(1 << 20), preload=())
        for backend in {backend for backend, kind in kinds if kind == "inside"}
    }
    try:
        for number in range(count):
            backend, kind = kinds[number % len(kinds)]
            if kind == "host":
                _kill_host(backend, rng, watch)
                continue
            _kill_inside(pools[backend], rng, watch)
            with pools[backend].lease() as box:
                seen = box.run(Cell("python", "import os; print(os.listdir('.'))"), 20.0)
                assert seen.stdout == "[]\n", f"round {number}: {seen}"
    finally:
        for pool in pools.values():
            pool.close()
        close_workers()
    watch.assert_nothing_left(docker=any(backend == "docker" for backend, _ in kinds))


def test_a_few_random_kills_leave_nothing() -> None:
    _rounds(
        8, [("local", "inside"), ("local", "inside"), ("local", "host"), ("process", "host")], 1
    )


@pytest.mark.docker
def test_a_few_random_kills_of_containers_leave_nothing() -> None:
    _rounds(4, [("docker", "inside"), ("docker", "inside"), ("docker", "host")], 2)


@pytest.mark.slow
@pytest.mark.docker
def test_fifty_random_kills_leave_nothing() -> None:
    kinds = [("local", "inside"), ("docker", "inside"), ("local", "host"), ("docker", "inside")]
    kinds += [("local", "inside"), ("docker", "host"), ("local", "inside"), ("process", "host")]
    _rounds(50, kinds, 3)
