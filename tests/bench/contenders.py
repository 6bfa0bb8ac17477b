"""What our cells are compared with: processes, forks, containers, another runtime, tar."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bat_env.sandbox.embedded import SKIP

IDLE_S = 0.05
"""A model thinks longer than this between two cells."""

STATE = {f"workspace/outputs/c{i:02}/volume.raw": os.urandom(1 << 20) for i in range(20)}
"""The 20 MB state of the reset rows: 20 files that do not compress."""


@dataclass
class Contender:
    """Something that is measured once or more in every round.

    Attributes:
        key, name: See :class:`figures.Figure`.
        turn: Makes the samples of one turn, seconds (or what ``unit`` says).
        turns: Turns in a round; quick contenders get several, so that a round mixes them well.
    """

    key: str
    name: str
    turn: Callable[[], list[float]]
    turns: int = 1
    unit: str = "ms"
    baseline: str = ""


def timed(action: Callable[[], object], count: int = 1, idle_s: float = 0.0) -> list[float]:
    """Milliseconds of each of ``count`` calls; ``idle_s`` before each is not counted."""
    times = []
    for _ in range(count):
        if idle_s:
            time.sleep(idle_s)
        began = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - began))
    return times


class _Lines:
    """A child process that answers one line of JSON for each line."""

    def __init__(self, argv: list[str], stack: contextlib.ExitStack) -> None:
        self.said = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said
        )
        stack.callback(self._end)
        self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.said.seek(0)
            last = self.said.read().decode(errors="replace").strip().rpartition("\n")[2]
            raise OSError(f"a bench helper ended with code {code}: {last}")
        return json.loads(line)

    def ask(self, request: object) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        return self._answer()

    def _end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.kill()
        self.process.wait()


_FORKER = """
import sys
for name in {skip!r}: sys.modules[name] = None
import os, time
{imports}
print('{{}}', flush=True)
for line in sys.stdin:
    count, idle = eval(line)
    times = []
    for _ in range(count):
        time.sleep(idle)
        began = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        times.append(1e3 * (time.perf_counter() - began))
    print(times, flush=True)
"""


def forks(stack: contextlib.ExitStack) -> list[Contender]:
    """Fork and wait inside a warm interpreter, and a new interpreter for each cell."""
    bare_code = _FORKER.format(skip=(), imports="")
    # What a training machine happens to have installed must not make the naive fork slower.
    heavy_code = _FORKER.format(skip=SKIP, imports="import torch, monai")
    bare = _Lines([sys.executable, "-I", "-S", "-c", bare_code], stack)
    heavy = _Lines([sys.executable, "-c", heavy_code], stack)
    python = [sys.executable, "-c", "pass"]
    return [
        Contender(
            "fork.bare",
            "fork + wait of a bare warm interpreter: the limit",
            lambda: list(bare.ask([8, IDLE_S])),
            turns=4,
        ),
        Contender(
            "fork.naive",
            "fork + wait of a process that imported torch and MONAI, back to back",
            lambda: list(heavy.ask([6, 0])),
            turns=4,
        ),
        Contender(
            "python.bare",
            "`python -c pass`, no isolation",
            lambda: timed(lambda: subprocess.run(python, check=True), 2, IDLE_S),
            turns=2,
        ),
    ]


def untar(stack: contextlib.ExitStack) -> list[Contender]:
    """The 20 MB state as an archive, unpacked by tar into a file system in memory."""
    folder = Path(tempfile.mkdtemp(prefix="bat-bench-", dir="/dev/shm"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    archive = folder / "state.tar"
    with tarfile.open(archive, "w") as tar:
        for path, content in STATE.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    target = folder / "target"
    argv = ["tar", "-xf", str(archive), "-C", str(target)]

    def turn() -> list[float]:
        times = []
        for _ in range(2):
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir()
            times += timed(lambda: subprocess.run(argv, check=True), 1, IDLE_S)
        return times

    return [Contender("untar.20mb", "`tar -x` of the 20 MB state into a tmpfs", turn, turns=2)]


def swe_rex(stack: contextlib.ExitStack, python: Path | None) -> list[Contender]:
    """SWE-ReX's local runtime: a process for each command, or its long-lived shell."""
    if python is None or not python.exists():
        print("SWE-ReX is left out: no interpreter with requirements/bench.txt was given")
        return []
    driver = _Lines([str(python), str(Path(__file__).with_name("rex_driver.py"))], stack)

    def run(how: str, code: str) -> list[float]:
        answer = driver.ask({"how": how, "command": [sys.executable, "-c", code]})
        if answer["exit_code"] != 0:
            raise OSError(f"SWE-ReX ended {code!r} with exit code {answer['exit_code']}")
        return [1e3 * float(answer["seconds"])]

    return [
        Contender(
            "swerex.pass",
            "SWE-ReX local runtime, `python -c pass` as a command",
            lambda: run("execute", "pass"),
            turns=3,
        ),
        Contender(
            "swerex.session",
            "SWE-ReX local runtime, `python -c pass` in its shell session",
            lambda: run("session", "pass"),
            turns=2,
        ),
        Contender(
            "swerex.monai",
            "SWE-ReX local runtime, `python -c 'import monai'` as a command",
            lambda: run("execute", "import monai"),
        ),
    ]


def containers(stack: contextlib.ExitStack) -> list[Contender]:
    """A container for each cell, and a command in a running container."""
    import docker

    from bat_env.errors import SandboxUnavailableError
    from bat_env.sandbox.docker import connect, default_image

    try:
        client = connect()
        image = client.images.get(default_image()).id
    except (SandboxUnavailableError, docker.errors.DockerException) as error:
        print(f"docker is left out: {error}")
        return []
    stack.callback(client.close)
    options = {
        "network_mode": "none",
        "read_only": True,
        "mem_limit": "2g",
        "tmpfs": {"/tmp": "size=64m"},
    }
    running = client.containers.run(image, ["sleep", "3600"], detach=True, **options)
    stack.callback(running.remove, force=True)

    def per_cell(code: str) -> list[float]:
        argv = ["python3", "-c", code]
        return timed(lambda: client.containers.run(image, argv, remove=True, **options))

    def execute(code: str) -> list[float]:
        done = []
        times = timed(lambda: done.append(running.exec_run(["python3", "-c", code])))
        if done[0].exit_code:
            raise OSError(f"docker exec ended {code!r} with {done[0].exit_code}")
        return times

    return [
        Contender("run.pass", "`docker run` for each cell", lambda: per_cell("pass")),
        Contender(
            "run.monai",
            "`docker run` for each cell, with MONAI imported",
            lambda: per_cell("import monai"),
        ),
        Contender("exec.pass", "`docker exec`, `python -c pass`", lambda: execute("pass"), turns=2),
        Contender("exec.monai", "`docker exec`, `import monai`", lambda: execute("import monai")),
    ]
