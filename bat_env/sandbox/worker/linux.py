"""The Linux system calls that Python has no name for, through ctypes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct

NEWNS, NEWUTS, NEWIPC = 0x20000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 3, 4, 22
PR_SET_TIMERSLACK, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 29, 36, 38
_RESOLVE = 0x01 | 0x02 | 0x04 | 0x08  # no other mount, no magic link, no link, beneath

_NUMBERS = {
    "x86_64": {"getpid": 39, "pivot_root": 155, "capset": 126, "mount_setattr": 442},
    "aarch64": {"getpid": 172, "pivot_root": 41, "capset": 91, "mount_setattr": 442},
}
MACHINE = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _number(name: str) -> int:
    if MACHINE not in _NUMBERS:
        raise OSError(f"no system call table for {MACHINE}")
    return _NUMBERS[MACHINE][name]


def unshare(flags: int) -> None:
    """``unshare(2)``."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    """``setns(2)``."""
    _check(_libc.setns(fd, kind), f"setns({kind:#x})")


def prctl(option: int, value: int = 0, pointer: object = 0) -> None:
    """``prctl(2)`` with one number and one more argument."""
    third = ctypes.c_ulong(pointer) if isinstance(pointer, int) else pointer
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(option, ctypes.c_ulong(value), third, zero, zero), f"prctl({option})")


def mount(source: str, target: str, fstype: str = "", flags: int = 0, data: str = "") -> None:
    """``mount(2)``; an empty string stands for NULL."""
    result = _libc.mount(
        source.encode() or None,
        os.fsencode(target),
        fstype.encode() or None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )
    _check(result, f"mount {fstype or 'bind'} on {target}")


def bind(source: str, target: str, *, recursive: bool = True) -> None:
    """Bind ``source`` over ``target``."""
    flags = MS_BIND | (MS_REC if recursive else 0)
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(flags), None
    )
    _check(result, f"bind {source} on {target}")


def umount(target: str, flags: int = MNT_DETACH) -> None:
    """``umount2(2)``."""
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open ``path`` below the open ``folder``; no component may be a link or another mount.

    One system call, so nobody can swap a component between a look and the opening.

    Raises:
        OSError: ELOOP where a component is a link; else as ``open``.
    """
    how = ctypes.create_string_buffer(struct.pack("=QQQ", flags, 0, _RESOLVE), 24)
    fd = _libc.syscall(
        ctypes.c_long(437),
        ctypes.c_int(folder),
        ctypes.c_char_p(os.fsencode(path)),
        how,
        ctypes.c_size_t(24),
    )
    if fd < 0 and ctypes.get_errno() == 38:  # before Linux 5.6
        return os.open(path, flags, dir_fd=folder)
    return int(_check(fd, f"open {path}"))


def mount_flags(target: str) -> int:
    """The MS_* flags that a remount of ``target`` must keep (they may be locked)."""
    have = os.statvfs(target).f_flag
    return have & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def restrict(target: str, flags: int) -> None:
    """Add MS_* ``flags`` to the bind mount at ``target`` alone."""
    keep = mount_flags(target)
    mount("", target, "", MS_REMOUNT | MS_BIND | keep | flags)


def restrict_tree(target: str, flags: int) -> None:
    """Add MS_RDONLY, MS_NOSUID (and so on) to ``target`` and every mount below it."""
    attr = struct.pack("=QQQQ", flags & 15, 0, 0, 0)
    buffer = ctypes.create_string_buffer(attr, len(attr))
    recursive = 0x8000
    result = _libc.syscall(
        ctypes.c_long(_number("mount_setattr")),
        ctypes.c_int(-100),
        ctypes.c_char_p(os.fsencode(target)),
        ctypes.c_uint(recursive),
        buffer,
        ctypes.c_size_t(len(attr)),
    )
    if result == 0:
        return
    # Before Linux 5.12 there is no recursive form: walk the mount table, deepest last.
    with open("/proc/self/mountinfo") as table:
        points = [line.split()[4].encode().decode("unicode_escape") for line in table]
    for point in points:
        if point == target or point.startswith(target.rstrip("/") + "/"):
            restrict(point, flags)


def pivot_to(new_root: str) -> None:
    """Make ``new_root`` (a mount point) the root and let go of everything else."""
    os.chdir(new_root)
    _check(
        _libc.syscall(
            ctypes.c_long(_number("pivot_root")), ctypes.c_char_p(b"."), ctypes.c_char_p(b".")
        ),
        "pivot_root",
    )
    umount(".")
    os.chdir("/")


def drop_capabilities() -> None:
    """Empty the effective, permitted and inheritable sets."""
    header = struct.pack("=Ii", 0x20080522, 0)
    _check(_libc.syscall(ctypes.c_long(_number("capset")), header, bytes(24)), "capset")


def keep_freed(size: int) -> None:
    """Let the C library keep up to ``size`` bytes of freed memory, large blocks included."""
    with contextlib.suppress(AttributeError):  # another C library has its own ways
        _libc.mallopt(-3, size)  # M_MMAP_THRESHOLD
        _libc.mallopt(-1, size)  # M_TRIM_THRESHOLD


def rehearse() -> None:
    """Make harmless calls of the kinds that a cell begins with."""
    prctl(PR_GET_DUMPABLE)
    if MACHINE in _NUMBERS:
        _libc.syscall(ctypes.c_long(_number("getpid")), b"", b"")


def collapse(start: int, size: int) -> bool:
    """``madvise(MADV_COLLAPSE)``; whether the kernel did it."""
    return bool(_libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(size), 25) == 0)
