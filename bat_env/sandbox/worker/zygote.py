"""The zygote: imports the heavy modules once, then forks spare children on request.

It runs no agent code and no torch operation (a thread pool would not survive the fork). The
supervisor speaks to it over a SEQPACKET socket: ``F<id>`` with descriptors asks for a spare; the
zygote answers ``P <id> <pid> <time in us>``, ``N <id>`` if none can be made now, and, for a child
that ended, ``X <pid> <status> <CPU time in us>``.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
import warnings
import weakref
from typing import Any, NoReturn

from . import cell, linux, proc, seccomp

_LENGTH = struct.Struct(">Q")


def main(config: dict[str, Any], control_fd: int) -> NoReturn:
    """Serve until the supervisor goes away."""
    control = socket.socket(fileno=control_fd)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    # A checkout of the suite is not for agent code. Where it is installed, it lies beside packages
    # that cells need: those stay, and the isolation lays an empty folder over ours.
    sys.path = [
        p
        for p in sys.path
        if os.path.basename(p) in ("site-packages", "dist-packages")
        or not os.path.exists(f"{p}/bat_env/__init__.py")
    ]
    _renew_streams()
    loaded, missing = _preload(config["preload"], config["skip"])
    program = seccomp.build() if config["lock"] else b""
    _Zygote(config, control, program).serve(loaded, missing)


def _renew_streams() -> None:
    """Make the text streams anew over what cells will have there: pipes.

    A stream remembers whether it can seek. Ours began on the null device, which can, and
    ``sys.stdout.reconfigure()`` in a cell would try to.
    """
    read, write = os.pipe()
    for number, name in ((1, "stdout"), (2, "stderr")):
        old, kept = getattr(sys, name), os.dup(number)
        old.flush()
        os.dup2(write, number)
        new = open(  # noqa: SIM115  (it stays open for good)
            number,
            "w",
            encoding=old.encoding,
            errors=old.errors,
            closefd=False,
        )
        new.reconfigure(line_buffering=old.line_buffering)
        new.buffer.raw.name = f"<{name}>"  # type: ignore[attr-defined]
        os.dup2(kept, number)
        os.close(kept)
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)
    os.close(read)
    os.close(write)


def _preload(names: list[str], skip: list[str]) -> tuple[list[str], dict[str, str]]:
    """Import ``names``; the optional imports in ``skip`` are made to fail meanwhile.

    MONAI tries whole training stacks that happen to be installed; they would double the memory
    that every fork has to copy tables for.
    """
    loaded: list[str] = []
    missing: dict[str, str] = {}
    blocked = [name for name in skip if name not in sys.modules]
    sys.modules.update(dict.fromkeys(blocked))  # type: ignore[arg-type]
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
            loaded.append(name)
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
    for name in blocked:
        del sys.modules[name]
    # The zygote's finalizers are not the cell's business (60 ms of them).
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    _forget_exits()
    gc.collect()
    gc.freeze()
    _collapse()
    return loaded, missing


def _forget_exits() -> None:
    """Drop the exit functions of our imports, but for those that end what a cell may have begun."""
    atexit._clear()
    logging, finalize = sys.modules.get("logging"), weakref.finalize
    if logging is not None:
        logging._handlerList.clear()  # ours hold nothing back; the cell's own are closed
        atexit.register(logging.shutdown)
    if finalize._registered_with_atexit:  # type: ignore[attr-defined]
        atexit.register(finalize._exitfunc)  # type: ignore[attr-defined]
    loaders, processes = (
        sys.modules.get(name) for name in ("torch.utils.data._utils", "multiprocessing.util")
    )
    if loaders is not None:
        atexit.register(loaders._set_python_exit_flag)
    if processes is not None:
        atexit.register(processes._exit_function)
    cell.zygote_exits = atexit._ncallbacks()


def _collapse() -> None:
    """Back our heap with huge pages where the kernel can (Linux 6.1): a fork costs a third."""
    huge = 2 << 20
    with open("/proc/self/maps") as table:
        rows = [line.split() for line in table]
    for row in rows:
        if row[1] == "rw-p" and (len(row) == 5 or row[5] == "[heap]"):
            start, end = (int(number, 16) for number in row[0].split("-"))
            start = -(-start // huge) * huge
            if end - start >= huge:
                linux.collapse(start, (end - start) // huge * huge)


class _Zygote:
    def __init__(self, config: dict[str, Any], control: socket.socket, program: bytes) -> None:
        self.config = config
        self.control = control
        self.program = program
        self.own_pidns = os.open("/proc/self/ns/pid", os.O_RDONLY) if config["namespaces"] else -1
        self.wake_read, self.wake_write = os.pipe()
        for fd in (self.wake_read, self.wake_write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)

    def serve(self, loaded: list[str], missing: dict[str, str]) -> NoReturn:
        usage = _status("VmData", "VmSize", "RssAnon")
        self._send("R", json.dumps({"loaded": loaded, "missing": missing, **usage}))
        while True:
            waiting: list[Any] = [self.control, self.wake_read]
            ready, _, _ = select.select(waiting, [], [])
            if self.wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake_read, 4096)
                self._reap()
            if self.control in ready:
                message, fds, _, _ = socket.recv_fds(self.control, 64, 4)
                if not message:
                    os._exit(0)
                self._fork(message[1:].decode(), fds)

    def _send(self, *words: object) -> None:
        self.control.send(" ".join(map(str, words)).encode())

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._send("X", pid, status, int((usage.ru_utime + usage.ru_stime) * 1e6))

    def _fork(self, number: str, fds: list[int]) -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        if self.own_pidns >= 0:
            linux.setns(fds[1], linux.NEWPID)
        began = time.perf_counter()
        try:
            pid = os.fork()
        except OSError:  # a cell has taken every process that there may be; it will not for long
            pid = -1
        if pid == 0:
            try:
                self._child(fds[0])
            finally:
                os._exit(125)
        took = time.perf_counter() - began
        if self.own_pidns >= 0:
            linux.setns(self.own_pidns, linux.NEWPID)
        for fd in fds:
            os.close(fd)
        if pid < 0:
            self._send("N", number)
        else:
            self._send("P", number, pid, int(took * 1e6))

    def _child(self, control_fd: int) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self.control.detach()
        os.closerange(3, control_fd)
        os.closerange(control_fd + 1, 1024)
        if self.config["keeper"]:
            control_fd = _keep(control_fd)
        early = self.config["lock"] and not self.config["namespaces"]
        spare(socket.socket(fileno=control_fd), self.program, early=early)


def _keep(control_fd: int) -> int:
    """Without namespaces: stay between zygote and cell, so that orphans of the cell come here.

    The supervisor ends a cell with SIGTERM to this process; it leaves when every descendant is
    gone, with the cell's exit code.
    """
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    pid = os.fork()
    if pid == 0:
        return control_fd
    os.close(control_fd)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda *_: proc.kill_descendants(os.getpid()))
    status = os.waitpid(pid, 0)[1]
    with contextlib.suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                proc.kill_descendants(os.getpid())
                time.sleep(0.001)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def _status(*fields: str) -> dict[str, int]:
    """Fields of /proc/self/status in KiB."""
    with open("/proc/self/status") as file:
        rows = dict(line.split(":", 1) for line in file)
    return {name: int(rows[name].split()[0]) for name in fields if name in rows}


class _Inbox:
    """Assignments from the supervisor; two may arrive in one piece."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._data = bytearray()
        self._fds: list[int] = []

    def next(self) -> tuple[dict[str, Any], list[int]]:
        """The next one and its descriptors. Leaves when the supervisor lets go of this spare."""
        while len(self._data) < _LENGTH.size or len(self._data) < _LENGTH.size + self._size():
            data, fds, _, _ = socket.recv_fds(self._control, 1 << 16, 8)
            if not data:
                os._exit(0)
            self._data += data
            self._fds += fds
        end = _LENGTH.size + self._size()
        job = json.loads(self._data[_LENGTH.size : end])
        del self._data[:end]
        fds, self._fds = self._fds[: job["fds"]], self._fds[job["fds"] :]
        return job, fds

    def _size(self) -> int:
        return int(_LENGTH.unpack_from(self._data)[0])


