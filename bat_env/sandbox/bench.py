"""Latency of a backend on this machine: cells, resets, and what a spare child costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from .base import Cell, Limits
from .registry import make_sandbox
from .session import WorkerSandbox


@dataclass(frozen=True, slots=True)
class Latency:
    """Medians, milliseconds.

    Attributes:
        start_ms: Boot of the first sandbox, imports included.
        cell_ms: Trivial Python cell while a spare child waits.
        cell_cpu_ms: CPU time of that cell's process.
        back_to_back_ms: Trivial cells without a pause between them.
        reset_ms: Wipe and three input files.
        fork_ms: Making one spare child; happens while the host thinks. None on foreign backends.
    """

    start_ms: float
    cell_ms: float
    cell_cpu_ms: float
    back_to_back_ms: float
    reset_ms: float
    fork_ms: float | None


def _median_ms(call: Callable[[], object], count: int, pause_s: float) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
        time.sleep(pause_s)
    return 1e3 * statistics.median(times)


def measure_latency(backend: str, *, count: int = 20, pause_s: float = 0.06) -> Latency:
    """Measure a backend.

    Args:
        backend: A registered name.
        count: Repetitions of each measurement.
        pause_s: Time between calls, as a host that thinks would leave.

    Raises:
        SandboxError: If the backend cannot run here.
    """
    sandbox = make_sandbox(backend, Limits())
    cell = Cell("python", "pass", 1)
    files = {f"data/c{i}/ct.nii.gz": bytes([i]) * 40_000 for i in range(3)}
    cpu: list[float] = []
    try:
        began = time.perf_counter()
        sandbox.start()
        start_ms = 1e3 * (time.perf_counter() - began)
        sandbox.reset(files)
        time.sleep(0.5)
        cell_ms = _median_ms(lambda: cpu.append(sandbox.run(cell).cpu_s), count, pause_s)
        fork_ms = None
        if isinstance(sandbox, WorkerSandbox):
            fork_ms = sandbox.worker.request({"op": "ping"})[0]["fork_us"] / 1e3
        return Latency(
            start_ms=start_ms,
            cell_ms=cell_ms,
            cell_cpu_ms=1e3 * statistics.median(cpu),
            back_to_back_ms=_median_ms(lambda: sandbox.run(cell), count, 0.0),
            reset_ms=_median_ms(lambda: sandbox.reset(files), count, pause_s),
            fork_ms=fork_ms,
        )
    finally:
        sandbox.close()
