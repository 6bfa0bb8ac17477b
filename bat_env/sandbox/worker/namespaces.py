"""Isolation by Linux namespaces, as root or as an ordinary user.

Three layers. The supervisor lives in a user, mount and PID namespace of its own, so every mount and
process vanishes with it. A session is a set of mount, network, IPC and UTS namespaces that the
supervisor builds once per reset; only an allowlist of places is mounted there. A cell joins the
session's set, gets a PID namespace of its own (made in advance by :meth:`Namespaces.new_cage`) and
ends in a nested user namespace without capabilities.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import struct
from typing import Any, NoReturn

from . import cgroups, linux, proc
from .isolation import READ_ONLY, WRITABLE, Cage, Isolation, Session

_AGENT = 1000
_AGENT_HOST_ID = 787432
"""Host id of the agent when the host process is root: no account, owns nothing."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
_ETC = ("ld.so.cache", "ld.so.conf", "localtime", "timezone", "os-release", "mime.types")


def enter(private: list[int]) -> None:
    """Move the calling process's future into namespaces; returns in the supervisor only.

    The caller stays outside as a thin parent that ends with the supervisor (and takes it along).

    Args:
        private: Descriptors that only the supervisor keeps: the host watches for their end.
    """
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        _unshare_as_root()
    else:
        linux.unshare(linux.NEWUSER | linux.NEWNS | linux.NEWPID)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {uid} 1"),
            ("gid_map", f"0 {gid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    pid = os.fork()
    if pid == 0:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    for fd in private:
        if fd >= 0:
            os.close(fd)
    os.waitpid(pid, 0)
    os._exit(0)


def _unshare_as_root() -> None:
    """Two mapped ids need a writer outside the new user namespace."""
    outside, inside = socket.socketpair()
    parent = os.getpid()
    helper = os.fork()
    if helper == 0:
        code = 1
        with contextlib.suppress(BaseException):
            outside.recv(1)
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{parent}/{name}", "w") as file:
                    file.write(f"0 0 1\n{_AGENT} {_AGENT_HOST_ID} 1\n")
            code = 0
        os._exit(code)
    linux.unshare(linux.NEWUSER | linux.NEWNS | linux.NEWPID)
    inside.send(b"x")
    if os.waitpid(helper, 0)[1] != 0:
        raise OSError("could not write the id maps of the sandbox's user namespace")
    inside.close()
    outside.close()


class Namespaces(Isolation):
    """The ``local`` backend's isolation."""

    namespaces = True

    def setup(self) -> None:
        """Mount the template that sessions are made from."""
        plan = self.config.get("cgroup")
        self.groups = cgroups.Groups(plan) if plan else None
        self.cgroup_version = self.groups.version if self.groups else 0
        self.view: dict[str, Any] = self.config["view"]
        self.two_ids = _mapped(_AGENT)
        self.own_pidns = os.open("/proc/self/ns/pid", os.O_RDONLY)
        linux.mount("none", "/", "", linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("proc", "/proc", "proc", _NO_DANGER)
        sources = [*self.view["trees"], *(source for source, _ in self.view["binds"])]
        self.base = next(
            place
            for place in ("/mnt", "/media", "/srv", "/opt", "/home", "/tmp")
            if os.path.isdir(place) and not any(_below(s, place) for s in sources)
        )
        linux.mount("bat", self.base, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=755")
        self.root = os.path.join(self.base, "root")
        self.new = os.path.join(self.base, "new")
        self._retired = self._cleared = 0
        for folder in (self.root, self.new, f"{self.base}/s", f"{self.base}/old"):
            os.mkdir(folder)
        linux.bind(self.root, self.root)
        self._mount_table()
        self._build_root()
        self.large_pages = self._large_pages()

    def _large_pages(self) -> str:
        """Mount option for files in pages as large as the file fills: a fifth of the time to write.

        Never larger than the file, so that small files cost what they did. Not for /tmp and
        /dev/shm: what is mapped there may have holes, and a page as large counts whole.
        """
        place, option = os.path.join(self.base, "probe"), ",huge=within_size"
        os.mkdir(place)
        try:
            linux.mount("bat", place, "tmpfs", _NO_DANGER, f"size=1m{option}")
        except OSError:  # a kernel without them
            return ""
        linux.umount(place)
        return option

    def _mount_table(self) -> None:
        """Our processes and nothing else of /proc, which makes it quicker to list (Linux 5.8)."""
        place = os.path.join(self.base, "table")
        os.mkdir(place)
        with contextlib.suppress(OSError):
            linux.mount("proc", place, "proc", _NO_DANGER, "subset=pid")
            self.table = place

    def _build_root(self) -> None:
        """The template of every session's root: an allowlist, read-only."""
        root = self.root
        for folder in ("dev/shm", "etc", "proc", "tmp", "workspace", *READ_ONLY):
            os.makedirs(f"{root}/{folder}")
        for tree in self.view["trees"]:
            self._show(tree, tree)
        for source, target in self.view["binds"]:
            self._show(source, target)
        for path, text in self.view["files"].items():
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            with open(root + path, "w") as file:
                file.write(text)
        for path, target in self.view["links"].items():
            os.makedirs(os.path.dirname(root + path), exist_ok=True)
            os.symlink(target, root + path)
        for name in _ETC:
            with contextlib.suppress(OSError):
                shutil.copyfile(f"/etc/{name}", f"{root}/etc/{name}")
        with contextlib.suppress(OSError):
            shutil.copytree("/etc/alternatives", f"{root}/etc/alternatives", symlinks=True)
        for name in _DEVICES:
            with open(f"{root}/dev/{name}", "w"):
                pass
            linux.bind(f"/dev/{name}", f"{root}/dev/{name}")
        for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
            os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
        self._hide()
        linux.restrict_tree(root, linux.MS_RDONLY | linux.MS_NOSUID)
        linux.mount("proc", f"{root}/proc", "proc", _NO_DANGER)
        # For the zygote's imports alone: every session mounts its own over it.
        linux.mount("bat", f"{root}/tmp", "tmpfs", _NO_DANGER, "mode=755,size=16m")
        self.sees_exit = self._sees_exit()

    def _sees_exit(self) -> bool:
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                if self.two_ids:
                    os.setresgid(_AGENT, _AGENT, _AGENT)
                    os.setresuid(_AGENT, _AGENT, _AGENT)
                linux.prctl(linux.PR_SET_DUMPABLE, 1)
                linux.unshare(linux.NEWUSER)
                os._exit(7)
            os._exit(1)
        truthful = proc.shows_exit(pid, 7 << 8)
        os.waitpid(pid, 0)
        return truthful

    def _show(self, source: str, target: str) -> None:
        place = self.root + target
        if os.path.islink(source):  # /bin -> usr/bin
            if not os.path.lexists(place):
                os.makedirs(os.path.dirname(place), exist_ok=True)
                os.symlink(os.readlink(source), place)
        elif os.path.isdir(source):
            os.makedirs(place, exist_ok=True)
            linux.bind(source, place)

    def _hide(self) -> None:
        empty_dir, empty_file = f"{self.base}/empty", f"{self.base}/empty.txt"
        os.mkdir(empty_dir)
        with open(empty_file, "w"):
            pass
        for path in self.view["hide"]:
            place = self.root + path
            if os.path.isdir(place):
                linux.bind(empty_dir, place)
            elif os.path.exists(place):
                linux.bind(empty_file, place)

    def zygote_root(self) -> str:
        """The template."""
        return self.root

    def zygote_python(self) -> str:
        """The interpreter inside the template."""
        return str(self.view["python"])

    def open(self, session: Session) -> None:
        """Make the session's file systems, namespaces and limits."""
        self._limit(session)
        self._set_up(session)

    def _set_up(self, session: Session) -> None:
        base = f"{self.base}/s/{session.sid}"
        os.mkdir(base)
        limits = session.limits
        self._tmpfs(f"{base}/ro", f"mode=755,size=50%{self.large_pages}")
        for name in READ_ONLY:
            os.mkdir(f"{base}/ro/{name}")
            session.folders[name] = f"{base}/ro/{name}"
        sizes = {
            "workspace": (limits["workspace_mb"], limits["workspace_inodes"] + 1),
            "tmp": (limits["tmp_mb"], 65536),
            "shm": (limits["shm_mb"], 65536),
        }
        for name in WRITABLE:
            size, inodes = sizes[name]
            session.folders[name] = f"{base}/{name}"
            options = f"mode=755,size={size}m,nr_inodes={inodes}"
            if name == "workspace":
                options += self.large_pages
            self._tmpfs(session.folders[name], options)
            if self.two_ids:
                os.chown(session.folders[name], _AGENT, _AGENT)
        session.namespaces = self._build(session)

    def _tmpfs(self, place: str, options: str) -> None:
        os.mkdir(place)
        linux.mount("bat", place, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, options)

    def _build(self, session: Session) -> list[int]:
        """Make the session's namespaces in a short-lived child and keep them by descriptor."""
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._builder(session, theirs)
        theirs.close()
        try:
            answer = ours.recv(4096)
            if answer != b"ok":
                raise OSError(f"could not build a session: {answer.decode(errors='replace')}")
            return [
                os.open(f"/proc/{pid}/ns/{n}", os.O_RDONLY) for n in ("mnt", "net", "ipc", "uts")
            ]
        finally:
            ours.close()
            os.waitpid(pid, 0)

    def _builder(self, session: Session, channel: socket.socket) -> NoReturn:
        try:
            linux.unshare(linux.NEWNS | linux.NEWNET | linux.NEWIPC | linux.NEWUTS)
            with contextlib.suppress(OSError):
                socket.sethostname("sandbox")
                _loopback_up()
            linux.bind(self.root, self.new)
            for name in READ_ONLY:
                linux.bind(session.folders[name], f"{self.new}/{name}")
                linux.restrict(f"{self.new}/{name}", linux.MS_RDONLY)
            for name in WRITABLE:
                target = "dev/shm" if name == "shm" else name
                linux.bind(session.folders[name], f"{self.new}/{target}")
            linux.pivot_to(self.new)
            channel.send(b"ok")
            channel.recv(1)
        except BaseException as error:
            with contextlib.suppress(OSError):
                channel.send(str(error).encode())
        os._exit(0)

    def _limit(self, session: Session) -> None:
        """The files in memory count, too, towards the group of the cell that wrote them."""
        if self.groups is not None:
            limits = session.limits
            memory = sum(int(limits[f"{n}_mb"]) for n in ("memory", *WRITABLE))
            # One more than allowed: the watchdog sees the breach before fork fails forever.
            self.groups.open(session.sid, memory << 20, int(limits["pids"]) + 1)

    def admit(self, session: Session, pid: int) -> None:
        """Put a spare into the session's group."""
        if self.groups is not None:
            self.groups.admit(session.sid, pid)

    def counters(self, session: Session) -> dict[str, int]:
        """Those of the session's group."""
        return self.groups.counters(session.sid) if self.groups is not None else {}

    def wipe(self, session: Session) -> None:
        """Leave nothing of the last episode."""
        # New file systems instead of deletions: nothing of the old episode can remain.
        self._clear_away()
        self._take_down(session)
        self._set_up(session)

    def close(self, session: Session) -> None:
        """Free everything of the session."""
        self._take_down(session)
        self._clear_away()
        if self.groups is not None:
            self.groups.close(session.sid)

    def _take_down(self, session: Session) -> None:
        for fd in session.namespaces:
            os.close(fd)
        session.namespaces = []
        # Out of the way at once; the pages are freed when the host has its answer.
        self._retired += 1
        with contextlib.suppress(FileNotFoundError):
            os.rename(f"{self.base}/s/{session.sid}", f"{self.base}/old/{self._retired}")

    @property
    def chores(self) -> bool:
        """Whether :meth:`reap` has work."""
        return bool(self.ending) or self._retired > self._cleared

    def _clear_away(self) -> None:
        while self._cleared < self._retired:
            self._cleared += 1
            base = f"{self.base}/old/{self._cleared}"
            for name in ("ro", *WRITABLE):
                with contextlib.suppress(OSError):
                    linux.umount(f"{base}/{name}")
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(base)

    def owner(self, session: Session) -> int | None:
        """The agent, where it has an id of its own."""
        return _AGENT if self.two_ids else None

    def new_cage(self) -> Cage:
        """A PID namespace with a first process of its own."""
        ours, theirs = socket.socketpair()
        linux.unshare(linux.NEWPID)
        pid = os.fork()
        if pid == 0:
            _init(theirs)
        linux.setns(self.own_pidns, linux.NEWPID)
        theirs.close()
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
        self.trusted.add(pid)
        _ask_to_kill(ours)  # nobody in there yet: a rehearsal, as for a cell
        return Cage(pid, (fds[0], os.fstat(fds[0]).st_ino), ours)

    def job(self, session: Session) -> dict[str, Any]:
        """Where and as whom a cell runs."""
        uid = _AGENT if self.two_ids else None
        return {"cwd": "/workspace", "uid": uid, "userns": True, "env": {}}

    def kill(self, cage: Cage, pid: int) -> None:
        """End every process of the cell."""
        os.kill(cage.pid, signal.SIGKILL)

    def finish(self, cage: Cage, pid: int) -> None:
        """Return when none of the cell runs any more."""
        if cage.init is not None and _ask_to_kill(cage.init):
            self.await_end(cage, pid)
            self.ending.append(cage)
        else:
            # Killing a namespace's first process ends all others before it can be reaped.
            os.kill(cage.pid, signal.SIGKILL)
            os.waitpid(cage.pid, 0)
            self._forget(cage)

    def reap(self) -> None:
        """Collect the first processes of ended namespaces, and what wiped sessions held."""
        self._clear_away()
        for cage in list(self.ending):
            os.kill(cage.pid, signal.SIGKILL)
            if os.waitpid(cage.pid, os.WNOHANG)[0]:
                self.ending.remove(cage)
                self._forget(cage)

    def _forget(self, cage: Cage) -> None:
        self.trusted.discard(cage.pid)
        os.close(cage.pidns[0])
        if cage.init is not None:
            cage.init.close()

    def members(self, cage: Cage, pid: int, table: list[proc.Process]) -> list[proc.Process]:
        """The live processes of one cell."""
        return [p for p in table if p.pidns == cage.pidns[1] and p.pid != cage.pid]


_NO_DANGER = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC


def _init(channel: socket.socket) -> NoReturn:
    """First process of a cell's PID namespace: lets the kernel reap orphans, and waits.

    It is a copy of the supervisor and, where the host is an ordinary user, has the agent's own host
    uid: not dumpable, so that the agent cannot read it. Signals from inside the namespace never
    reach a first process that has no handler for them.
    """
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    namespace = os.open("/proc/self/ns/pid", os.O_RDONLY)
    socket.send_fds(channel, [b"x"], [namespace])
    mine = channel.detach()
    os.closerange(0, mine)
    os.closerange(mine + 1, 4096)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    while os.read(mine, 1):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # atomic: nothing in here escapes it by forking
        os.write(mine, b"k")
    while True:  # the supervisor is gone, and this process goes with it
        signal.pause()


def _ask_to_kill(init: socket.socket) -> bool:
    try:
        init.settimeout(2.0)
        init.send(b"k")
        return init.recv(1) == b"k"
    except OSError:
        return False


def _loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0x1 | 0x40)
        fcntl.ioctl(sock, 0x8914, request)


def _mapped(uid: int) -> bool:
    with open("/proc/self/uid_map") as file:
        rows = [tuple(map(int, line.split())) for line in file]
    return any(first <= uid < first + count for first, _, count in rows)


def _below(path: str, place: str) -> bool:
    return path == place or path.startswith(place + "/")
