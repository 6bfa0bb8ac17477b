"""What a grader child may do: parse in memory, and little else.

Limits on memory, CPU time, file size and descriptors always hold. The system-call filter (no
network, no programs, no new processes, no changes to files) is put in place where the kernel and
the architecture allow it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Mapping
from typing import Any, Final

MEMORY_BYTES: Final[int] = 1024 * 1024 * 1024
"""Memory that a child may map on top of what the server has mapped already."""
CPU_S: Final[int] = 30
FILES: Final[int] = 16

_PR_SET_PDEATHSIG: Final[int] = 1
_PR_SET_SECCOMP: Final[int] = 22
_PR_SET_NO_NEW_PRIVS: Final[int] = 38
_NOBODY: Final[int] = 65534

_ARCHITECTURES: Final[Mapping[str, tuple[int, tuple[int, ...]]]] = {
    # Audit architecture, and numbers of: socket, socketpair, connect, bind, clone, fork, vfork,
    # execve, execveat, clone3, ptrace, process_vm_readv/writev, kill, tkill, tgkill, rename*,
    # mkdir*, unlink*, rmdir, link*, symlink*, chmod*, chown*, mknod*, truncate, mount, umount,
    # unshare, setns, bpf, io_uring_*, keyctl, perf_event_open, userfaultfd, memfd_create.
    "x86_64": (
        0xC000003E,
        (
            *(41, 53, 42, 49, 56, 57, 58, 59, 322, 435, 101, 310, 311, 62, 200, 234),
            *(82, 264, 316, 83, 258, 87, 263, 84, 86, 265, 88, 266, 90, 91, 268, 92, 93, 94, 260),
            *(133, 259, 76, 165, 166, 272, 308, 321, 425, 426, 427, 250, 298, 323, 319),
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(198, 199, 203, 200, 220, 221, 281, 435, 117, 270, 271, 129, 130, 131),
            *(38, 276, 34, 35, 37, 36, 53, 52, 54, 55, 33, 45, 40, 39, 97, 268, 280),
            *(425, 426, 427, 219, 241, 282, 279),
        ),
    ),
}


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_void_p))


def _program(arch: int, denied: tuple[int, ...]) -> bytes:
    """A BPF program: another architecture is killed, a denied call gives EPERM."""

    def op(code: int, jt: int, jf: int, k: int) -> bytes:
        return struct.pack("<HBBI", code, jt, jf, k)

    load, equal, give = 0x20, 0x15, 0x06
    lines = [
        op(load, 0, 0, 4),
        op(equal, 1, 0, arch),
        op(give, 0, 0, 0x80000000),
        op(load, 0, 0, 0),
    ]
    lines += [op(equal, len(denied) - n, 0, number) for n, number in enumerate(denied)]
    lines += [op(give, 0, 0, 0x7FFF0000), op(give, 0, 0, 0x00050001)]
    return b"".join(lines)


_LIBC: Final[ctypes.CDLL] = ctypes.CDLL(None, use_errno=True)
_LINUX: Final[bool] = sys.platform == "linux"


def _prctl(*args: Any) -> None:
    """Linux only; a kernel that refuses leaves the other limits standing."""
    if _LINUX:
        _LIBC.prctl(*args)


def prepare_filter() -> ctypes.Array[ctypes.c_char] | None:
    """The filter program of this machine, made once in the server; ``None`` when there is none."""
    known = _ARCHITECTURES.get(platform.machine())
    if known is None or not _LINUX:
        return None
    program = _program(*known)
    return ctypes.create_string_buffer(program, len(program))


def _mapped_bytes() -> int:
    if not _LINUX:
        return MEMORY_BYTES
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - no import in a child
        return int(file.read().split()[0]) * resource.getpagesize()


def confine(server_pid: int, program: ctypes.Array[ctypes.c_char] | None) -> None:
    """Give up everything that parsing bytes in memory does not need.

    Args:
        server_pid: The parent; the child dies with it.
        program: What :func:`prepare_filter` gave.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server_pid:
        os._exit(1)
    space = _mapped_bytes() + MEMORY_BYTES
    for which, value in (
        (resource.RLIMIT_AS, space),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(which)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(*(() if _LINUX else (OSError, ValueError))):
            resource.setrlimit(which, (bound, bound))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
        # Dropping the uid clears the wish to die with the parent.
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if program is None:
        return
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    rule = _Filter(len(program) // 8, ctypes.cast(program, ctypes.c_void_p))
    _prctl(_PR_SET_SECCOMP, 2, ctypes.byref(rule), 0, 0)
