"""Warm sandboxes, leased and taken back wiped."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

from bat_env.errors import SandboxError

from .base import Limits, Sandbox
from .registry import make_sandbox, resolve_backend


class SandboxPool:
    """Keeps ``size`` started sandboxes, ready or leased; missing ones start in the background.

    Leases are not limited in number: one beyond the ready ones is started on demand. Thread-safe;
    after a fork the child begins with an empty pool of its own.

    Args:
        backend: ``"auto"`` or a registered name.
        limits: Limits of every sandbox.
        size: Sandboxes to keep: those on lease count, for they come back.
        options: Further keyword arguments of the backend.
    """

    def __init__(
        self,
        backend: str = "auto",
        limits: Limits | None = None,
        size: int = 1,
        **options: Any,
    ) -> None:
        self._options = options
        self.backend = resolve_backend(backend)
        self.limits = limits or Limits()
        self.size = size
        self._begin()
        _pools.append(self)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._ready: list[Sandbox] = []
        self._leased: dict[int, Sandbox] = {}
        self._starting = 0
        self._closed = False

    def _check(self) -> None:
        if self._pid != os.getpid():
            self._begin()
        if self._closed:
            raise SandboxError("This sandbox pool is closed; make a new one.")

    def warm(self) -> None:
        """Start filling the pool in the background."""
        self._check()
        with self._changed:
            kept = len(self._ready) + self._starting + len(self._leased)
            missing = max(0, self.size - kept)
            self._starting += missing
        for _ in range(missing):
            threading.Thread(target=self._fill, name="bat-pool", daemon=True).start()

    def _fill(self) -> None:
        sandbox: Sandbox | None = None
        try:
            sandbox = self._make()
        except Exception:
            sandbox = None  # acquire() tries again in the foreground and raises there
        with self._changed:
            self._starting -= 1
            keep = sandbox is not None and not self._closed
            if keep and sandbox is not None:
                self._ready.append(sandbox)
            self._changed.notify_all()
        if sandbox is not None and not keep:
            sandbox.close()

    def _make(self) -> Sandbox:
        sandbox = make_sandbox(self.backend, self.limits, **self._options)
        try:
            sandbox.start()
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def acquire(self) -> Sandbox:
        """A started, empty, healthy sandbox, until :meth:`release`.

        Raises:
            SandboxError: If none can be started, or the pool is closed.
        """
        self._check()
        while True:
            sandbox = self._pop()
            if sandbox is None:
                sandbox = self._make()
            elif not _healthy(sandbox):
                sandbox.close()
                continue
            with self._changed:
                self._leased[id(sandbox)] = sandbox
            self.warm()
            return sandbox

    def _pop(self) -> Sandbox | None:
        with self._changed:
            if not self._ready and self._starting:
                self._changed.wait_for(lambda: bool(self._ready) or not self._starting)
            return self._ready.pop() if self._ready else None

    def release(self, sandbox: Sandbox) -> None:
        """Take a leased sandbox back: wiped and kept if there is room, else closed.

        A sandbox that fails the wipe, or was closed by its user, is dropped. Never raises.
        """
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            ours = self._leased.pop(id(sandbox), None) is sandbox
            room = len(self._ready) < self.size and not self._closed
        if not ours:
            return
        if room and _healthy(sandbox):
            with contextlib.suppress(SandboxError):
                sandbox.reset({})
                with self._changed:
                    if not self._closed:
                        self._ready.append(sandbox)
                        self._changed.notify_all()
                        return
        sandbox.close()

    @contextlib.contextmanager
    def lease(self, *, fresh: bool = False) -> Iterator[Sandbox]:
        """:meth:`acquire` and :meth:`release` around a block.

        Args:
            fresh: Start a new sandbox and close it afterwards, for agents that are not trusted.

        Yields:
            The sandbox.
        """
        if fresh:
            self._check()
            sandbox = self._make()
            try:
                yield sandbox
            finally:
                sandbox.close()
            return
        sandbox = self.acquire()
        try:
            yield sandbox
        finally:
            self.release(sandbox)

    def close(self) -> None:
        """Close every sandbox, leased ones too. Idempotent; never raises."""
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            self._closed = True
            doomed = [*self._ready, *self._leased.values()]
            self._ready.clear()
            self._leased.clear()
            self._changed.notify_all()
        for sandbox in doomed:
            sandbox.close()


def _healthy(sandbox: Sandbox) -> bool:
    return bool(getattr(sandbox, "healthy", True))


_pools: list[SandboxPool] = []
_shared: dict[tuple[int, str, Limits, int | None], SandboxPool] = {}
_shared_lock = threading.Lock()


def shared_pool(
    backend: str = "auto", limits: Limits | None = None, size: int | None = None
) -> SandboxPool:
    """The pool of this process for one configuration, made on first use.

    Args:
        backend: ``"auto"`` or a registered name.
        limits: Limits of every sandbox.
        size: Sandboxes to keep ready; None for the default of the backend: 2.
    """
    key = (os.getpid(), resolve_backend(backend), limits or Limits(), size)
    with _shared_lock:
        pool = _shared.get(key)
        if pool is None or pool._closed:
            pool = _shared[key] = SandboxPool(key[1], key[2], 2 if size is None else size)
        return pool


def close_pools() -> None:
    """Close every pool of this process. Also done at exit."""
    for pool in _pools:
        pool.close()
    _pools.clear()
    _shared.clear()


def _after_fork() -> None:
    global _shared_lock
    _shared_lock = threading.Lock()
    _shared.clear()


atexit.register(close_pools)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
