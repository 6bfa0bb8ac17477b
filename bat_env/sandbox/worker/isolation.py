"""What differs between the backends, behind one small interface.

An isolation gives each session its folders, each spare child a cage, and knows how to end every
process of a cage. :class:`Plain` (no isolation) and :class:`Container` (the container is the
isolation, cells are told apart by uid) live here; ``namespaces.py`` has the third.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import cgroups, files, linux, proc

READ_ONLY = ("data", "models", "skills")
WRITABLE = ("workspace", "tmp", "shm")
_LEFTOVER = re.compile(r"bat-process-(\d+)-\w+")
_CONTRACT = re.compile(rb"(?<![\w./~-])/(?:data|models|skills|workspace)(?![\w-])")


@dataclass
class Session:
    """One sandbox as the worker sees it.

    Attributes:
        sid: The host's number for it.
        limits: The host's limits, as plain numbers.
        folders: Supervisor-side path of each of ``data models skills workspace tmp shm``.
        namespaces: Descriptors (mnt, net, ipc, uts) that a cell joins, or nothing.
        full: Places beside the workspace that the last cell left full.
    """

    sid: str
    limits: dict[str, Any]
    folders: dict[str, str]
    namespaces: list[int] = field(default_factory=list)
    full: set[str] = field(default_factory=set)


@dataclass
class Cage:
    """What holds the processes of one spare child.

    Attributes:
        pid: Process to kill and wait for; 0 when the spare has none of its own.
        pidns: Descriptor and inode of its PID namespace, or (-1, 0).
        init: Channel to that process, or None.
    """

    pid: int = 0
    pidns: tuple[int, int] = (-1, 0)
    init: socket.socket | None = None


class Isolation:
    """Base: a folder tree somewhere, no namespaces, the same user."""

    namespaces = False
    keeper = False
    lock = True
    cgroup_version = 0
    """Version of the cgroups that limit a session, or 0."""
    max_sessions = 1 << 16
    sees_exit = False
    """Whether the end of a cell can be told before its memory is torn down."""
    table = "/proc"
    """Where the process table is mounted."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.trusted: set[int] = {os.getpid()}
        """Processes of the worker itself: never part of a cell."""
        self.ending: list[Cage] = []
        """Cages whose cell is over, but which :meth:`reap` has not yet collected."""

    def setup(self) -> None:
        """Once, before anything else."""

    def teardown(self) -> None:
        """Once, at the end."""

    def zygote_root(self) -> str:
        """Folder that the zygote changes its root to, or nothing."""
        return ""

    def zygote_python(self) -> str:
        """The interpreter that the zygote and the cells use."""
        return str(self.config["python"] or sys.executable)

    def open(self, session: Session) -> None:
        """Make the session's folders."""
        raise NotImplementedError

    def wipe(self, session: Session) -> None:
        """Empty every folder of the session."""
        raise NotImplementedError

    def close(self, session: Session) -> None:
        """Remove the session's folders."""
        raise NotImplementedError

    def new_cage(self) -> Cage:
        """A cage for the next spare."""
        return Cage()

    def job(self, session: Session) -> dict[str, Any]:
        """The isolation's part of a cell's assignment."""
        raise NotImplementedError

    def kill(self, cage: Cage, pid: int) -> None:
        """Begin to end every process of the cell whose main process is ``pid``."""
        raise NotImplementedError

    def finish(self, cage: Cage, pid: int) -> None:
        """After the main process ended: return when none of the cell runs any more."""
        raise NotImplementedError

    def processes(self, *, skip: Collection[int] = (), closing: bool = False) -> list[proc.Process]:
        """What runs, as :func:`proc.processes` tells it."""
        return proc.processes(pidns=self.namespaces, skip=skip, closing=closing, root=self.table)

    def await_end(self, cage: Cage, pid: int) -> None:
        """Return when no process of the cell runs or holds anything.

        The first one, ``pid``, closes what it has before it leaves; where it leaves in another way,
        it may hold a port for as long as its memory takes to go.

        Raises:
            RuntimeError: If one survives for half a minute.
        """
        deadline = time.monotonic() + 30
        while True:
            table = self.processes(skip=self.trusted, closing=True)
            found = self.members(cage, pid, table)
            if not any(p.pid != pid or p.size or p.threads > 1 for p in found):
                return
            if time.monotonic() > deadline:
                raise RuntimeError("processes of the agent survive SIGKILL")
            time.sleep(0.0002)

    def discard(self, cage: Cage) -> None:
        """Give up a cage that nothing was put into."""
        if cage.pid:
            self.ending.append(cage)

    def reap(self) -> None:
        """Collect what ended processes left behind. Called often; never blocks."""

    def admit(self, session: Session, pid: int) -> None:
        """Put a spare under the session's limits, before it becomes a cell."""

    def counters(self, session: Session) -> dict[str, int]:
        """How often the kernel enforced ``oom_kill`` and ``pids``; empty if it does not count."""
        return {}

    def members(self, cage: Cage, pid: int, table: list[proc.Process]) -> list[proc.Process]:
        """The live processes of one cell."""
        raise NotImplementedError

    @property
    def chores(self) -> bool:
        """Whether :meth:`reap` has work."""
        return bool(self.ending)

    def owner(self, session: Session) -> int | None:
        """Uid that workspace files must be given to; None where they are made with it."""
        return None

    @contextlib.contextmanager
    def as_agent(self) -> Iterator[None]:
        """Touch the agent's files with the agent's rights where we have no more than that."""
        yield

    def inward(self, session: Session, data: bytes) -> bytes:
        """Contract paths -> paths that exist here."""
        return data

    def outward(self, session: Session, data: bytes) -> bytes:
        """The reverse of :meth:`inward`."""
        return data


