"""Spare children: made ahead of time, handed out one per cell."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from . import zygote
from .isolation import Cage, Isolation

_ENV = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "LOGNAME": "agent",
    "MPLBACKEND": "Agg",
    "MPLCONFIGDIR": "/tmp/mpl",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "TMPDIR": "/tmp",
    "TZ": "UTC",
    "USER": "agent",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/inductor",
}


_PAUSE_S = 0.02


@dataclass
class Spare:
    """A forked child that waits for an assignment."""

    control: socket.socket
    cage: Cage
    pid: int = 0

    def retire(self) -> None:
        """Let an unused spare leave."""
        self.control.close()


class Spares:
    """Owns the zygote and keeps ``target`` spares ready or on their way."""

    def __init__(
        self, isolation: Isolation, config: dict[str, Any], boot: str, sources: bytes
    ) -> None:
        self.isolation = isolation
        self.target = int(config["spares"])
        self.ready: list[Spare] = []
        self.report: dict[str, Any] = {}
        self.ended: list[tuple[int, int, int]] = []
        """pid, wait status, CPU microseconds of children not yet looked at."""
        self.late: set[int] = set()
        """Children whose end is known before the zygote tells it."""
        self._coming: dict[str, Spare] = {}
        self._serial = 0
        self.pause_until = 0.0
        """Monotonic time before which no spare can be made."""
        self.fork_us = 0
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = self._spawn(config, boot, sources, theirs)
        theirs.close()
        message = self.control.recv(65536)
        if not message.startswith(b"R "):
            raise RuntimeError("the zygote did not start")
        self.report = json.loads(message[2:])
        isolation.trusted.add(self.process.pid)

    def take(self) -> Spare:
        """The spare that waits longest. Runs no agent code before it gets a cell to run."""
        return self.ready.pop(0)

    def _spawn(
        self, config: dict[str, Any], boot: str, sources: bytes, theirs: socket.socket
    ) -> subprocess.Popen[bytes]:
        python = self.isolation.zygote_python()
        path = f"{os.path.dirname(python)}:/usr/local/bin:/usr/bin:/bin"
        zygote_config = {
            "role": "zygote",
            "preload": config["preload"],
            "skip": config["skip"],
            "namespaces": self.isolation.namespaces,
            "keeper": self.isolation.keeper,
            "lock": self.isolation.lock,
            "control": theirs.fileno(),
        }
        root = self.isolation.zygote_root()

        def enter_root() -> None:
            os.chroot(root)
            os.chdir("/")

        process = subprocess.Popen(
            [python, "-s", "-P", "-c", boot],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=sys.stderr,
            env={**_ENV, "PATH": path},
            pass_fds=[theirs.fileno()],
            preexec_fn=enter_root if root else None,
        )
        assert process.stdin is not None
        body = json.dumps({"config": zygote_config}).encode()
        frame = len(body).to_bytes(4, "big") + body + len(sources).to_bytes(4, "big") + sources
        process.stdin.write(frame)
        process.stdin.close()
        return process

    @property
    def missing(self) -> int:
        """Spares that nobody has asked for yet."""
        return max(0, self.target - len(self.ready) - len(self._coming))

    def refill(self) -> None:
        """Ask for as many spares as are missing."""
        while self.missing:
            ours, theirs = socket.socketpair()
            cage = self.isolation.new_cage()
            self._serial += 1
            number = str(self._serial)
            fds = [theirs.fileno()] + ([cage.pidns[0]] if cage.pidns[0] >= 0 else [])
            socket.send_fds(self.control, [f"F{number}".encode()], fds)
            theirs.close()
            self._coming[number] = Spare(ours, cage)

    def pump(self) -> None:
        """Take what the zygote has to say.

        Raises:
            RuntimeError: If the zygote is gone.
        """
        while True:
            try:
                message = self.control.recv(256, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not message:
                raise RuntimeError("the zygote died")
            words = message.decode().split()
            if words[0] == "P":
                spare = self._coming.pop(words[1])
                spare.pid = int(words[2])
                self.fork_us = int(words[3])
                self.ready.append(spare)
                self.isolation.trusted.add(spare.pid)
            elif words[0] == "N":
                spare = self._coming.pop(words[1])
                spare.retire()
                self.isolation.discard(spare.cage)
                self.pause_until = time.monotonic() + _PAUSE_S
            elif words[0] == "X":
                pid, status, cpu = map(int, words[1:])
                if pid in self.late:  # told before the number can be given to another
                    self.late.remove(pid)
                    continue
                dead = [s for s in self.ready if s.pid == pid]
                self.ready = [s for s in self.ready if s.pid != pid]
                if not dead:
                    self.ended.append((pid, status, cpu))
                for spare in dead:
                    self.isolation.trusted.discard(spare.pid)
                    spare.retire()
                    self.isolation.finish(spare.cage, spare.pid)

    def close(self) -> None:
        """End the zygote and every spare."""
        for spare in self.ready:
            spare.retire()
            with contextlib.suppress(OSError):
                self.isolation.kill(spare.cage, spare.pid)
        with contextlib.suppress(OSError):
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(5)


def assign(spare: Spare, job: dict[str, Any], fds: list[int]) -> None:
    """Tell a spare where to go (``enter``, with namespaces) or what to ``run`` (two pipes)."""
    zygote.assign(spare.control, job, fds)
