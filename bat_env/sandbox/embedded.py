"""Workers that are child processes of the host: one per backend and configuration, shared.

All ``local`` (or ``process``) sandboxes of one host process are sessions of one worker, hence of
one zygote. The worker outlives its sessions, because its imports took seconds, and ends with the
host process, however that ends.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from typing import Any, Final

from bat_env.errors import SandboxError

from .boot import BOOT, first_bytes
from .client import WorkerClient
from .view import host_view
from .worker import cgroups

PRELOAD: Final[tuple[str, ...]] = (
    "numpy",
    "scipy.ndimage",
    "nibabel.processing",
    "torch",
    "torch.utils.serialization.config",
    "monai.networks.nets",
    "monai.transforms",
    "monai.bundle",
)
"""Imported once by the zygote; a missing one is left out."""

SKIP: Final[tuple[str, ...]] = (
    "accelerate",
    "datasets",
    "huggingface_hub",
    "peft",
    "pyarrow",
    "tensorboard",
    "tokenizers",
    "transformers",
    "trl",
)
"""Optional imports of the above that the zygote does without; a cell may still import them."""

START_TIMEOUT_S: Final = 180.0
_F_SETPIPE_SZ: Final = 1031

_workers: dict[tuple[Any, ...], WorkerClient] = {}
_lock = threading.Lock()


class _Pipes:
    """A worker that is a child process of ours."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", BOOT],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            cwd="/",
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"},
        )
        self._groups = config.get("cgroup")
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                fcntl.fcntl(pipe.fileno(), _F_SETPIPE_SZ, 1 << 20)
        self._reading = threading.Lock()
        self._said: collections.deque[bytes] = collections.deque(maxlen=32)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self.write(first_bytes(config))

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stderr, contextlib.suppress(OSError, ValueError):
            for line in stderr:
                # Libraries of the zygote miss fonts at import: no reason for a death.
                if not line.startswith(b"Fontconfig "):
                    self._said.append(line[:500])

    def read(self) -> bytes:
        assert self._process.stdout is not None
        with self._reading:
            return os.read(self._process.stdout.fileno(), 1 << 16)

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[os.write(self._process.stdin.fileno(), view) :]

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._groups is not None:
            cgroups.sweep(self._groups, own=True)
        # A descriptor is closed only while nobody reads from it: its number may be given out anew.
        self._listener.join(1.0)
        if self._reading.acquire(timeout=1.0):
            try:
                if self._process.stdout is not None:
                    self._process.stdout.close()
            finally:
                self._reading.release()

    def kill(self) -> None:
        """End a worker that is not up yet; nothing of a cell can be running in it."""
        self._process.kill()

    def abandon(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.returncode = 0  # not our child: keeps Popen from complaining

    def obituary(self) -> str:
        self._listener.join(0.5)
        return b"".join(self._said).decode("utf-8", "replace").strip()[-1500:]

    def oom_within(self, seconds: float) -> bool:
        return False  # many sandboxes share this worker: nobody can be blamed from outside


def shared_worker(isolation: str, name: str, preload: tuple[str, ...]) -> WorkerClient:
    """The shared worker of this process for one configuration, started if need be."""
    key = (os.getpid(), isolation, preload)
    with _lock:
        client = _workers.get(key)
        if client is not None and client.alive:
            return client
        if client is not None:
            client.close()
        config = {
            "isolation": isolation,
            "host_pid": os.getpid(),
            "preload": list(preload),
            "skip": list(SKIP),
            "parallel": os.cpu_count() or 1,
            "spares": 2,
            "python": sys.executable,
            "view": host_view() if isolation == "namespaces" else None,
            "cgroup": cgroups.find() if isolation == "namespaces" else None,
        }
        pipes = _Pipes(config)
        client = WorkerClient(pipes, name)
        try:
            client.hello(START_TIMEOUT_S)
        except SandboxError:
            pipes.kill()  # it may be at imports that take seconds, and reads nothing meanwhile
            client.close()
            raise
        _workers[key] = client
        return client


def keep(client: WorkerClient) -> None:
    """Sessions end, the worker stays: its zygote took seconds to import."""


def close_workers() -> None:
    """End every worker that this process started. They also end with the process itself."""
    with _lock:
        clients = list(_workers.values())
        _workers.clear()
    for client in clients:
        client.close()


def _after_fork() -> None:
    global _lock
    _workers.clear()  # abandoned by the client module
    _lock = threading.Lock()


atexit.register(close_workers)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
