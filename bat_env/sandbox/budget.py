"""How many sandboxes one process may hold: memory promised to them, and who waits for it.

Back-pressure instead of overload. Every pool of a process draws on one budget, in the order of
arrival. The rule that keeps it free of deadlock: a lease taken *beside* another one (a verifier's,
while the environment still holds its own) is served first and may overdraw the budget by one
sandbox at a time; whoever holds such a lease asks for no further one. So somebody who holds two can
always finish, whatever waits behind.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final

from .base import Limits

OVERCOMMIT: Final = 4
"""Limits are ceilings that few cells touch at a time: a quarter of them is promised for good."""
WORKER_SHARE_MB: Final = 64
"""Counted for the worker of a backend that does not say how much its own takes, MiB."""
SHARE: Final = 0.8
"""Part of the memory available at first use that sandboxes may be promised."""
VARIABLE: Final = "BAT_SANDBOX_MEMORY_MB"
"""Environment variable that sets the budget, MiB."""

_CGROUP_FILES: Final = (
    ("/sys/fs/cgroup{path}/memory.max", "/sys/fs/cgroup{path}/memory.current"),
    (
        "/sys/fs/cgroup/memory{path}/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory{path}/memory.usage_in_bytes",
    ),
)


def footprint_mb(factory: Any, limits: Limits) -> int:
    """What one sandbox counts against the budget, MiB.

    Args:
        factory: A backend; its ``WORKER_SHARE_MB``, if it has one, is the worker's own part.
        limits: Limits of the sandbox.
    """
    share = int(getattr(factory, "WORKER_SHARE_MB", WORKER_SHARE_MB))
    return share + (limits.memory_mb + limits.workspace_mb + limits.tmp_mb) // OVERCOMMIT


def available_mb() -> int:
    """Memory that could be used now, MiB: the machine's, or less where a cgroup says so."""
    known = [1 << 20]
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        rows = dict(line.split(":", 1) for line in file)
        known = [int(rows["MemAvailable"].split()[0]) >> 10]
    for path in _own_cgroups():
        for limit, usage in _CGROUP_FILES:
            with contextlib.suppress(OSError, ValueError):
                with open(limit.format(path=path)) as file:
                    most = int(file.read())  # "max" is no number
                with open(usage.format(path=path)) as file:
                    used = int(file.read())
                known.append((most - used + _inactive(limit.format(path=path))) >> 20)
    return max(0, min(known))


def _own_cgroups() -> set[str]:
    paths = {""}
    with contextlib.suppress(OSError), open("/proc/self/cgroup") as file:
        for line in file:
            _, kinds, path = line.rstrip("\n").split(":", 2)
            if kinds == "" or "memory" in kinds.split(","):
                paths.add(path.rstrip("/"))
    return paths


def _inactive(limit_file: str) -> int:
    """Page cache that the kernel would give back, bytes."""
    with open(os.path.join(os.path.dirname(limit_file), "memory.stat")) as file:
        rows = dict(line.split() for line in file)
    return int(rows.get("total_inactive_file", rows.get("inactive_file", 0)))


@dataclass(eq=False)
class Ticket:
    """One waiting acquirer.

    Attributes:
        pool: Whose sandbox is wanted.
        beside: Whether the asker holds another lease meanwhile.
        fresh: Whether a warm sandbox will not do.
        since: Monotonic time of arrival.
    """

    pool: Any
    beside: bool
    fresh: bool
    since: float = field(default_factory=time.monotonic)


class Budget:
    """Memory promised to the sandboxes of one process. Guarded by :attr:`changed`.

    Args:
        total_mb: MiB; ``None`` for ``BAT_SANDBOX_MEMORY_MB``, else four fifths of what is available
            now.
        watch: Whether to wait, too, while the machine itself is short of memory because of others.
    """

    def __init__(self, total_mb: int | None = None, *, watch: bool | None = None) -> None:
        told = os.environ.get(VARIABLE, "")
        self.source = "given"
        if total_mb is None and told.isdigit() and int(told) > 0:
            total_mb, self.source = int(told), VARIABLE
        elif total_mb is None:
            total_mb, self.source = int(available_mb() * SHARE), "four fifths of the free memory"
        self.total_mb = total_mb
        self.watch = self.source.startswith("four") if watch is None else watch
        self.changed = threading.Condition()
        self.used_mb = 0
        self.beside_out = 0
        self.tickets: list[Ticket] = []
        self.pools: list[Any] = []

    def join(self, ticket: Ticket, *, first: bool = False) -> None:
        """Stand in line: at its end, beside-leases before all others."""
        if first:
            self.tickets.insert(0, ticket)
            return
        at = len(self.tickets)
        if ticket.beside:
            at = sum(1 for other in self.tickets if other.beside)
        self.tickets.insert(at, ticket)

    def leave(self, ticket: Ticket) -> None:
        """Step out of the line, served or not."""
        if ticket in self.tickets:
            self.tickets.remove(ticket)
        self.changed.notify_all()

    def covered(self, ticket: Ticket) -> bool:
        """Whether a sandbox that is ready or being started is this one's in turn."""
        if ticket.fresh:
            return False
        before = self.tickets[: self.tickets.index(ticket)]
        ahead = sum(1 for other in before if other.pool is ticket.pool and not other.fresh)
        return bool(ahead < ticket.pool.coming)

    def next_in_line(self, ticket: Ticket) -> bool:
        """Whether nobody before this one waits for memory."""
        for other in self.tickets:
            if other is ticket:
                return True
            if not self.covered(other):
                return False
        return True

    def room(self, need_mb: int, *, beside: bool = False) -> bool:
        """Whether a sandbox may be started now. The first one always fits."""
        if beside and self.beside_out == 0:
            return True
        if self.used_mb and self.used_mb + need_mb > self.total_mb:
            return False
        return not self.short(need_mb)

    def short(self, need_mb: int) -> bool:
        """Whether the machine itself lacks the memory now."""
        return self.watch and available_mb() < need_mb

    def overdrawn(self) -> bool:
        """Whether more is promised than there is."""
        return self.used_mb > self.total_mb


_process: Budget | None = None
_lock = threading.Lock()


def process_budget() -> Budget:
    """The budget that all pools of this process share."""
    global _process
    with _lock:
        if _process is None:
            _process = Budget()
        return _process


def _after_fork() -> None:
    global _process, _lock
    _process = None
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
