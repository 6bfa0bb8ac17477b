"""Runs one command and lets nothing of it survive; standard library only.

It is run as a script, ``guard.py PARENT MEMORY_MB COMMAND``: the shell command gets a session of
its own, and processes that leave it come back to this one, which adopts orphans. It ends
everything when the command ends, when it is terminated, when its parent dies, or when all
processes together take more memory than allowed (exit status 250).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time

OUT_OF_MEMORY = 250
_PDEATHSIG, _SUBREAPER = 1, 36
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PERIOD_S = 0.1


def _descendants() -> list[int]:
    """Processes below this one."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - many names, many times: no objects
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                with open(f"/proc/{name}/stat", encoding="latin-1") as stream:  # noqa: PTH123
                    parent = int(stream.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(name))
    found, waiting = [], [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _resident_mb(pids: list[int]) -> float:
    pages = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{pid}/statm", encoding="ascii") as stream:  # noqa: PTH123
                _, resident, shared = stream.read().split()[:3]
            pages += int(resident) - int(shared)
    return pages * _PAGE / 2**20


def _reap(command: int) -> int | None:
    """Collect what has ended; the exit status of the command, if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, code = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == command:
                code = os.waitstatus_to_exitcode(code)
                status = code if code >= 0 else 128 - code
    return status


def main() -> int:
    """Run the command; its exit status, 250 for too much memory, 143 when terminated."""
    parent, memory_mb, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    libc = ctypes.CDLL(None)
    libc.prctl(_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    child = subprocess.Popen(["/bin/sh", "-c", command], start_new_session=True)
    status = None
    while status is None:
        status = _reap(child.pid)
        if stopped or os.getppid() != parent:
            status = 128 + signal.SIGTERM
        elif _resident_mb(_descendants()) > memory_mb:
            status = OUT_OF_MEMORY
        elif status is None:
            time.sleep(_PERIOD_S)
    while left := _descendants():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _reap(child.pid)
        time.sleep(0.01)
    return status


if __name__ == "__main__":
    sys.exit(main())
