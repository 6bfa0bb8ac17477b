"""The ``local`` backend: Linux namespaces, no daemon, no privileges."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Final

from bat_env.errors import SandboxUnavailableError

from .base import Limits
from .embedded import PRELOAD, keep, shared_worker
from .session import WorkerSandbox

_PROBE: Final = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
bad = libc.unshare(0x10000000 | 0x20000 | 0x20000000)
sys.exit(os.strerror(ctypes.get_errno()) if bad else 0)
"""


class LocalSandbox(WorkerSandbox):
    """A sandbox of Linux namespaces.

    Each cell runs in user, PID, mount, network and IPC namespaces of its own, sees an allowlist of
    the host's files, has no capabilities and is filtered by seccomp. Memory and processes are
    limited by a cgroup of the session where one may be made; everywhere, memory is limited per
    process (``RLIMIT_DATA``) and, sampled every 100 ms, over all processes of the cell.

    Args:
        limits: Limits of the sandbox.
        preload: Modules that the zygote imports once.

    Raises:
        SandboxUnavailableError: If this user cannot make namespaces here.
    """

    WORKER_SHARE_MB: Final = 32
    """What one session adds to the shared worker, MiB; for the pool's budget."""

    def __init__(self, limits: Limits | None = None, preload: tuple[str, ...] = PRELOAD) -> None:
        reason = self.problem()
        if reason:
            raise SandboxUnavailableError(
                f"The local sandbox cannot run here: {reason}. Install Docker and build the image "
                "(`bat-env image build`), or allow unprivileged user namespaces."
            )
        super().__init__(
            "local",
            limits or Limits(),
            lambda: shared_worker("namespaces", "local", preload),
            keep,
        )

    @property
    def enforcement(self) -> str:
        """What limits the memory and the processes of a cell as a whole."""
        version = self.worker.info.get("cgroup", 0)
        return f"cgroup v{version}" if version else "resource limits and a look every 100 ms"

    @staticmethod
    def problem() -> str:
        """Why this backend cannot work here; empty when it should."""
        return _problem()


@cache
def _problem() -> str:
    if sys.platform != "linux":
        return "it needs Linux namespaces"
    try:
        with open("/proc/sys/user/max_user_namespaces") as file:
            if int(file.read()) == 0:
                return "user namespaces are disabled (sysctl user.max_user_namespaces is 0)"
    except (OSError, ValueError):
        return "the kernel has no user namespaces"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROBE], capture_output=True, text=True, timeout=30
    )
    if done.returncode:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        return f"this user may not make namespaces ({reason})"
    return ""
