"""What the host plants outside the sandbox, and what it sees of an attack.

An attack's own words count for nothing. The host plants a random secret, listening sockets and a
process, and afterwards looks at those, at the files, at the processes and at the worker.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bat_env.sandbox import CellResult, Sandbox, embedded

AGENT_HOST_ID = 787432
"""Host id of the agent on ``local`` under root: the victim process gets it, so that only the
walls between namespaces keep the agent from it."""


class Broken(AssertionError):
    """A promise that did not hold. Only this counts as a broken wall."""


@dataclass
class Outcome:
    """One attack as the host saw it."""

    sandbox: Sandbox
    scene: Scene
    files: dict[str, bytes]
    mark: str
    results: list[CellResult] = field(default_factory=list)
    elapsed_s: float = 0.0
    memory_mb: float = 0.0
    plant: dict[str, bytes] = field(default_factory=dict)
    patience_s: float = 5.0

    @property
    def last(self) -> CellResult:
        """The result of the last cell."""
        return self.results[-1]

    @property
    def words(self) -> str:
        """All that the agent could read back as an observation."""
        return "\n".join(f"{r.stdout}\n{r.stderr}" for r in self.results)


class Scene:
    """Everything planted on the host for one run of the suite."""

    def __init__(self) -> None:
        self.secret = secrets.token_hex(16)
        # Open to everyone: if a cell can reach the place at all, file modes do not save it.
        self.folder = Path(tempfile.mkdtemp(prefix="bat-canary-"))
        self.folder.chmod(0o777)
        self.canary = self.folder / "canary.txt"
        self.heal()
        self.name = f"bat-redteam-{os.getpid()}"
        self.sockets: dict[str, socket.socket] = {}
        self._listen()
        self.victim = self._victim()

    def heal(self) -> None:
        """Put the canary file (back) in place."""
        self.canary.write_text(self.secret)
        self.canary.chmod(0o666)

    def _listen(self) -> None:
        wanted: dict[str, tuple[int, int, Any]] = {
            "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0)),
            "unix": (socket.AF_UNIX, socket.SOCK_STREAM, str(self.folder / "s")),
            "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.name}"),
        }
        if hasattr(socket, "AF_VSOCK"):
            wanted["vsock"] = (socket.AF_VSOCK, socket.SOCK_STREAM, (socket.VMADDR_CID_ANY, 47001))
        for name, (family, kind, address) in wanted.items():
            with contextlib.suppress(OSError):
                sock = socket.socket(family, kind)
                sock.bind(address)
                if kind == socket.SOCK_STREAM:
                    sock.listen(8)
                self.sockets[name] = sock
        (self.folder / "s").chmod(0o777)

    def _victim(self) -> subprocess.Popen[bytes]:
        options: dict[str, Any] = {}
        if os.getuid() == 0:
            options = {"user": AGENT_HOST_ID, "group": AGENT_HOST_ID, "extra_groups": []}
        environment = {"PATH": os.defpath, "BAT_CANARY": self.secret}
        return subprocess.Popen(["sleep", "86400"], env=environment, cwd="/", **options)

    def port(self, name: str) -> int:
        """The port of a listening socket; 9 where the family is missing on this host."""
        sock = self.sockets.get(name)
        return int(sock.getsockname()[1]) if sock is not None else 9

    def contacts(self) -> list[str]:
        """Names of the sockets that something came in on; drained."""
        found = []
        for name, sock in self.sockets.items():
            while select.select([sock], [], [], 0)[0]:
                found.append(name)
                if sock.type == socket.SOCK_STREAM:
                    sock.accept()[0].close()
                else:
                    sock.recv(4096)
        return found

    def fill(self, code: str, mark: str, backend: str, memory_mb: int, case: str) -> str:
        """Replace the placeholders of an attack's code."""
        values = {
            "CANARY": self.canary,
            "FOLDER": self.folder,
            "SECRET": self.secret,
            "MARK": mark,
            "PORT": self.port("tcp"),
            "PORT6": self.port("tcp6"),
            "UDP": self.port("udp"),
            "UNIX": self.folder / "s",
            "ABSTRACT": self.name,
            "VICTIM": self.victim.pid,
            "HOSTPID": os.getpid(),
            "REPO": Path(__file__).resolve().parents[2],
            "PREFIX": sys.prefix,
            # Where the kernel counts a whole container, its own file systems and the worker have
            # room in the same account.
            "BOMB_MB": memory_mb + 3072 if backend == "docker" else 3 * memory_mb,
            "CASE": case,
        }
        for name, value in values.items():
            code = code.replace(f"@{name}@", str(value))
        return code

    def close(self) -> None:
        """Take everything down."""
        for sock in self.sockets.values():
            sock.close()
        self.victim.kill()
        self.victim.wait()
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


