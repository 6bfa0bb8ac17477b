"""A worker's replies, checked before anything on the host believes them.

In a container the worker shares its walls with the agent's code, so a reply may come from code that
took the worker over. Each function gives a checked value or raises
:class:`~bat_env.sandbox.worker.wire.WireError`; the worker is then treated as dead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, get_args

from .base import CellResult, Delta, FileEntry, FileKind, LimitName, Limits
from .worker import wire

REPLY_BYTES: Final = wire.MAX_FRAME + (64 << 10)
"""Default bound of all frames that answer one request: the final one, and short ones before it."""

_PART_BYTES: Final = 64 << 10
"""Room for the header of one part of a file: its path, escaped."""
_KINDS: Final = frozenset(get_args(FileKind))
_LIMITS: Final = frozenset(get_args(LimitName))
_DIGEST: Final = re.compile(r"[0-9a-f]{64}\Z")


def read_bytes(max_bytes: int) -> int:
    """Bound of the frames that carry one file of at most ``max_bytes``."""
    return max_bytes + (2 + max_bytes // wire.CHUNK) * _PART_BYTES


def snapshot_bytes(limits: Limits) -> int:
    """Bound of the frames that carry a whole workspace; paths in text may grow it a little."""
    return 2 * (limits.workspace_mb << 20) + limits.workspace_inodes * 1024 + (64 << 20)


def _whole(value: object, most: int = 2**63) -> int:
    if type(value) is not int or not 0 <= value < most:
        raise wire.WireError(f"expected a number below {most}, got {str(value)[:40]!r}")
    return value


def _seconds(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= float(value) < math.inf:  # type: ignore[arg-type]
        raise wire.WireError("expected seconds")
    return float(value)  # type: ignore[arg-type]


def path(value: object) -> str:
    """A relative path inside the workspace, as valid Unicode text."""
    if not isinstance(value, str):
        raise wire.WireError("expected a path")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wire.WireError("a path is no valid text") from None
    if "\0" in value or any(part in ("", ".", "..") for part in value.split("/")):
        raise wire.WireError(f"expected a path inside the workspace, got {value[:80]!r}")
    return value


def entries(raw: object) -> dict[str, FileEntry]:
    """Paths with kind, size and digest, sorted by path."""
    if not isinstance(raw, dict):
        raise wire.WireError("expected an object of files")
    return {path(name): _entry(raw[name]) for name in sorted(raw)}


def _entry(raw: object) -> FileEntry:
    if not isinstance(raw, list) or len(raw) != 3:
        raise wire.WireError("expected kind, size and digest of a file")
    kind, size, digest = raw
    if not isinstance(kind, str) or kind not in _KINDS:
        raise wire.WireError(f"unknown kind of file {str(kind)[:40]!r}")
    known = _DIGEST.match(digest) if kind == "file" and isinstance(digest, str) else digest == ""
    if not known:
        raise wire.WireError("expected a SHA-256 of a regular file, and nothing else")
    return FileEntry(kind, _whole(size), digest)  # type: ignore[arg-type]


def cell_result(reply: Mapping[str, Any], blobs: list[bytes], limits: Limits) -> CellResult:
    """What the worker says of one cell."""
    # Translated paths may lengthen what was kept.
    most = 2 * limits.output_bytes + 4096
    if len(blobs) != 2 or max(map(len, blobs)) > most:
        raise wire.WireError("expected two streams within the output limit")
    out, err = (blob.decode("utf-8", "replace") for blob in blobs)
    limit = reply.get("limit")
    if limit is not None and (not isinstance(limit, str) or limit not in _LIMITS):
        raise wire.WireError("unknown limit")
    deleted = reply.get("deleted")
    if not isinstance(deleted, list):
        raise wire.WireError("expected a list of deleted files")
    return CellResult(
        exit_code=_whole(reply.get("exit"), 256),
        stdout=out,
        stderr=err,
        stdout_dropped=_whole(reply.get("out_cut")),
        stderr_dropped=_whole(reply.get("err_cut")),
        limit=limit,  # type: ignore[arg-type]
        delta=Delta(
            created=entries(reply.get("created")),
            changed=entries(reply.get("changed")),
            deleted=tuple(sorted(map(path, deleted))),
        ),
        wall_s=_seconds(reply.get("wall")),
        cpu_s=_seconds(reply.get("cpu")),
    )
