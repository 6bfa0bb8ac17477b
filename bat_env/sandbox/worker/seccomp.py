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
    "mount_setattr": 442,
}
_X86_64 = {
    "shmget": 29,
    "semget": 64,
    "msgget": 68,
    "ptrace": 101,
    "syslog": 103,
    "personality": 135,
    "pivot_root": 155,
    "chroot": 161,
    "acct": 163,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "mq_open": 240,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "vmsplice": 278,
    "perf_event_open": 298,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}
_AARCH64 = {
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "chroot": 51,
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
    "perf_event_open": 241,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "finit_module": 273,
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
_EPERM, _ENOSYS = 1, 38
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
    # clone3 hides its flags behind a pointer: glibc falls back to clone on ENOSYS.
    emit(_JEQ, _CLONE3, 0, 1)
    emit(_RET, _ERRNO | _ENOSYS)
    for number in sorted(DENIED[machine].values()):
        emit(_JEQ, number, 0, 1)
        emit(_RET, _ERRNO | _EPERM)
    emit(_JEQ, _CLONE[machine], 0, 3)
    emit(_LOAD, 16)  # low word of the first argument
    emit(_JSET, _NAMESPACES, 0, 1)
    emit(_RET, _ERRNO | _EPERM)
    emit(_RET, _ALLOW)
    return b"".join(struct.pack("=HBBI", *step) for step in program)


def install(program: bytes) -> None:
    """Install ``program`` for this process and its children; needs no_new_privs."""
    if not program:
        return

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    keep = ctypes.create_string_buffer(program, len(program))
    fprog = Program(len(program) // 8, ctypes.cast(keep, ctypes.c_char_p))
    linux.prctl(linux.PR_SET_SECCOMP, 2, ctypes.byref(fprog))
