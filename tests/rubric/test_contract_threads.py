"""Contracts compile in many threads at once, in a process that has not compiled one yet."""

from __future__ import annotations

import subprocess
import sys

# A collection inside the conversion of a tree hands the interpreter to another thread.
CODE = """
import gc, time
from concurrent.futures import ThreadPoolExecutor
from bat_env.rubric import compile_contract
from bat_env.stages import Stage
from bat_env.tasks import load_task
spec = load_task("seg/kidney_tumor").spec
gc.callbacks.append(lambda *_: time.sleep(1e-4))
gc.set_threshold(50)
with ThreadPoolExecutor(16) as pool:
    jobs = [
        pool.submit(compile_contract, spec, tier=tier, focus=focus)
        for focus in Stage
        for tier in ("lite", "standard", "pro")
    ]
    print(len({job.result().digest for job in jobs}))
"""


def test_threads_may_compile_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "18"), done.stderr[-2000:]
