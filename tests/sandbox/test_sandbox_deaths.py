"""Who killed it decides: deaths that the agent bears, and deaths that make the episode invalid."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bat_env.errors import SandboxDiedError, SandboxError
from bat_env.sandbox import Cell, Limits, SandboxPool, make_sandbox
from bat_env.sandbox.budget import Budget
from bat_env.sandbox.embedded import close_workers
from bat_env.sandbox.worker import wire
from bat_env.workbench import Ran, Workbench

LIMITS = Limits(memory_mb=256, workspace_mb=16, tmp_mb=8, cell_timeout_s=60)
BACKENDS = ["local", pytest.param("docker", marks=pytest.mark.docker)]
FATAL = Cell("bash", "echo x > lost; sleep 300.61")


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Workbench]:
    """A workbench over lean sandboxes of its own pool, with one cell done."""
    pool = SandboxPool(request.param, LIMITS, budget=Budget(1 << 20), preload=())
    made = Workbench(request.param)
    made._pool, made._limits = pool, LIMITS
    made.begin(LIMITS, {"data/x": b"1"})
    made.run(Cell("bash", "echo kept > note"), 20.0)
    yield made
    made.release()
    pool.close()


def _below(pid: int) -> dict[int, str]:
    """Processes below ``pid`` with their first words."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True)
    rows = [line.split(None, 2) for line in table.stdout.splitlines()]
    parents = {int(row[0]): (int(row[1]), row[2]) for row in rows if len(row) == 3}
    found: dict[int, str] = {}
    frontier = {pid}
    while frontier:
        frontier = {child for child, (parent, _) in parents.items() if parent in frontier}
        found.update((child, parents[child][1]) for child in frontier)
    return found


def _outer(bench: Workbench) -> int:
    """The local worker's process outside all namespaces."""
    return int(bench.current.worker._transport._process.pid)  # type: ignore[attr-defined]


def _kill_sandbox(bench: Workbench) -> None:
    """As an out-of-memory killer or an operator would, from outside."""
    if bench.current.backend == "docker":
        container = bench.current.container  # type: ignore[attr-defined]
        subprocess.run(["docker", "kill", container], check=True, capture_output=True)
    else:
        os.kill(_outer(bench), signal.SIGKILL)


def _sleeps() -> bool:
    return bool(subprocess.run(["pgrep", "-f", "^sleep 300.61$"], capture_output=True).stdout)


class Killer:
    """Kills the sandbox each of the first ``times`` times that the fatal cell is seen to run."""

    def __init__(self, bench: Workbench, times: int) -> None:
        self.bench, self.left, self.done = bench, times, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while self.left and not self.done.is_set():
            if _sleeps():
                _kill_sandbox(self.bench)
                self.left -= 1
                while _sleeps() and not self.done.is_set():
                    time.sleep(0.02)
            time.sleep(0.05)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join(30)


@pytest.mark.parametrize("bench", BACKENDS, indirect=True)
def test_a_death_that_repeats_is_the_agents(bench: Workbench) -> None:
    with Killer(bench, 2):
        ran = bench.run(FATAL, 40.0)
    assert ran.result.limit == "memory" and ran.result.exit_code == 137
    assert [kind for kind, _ in ran.violations] == ["worker_killed"]
    assert list(ran.manifest) == ["note"], "the episode goes on before the deadly cell"
    after = bench.run(Cell("bash", "cat note /data/x"), 20.0)
    assert after.result.stdout == "kept\n1" and after.violations == ()
    assert not _sleeps()


@pytest.mark.parametrize("bench", BACKENDS, indirect=True)
def test_a_death_that_does_not_repeat_is_nobodys(bench: Workbench) -> None:
    with Killer(bench, 1), pytest.raises(SandboxError, match="the cause is the infrastructure"):
        bench.run(Cell("bash", FATAL.code.replace("sleep 300.61", "timeout 4 sleep 300.61")), 40.0)
    with pytest.raises(SandboxError, match="holds no sandbox"):
        _ = bench.current
    bench.begin(LIMITS, {})
    assert bench.run(Cell("python", "print(1)"), 20.0).result.ok