def watch_memory() -> float:
    """Start the peak anew; resident memory of this process now, MiB."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak_mb() -> float:
    """Peak resident memory of this process since :func:`watch_memory`, MiB."""
    return _status("VmHWM")


def _status(field: str) -> float:
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(rows[field].split()[0]) / 1024


def _link(pid: int, kind: str = "user") -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/{kind}").readlink())
    except OSError:
        return ""


def _family() -> dict[int, int]:
    """Process -> parent. Of what still has memory: without it, nothing runs any more."""
    found = {}
    for name in (entry.name for entry in Path("/proc").iterdir()):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if fields[0] not in "ZX" and (fields[20] != "0" or int(fields[17]) > 1):
                    found[int(name)] = int(fields[1])
    return found


@functools.cache
def daemon() -> Any:
    """A client of the Docker daemon, for the host's own looks into a container."""
    import docker

    return docker.from_env()


def _other_workers(sandbox: Sandbox) -> set[int]:
    """First processes of this host's other workers: what runs below them is not ours to judge."""
    mine = sandbox.worker  # type: ignore[attr-defined]
    return {w._transport._process.pid for w in embedded._workers.values() if w is not mine}


def agents(
    sandbox: Sandbox, elsewhere: frozenset[int] = frozenset()
) -> tuple[list[int], list[int]]:
    """Live processes with the agent's rights, as the host sees them.

    Whoever cannot be told to belong to another sandbox counts, wherever it has got to.

    Args:
        sandbox: The one in question.
        elsewhere: Network namespaces of other sandboxes of the same worker.

    Returns:
        Children of the zygote (the first process of a cell, or one that waits for the next cell),
        and all others.
    """
    if sandbox.backend == "docker":
        listed = daemon().api.top(sandbox.container, ps_args="-eo pid,ppid,uid,vsz,stat")
        rows = [(int(pid), int(parent), *rest) for pid, parent, *rest in listed["Processes"]]
        ours = {pid: parent for pid, parent, uid, *_ in rows if uid == "0"}
        theirs = {
            pid: parent
            for pid, parent, uid, size, state, *_ in rows
            if uid == "1000" and state[0] not in "ZX" and (size != "0" or "l" in state)
        }
        # The first process of the container is the supervisor; its child is the zygote.
        first = [pid for pid in theirs if ours.get(theirs[pid]) in ours]
        return first, [pid for pid in theirs if pid not in first]
    # A cell is in a user namespace inside the worker's: two steps down from ours.
    parents, foreign = _family(), _other_workers(sandbox)
    rooms = {f"net:[{number}]" for number in elsewhere}
    first, others = [], []
    for pid in parents:
        chain, at = [], pid
        while at in parents and at != os.getpid() and at not in foreign:
            chain.append(_link(at))
            at = parents[at]
        if at != os.getpid() or _link(pid, "net") in rooms:
            continue
        if len({*chain, _link(at)} - {""}) >= 3:
            # The zygote is outside the cell's PID namespace, whoever takes in orphans is inside.
            crossed = _link(parents[pid], "pid") != _link(pid, "pid")
            (first if crossed else others).append(pid)
    return first, others


def gone(sandbox: Sandbox, patience_s: float) -> list[int]:
    """Agent processes of this sandbox that are still there after a while.

    Teardown may lag behind the reply. The process that waits for the next cell has run no agent
    code; the worker says whether there is one, and no other child of the zygote may have the
    agent's rights. What it says of other sandboxes can only excuse processes in their networks.
    """
    deadline = time.monotonic() + patience_s
    worker, sid = sandbox.worker, sandbox._sid  # type: ignore[attr-defined]
    while True:
        rooms = dict(worker.request({"op": "rooms"})[0]["rooms"])
        _, prepared = rooms.pop(sid)
        first, others = agents(sandbox, frozenset(net for net, _ in rooms.values()))
        if (len(first) == prepared and not others) or time.monotonic() > deadline:
            return [*first[prepared:], *others]
        time.sleep(0.02)