class Container(Isolation):
    """Inside a container of our own: one session, fixed mount points, root and an agent uid."""

    max_sessions = 1

    def setup(self) -> None:
        """Take an audit identity (nobody's): where none is set, every process may choose one."""
        with contextlib.suppress(OSError), open("/proc/self/loginuid", "w") as file:
            file.write("65534")

    def open(self, session: Session) -> None:
        """Make the session's file systems and namespaces."""
        session.folders = {name: f"/{name}" for name in (*READ_ONLY, "workspace", "tmp")}
        session.folders["shm"] = "/dev/shm"
        self.sees_exit = self._sees_exit()
        # What the zygote's imports left in /tmp: root may empty its own folders there, but only the
        # agent, who owns /tmp, may remove them.
        for entry in os.scandir("/tmp"):
            if entry.is_dir(follow_symlinks=False) and entry.stat().st_uid == 0:
                files.wipe(entry.path)
                with self.as_agent():
                    os.rmdir(entry.path)

    def _sees_exit(self) -> bool:
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                os.setresgid(*3 * [self.config["uid"]])
                os.setresuid(*3 * [self.config["uid"]])
                linux.prctl(linux.PR_SET_DUMPABLE, 1)
                os._exit(7)
            os._exit(1)
        with self.as_agent():
            truthful = proc.shows_exit(pid, 7 << 8)
        os.waitpid(pid, 0)
        return truthful

    def wipe(self, session: Session) -> None:
        """Leave nothing of the last episode."""
        for stray in self.members(Cage(), 0, self.processes(skip=self.trusted)):
            with contextlib.suppress(OSError):
                os.kill(stray.pid, signal.SIGKILL)
        self.await_end(Cage(), 0)
        for name in READ_ONLY:
            files.wipe(session.folders[name])
        with self.as_agent():
            for name in WRITABLE:
                files.wipe(session.folders[name])

    def close(self, session: Session) -> None:
        """Free everything of the session."""
        self.wipe(session)

    def job(self, session: Session) -> dict[str, Any]:
        """Where and as whom a cell runs."""
        return {"cwd": "/workspace", "uid": self.config["uid"], "userns": False, "env": {}}

    def kill(self, cage: Cage, pid: int) -> None:
        """End every process of the cell."""
        # With the agent's uid, kill(-1) reaches every process of the agent and none of root's,
        # at once and without a fork (the pids limit may be used up). As the container's first
        # process we cannot be killed back meanwhile.
        uid = self.config["uid"]
        os.setresuid(uid, uid, 0)
        try:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(-1, signal.SIGKILL)
        finally:
            os.setresuid(0, 0, 0)

    def finish(self, cage: Cage, pid: int) -> None:
        """Return when none of the cell runs any more."""
        # First the signal, which no process escapes by forking meanwhile, then the look: so what it
        # does not see cannot have been born behind its back.
        self.kill(cage, pid)
        self.await_end(cage, pid)

    def counters(self, session: Session) -> dict[str, int]:
        """The container's."""
        return cgroups.container_counters()

    def reap(self) -> None:
        """Orphans of cells come to us, the container's first process."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def members(self, cage: Cage, pid: int, table: list[proc.Process]) -> list[proc.Process]:
        """The live processes of one cell."""
        return [p for p in table if p.uid == self.config["uid"]]

    @contextlib.contextmanager
    def as_agent(self) -> Iterator[None]:
        """Act with the agent's uid."""
        uid = self.config["uid"]
        os.setegid(uid)
        os.seteuid(uid)
        try:
            yield
        finally:
            os.seteuid(0)
            os.setegid(0)


