"""How the zygote and its cells hold memory: for network passes, whose buffers come and go.

The C library gives every block above 128 kB back to the kernel when it is freed, and asks for it
again in the next layer. Each such page is a fault, cleared anew: a quarter of the time of a small
network. The limits of a cell are not touched: they count pages that are held, at their peak.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3

_MMAP_BYTES = 32 << 20
"""Larger blocks still go back at once; the C library allows no higher value."""

_KEPT_BYTES = 128 << 20
"""Freed memory that a process keeps at the end of its heap."""


def settle() -> None:
    """Keep freed blocks for the next layer, and let large tensors lie on huge pages."""
    with contextlib.suppress(OSError, AttributeError):  # another C library has its own ways
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    # Read by torch at its first tensor, so in each cell.
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
    sys.modules.pop(__name__, None)  # agent code meets no module of ours
