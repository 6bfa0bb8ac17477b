"""What the verifier adds to an oracle's episode: everything of a hand-in but the clean runs."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil
from measure import Row

from bat_env.env import AutoMedEnv
from bat_env.errors import SandboxError
from bat_env.sandbox.docker import connect
from bat_env.tasks import load_task, task_ids
from bat_env.tools import execute_call, submit_call
from bat_env.verifier import clean, gather

BOUND = 0.15
EPISODES = 3


@dataclass(frozen=True)
class Cost:
    """Seconds of one episode.

    Attributes:
        episode: From reset to the end.
        clean: The clean runs of ``predict.py`` in it, sandbox resets included.
        verifier: The rest of what the verifier did.
        cpu: CPU seconds of the host process in ``verifier``.
    """

    episode: float
    clean: float
    verifier: float
    cpu: float

    @property
    def share(self) -> float:
        """Of the episode."""
        return self.verifier / self.episode


@contextmanager
def _timed(holder: Any, name: str, spent: list[tuple[float, float]]) -> Iterator[None]:
    """Note wall and CPU seconds of every call of a function."""
    inner: Callable[..., Any] = getattr(holder, name)
    me = psutil.Process()

    def timed(*args: Any, **options: Any) -> Any:
        wall, cpu = time.perf_counter(), me.cpu_times()
        try:
            return inner(*args, **options)
        finally:
            used = me.cpu_times()
            spent.append(
                (time.perf_counter() - wall, used.user + used.system - cpu.user - cpu.system)
            )

    setattr(holder, name, timed)
    try:
        yield
    finally:
        setattr(holder, name, inner)


def measure(task_id: str, size: str, backend: str, episodes: int = EPISODES) -> list[Cost]:
    """Play the oracle on new instances; the first is not counted (it warms sandbox and grader)."""
    task = load_task(task_id)
    env = AutoMedEnv(track=task.spec.track, task=task_id, size=size, sandbox=backend)
    cells = task.script({"repair": "skip"})
    found = []
    try:
        for number in range(episodes + 1):
            whole: list[tuple[float, float]] = []
            runs: list[tuple[float, float]] = []
            # Making the instance is the generator's work, not the episode's.
            env.reset(seed=number, options={"index": number})
            start = time.perf_counter()
            env.reset(seed=number, options={"index": number})
            with _timed(gather.Verifier, "gather", whole), _timed(clean, "_run", runs):
                for cell in cells:
                    env.step(execute_call(cell.language, cell.code))
                info = env.step(submit_call())[4]
            wall = time.perf_counter() - start
            assert info["score"] > 0.5, (task_id, info["score"])
            run, run_cpu = (sum(pair[n] for pair in runs) for n in (0, 1))
            found.append(Cost(wall, run, whole[0][0] - run, whole[0][1] - run_cpu))
    finally:
        env.close()
    return found[1:]


def rows(sizes: tuple[str, ...] = ("mini", "full")) -> list[Row]:
    """One row for every task and backend; at full size only of each track's Lite task."""
    backends = ["local"]
    try:
        connect(timeout_s=10.0).close()
        backends.append("docker")
    except SandboxError:
        print("no Docker daemon: rows of docker left out", file=sys.stderr)
    made = []
    for backend in backends:
        for task_id in task_ids():
            for size in sizes if load_task(task_id).spec.lite else sizes[:1]:
                costs = measure(task_id, size, backend)
                share = statistics.median(cost.share for cost in costs)
                made.append(
                    Row(
                        f"verifier without clean runs, {task_id} {size}, {backend}",
                        statistics.median(cost.verifier for cost in costs),
                        "s",
                        statistics.median(cost.episode for cost in costs),
                        share,
                        f"<= {BOUND:.0%} of an oracle's episode",
                        share <= BOUND,
                    )
                )
    return made
