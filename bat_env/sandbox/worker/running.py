"""A cell while it runs, seen from outside, and the verdict on how it ended."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from typing import Any

from . import proc
from .capture import Capture
from .counting import Count
from .isolation import Isolation, Session
from .spares import Spare

OUTPUT_CEILING = 64 << 20
"""A cell that printed this many bytes in all is ended with the limit ``output``."""

_STORM_S = 0.05
"""A cell of this many seconds may have met the limit of processes unseen."""

_MEMORY_SIGNS = (
    b"MemoryError",
    b"Cannot allocate memory",
    b"cannot allocate memory",
    b"can't allocate memory",
    b"Unable to allocate",
    b"std::bad_alloc",
    b"xmalloc: cannot",
)
_PIDS_SIGNS = (b"can't start new thread", b"fork: retry", b"Resource temporarily unavailable")
_FORK_SIGNS = (b"fork: retry: Resource temporarily unavailable", b"fork: Resource temporarily")
_DISK_SIGNS = (b"No space left on device", b"File too large")


class Running:
    """One started cell.

    Attributes:
        request: The host's number for the call.
        deadline: Monotonic time at which it is ended.
        limit: The limit that ended it so far, or None.
        looks: How many more times to look for an early sign of its end.
        before: The cgroup's counters at the start.
        count: Of its memory, while one is under way.
    """

    def __init__(
        self,
        isolation: Isolation,
        session: Session,
        spare: Spare,
        request: int,
        timeout_s: float,
        pipes: tuple[int, int],
    ) -> None:
        self.isolation = isolation
        self.session = session
        self.spare = spare
        self.request = request
        self.started = time.monotonic()
        self.deadline = self.started + timeout_s
        self.limit: str | None = None
        self.failure = b""
        keep = session.limits["output_bytes"]
        self.captures = [Capture(fd, keep) for fd in pipes]
        self.killed = False
        self.looks = 0
        self.before: dict[str, int] = {}
        self.shared = 0
        """KiB that the last count found to be in the sum of all processes more than once."""
        self.recount_at = 0.0
        self.count: Count | None = None

    def kill(self, limit: str | None) -> None:
        """End every process of the cell; the first reason given stands."""
        if self.limit is None and not self.killed:
            self.limit = limit
        self.killed = True
        with contextlib.suppress(OSError):
            self.isolation.kill(self.spare.cage, self.spare.pid)

    def hear(self) -> None:
        """Take what the spare said on its control socket: why it could not be set up, or nothing.

        It closes the socket before the first line of agent code.
        """
        with contextlib.suppress(OSError):
            self.failure = self.spare.control.recv(4096, socket.MSG_DONTWAIT)

    @property
    def silent(self) -> bool:
        """Whether nobody can print any more: the cell has ended, or is about to."""
        return all(capture.ended for capture in self.captures)

    def check_output(self) -> None:
        """Apply the output ceiling."""
        if not self.killed and sum(c.total for c in self.captures) > OUTPUT_CEILING:
            self.kill("output")

    def check_usage(self, table: list[proc.Process]) -> bool:
        """Apply the limits that the kernel does not enforce over the whole cell.

        Args:
            table: All processes.

        Returns:
            Whether an exact count of its memory has begun: :meth:`end_count` applies it.
        """
        if self.killed:
            return False
        members = self.isolation.members(self.spare.cage, self.spare.pid, table)
        tasks = sum(p.threads for p in members)
        if tasks > self.session.limits["pids"]:
            self.kill("pids")
            return False
        limit = self.session.limits["memory_mb"] * 1024
        total = sum(p.anon for p in members)
        if self.count is not None or total <= limit:
            return False
        if total - self.shared <= limit and time.monotonic() < self.recount_at:
            return False
        with contextlib.suppress(OSError):  # no room for a helper now: at the next look
            self.count = Count(self.isolation, members)
        return self.count is not None

    def check_left(self) -> None:
        """Name the limit of processes for a cell that filled it and left between two looks.

        The kernel does not count refused forks where only a resource limit stops them. Who forked
        that much did not end at once, so short cells are not looked at: it costs a walk of /proc.
        """
        if self.killed or time.monotonic() - self.started < _STORM_S:
            return
        table = self.isolation.processes()
        members = self.isolation.members(self.spare.cage, self.spare.pid, table)
        if sum(p.threads for p in members) >= self.session.limits["pids"]:
            self.limit = "pids"

    def end_count(self, baseline: dict[str, int]) -> None:
        """Apply the limit of memory to what the count has found, however far it has come.

        It has each page of the cell once and those of the zygote not at all. The size of a process
        alone says little of what it shares: it may look like a fresh fork and hold pages of its
        own, or share all that it has with its parent.

        Args:
            baseline: ``VmSize`` and ``RssAnon`` of the zygote in KiB: what a fork shares.
        """
        count, self.count = self.count, None
        if count is None:
            return
        count.close()
        held, size = baseline.get("RssAnon", 0), baseline.get("VmSize", 0) * 0.9
        counted = alike = 0
        unseen: list[int | None] = [None] * (len(count.members) - len(count.shares))
        for process, share in zip(count.members, count.shares + unseen, strict=True):
            fork = process.size >= size
            guess = max(0, process.anon - held) if fork else process.anon
            counted += guess if share is None else share
            alike += fork and share is not None
        self.recount_at = time.monotonic() + 20 * count.cost
        # The zygote itself has part of each of its pages, too.
        counted -= held * alike // (alike + 1)
        self.shared = sum(p.anon for p in count.members) - counted
        if counted > self.session.limits["memory_mb"] * 1024:
            self.kill("memory")

    def drain(self) -> None:
        """After the last process is gone: take what is left in the pipes."""
        for capture in self.captures:
            while capture.fd >= 0 and capture.pump():
                if capture.total > 4 * OUTPUT_CEILING:
                    break
                # Only a full budget returns True with data left; an empty open pipe ends too.
                if not _readable(capture.fd):
                    break

    def verdict(
        self, exit_code: int, counters: dict[str, int], changed: bool, over: bool
    ) -> str | None:
        """Name the limit that ended the cell, if one did.

        Kernel counters come first, then what the file systems say, then the error texts that
        interpreters print. The texts can be forged, but only to the forger's own disadvantage.

        Args:
            exit_code: 0 for success, 128 + n for signal n.
            counters: Growth of the cgroup's counters, empty where there is none.
            changed: Whether the cell changed the workspace.
            over: Whether the workspace holds more than its limits.
        """
        if self.limit is not None:
            return self.limit
        if counters.get("oom_kill", 0) > 0:
            return "memory"
        if counters.get("pids", 0) > 0:
            return "pids"
        if (changed and (over or self._full("workspace"))) or self._filled():
            return "disk"
        errors = b"".join(c.result()[0] for c in self.captures[1:])
        if any(sign in errors for sign in _FORK_SIGNS):
            return "pids"  # a shell that could not fork may still end well
        if exit_code == 0:
            return None
        if exit_code == 128 + signal.SIGXFSZ or any(sign in errors for sign in _DISK_SIGNS):
            return "disk"
        if any(sign in errors for sign in _MEMORY_SIGNS):
            return "memory"
        if any(sign in errors for sign in _PIDS_SIGNS):
            return "pids"
        return None

    def _filled(self) -> bool:
        """Whether a place beside the workspace is full that no earlier cell has filled."""
        full = {place for place in ("tmp", "shm") if self._full(place)}
        before, self.session.full = self.session.full, full
        return bool(full - before)

    def _full(self, place: str) -> bool:
        with contextlib.suppress(OSError, KeyError):
            room = os.statvfs(self.session.folders[place])
            return room.f_bavail == 0 or (room.f_files > 0 and room.f_favail == 0)
        return False

    def describe(self, exit_code: int, cpu_us: int) -> tuple[dict[str, Any], list[bytes]]:
        """The result's header fields and the two streams."""
        (out, out_cut), (err, err_cut) = (c.result() for c in self.captures)
        header = {
            "exit": exit_code,
            "out_cut": out_cut,
            "err_cut": err_cut,
            "wall": time.monotonic() - self.started,
            "cpu": cpu_us / 1e6,
        }
        blobs = [self.isolation.outward(self.session, stream) for stream in (out, err)]
        return header, blobs

    def close(self) -> None:
        """Free descriptors."""
        self.spare.control.close()
        if self.count is not None:
            self.count.close()
        for capture in self.captures:
            capture.close()


def _readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])
