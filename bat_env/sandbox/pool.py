"""Warm sandboxes, leased in the order of arrival and taken back wiped."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from bat_env.errors import SandboxError

from .base import Limits, Sandbox
from .budget import VARIABLE, Budget, Ticket, footprint_mb, process_budget
from .client import interrupt_starts
from .registry import load_backend, make_sandbox, resolve_backend

WAIT_S: Final = 600.0
"""How long :meth:`SandboxPool.acquire` waits for its turn, unless told otherwise, seconds."""
PING_S: Final = 20.0
"""A warm sandbox that does not answer in this time is replaced, seconds."""

_POLL_S: Final = 0.5
_ROOM_BESIDE: Final = 2
_WARN_S: Final = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Lease:
    sandbox: Sandbox
    beside: bool
    fresh: bool
    holder: str
    since: float = field(default_factory=time.monotonic)


class SandboxPool:
    """Keeps ``size`` started sandboxes, ready or leased; missing ones start in the background.

    All pools of a process share one :class:`~bat_env.sandbox.budget.Budget` of memory. While it is
    used up, acquirers wait in the order of arrival. A lease taken *beside* another (see
    :attr:`beside`) comes first and always finds room in the end, so an environment whose verifier
    needs a second sandbox cannot block itself; whoever holds one must not ask for a third.
    Thread-safe; after a fork the child begins with an empty pool of its own.

    Args:
        backend: ``"auto"`` or a registered name.
        limits: Limits of every sandbox.
        size: Sandboxes to keep: those on lease count, for they come back.
        budget: Memory to draw on; the process's own if omitted.
        options: Further keyword arguments of the backend.
    """

    def __init__(
        self,
        backend: str = "auto",
        limits: Limits | None = None,
        size: int = 1,
        *,
        budget: Budget | None = None,
        **options: Any,
    ) -> None:
        self._options = options
        self.backend = resolve_backend(backend)
        self.limits = limits or Limits()
        self.size = size
        self.wait_s = WAIT_S
        self.ping_s = PING_S
        self.need_mb = footprint_mb(load_backend(self.backend), self.limits)
        self.beside = Beside(self)
        self._given = budget
        self._begin()
        _pools.append(self)

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._budget = process_budget() if self._given is None else self._given
        self._changed = self._budget.changed
        self._ready: list[Sandbox] = []
        self._leased: dict[int, _Lease] = {}
        self._starting = 0
        self._closed = False
        with self._changed:
            self._budget.pools.append(self)

    def _check(self) -> None:
        if self._pid != os.getpid():
            self._begin()
        if self._closed:
            raise SandboxError("This sandbox pool is closed; make a new one.")

    @property
    def coming(self) -> int:
        """Sandboxes that are ready or being started in the background."""
        return len(self._ready) + self._starting

    @property
    def places(self) -> int:
        """Leases that a caller may hold at once and still not block itself, at least 1.

        Where all of them wait for each other (episodes of one wave), a further one would wait for
        ever. Room for leases beside them is left.
        """
        return max(1, self._budget.total_mb // self.need_mb - _ROOM_BESIDE)

    # ----------------------------------------------------------------------------------- filling

    def warm(self) -> None:
        """Start filling the pool in the background, as far as the memory goes."""
        self._check()
        missing = 0
        with self._changed:
            kept = self.coming + len(self._leased)
            waiting = any(not self._budget.covered(t) for t in self._budget.tickets)
            while not waiting and kept + missing < self.size and self._budget.room(self.need_mb):
                self._budget.used_mb += self.need_mb
                missing += 1
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
        if not keep:
            self._discard(sandbox)

    def _make(self) -> Sandbox:
        sandbox = make_sandbox(self.backend, self.limits, **self._options)
        try:
            sandbox.start()
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def _discard(self, sandbox: Sandbox | None) -> None:
        """Close a sandbox, or none that could be started, and give its memory back."""
        try:
            if sandbox is not None:
                sandbox.close()
        finally:
            with self._changed:
                self._budget.used_mb -= self.need_mb
                self._changed.notify_all()

    # ----------------------------------------------------------------------------------- leasing

    def acquire(
        self, *, timeout_s: float | None = None, beside: bool = False, fresh: bool = False
    ) -> Sandbox:
        """A started, empty, healthy sandbox, until :meth:`release`.

        Args:
            timeout_s: How long to wait for memory, seconds; ten minutes if omitted.
            beside: The caller keeps another lease meanwhile, and will ask for no third.
            fresh: Start a new sandbox; :meth:`release` closes it.

        Raises:
            SandboxError: If none can be started, none is free in time (the message names the bound,
                who holds leases and what to do), or the pool is closed.
        """
        self._check()
        ticket = Ticket(self, beside, fresh)
        deadline = ticket.since + (self.wait_s if timeout_s is None else timeout_s)
        with self._changed:
            self._budget.join(ticket)
        try:
            sandbox = self._serve(ticket, deadline)
        finally:
            with self._changed:
                self._budget.leave(ticket)
        self.warm()
        return sandbox

    def _serve(self, ticket: Ticket, deadline: float) -> Sandbox:
        while True:
            sandbox = self._turn(ticket, deadline)
            try:
                if sandbox is None:
                    sandbox = self._make()
                elif not self._answers(sandbox):
                    sandbox.close()
                    sandbox = None
            except BaseException:
                self._give_up(ticket, None)
                raise
            if sandbox is None:
                self._give_up(ticket, None, again=True)
                continue
            holder = threading.current_thread().name
            with self._changed:
                closed = self._closed
                if not closed:
                    lease = _Lease(sandbox, ticket.beside, ticket.fresh, holder)
                    self._leased[id(sandbox)] = lease
                    return sandbox
            self._give_up(ticket, sandbox)
            self._check()

    def _give_up(self, ticket: Ticket, sandbox: Sandbox | None, *, again: bool = False) -> None:
        """What was handed out cannot be used; ``again`` puts the asker back in front."""
        with self._changed:
            self._budget.beside_out -= ticket.beside
            if again:
                self._budget.join(ticket, first=True)
        self._discard(sandbox)

    def _turn(self, ticket: Ticket, deadline: float) -> Sandbox | None:
        """Wait until it is this one's turn; a ready sandbox, or None to start one."""
        budget, warned = self._budget, False
        while True:
            with self._changed:
                if self._closed:
                    raise SandboxError("This sandbox pool was closed; make a new one.")
                others = [t for t in budget.tickets if t.pool is self and not t.fresh]
                idle: tuple[SandboxPool, Sandbox] | None = None
                if not ticket.fresh and self._ready and others[0] is ticket:
                    return self._served(ticket, self._ready.pop())
                if not budget.covered(ticket) and budget.next_in_line(ticket):
                    if budget.room(self.need_mb, beside=ticket.beside):
                        budget.used_mb += self.need_mb
                        return self._served(ticket, None)
                    idle = self._idle_elsewhere()
                if idle is None:
                    now = time.monotonic()
                    if now >= deadline:
                        raise SandboxError(self._refusal(ticket, now - ticket.since))
                    if not warned and now - ticket.since > _WARN_S:
                        warned = True
                        _log.warning("Waiting for a sandbox: %s", self._situation(ticket))
                    # The memory of other processes changes without a notice.
                    self._changed.wait(min(deadline - now, _POLL_S))
                    continue
            idle[0]._discard(idle[1])

    def _served(self, ticket: Ticket, sandbox: Sandbox | None) -> Sandbox | None:
        self._budget.beside_out += ticket.beside
        self._budget.leave(ticket)
        return sandbox

    def _idle_elsewhere(self) -> tuple[SandboxPool, Sandbox] | None:
        """A warm sandbox that nobody waits for, taken out of its pool to make room."""
        for pool in self._budget.pools:
            waiting = sum(1 for t in self._budget.tickets if t.pool is pool and not t.fresh)
            if len(pool._ready) > waiting:
                return pool, pool._ready.pop()
        return None

    def _answers(self, sandbox: Sandbox) -> bool:
        """A real answer within the deadline; a backend without ``ping`` lists its workspace."""
        ping = getattr(sandbox, "ping", None)
        if ping is not None:
            return bool(ping(self.ping_s))
        answered = threading.Event()

        def ask() -> None:
            with contextlib.suppress(Exception):
                sandbox.manifest()
                answered.set()

        asker = threading.Thread(target=ask, name="bat-ping", daemon=True)
        asker.start()
        asker.join(self.ping_s)
        return answered.is_set()

    def _reason(self, ticket: Ticket) -> str:
        """What an asker waits for, and only that."""
        budget = self._budget
        if budget.covered(ticket):
            return f"a {self.backend} sandbox is being started for it"
        if not budget.next_in_line(ticket):
            return f"{budget.tickets.index(ticket)} asked before"
        promised = (
            f"{budget.used_mb} of {budget.total_mb} MiB are promised ({budget.source}), one "
            f"{self.backend} sandbox counts {self.need_mb} MiB"
        )
        if budget.short(self.need_mb):
            return f"the machine itself is short of memory; {promised}"
        return promised

    def _situation(self, ticket: Ticket) -> str:
        budget, now = self._budget, time.monotonic()
        leases = [lease for pool in budget.pools for lease in pool._leased.values()]
        held = [f"{lease.holder} for {now - lease.since:.0f} s" for lease in leases]
        more = f" and {len(held) - 8} more" if len(held) > 8 else ""
        text = f"{self._reason(ticket)}; {len(leases)} on lease"
        return f"{text}: {', '.join(held[:8])}{more}" if held else text

    def _refusal(self, ticket: Ticket, waited_s: float) -> str:
        advice = "look at what holds the sandbox up (`bat-env sandbox check`)"
        if not self._budget.covered(ticket):
            advice = (
                "run fewer environments at once or close() those that are done, lower the sandbox "
                f"limits, or raise the bound ({VARIABLE}, MiB) if the machine has the memory"
            )
        return (
            f"Expected a free sandbox, but none came in {waited_s:.0f} s: "
            f"{self._situation(ticket)}. To go on, {advice}."
        )

    def release(self, sandbox: Sandbox) -> None:
        """Take a leased sandbox back: wiped and kept if there is room, else closed.

        A sandbox that fails the wipe, or was closed by its user, is dropped. Never raises.
        """
        if self._pid != os.getpid():
            self._begin()
        with self._changed:
            lease = self._leased.pop(id(sandbox), None)
            if lease is None:
                return
            waiting = sum(1 for t in self._budget.tickets if t.pool is self and not t.fresh)
            room = len(self._ready) < max(self.size, waiting) and not self._closed
            room &= not self._budget.overdrawn()
        kept = False
        if room and not lease.fresh:
            with contextlib.suppress(SandboxError, ValueError):
                if self._answers(sandbox):
                    sandbox.reset({})
                    kept = True
        with self._changed:
            self._budget.beside_out -= lease.beside
            kept &= not self._closed
            if kept:
                self._ready.append(sandbox)
            self._changed.notify_all()
        if not kept:
            with contextlib.suppress(Exception):
                self._discard(sandbox)

    @contextlib.contextmanager
    def lease(
        self, *, fresh: bool = False, beside: bool = False, timeout_s: float | None = None
    ) -> Iterator[Sandbox]:
        """:meth:`acquire` and :meth:`release` around a block.

        Args:
            fresh: Start a new sandbox and close it afterwards, for agents that are not trusted.
            beside: The caller keeps another lease meanwhile.
            timeout_s: As for :meth:`acquire`.

        Yields:
            The sandbox.
        """
        sandbox = self.acquire(timeout_s=timeout_s, beside=beside, fresh=fresh)
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
            leases = list(self._leased.values())
            doomed = [*self._ready, *(lease.sandbox for lease in leases)]
            self._budget.beside_out -= sum(lease.beside for lease in leases)
            self._ready.clear()
            self._leased.clear()
            if self in self._budget.pools:
                self._budget.pools.remove(self)
            self._changed.notify_all()
        for sandbox in doomed:
            with contextlib.suppress(Exception):
                self._discard(sandbox)


class Beside:
    """A pool as seen by those who hold one lease already: a verifier, next to its environment.

    Args:
        pool: The pool behind it.
    """

    def __init__(self, pool: SandboxPool) -> None:
        self._pool = pool

    def lease(self, *, fresh: bool = False) -> contextlib.AbstractContextManager[Sandbox]:
        """A second sandbox, for a bounded time; see :class:`SandboxPool`."""
        return self._pool.lease(fresh=fresh, beside=True)


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


def interrupt_cells() -> None:
    """End every cell that runs now in a leased sandbox of this process: somebody asked to stop.

    Sandboxes that are being started are given up too: their modules take seconds to import. All
    callers get a :class:`~bat_env.errors.SandboxInterruptedError`. What runs in a backend without
    ``interrupt()`` comes to its own end.
    """
    interrupt_starts()
    for pool in list(_pools):
        with pool._changed:
            leased = [lease.sandbox for lease in pool._leased.values()]
        for sandbox in leased:
            interrupt = getattr(sandbox, "interrupt", None)
            if interrupt is not None:
                interrupt()


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
