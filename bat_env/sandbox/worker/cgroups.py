"""Memory and process limits of a whole session, by the kernel, where a cgroup may be made.

The host looks for a place (:func:`find`), the supervisor makes one group for each session in it and
moves every cell there before agent code runs. Version 1 and 2; nothing is assumed: a place counts
only after a group was made, limited and removed in it.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

_ROOT = "/sys/fs/cgroup"
_PREFIX = "bat-"
_FILES = {
    1: {"memory": "memory.limit_in_bytes", "pids": "pids.max", "oom": "memory.oom_control"},
    2: {"memory": "memory.max", "pids": "pids.max", "oom": "memory.events"},
}
_TRIAL_BYTES = 64 << 20
_SLOW_S = 0.002


def _write(path: str, text: object) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(text).encode())
    finally:
        os.close(fd)


def _own() -> dict[str, str]:
    """Controller (empty for version 2) -> folder of this process's group."""
    folders = {}
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, kinds, path = line.rstrip("\n").split(":", 2)
            for kind in kinds.split(","):
                place = f"{_ROOT}/{kind}" if kind else _ROOT
                folders[kind] = f"{place}{path}".rstrip("/")
    return folders


def _candidates() -> list[tuple[int, dict[str, str]]]:
    own = _own()
    found: list[tuple[int, dict[str, str]]] = []
    if "memory" in own and "pids" in own:
        found.append((1, {kind: own[kind] for kind in ("memory", "pids")}))
    if "" in own:
        # A group with processes of its own cannot hand controllers down; its parent often does.
        for folder in (own[""], os.path.dirname(own[""])):
            with contextlib.suppress(OSError), open(f"{folder}/cgroup.subtree_control") as file:
                if folder.startswith(_ROOT) and {"memory", "pids"} <= set(file.read().split()):
                    found.append((2, {"memory": folder, "pids": folder}))
    return found


def _start_time(pid: int) -> str:
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[19]
    return ""


def find() -> dict[str, Any] | None:
    """A place for the groups of a worker of this process, or None where none may be made.

    Groups that a killed process left in it are removed on the way. Where moving a process takes
    milliseconds, every cell would: such a place is used only if ``BAT_SANDBOX_CGROUP`` is
    ``always`` (and none is if it is ``never``).
    """
    pid, wish = os.getpid(), os.environ.get("BAT_SANDBOX_CGROUP", "")
    if wish == "never":
        return None
    try:
        candidates = _candidates()
    except (OSError, ValueError):
        return None
    for version, folders in candidates:
        prefix = f"{_PREFIX}{pid}-{_start_time(pid)}-{os.urandom(4).hex()}-"
        plan = {"version": version, "folders": folders, "prefix": prefix}
        groups = Groups(plan)
        try:
            try:
                groups.open("trial", _TRIAL_BYTES, 8)
                slow = max(_trial(groups) for _ in range(5)) > _SLOW_S
            finally:
                groups.close("trial")
        except OSError:
            continue
        sweep(plan)
        if wish == "always" or not slow:
            return plan
    return None


def _trial(groups: Groups) -> float:
    """Seconds that one process takes to move; some kernels wait a grace period each time."""
    child = os.posix_spawn("/bin/sleep", ["sleep", "10"], {})
    try:
        began = time.perf_counter()
        groups.admit("trial", child)
        return time.perf_counter() - began
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def sweep(plan: dict[str, Any], *, own: bool = False) -> None:
    """Remove empty groups whose host process is dead, and with ``own`` those of this plan."""
    for folder in set(plan["folders"].values()):
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                words = name.split("-")
                if not name.startswith(_PREFIX) or len(words) < 5 or not words[1].isdigit():
                    continue
                dead = _start_time(int(words[1])) != words[2]
                if dead or (own and name.startswith(plan["prefix"])):
                    with contextlib.suppress(OSError):
                        os.rmdir(f"{folder}/{name}")


class Groups:
    """The groups of one worker.

    Args:
        plan: What :func:`find` gave.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.version = int(plan["version"])
        self._folders: dict[str, str] = plan["folders"]
        self._prefix = str(plan["prefix"])
        self._files = _FILES[self.version]
        self._doors: dict[str, list[int]] = {}
        self._gauges: dict[str, list[tuple[int, bytes, str]]] = {}

    def _group(self, kind: str, sid: str) -> str:
        return f"{self._folders[kind]}/{self._prefix}{sid}"

    def open(self, sid: str, memory_bytes: int, pids: int) -> None:
        """Make a session's group, limited.

        Raises:
            OSError: If the kernel refuses.
        """
        memory, processes = self._group("memory", sid), self._group("pids", sid)
        for group in (memory, processes):
            with contextlib.suppress(FileExistsError):
                os.mkdir(group)
        _write(f"{memory}/{self._files['memory']}", memory_bytes)
        _write(f"{processes}/{self._files['pids']}", pids)
        # No swap beside; the files are absent where the kernel does not count it.
        with contextlib.suppress(OSError):
            if self.version == 1:
                _write(f"{memory}/memory.memsw.limit_in_bytes", memory_bytes)
            else:
                _write(f"{memory}/memory.swap.max", 0)
        # Kept open: a cell passes through here on its way, and every system call of that shows.
        self._doors[sid] = [
            os.open(f"{group}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
            for group in dict.fromkeys((memory, processes))
        ]
        self._gauges[sid] = []
        for path, key, name in (
            (f"{memory}/{self._files['oom']}", b"oom_kill", "oom_kill"),
            (f"{processes}/pids.events", b"max", "pids"),
        ):
            with contextlib.suppress(OSError):
                gauge = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                self._gauges[sid].append((gauge, key, name))

    def admit(self, sid: str, pid: int) -> None:
        """Move a process that has no children yet into the session's group."""
        for door in self._doors[sid]:
            os.write(door, b"%d" % pid)

    def counters(self, sid: str) -> dict[str, int]:
        """``oom_kill`` and ``pids``: how often the kernel enforced each limit so far."""
        found: dict[str, int] = {}
        for gauge, key, name in self._gauges.get(sid, ()):
            rows = dict(line.split() for line in os.pread(gauge, 4096, 0).splitlines())
            found[name] = int(rows.get(key, 0))
        return found

    def close(self, sid: str) -> None:
        """Remove a session's group. A zombie may hold it for a moment: then a sweep removes it."""
        for fd in (*self._doors.pop(sid, ()), *(g[0] for g in self._gauges.pop(sid, ()))):
            os.close(fd)
        for kind in ("memory", "pids"):
            with contextlib.suppress(OSError):
                os.rmdir(self._group(kind, sid))


def container_counters() -> dict[str, int]:
    """As :meth:`Groups.counters` for the container that this process is in."""
    found: dict[str, int] = {}
    for path, key, name in (
        ("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill", "oom_kill"),
        ("/sys/fs/cgroup/memory.events", "oom_kill", "oom_kill"),
        ("/sys/fs/cgroup/pids/pids.events", "max", "pids"),
        ("/sys/fs/cgroup/pids.events", "max", "pids"),
    ):
        with contextlib.suppress(OSError, ValueError), open(path) as file:
            for line in file:
                word, _, value = line.partition(" ")
                if word == key:
                    found[name] = int(value)
    return found
