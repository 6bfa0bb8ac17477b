"""An exact count of a cell's memory, made beside the worker's loop.

The kernel locks the memory map of a process while that process forks, and a look at its pages waits
for the lock. Processes that fork without end hold theirs nearly always: a worker that looked for
itself would miss deadlines, for many seconds on a busy machine. So a helper looks, and the worker
takes what it has found when it has found it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import time
from typing import NoReturn

from . import linux, proc
from .isolation import Isolation

_CPU_S = 0.1
"""CPU time for one count (20 ms for each GiB), not to take it from the cells."""
_PATIENCE_S = 5.0
"""After so long the count ends with what is known by then. What is not counts too much: a cell that
does nothing wrong must not come to this on a busy machine."""
_ROW = struct.Struct("=qd")
_UNKNOWN = -1
_ending: set[int] = set()
"""Helpers that are past their use and not yet collected."""


class Count:
    """One count under way.

    Args:
        isolation: Of the worker.
        members: The processes of the cell.

    Attributes:
        fd: Readable when there is something to :meth:`take`.
        members: In the order in which they are looked at.
        shares: KiB of each member so far, each page divided by its mappings; None where the kernel
            does not tell.
        cost: CPU seconds used so far.

    Raises:
        OSError: If there is no room for a helper.
    """

    def __init__(self, isolation: Isolation, members: list[proc.Process]) -> None:
        # The smallest first: should time run out, what is left counts too much and not too little.
        self.members = sorted(members, key=lambda p: p.anon)
        self.shares: list[int | None] = []
        self.cost = 0.0
        self._deadline = time.monotonic() + _PATIENCE_S
        self._data = b""
        self.fd, theirs = os.pipe()
        os.set_blocking(self.fd, False)
        try:
            began = time.process_time()
            self._pid = os.fork()
            if self._pid == 0:
                _look(isolation, self.members, theirs)
            self.cost = time.process_time() - began
        except OSError:
            os.close(self.fd)
            raise
        finally:
            os.close(theirs)

    @property
    def overdue(self) -> bool:
        """Whether it has had its time."""
        return time.monotonic() >= self._deadline

    def take(self) -> bool:
        """Take what has been found; whether that was all."""
        over = False
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, 1 << 16):
                self._data += data
            over = True
        whole = len(self._data) // _ROW.size * _ROW.size
        for share, cost in _ROW.iter_unpack(self._data[:whole]):
            self.shares.append(None if share == _UNKNOWN else share)
            self.cost = max(self.cost, cost)
        self._data = self._data[whole:]
        return over

    def close(self) -> None:
        """End the helper."""
        os.close(self.fd)
        with contextlib.suppress(ChildProcessError):
            # Not yet waited for: so the number is still its own.
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            os.kill(self._pid, signal.SIGKILL)
            _ending.add(self._pid)
        collect()


def collect() -> None:
    """Wait for helpers that have ended; never blocks."""
    for pid in list(_ending):
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        except ChildProcessError:  # whoever waits for orphans was faster
            pass
        _ending.discard(pid)


def _look(isolation: Isolation, members: list[proc.Process], sink: int) -> NoReturn:
    try:
        signal.set_wakeup_fd(-1)
        began = time.process_time()
        with isolation.as_agent():
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            for process in members:
                share = _share(isolation, process)
                cost = time.process_time() - began
                os.write(sink, _ROW.pack(_UNKNOWN if share is None else share, cost))
                if cost >= _CPU_S:
                    break
    finally:
        os._exit(0)


def _share(isolation: Isolation, process: proc.Process) -> int | None:
    try:
        return proc.proportional(process.pid)
    except PermissionError:
        # What we start may be inspected: so this one has taken measures against it.
        return process.anon if isolation.sees_exit else None
