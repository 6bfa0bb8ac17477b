"""The ``process`` backend: **no isolation**. For trusted code only, by explicit request only."""

from __future__ import annotations

import os
from typing import Final

from .base import Limits
from .embedded import PRELOAD, keep, shared_worker
from .session import WorkerSandbox


class ProcessSandbox(WorkerSandbox):
    """Plain child processes under the host's user.

    The contract's folders do not exist on the host, so ``/data``, ``/models``, ``/skills`` and
    ``/workspace`` are translated to temporary folders, as path prefixes, in code and in text files
    on their way in, and back in output and in text files (up to 1 MiB, digests included) on their
    way out. Observations therefore equal those of the other backends. Only the wall time and the
    output are limited by force; memory is limited per process and, like the number of processes,
    by sampling; the disk is not limited.

    A cell can do whatever the host user can: as root, one ``kill -9 -1`` ends every process of the
    machine. Never run hostile cells (red-team tests, untrained policies) here.

    Args:
        limits: Limits of the sandbox.
        preload: Modules that the zygote imports once.
    """

    WORKER_SHARE_MB: Final = 32
    """What one session adds to the shared worker, MiB; for the pool's budget."""

    def __init__(self, limits: Limits | None = None, preload: tuple[str, ...] = PRELOAD) -> None:
        super().__init__(
            "process",
            limits or Limits(),
            lambda: shared_worker("plain", "process", preload),
            keep,
        )

    @staticmethod
    def problem() -> str:
        """Why this backend cannot work here; empty when it should."""
        return "" if os.path.isdir("/proc/self") else "it needs a /proc file system"
