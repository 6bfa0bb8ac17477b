"""One cell, from the inside: set the process up, lock it down, run the agent's code.

Runs in a spare child of the zygote. Whatever goes wrong before the agent's code starts is told to
the supervisor over the control socket; the socket closes just before the first line of agent code,
so that code holds nothing but its own stdin, stdout and stderr.
"""

from __future__ import annotations

import _io
import builtins
import contextlib
import gc
import json
import linecache
import os
import random
import resource
import signal
import sys
import traceback
import types
import weakref
from typing import Any, NoReturn

from . import linux, seccomp

FILENAME = "<cell>"
zygote_exits = 0
"""Exit functions that the zygote registered; set by it."""
_cpus: set[int] = set()
"""All CPUs of a cell, once it has stepped aside for the supervisor."""
_aside: set[int] = set()
"""Those of them that are not the supervisor's."""
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
    uid = job["uid"]
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _go_home(job["cwd"])
    # The supervisor may then see how the process ended before its parent can tell.
    linux.prctl(linux.PR_SET_DUMPABLE, 1)
    if job["userns"]:
        euid, egid = os.geteuid(), os.getegid()
        linux.unshare(linux.NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("gid_map", f"1000 {egid} 1"),
            ("uid_map", f"1000 {euid} 1"),
        ):
            _write(f"/proc/self/{name}", text)
    # No queues: a message queue made by open() in /dev/mqueue would outlive cell and episode.
    # A core limit of 1, not 0: only that keeps the kernel from starting the host's dump helper.
    for name, value in {**job["rlimits"], "RLIMIT_MSGQUEUE": 0, "RLIMIT_CORE": 1}.items():
        kind = getattr(resource, name)
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (value, value))
    if job["userns"]:
        linux.drop_capabilities()
    if job["lock"]:
        filter_calls(program)


def filter_calls(program: bytes) -> None:
    """Take on the system-call filter, for good."""
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    seccomp.install(program)


def step_aside(cpu: int) -> None:
    """Wait, and later die, where the supervisor is not; -1 for anywhere.

    A kernel without preemption tears a process down in one go, and whoever wakes on that CPU
    meanwhile waits milliseconds. To go there at the end would take a migration.
    """
    global _cpus, _aside
    _cpus = os.sched_getaffinity(0)
    _aside = _cpus - {cpu}
    if cpu in _cpus and _aside:
        os.sched_setaffinity(0, _aside)
    else:
        _aside = set()


def take_cpus() -> None:
    """Let the cell run on every CPU that it may have."""
    if _aside:
        os.sched_setaffinity(0, _cpus)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


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


def rehearse() -> None:
    """Walk the path of a cell once with nothing on it; be the first to go when memory is out.

    A forked process copies each shared page at its first write. Those that every cell writes to
    are copied here, while the spare waits, and not while the host does.
    """
    with contextlib.suppress(OSError):
        _write("/proc/self/oom_score_adj", "1000")
    job = json.loads(json.dumps({"code": "pass", "seed": 0, "threads": 1}))
    _seed(job["seed"], job["threads"])
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    linecache.cache[FILENAME] = (4, None, ["pass"], FILENAME)
    with contextlib.suppress(SystemExit):
        exec(compile(job["code"], FILENAME, "exec", dont_inherit=True), main.__dict__)
    print(end="")
    linux.rehearse()
    # By name: looking through sys.modules would touch, and so copy, thousands of shared pages.
    for name in _OWN:
        sys.modules.pop(name, None)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        tempfile.tempdir = None  # type: ignore[attr-defined]  # the zygote's may not exist here
    sys.argv = [FILENAME]
    for limit in ("RLIMIT_CORE", "RLIMIT_NOFILE"):
        resource.getrlimit(getattr(resource, limit))
    _wind_up()


def run_python(job: dict[str, Any]) -> NoReturn:
    """Run the cell as ``__main__`` would run, then leave like an interpreter does."""
    code = job["code"]
    _seed(job["seed"], job["threads"])
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
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
    _wind_up()
    _exit(status)


def _wind_up() -> None:
    """Threads, atexit and flushes as usual, but no teardown of torch's heap."""
    import atexit
    import threading

    if threading.active_count() > 1:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
    if atexit._ncallbacks() != zygote_exits or _began_something():
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
    _write_back()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()


def _write_back() -> None:
    """Write out the files that the cell left open, as the end of an interpreter does.

    What the zygote made is frozen and not looked at. Texts come first, then what compresses or
    packs, then the buffers below them.
    """
    packs = tuple(m.ZipFile for m in [sys.modules.get("zipfile")] if m is not None)
    found: tuple[list[Any], ...] = ([], [], [])
    for thing in gc.get_objects():
        kind = type(thing)
        if issubclass(kind, _io.TextIOWrapper):
            found[0].append(thing.flush)
        elif issubclass(kind, (_io.BufferedWriter, _io.BufferedRandom)):
            found[2].append(thing.flush)
        elif issubclass(kind, packs) or (
            issubclass(kind, _io._IOBase) and kind.__module__ != "_io"
        ):
            found[1].append(thing.close)
    for end in (*found[0], *found[1], *found[2]):
        with contextlib.suppress(BaseException):
            end()


def _began_something() -> bool:
    """Whether the exit functions of our own imports have anything of the cell's to end."""
    modules: dict[str, Any] = sys.modules
    logging, processes = modules.get("logging"), modules.get("multiprocessing.util")
    return bool(
        weakref.finalize._registry  # type: ignore[attr-defined]
        or (logging is not None and logging._handlerList)
        or (processes is not None and processes._finalizer_registry)
        or (processes is not None and modules["multiprocessing.process"]._children)
    )


def _exit(status: int) -> NoReturn:
    """Leave. Closing the streams tells the supervisor to look: it need not wait for the rest."""
    os.closerange(3, 1024)
    if _aside:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, _aside)
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            os.close(fd)
    os._exit(status)


def _nameless() -> int:
    """A file without a name, in memory where there is room."""
    try:
        return os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        return os.open(os.environ.get("TMPDIR", "/tmp"), os.O_TMPFILE | os.O_RDWR, 0o600)


def run_bash(job: dict[str, Any]) -> NoReturn:
    """Run the cell in bash, and end as it ends.

    Spawned without a copy: to exec right here would first tear down this interpreter's memory.
    """
    code = job["code"].encode()
    arguments = ["bash", "-c", code]
    if len(code) > 100_000:  # one argument holds 128 KiB at most
        fd = _nameless()
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(code)
        os.lseek(fd, 0, os.SEEK_SET)
        os.set_inheritable(fd, True)
        arguments = ["bash", f"/proc/self/fd/{fd}"]
    default = (signal.SIGPIPE, signal.SIGXFSZ)
    try:
        pid = os.posix_spawn("/bin/bash", arguments, os.environ, setsigdef=default)
    except OSError as error:
        os.write(2, f"bash: {error.strerror}\n".encode())
        os._exit(127)
    ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _exit(ended if ended >= 0 else 128 - ended)