class Plain(Isolation):
    """No isolation at all: temporary folders, the host's user, processes told apart by descent.

    The contract's paths do not exist here, so texts are translated at the boundary: ``/data``,
    ``/models``, ``/skills`` and ``/workspace`` in code and in text files on their way in, the
    session's folder on the way out.
    """

    keeper = True
    lock = False

    def setup(self) -> None:
        """Mount the template that sessions are made from."""
        for entry in os.scandir(tempfile.gettempdir()):
            found = _LEFTOVER.fullmatch(entry.name)
            if found and not os.path.exists(f"/proc/{found.group(1)}"):
                with contextlib.suppress(OSError):  # another user's, or another worker was faster
                    files.wipe(entry.path)
                    os.rmdir(entry.path)
        self.base = tempfile.mkdtemp(prefix=f"bat-process-{os.getpid()}-")

    def teardown(self) -> None:
        """Remove the folder tree."""
        with contextlib.suppress(OSError):
            files.wipe(self.base)
        shutil.rmtree(self.base, ignore_errors=True)

    def open(self, session: Session) -> None:
        """Make the session's file systems and namespaces."""
        root = os.path.join(self.base, session.sid)
        session.folders = {name: os.path.join(root, name) for name in (*READ_ONLY, *WRITABLE)}
        for folder in session.folders.values():
            os.makedirs(folder)

    def wipe(self, session: Session) -> None:
        """Leave nothing of the last episode."""
        for folder in session.folders.values():
            files.wipe(folder)

    def close(self, session: Session) -> None:
        """Free everything of the session."""
        root = os.path.join(self.base, session.sid)
        files.wipe(root)
        os.rmdir(root)

    def job(self, session: Session) -> dict[str, Any]:
        """Where and as whom a cell runs."""
        temporary = session.folders["tmp"]
        env = {"TMPDIR": temporary, "HOME": temporary, "MPLCONFIGDIR": f"{temporary}/mpl"}
        return {"cwd": session.folders["workspace"], "uid": None, "userns": False, "env": env}

    def kill(self, cage: Cage, pid: int) -> None:
        """End every process of the cell."""
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGTERM)

    def finish(self, cage: Cage, pid: int) -> None:
        """Nothing left: the keeper leaves last."""

    def members(self, cage: Cage, pid: int, table: list[proc.Process]) -> list[proc.Process]:
        """The live processes of one cell."""
        return proc.descendants(pid, table)

    def inward(self, session: Session, data: bytes) -> bytes:
        """Contract paths -> paths of this session."""
        root = os.path.dirname(session.folders["workspace"]).encode()
        return _CONTRACT.sub(lambda m: root + m.group(0), data)

    def outward(self, session: Session, data: bytes) -> bytes:
        """Paths of this session -> contract paths."""
        return data.replace(os.path.dirname(session.folders["workspace"]).encode(), b"")