@pytest.mark.parametrize("bench", ["local"], indirect=True)
@pytest.mark.parametrize("part", ["first", "middle", "last"])
def test_any_part_of_a_local_worker_may_die(bench: Workbench, part: str) -> None:
    """Supervisor, zygote, spare or a first process: the next lease works, nothing stays."""
    pids: list[int] = []
    while (now := sorted(_below(_outer(bench)))) != pids:  # what has just ended is still going
        pids = now
        time.sleep(0.2)
    victim = pids[{"first": 0, "middle": len(pids) // 2, "last": -1}[part]]
    bystander = bench.pool.acquire(beside=True)
    os.kill(victim, signal.SIGKILL)
    time.sleep(0.2)
    for sandbox in (bench.current, bystander):
        try:
            assert sandbox.run(Cell("python", "print(1)"), 20.0).ok
        except SandboxError as error:
            assert "died" in str(error) or "reports" in str(error)
    bench.pool.release(bystander)
    bench.drop()
    bench.begin(LIMITS, {})
    assert bench.run(Cell("python", "print(2)"), 20.0).result.stdout == "2\n"
    outer = _outer(bench)
    deadline = time.monotonic() + 20
    while any(pid != outer and Path(f"/proc/{pid}").exists() for pid in pids) and not set(
        pids
    ) & set(_below(outer)):
        assert time.monotonic() < deadline, "processes of the dead worker stay"
        time.sleep(0.05)


@pytest.mark.docker
@pytest.mark.parametrize("bench", ["docker"], indirect=True)
def test_a_counter_of_the_daemon_convicts(bench: Workbench) -> None:
    """The container's memory cgroup killed, then the container died: no second run is needed."""
    container = bench.current.container  # type: ignore[attr-defined]
    subprocess.run(
        ["docker", "update", "--memory=90m", "--memory-swap=90m", container],
        check=True,
        capture_output=True,
    )
    hungry = Cell("bash", "python3 -c 'b = bytearray(120 << 20)'; echo x > lost; sleep 300.61")
    with Killer(bench, 1):
        ran = bench.run(hungry, 40.0)
    assert ran.result.limit == "memory"
    assert ran.violations[0][0] == "worker_killed"
    assert "lost" not in ran.manifest and list(ran.manifest) == ["note"]
    assert bench.current.container != container  # type: ignore[attr-defined]


class Tapped:
    """A worker's stream with bytes in it that no worker writes."""

    def __init__(self, transport: Any, poison: bytes) -> None:
        self._transport, self._poison = transport, poison

    def read(self) -> bytes:
        return self._poison + bytes(self._transport.read())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


POISON = {
    "no frame": b"\xff" * 64,
    "no JSON": wire._PREFIX.pack(8, 4) + b"}{}{",
    "no number": wire.pack({"id": None, "ok": True}),
}


def _poison(bench: Workbench, poison: bytes) -> None:
    """The bytes come before whatever the worker says next."""
    worker = bench.current.worker  # type: ignore[attr-defined]
    worker._transport = Tapped(worker._transport, poison)
    worker.request({"op": "ping"})  # answered through the read that already waits


@pytest.mark.parametrize("bench", BACKENDS, indirect=True)
@pytest.mark.parametrize("kind", POISON)
def test_a_malformed_frame_in_a_cell_is_a_violation(bench: Workbench, kind: str) -> None:
    _poison(bench, POISON[kind])
    ran: Ran = bench.run(Cell("bash", "echo x > lost; sleep 1"), 20.0)
    assert [name for name, _ in ran.violations] == ["malformed_frame"]
    assert "malformed frame" in ran.violations[0][1]
    assert not ran.result.ok and ran.result.limit is None and list(ran.manifest) == ["note"]
    assert bench.run(Cell("bash", "cat note"), 20.0).result.stdout == "kept\n"


@pytest.mark.parametrize("bench", ["local"], indirect=True)
def test_nobody_is_blamed_for_a_frame_while_two_cells_run(bench: Workbench) -> None:
    other = make_sandbox("local", LIMITS, preload=())
    other.reset({})
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(other.run, Cell("bash", "sleep 3"))]
        time.sleep(0.5)
        _poison(bench, POISON["no frame"])
        running.append(threads.submit(bench.current.run, Cell("bash", "sleep 3")))
        for future in running:
            with pytest.raises(SandboxDiedError) as caught:
                future.result(30)
            assert caught.value.evidence == ""
    other.close()
    close_workers()
