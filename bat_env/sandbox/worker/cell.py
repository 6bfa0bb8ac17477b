"""One cell, from the inside: set the process up, lock it down, run the agent's code.

Runs in a spare child of the zygote. Whatever goes wrong before the agent's code starts is told to
the supervisor over the control socket; the socket closes just before the first line of agent code,
so that code holds nothing but its own stdin, stdout and stderr.
"""

from __future__ import annotations

import builtins
import contextlib
import linecache
import os
import random
import resource
import signal
import sys
import traceback
import types
from typing import Any, NoReturn

from . import linux, seccomp

FILENAME = "<cell>"
_OWN = ["bat_worker", *(f"bat_worker.{n}" for n in ("cell", "linux", "proc", "seccomp", "zygote"))]


def enter(job: dict[str, Any], fds: list[int]) -> None:
    """Join the session's namespaces where the isolation has any.

    Args:
        job: The supervisor's assignment.
        fds: Namespace descriptors in the order mnt, net, ipc, uts; empty without namespaces.
    """
    if fds:
        kinds = (linux.NEWNS, linux.NEWNET, linux.NEWIPC, linux.NEWUTS)
        for fd, kind in zip(fds, kinds, strict=True):
            linux.setns(fd, kind)
        linux.unshare(linux.NEWNS)
        flags = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
        linux.mount("proc", "/proc", "proc", flags)


def lock_down(job: dict[str, Any], program: bytes) -> None:
    """Give up every privilege for good, and take on the limits."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")
    uid = job["uid"]
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _go_home(job["cwd"])
    if job["userns"]:
        linux.prctl(linux.PR_SET_DUMPABLE, 1)
        euid, egid = os.geteuid(), os.getegid()
        linux.unshare(linux.NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("gid_map", f"1000 {egid} 1"),
            ("uid_map", f"1000 {euid} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    # No queues: a message queue made by open() in /dev/mqueue would outlive cell and episode. A core
    # limit of 1, not 0: only that keeps the kernel from starting the host's core dump helper.
    for name, value in {**job["rlimits"], "RLIMIT_MSGQUEUE": 0, "RLIMIT_CORE": 1}.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    if job["userns"]:
        linux.drop_capabilities()
    if job["lock"]:
        linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
        seccomp.install(program)


def _go_home(folder: str) -> None:
    """Enter the workspace; an agent that took the right away from itself gets it back."""
    try:
        os.chdir(folder)
    except PermissionError:
        os.chmod(folder, 0o755)
        os.chdir(folder)


def _seed(seed: int, threads: int) -> None:
    random.seed(seed)
    modules: dict[str, Any] = sys.modules
    if "numpy" in modules:
        modules["numpy"].random.seed(seed)
    if "torch" in modules:
        modules["torch"].set_num_threads(threads)
        modules["torch"].default_generator.manual_seed(seed)


def _report() -> None:
    """Print the current exception with the cell's own frames only."""
    kind, error, trace = sys.exc_info()
    while trace is not None and trace.tb_frame.f_code.co_filename != FILENAME:
        trace = trace.tb_next
    with contextlib.suppress(Exception):
        traceback.print_exception(kind, error, trace)


def _exit_code(value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, int):
        return value & 0xFF
    with contextlib.suppress(Exception):
        print(value, file=sys.stderr)
    return 1


def run_python(job: dict[str, Any]) -> NoReturn:
    """Run the cell as ``__main__`` would run, then leave like an interpreter does."""
    code = job["code"]
    _seed(job["seed"], job["threads"])
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    # By name: looking through sys.modules would touch, and so copy, thousands of shared pages.
    for name in _OWN:
        sys.modules.pop(name, None)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]  # the zygote's may not exist here
    sys.argv = [FILENAME]
    sys.path.insert(0, job["cwd"])
    linecache.cache[FILENAME] = (len(code), None, code.splitlines(keepends=True), FILENAME)
    status = 0
    try:
        exec(compile(code, FILENAME, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as error:
        status = _exit_code(error.code)
    except KeyboardInterrupt:
        _report()
        status = 130
    except BaseException:
        _report()
        status = 1
    _leave(status)


def _leave(status: int) -> NoReturn:
    """Threads, atexit and flushes as usual, but no teardown of torch's heap."""
    import atexit
    import threading

    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(status)


def _nameless() -> int:
    """A file without a name, in memory where there is room."""
    try:
        return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        return os.open(os.environ.get("TMPDIR", "/tmp"), os.O_TMPFILE | os.O_RDWR, 0o600)


def run_bash(job: dict[str, Any]) -> NoReturn:
    """Replace this process by bash running the cell."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    code = job["code"].encode()
    arguments = ["bash", "-c", code]
    if len(code) > 100_000:  # one argument holds 128 KiB at most
        fd = _nameless()
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(code)
        os.lseek(fd, 0, os.SEEK_SET)
        os.set_inheritable(fd, True)
        arguments = ["bash", f"/proc/self/fd/{fd}"]
    try:
        os.execv("/bin/bash", arguments)
    except OSError as error:
        os.write(2, f"bash: {error.strerror}\n".encode())
        os._exit(127)
