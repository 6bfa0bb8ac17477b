"""Thousands of cells: memory, descriptors, processes and mounts stay where they were.

300 cells a backend in every run; ``make soak`` runs ten thousand.
"""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from bat_env.sandbox import Cell, Limits, Sandbox, make_sandbox

DOCKER = pytest.param("docker", marks=pytest.mark.docker)
LIMITS = Limits(memory_mb=512, pids=32, workspace_mb=16, tmp_mb=8, output_bytes=4096)
CELLS = [
    (Cell("python", "pass"), 0),
    (Cell("python", "import json, monai, numpy as np; print(np.arange(9).sum())"), 0),
    (Cell("python", "open('/workspace/a', 'wb').write(bytes(100_000)); print('x' * 20_000)"), 0),
    (Cell("bash", "echo hello > /tmp/t; rm -f /workspace/a; ls / | head -3"), 0),
    (Cell("python", "1 / 0"), 1),
    (Cell("bash", "sleep 30 & exit 3"), 3),
    (Cell("python", "import os; os.kill(os.getpid(), 9)"), 137),
]
FILES = {"data/c/ct.raw": bytes(200_000), "workspace/plan/plan.md": b"plan"}
GROWTH = 1.05
SETTLE_S = 20.0
SPARES = 2
"""Processes that a worker at rest holds ready, beside one sent ahead for each busy session."""


@dataclass(frozen=True)
class Usage:
    """What stands after some cells. Descriptors by process, for those that live long."""

    host_mib: float
    worker_mib: float
    descriptors: dict[tuple[int, float], int]
    host_descriptors: int
    processes: int
    zombies: int
    mounts: int
    rest: dict[str, int]
    """What the worker says of itself."""


def _memory_mib(pid: int) -> float:
    """Proportional memory without file pages: those are shared with whoever maps the library."""
    total = 0
    for row in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if row.startswith(("Pss_Anon:", "Pss_Shmem:")):
            total += int(row.split()[1])
    return total / 1024


def _root(sandbox: Sandbox) -> psutil.Process:
    """The supervisor."""
    if sandbox.backend != "docker":
        return psutil.Process(sandbox.worker._transport._process.pid)  # type: ignore[attr-defined]
    from bat_env.sandbox.docker import connect

    client = connect()
    try:
        state = client.api.inspect_container(sandbox.container)["State"]  # type: ignore[attr-defined]
    finally:
        client.close()
    return psutil.Process(int(state["Pid"]))


def _look(root: psutil.Process, rest: dict[str, int]) -> Usage:
    tree = [root, *root.children(recursive=True)]
    zombies = sum(process.status() == psutil.STATUS_ZOMBIE for process in tree)
    live = [process for process in tree if process.status() != psutil.STATUS_ZOMBIE]
    return Usage(
        host_mib=_memory_mib(os.getpid()),
        worker_mib=sum(_memory_mib(process.pid) for process in live),
        descriptors={(p.pid, p.create_time()): p.num_fds() for p in live},
        host_descriptors=psutil.Process().num_fds(),
        processes=len(tree),
        zombies=zombies,
        mounts=len(Path(f"/proc/{root.pid}/mountinfo").read_text().splitlines()),
        rest=rest,
    )


def at_rest(sandbox: Sandbox) -> dict[str, int]:
    """The worker's own count of what it keeps for the next cells, once that is complete.

    Raises:
        AssertionError: If it does not get there.
    """
    deadline = time.monotonic() + SETTLE_S
    while True:
        reply, _ = sandbox.worker.request({"op": "ping"})  # type: ignore[attr-defined]
        state = {name: reply[name] for name in ("sessions", "cells", "prepared", "spares")}
        if state["cells"] == 0 and state["spares"] == SPARES and state["prepared"] >= 1:
            return state
        assert time.monotonic() < deadline, f"no rest after {SETTLE_S} s: {state}"
        time.sleep(0.02)


def usage(sandbox: Sandbox) -> Usage:
    """Usage of a worker at rest: two looks that agree about the processes."""
    root = _root(sandbox)
    gc.collect()
    deadline = time.monotonic() + SETTLE_S
    before: Usage | None = None
    while True:
        state = at_rest(sandbox)
        time.sleep(0.3)
        try:
            now = _look(root, state)
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            continue
        if before is not None and before.descriptors == now.descriptors and now.zombies == 0:
            return now
        assert time.monotonic() < deadline, f"processes come and go: {before} {now}"
        before = now


