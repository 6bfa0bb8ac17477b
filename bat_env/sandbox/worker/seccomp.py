"""The system-call filter of an agent cell: a denylist, as classic BPF through prctl.

It is the second wall, not the first: the cell already has no capabilities and its own namespaces
(or container). The filter takes away the kernel's largest attack surfaces and every way to make
new namespaces or to look into another process.
"""

from __future__ import annotations

import ctypes
import struct

from . import linux

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Same numbers on every architecture (the unified table).
_COMMON = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "statmount": 457,
    "listmount": 458,
    "open_tree_attr": 467,
}
_NEWEST = 470
"""Calls of kernels younger than this table look as if the kernel were older."""
_X86_64 = {
    "shmget": 29,
    "semget": 64,
    "msgget": 68,
    "ptrace": 101,
    "syslog": 103,
    "uselib": 134,
    "personality": 135,
    "sysfs": 139,
    "vhangup": 153,
    "modify_ldt": 154,
    "pivot_root": 155,
    "chroot": 161,
    "acct": 163,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "iopl": 172,
    "ioperm": 173,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "mq_open": 240,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "migrate_pages": 256,
    "unshare": 272,
    "vmsplice": 278,
    "move_pages": 279,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "memfd_create": 319,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}
_AARCH64 = {
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "chroot": 51,
    "vhangup": 58,
    "quotactl": 60,
    "vmsplice": 75,
    "acct": 89,
    "personality": 92,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "syslog": 116,
    "ptrace": 117,
    "reboot": 142,
    "mq_open": 180,
    "msgget": 186,
    "semget": 190,
    "shmget": 194,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "swapon": 224,
    "swapoff": 225,
    "migrate_pages": 238,
    "move_pages": 239,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
    "memfd_create": 279,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
}
DENIED = {
    "x86_64": {**_COMMON, **_X86_64},
    "aarch64": {**_COMMON, **_AARCH64},
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_SOCKETS = {"x86_64": (41, 53), "aarch64": (198, 199)}
"""``socket`` and ``socketpair``."""
_PRLIMIT = {"x86_64": 302, "aarch64": 261}
_FAMILIES = (1, 2, 10, 16)
"""unix, inet, inet6, netlink. Others are not bound to a network namespace (vsock reaches the
hypervisor) or are attack surface that no cell needs."""
_NAMESPACES = (
    linux.NEWNS
    | linux.NEWUTS
    | linux.NEWIPC
    | linux.NEWUSER
    | linux.NEWPID
    | linux.NEWNET
    | 0x02000000  # cgroup namespace
)

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06


def build(machine: str = linux.MACHINE) -> bytes:
    """The filter program for ``machine``; empty when the machine has no table."""
    if machine not in _ARCH:
        return b""
    program: list[tuple[int, int, int, int]] = []

    def emit(code: int, value: int, yes: int = 0, no: int = 0) -> None:
        program.append((code, yes, no, value))

    emit(_LOAD, 4)  # architecture
    emit(_JEQ, _ARCH[machine], 1, 0)
    emit(_RET, _KILL)
    emit(_LOAD, 0)  # system call number
    if machine == "x86_64":
        emit(_JGE, 0x40000000, 0, 1)  # the x32 ABI
        emit(_RET, _ERRNO | _ENOSYS)
    emit(_JGE, _NEWEST + 1, 0, 1)
    emit(_RET, _ERRNO | _ENOSYS)
    # clone3 hides its flags behind a pointer: glibc falls back to clone on ENOSYS.
    emit(_JEQ, _CLONE3, 0, 1)
    emit(_RET, _ERRNO | _ENOSYS)
    for number in sorted(DENIED[machine].values()):
        emit(_JEQ, number, 0, 1)
        emit(_RET, _ERRNO | _EPERM)
    for number in _SOCKETS[machine]:
        emit(_JEQ, number, 0, len(_FAMILIES) + 2)
        emit(_LOAD, 16)  # low word of the first argument
        for left, family in zip(range(len(_FAMILIES), 0, -1), _FAMILIES, strict=True):
            emit(_JEQ, family, left, 0)
        emit(_RET, _ERRNO | _EAFNOSUPPORT)
        emit(_LOAD, 0)
    # Limits of oneself only: the first process of the cell's namespace may have the agent's uid.
    emit(_JEQ, _PRLIMIT[machine], 0, 4)
    emit(_LOAD, 16)
    emit(_JEQ, 0, 1, 0)
    emit(_RET, _ERRNO | _EPERM)
    emit(_LOAD, 0)
    emit(_JEQ, _CLONE[machine], 0, 3)
    emit(_LOAD, 16)  # low word of the first argument
    emit(_JSET, _NAMESPACES, 0, 1)
    emit(_RET, _ERRNO | _EPERM)
    emit(_RET, _ALLOW)
    return b"".join(struct.pack("=HBBI", *step) for step in program)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: bytes) -> None:
    """Install ``program`` for this process and its children; needs no_new_privs."""
    if program:
        fprog = _Program(len(program) // 8, program)
        linux.prctl(linux.PR_SET_SECCOMP, 2, ctypes.byref(fprog))
