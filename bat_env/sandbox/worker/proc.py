"""Reading /proc: who runs, whose child it is, how much it holds, how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass

_PF_EXITING = 4
_ROW = re.compile(rb"^(State|PPid|Uid|Threads|VmSize|RssAnon|RssShmem):[\t ]*(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Process:
    """One live process. Memory in KiB; ``pidns`` is the inode of its PID namespace, or 0."""

    pid: int
    ppid: int
    uid: int
    threads: int
    size: int
    anon: int
    pidns: int


def _content(path: str) -> bytes:
    """A small file of /proc, in one go as the kernel makes it: this runs several times a cell."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 1 << 14)
    finally:
        os.close(fd)


def processes(
    *, pidns: bool, skip: Collection[int] = (), closing: bool = False, root: str = "/proc"
) -> list[Process]:
    """All processes that this process can see and that may still run an instruction.

    A process that has given its memory back is past its last one, though its parent hears of the
    end only after the pages are freed (milliseconds for a copy of a large interpreter). A first
    thread that left alone does not count as an end while others of its process run.

    Args:
        pidns: Whether to look up PID namespaces.
        skip: Process ids to leave out, unread.
        closing: Also those that are past their last instruction and have not yet closed everything
            that they held: a socket of theirs still has its address.
        root: Where the process table is mounted.
    """
    found = []
    for name in os.listdir(root):
        if not name.isdigit() or int(name) in skip:
            continue
        try:
            rows = dict(_ROW.findall(_content(f"{root}/{name}/status")))
            inode = os.stat(f"{root}/{name}/ns/pid").st_ino if pidns else 0
        except OSError:
            continue
        threads = int(rows.get(b"Threads", 0))
        gone = not closing or rows.get(b"State", b"X") in (b"Z", b"X")
        if gone and b"VmSize" not in rows and threads <= 1:
            continue
        found.append(
            Process(
                pid=int(name),
                ppid=int(rows.get(b"PPid", 0)),
                uid=int(rows.get(b"Uid", 0)),
                threads=threads,
                size=int(rows.get(b"VmSize", 0)),
                anon=int(rows.get(b"RssAnon", 0)) + int(rows.get(b"RssShmem", 0)),
                pidns=inode,
            )
        )
    return found


def proportional(pid: int) -> int | None:
    """Anonymous and shared memory of a process in KiB, each page divided by its mappings.

    The kernel walks all its pages for this: milliseconds for a large process.

    Returns:
        None where this kernel does not say; 0 for a process that is gone.

    Raises:
        PermissionError: If the process does not let itself be inspected.
    """
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            rows = [line.split() for line in file.read().splitlines()]
    except PermissionError:
        raise
    except FileNotFoundError:
        return None if os.path.exists(f"/proc/{pid}") else 0
    except OSError:
        return 0
    shares = [int(row[1]) for row in rows if row[0] in (b"Pss_Anon:", b"Pss_Shmem:")]
    return sum(shares) if len(shares) == 2 else None


def descendants(root: int, table: list[Process]) -> list[Process]:
    """The processes of ``table`` below ``root``, without ``root``."""
    children: dict[int, list[Process]] = {}
    for process in table:
        children.setdefault(process.ppid, []).append(process)
    found, stack = [], [root]
    while stack:
        for child in children.get(stack.pop(), []):
            found.append(child)
            stack.append(child.pid)
    return found


def kill_descendants(root: int) -> None:
    """SIGKILL everything below ``root``, until a pass finds nothing alive."""
    for _ in range(1000):
        below = descendants(root, processes(pidns=False))
        if not below:
            return
        for process in below:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)


def exit_of(pid: int) -> tuple[int, int] | None:
    """Wait status and CPU microseconds of a process that is past its last instruction.

    The kernel's own word, available before the memory is torn down. Needs the right to inspect the
    process: without it the kernel shows a zero as status (see :func:`shows_exit`).

    Args:
        pid: A process that its parent has not waited for.

    Returns:
        None while it runs, or once it was waited for.
    """
    try:
        fields = _content(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        own = time.clock_gettime_ns(~pid << 3 | 2)  # its own clock, clock_getcpuclockid(3)
    except OSError:
        return None
    state, flags, threads, size = fields[0], int(fields[6]), int(fields[17]), int(fields[20])
    if state not in (b"Z", b"X") and not (flags & _PF_EXITING and size == 0):
        return None
    if threads > 1:
        return None
    waited_for = int(fields[13]) + int(fields[14])
    return int(fields[49]), own // 1000 + waited_for * 1_000_000 // os.sysconf("SC_CLK_TCK")


def shows_exit(pid: int, status: int) -> bool:
    """Whether :func:`exit_of` tells the truth about an ended, unwaited child with ``status``."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    seen = exit_of(pid)
    return seen is not None and seen[0] == status
