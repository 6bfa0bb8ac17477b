"""Our own sandboxes in the bench: cells, resets, sixteen at once, memory."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from contenders import IDLE_S, STATE, Contender, timed

from bat_env.errors import SandboxError
from bat_env.sandbox import make_sandbox
from bat_env.sandbox.base import Cell, Limits, Sandbox

MANY = 16
EXTRA = {"docker": 2, "local": 4}
"""Idle sandboxes that are added, to see what each further one costs."""

_TRIVIAL = Cell("python", "pass", 1)
_MONAI = Cell("python", "import monai", 1)
_BASH = Cell("bash", "echo hello", 1)
_WORK = Cell(
    "python",
    "import numpy as np\n"
    "import torch\n"
    "from monai.networks.nets import UNet\n"
    "volume = np.fromfile('/data/c0/ct.raw', np.int16).reshape(32, 32, 40)[:, :, :32]\n"
    "net = UNet(3, 1, 2, (8, 16, 32), (2, 2)).eval()\n"
    "with torch.no_grad():\n"
    "    found = net(torch.from_numpy(volume.astype(np.float32))[None, None]).argmax(1)\n"
    "np.save('mask.npy', found.numpy().astype(np.uint8))\n"
    "print(found.shape)\n",
)
"""A network pass over a small volume: the kind of cell that a rollout is made of."""
_INPUT = {"data/c0/ct.raw": bytes(range(256)) * 320}


def _must(sandbox: Sandbox, cell: Cell) -> None:
    result = sandbox.run(cell)
    if not result.ok:
        raise SandboxError(f"A bench cell failed ({result.exit_code}): {result.stderr[-500:]}")


def opened(stack: contextlib.ExitStack, backend: str, limits: Limits | None = None) -> Sandbox:
    """A started sandbox that closes with ``stack``."""
    sandbox = make_sandbox(backend, limits)
    stack.callback(sandbox.close)
    sandbox.start()
    sandbox.reset(_INPUT)
    return sandbox


def close_all() -> None:
    """End the shared workers too."""
    from bat_env.sandbox.embedded import close_workers

    close_workers()


def cell_contenders(sandbox: Sandbox, backend: str) -> list[Contender]:
    """Cells and resets on one warm sandbox."""

    def cells(cell: Cell, count: int, idle_s: float) -> Callable[[], list[float]]:
        return lambda: timed(lambda: _must(sandbox, cell), count, idle_s)

    def back_to_back() -> list[float]:
        # The first cells find spares that were made before; what lasts is the pace after them.
        return timed(lambda: _must(sandbox, _TRIVIAL), 14)[4:]

    def reset(files: dict[str, bytes]) -> Callable[[], list[float]]:
        return lambda: timed(lambda: sandbox.reset(files), 2, IDLE_S)

    def reset_20mb() -> list[float]:
        times = reset(dict(STATE))()
        sandbox.reset(_INPUT)
        return times

    def reset_new_20mb() -> list[float]:
        state = {path: os.urandom(len(content)) for path, content in STATE.items()}
        time.sleep(IDLE_S)
        times = timed(lambda: sandbox.reset(state), 1)
        sandbox.reset(_INPUT)
        return times

    return [
        Contender(
            f"{backend}.cell",
            f"{backend}: trivial Python cell, host idle between cells",
            cells(_TRIVIAL, 8, IDLE_S),
            turns=4,
            baseline="fork.bare",
        ),
        Contender(
            f"{backend}.burst",
            f"{backend}: trivial Python cells back to back",
            back_to_back,
            turns=4,
            baseline="fork.naive",
        ),
        Contender(
            f"{backend}.monai",
            f"{backend}: cell with `import monai`",
            cells(_MONAI, 4, IDLE_S),
            turns=3,
            baseline="exec.monai",
        ),
        Contender(
            f"{backend}.bash",
            f"{backend}: bash cell",
            cells(_BASH, 4, IDLE_S),
            turns=3,
            baseline="python.bare",
        ),
        Contender(
            f"{backend}.reset",
            f"{backend}: reset to an empty state",
            reset({}),
            turns=3,
            baseline="run.pass",
        ),
        Contender(
            f"{backend}.reset20",
            f"{backend}: reset to the 20 MB state, which has come before",
            reset_20mb,
            turns=2,
            baseline="untar.20mb",
        ),
        Contender(
            f"{backend}.reset20.new",
            f"{backend}: reset to a 20 MB state that is new to the worker",
            reset_new_20mb,
            turns=2,
            baseline="untar.20mb",
        ),
    ]


def many_contenders(
    stack: contextlib.ExitStack,
    backend: str,
    log: Callable[[str], None],
    busy: dict[str, list[float]],
) -> list[Contender]:
    """Cells a second of sixteen sandboxes driven by sixteen threads, against one.

    ``busy`` receives how many cores the whole machine used meanwhile, by contender.
    """
    log(f"starting {MANY} {backend} sandboxes")
    with ThreadPoolExecutor(2) as starters:
        boxes = list(starters.map(lambda _: opened(stack, backend), range(MANY)))

    def throughput(key: str, chosen: list[Sandbox], each: int) -> list[float]:
        gate = threading.Barrier(len(chosen) + 1)

        def drive(box: Sandbox) -> None:
            gate.wait()
            for _ in range(each):
                _must(box, _WORK)

        with ThreadPoolExecutor(len(chosen)) as drivers:
            jobs = [drivers.submit(drive, box) for box in chosen]
            gate.wait()
            began, used = time.perf_counter(), _cpu_seconds()
            for job in jobs:
                job.result()
            took = time.perf_counter() - began
            busy.setdefault(key, []).append((_cpu_seconds() - used) / took)
        return [len(chosen) * each / took]

    return [
        Contender(
            f"{backend}.one",
            f"{backend}: one environment, cells with a small UNet pass, without a pause",
            lambda: throughput(f"{backend}.one", boxes[:1], 40),
            turns=2,
            unit="cells/s",
        ),
        Contender(
            f"{backend}.sixteen",
            f"{backend}: sixteen environments at once, the same cells",
            lambda: throughput(f"{backend}.sixteen", boxes, 5),
            turns=2,
            unit="cells/s",
            baseline=f"{backend}.one",
        ),
    ]


def _cpu_seconds() -> float:
    """What all cores have spent so far on anything but waiting."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def worker_pids(sandbox: Sandbox) -> set[int]:
    """Every process of the worker behind a sandbox, as this machine numbers them."""
    container = getattr(sandbox, "container", "")
    if container:
        from bat_env.sandbox.docker import connect

        client = connect()
        try:
            root = int(client.api.inspect_container(container)["State"]["Pid"])
        finally:
            client.close()
    else:
        root = int(sandbox.worker._transport._process.pid)  # type: ignore[attr-defined]
    return {root, *(child.pid for child in psutil.Process(root).children(recursive=True))}


def pss_mb(pids: Iterable[int]) -> float:
    """Proportional memory of processes, MiB: a page that n processes share counts 1/n for each.

    Raises:
        OSError: If this user may not read it.
    """
    total = 0
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(row.split()[1]) for row in rows if row.startswith("Pss:"))
    return total / 1024


def memory_samples(backend: str) -> dict[str, float]:
    """MiB of a first idle sandbox, and of each further one (``EXTRA`` of them)."""
    with contextlib.ExitStack() as stack:
        boxes = [opened(stack, backend)]
        time.sleep(1.0)
        first = pss_mb(worker_pids(boxes[0]))
        boxes += [opened(stack, backend) for _ in range(EXTRA[backend])]
        time.sleep(1.0)
        pids: set[int] = set()
        for box in boxes:
            pids |= worker_pids(box)
        return {"first": first, "extra": (pss_mb(pids) - first) / EXTRA[backend]}
