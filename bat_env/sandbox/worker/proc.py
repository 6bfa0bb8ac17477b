"""Reading /proc: who runs, whose child it is, how much it holds."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass


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


def processes(*, pidns: bool) -> list[Process]:
    """All live processes that this process can see; zombies are left out."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/status", "rb") as file:
                rows = dict(line.split(b":", 1) for line in file.read().splitlines())
            inode = os.stat(f"/proc/{name}/ns/pid").st_ino if pidns else 0
        except (OSError, ValueError):
            continue
        if rows[b"State"].split()[0] in (b"Z", b"X"):
            continue

        def number(key: bytes, rows: dict[bytes, bytes] = rows) -> int:
            return int(rows[key].split()[0]) if key in rows else 0

        found.append(
            Process(
                pid=int(name),
                ppid=number(b"PPid"),
                uid=number(b"Uid"),
                threads=number(b"Threads"),
                size=number(b"VmSize"),
                anon=number(b"RssAnon") + number(b"RssShmem"),
                pidns=inode,
            )
        )
    return found


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
