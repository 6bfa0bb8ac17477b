"""Containers never outlive their owner: labels say who that is, and the dead are cleaned up after.

A container ends by itself when its stream breaks, as it does when the host process is killed. The
reaper is for what remains: a daemon that missed the disconnect, or a container created but never
started.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
from typing import Any, Final

LABEL: Final = "automed-bat.sandbox"
_PID, _START, _PLACE = f"{LABEL}.pid", f"{LABEL}.start", f"{LABEL}.place"

_owned: dict[str, int] = {}
_lost: set[str] = set()


def _start_time(pid: int) -> str:
    """Start time of a process in clock ticks since boot; empty where it cannot be told."""
    with contextlib.suppress(OSError, IndexError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[19]
    return ""


def _place() -> str:
    """Where process ids of this host process mean something: machine, boot, PID namespace."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        parts.append(file.read().strip())
    with contextlib.suppress(OSError):
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    return "/".join(parts)


def labels() -> dict[str, str]:
    """Labels that name this process as the owner."""
    pid = os.getpid()
    return {LABEL: "1", _PID: str(pid), _START: _start_time(pid), _PLACE: _place()}


def _alive(pid: int, start: str) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return not start or _start_time(pid) == start


def reap(client: Any) -> list[str]:
    """Remove containers whose owner died on this machine, and those of ours that could not be.

    Args:
        client: A ``docker.DockerClient``.

    Returns:
        Ids of what was removed.
    """
    removed = []
    place = _place()
    for found in client.api.containers(all=True, filters={"label": f"{LABEL}=1"}):
        seen = found.get("Labels", {})
        with contextlib.suppress(Exception):
            ours = seen.get(_PLACE) == place
            dead = ours and not _alive(int(seen[_PID]), seen.get(_START, ""))
            if dead or found["Id"] in _lost:
                client.api.remove_container(found["Id"], force=True)
                removed.append(str(found["Id"]))
    _lost.difference_update(removed)
    return removed


def own(container: str) -> None:
    """Remember a container of this process."""
    _owned[container] = os.getpid()


def disown(container: str) -> None:
    """Forget a container that was removed."""
    _owned.pop(container, None)


def lose(container: str) -> None:
    """Remember a container that is done but could not be removed, the daemon being away."""
    _lost.add(container)


def _at_exit() -> None:
    mine = [container for container, pid in _owned.items() if pid == os.getpid()]
    if not mine:
        return
    from .docker import connect

    with contextlib.suppress(Exception), contextlib.closing(connect(timeout_s=20.0)) as client:
        for container in mine:
            with contextlib.suppress(Exception):
                client.api.remove_container(container, force=True)
        reap(client)


atexit.register(_at_exit)