def spare(control: socket.socket, program: bytes, *, early: bool) -> NoReturn:
    """Go where the supervisor says, wait there for a cell, become it.

    Args:
        control: Channel to the supervisor.
        program: System-call filter, or nothing.
        early: Whether the filter may come first: nothing in the way from here to agent code is
            forbidden by it. That holds where a cell has no namespaces to join.
    """
    os.setsid()
    cell.rehearse()
    if early:
        cell.filter_calls(program)
    inbox = _Inbox(control)
    try:
        job, fds = inbox.next()
        place = job["enter"]
        cell.enter(place, fds)
        cell.lock_down({**place, "lock": place["lock"] and not early}, program)
        os.environ.update(place["env"])
        cell.step_aside(place["avoid"])
        job, fds = inbox.next()
        cell.take_cpus()
        os.dup2(fds[0], 1)
        os.dup2(fds[1], 2)
    except BaseException as error:
        control.sendall(f"{type(error).__name__}: {error}".encode())
        os._exit(125)
    control.detach()
    os.closerange(3, 1024)
    if job["run"]["language"] == "bash":
        cell.run_bash(job["run"])
    cell.run_python(job["run"])


def assign(control: socket.socket, job: dict[str, Any], fds: list[int]) -> None:
    """Supervisor side of :func:`spare`."""
    body = json.dumps({**job, "fds": len(fds)}).encode()
    message = _LENGTH.pack(len(body)) + body
    sent = socket.send_fds(control, [message], fds)
    if sent < len(message):
        control.sendall(message[sent:])
