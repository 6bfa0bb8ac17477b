"""A sandbox backend of your own: here the `local` one, with a log of what cells took.

In a package, an entry point gives it a name: `[project.entry-points."bat_env.sandboxes"]`.
"""

from __future__ import annotations

import time

from bat_env.env import AutoMedEnv
from bat_env.sandbox.base import Cell, CellResult, Limits
from bat_env.sandbox.local import LocalSandbox
from bat_env.tools import execute_call, submit_call


class TimedSandbox(LocalSandbox):
    """Runs cells as `local` does and remembers their wall times, in seconds."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.times: list[float] = []

    def run(self, cell: Cell, timeout_s: float | None = None) -> CellResult:
        """Run one cell, and note how long it took."""
        began = time.perf_counter()
        try:
            return super().run(cell, timeout_s)
        finally:
            self.times.append(time.perf_counter() - began)


def main() -> None:
    sandbox = TimedSandbox()
    env = AutoMedEnv(sandbox=sandbox, size="mini")
    try:
        env.reset(seed=0)
        for code in ("print(6 * 7)", "import torch; print(torch.zeros(2))"):
            print(env.step(execute_call("python", code))[0]["text"].splitlines()[2])
        env.step(submit_call())
        print(len(sandbox.times), "cells,", f"{1000 * sum(sandbox.times):.0f} ms")
    finally:
        env.close()
        sandbox.close()


if __name__ == "__main__":
    main()