def soak(sandbox: Sandbox, first: int, last: int) -> tuple[Usage, Usage]:
    """Usage after ``first`` and after ``last`` cells."""
    early: Usage | None = None
    for number in range(last):
        if number == first:
            early = usage(sandbox)
        if number % 25 == 0:
            sandbox.reset(FILES)
        cell, code = CELLS[number % len(CELLS)]
        result = sandbox.run(cell)
        assert result.exit_code == code, (number, cell, result)
        if number % 50 == 7:
            assert sandbox.read("plan/plan.md", 100) == b"plan"
            assert "plan/plan.md" in sandbox.manifest() and sandbox.snapshot()
    assert early is not None
    return early, usage(sandbox)


def assert_flat(early: Usage, late: Usage) -> None:
    report = f"\nearly {early}\nlate  {late}"
    assert late.rest == early.rest, "not the same state of rest" + report
    assert late.worker_mib <= GROWTH * early.worker_mib, "worker memory grew" + report
    assert late.host_mib <= GROWTH * early.host_mib, "host memory grew" + report
    assert late.host_descriptors <= early.host_descriptors, "host descriptors grew" + report
    stayed = early.descriptors.keys() & late.descriptors.keys()
    assert len(stayed) >= 2, "supervisor and zygote did not live through" + report
    for process in stayed:
        grew = late.descriptors[process] - early.descriptors[process]
        assert grew <= 0, f"descriptors of a process grew by {grew}" + report
    assert late.processes <= early.processes, "processes grew" + report
    assert late.zombies <= early.zombies, "zombies grew" + report
    assert late.mounts <= early.mounts, "mounts grew" + report


@pytest.fixture(params=["local", DOCKER])
def soaked(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox of this test alone, as far as its worker is not shared."""
    sandbox = make_sandbox(request.param, LIMITS)
    sandbox.start()
    try:
        _memory_mib(_root(sandbox).pid)
    except (PermissionError, FileNotFoundError, psutil.AccessDenied):
        sandbox.close()
        pytest.skip("this user may not look at the worker's memory")
    yield sandbox
    sandbox.close()


def test_three_hundred_cells_leave_nothing(soaked: Sandbox) -> None:
    assert_flat(*soak(soaked, 100, 300))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_ten_thousand_cells_leave_nothing(soaked: Sandbox) -> None:
    early, late = soak(soaked, 1000, 10_000)
    print(f"\n{soaked.backend}\n  after  1,000 cells: {early}\n  after 10,000 cells: {late}")
    assert_flat(early, late)


def _forks(root: psutil.Process) -> list[int]:
    """Children of the zygote that have memory: a cell that has ended has none."""
    born_of: dict[int, int] = {}
    for process in root.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            alive = Path(f"/proc/{process.pid}/statm").read_text().split()[0] != "0"
            if alive and "-P" in process.cmdline():  # the zygote's options: its forks have them
                born_of[process.pid] = process.ppid()
    return [pid for pid, parent in born_of.items() if parent in born_of]


def _await_forks(root: psutil.Process, count: int) -> list[int]:
    """Looks at the process table alone: a request would wake the worker."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        found = _forks(root)
        if len(found) == count or time.monotonic() > deadline:
            return found
        time.sleep(0.02)


@pytest.mark.parametrize("backend", ["local", DOCKER])
def test_rest_does_not_depend_on_the_last_cell(backend: str) -> None:
    """Spares refilled and one sent ahead, although nobody talks to the worker meanwhile."""
    # A worker of its own: nobody else's requests wake it.
    sandbox: Sandbox = make_sandbox(backend, LIMITS, preload=("json", "numpy"))
    sandbox.start()
    try:
        root = _root(sandbox)
        sandbox.reset(FILES)
        assert len(_await_forks(root, SPARES)) == SPARES, "before the first cell"
        for _ in range(2):
            sandbox.run(Cell("python", "pass"))
        for cell in (*(c for c, _ in CELLS if "monai" not in c.code), Cell("bash", "sleep 0.2")):
            sandbox.run(cell)
            found = _await_forks(root, SPARES + 1)
            assert len(found) == SPARES + 1, f"after {cell}: {found}"
            state, _ = sandbox.worker.request({"op": "ping"})  # type: ignore[attr-defined]
            assert (state["prepared"], state["cells"]) == (1, 0), f"after {cell}: {state}"
    finally:
        sandbox.close()
