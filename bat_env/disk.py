"""A full disk is named as what it is, whichever library stumbled over it."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bat_env.errors import DiskFullError

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_TEXTS: Final = ("No space left on device", "Disk quota exceeded", "disk is full")
"""What libraries say that keep no error number."""

_LITTLE: Final = 64 << 10
"""With fewer free bytes, an unexplained failure to write is explained."""


@contextlib.contextmanager
def named_if_full(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn any error of the block that comes from a full disk into one that says so.

    Args:
        path: What the block writes; its disk is named where the error names no file.

    Raises:
        DiskFullError: Instead of the error; every other one passes.
    """
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:
        if not is_full(error, path):
            raise
        raise DiskFullError(_file_of(error) or path) from error


def is_full(error: BaseException, path: str | os.PathLike[str] | None = None) -> bool:
    """Whether a full disk is behind an error.

    Args:
        error: Looked at with all of its causes.
        path: What was to be written: its disk is asked where a library gives no reason.
    """
    vague = False
    for one in _chain(error):
        if isinstance(one, DiskFullError) or (isinstance(one, OSError) and one.errno in _FULL):
            return True
        if any(text in str(one) for text in _TEXTS):
            return True
        # SQLite and torch report that a write failed, not why.
        vague = vague or isinstance(one, sqlite3.Error | RuntimeError)
    return vague and path is not None and _free(path) < _LITTLE


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__]


def _file_of(error: BaseException) -> str | None:
    for one in _chain(error):
        if isinstance(one, OSError) and one.errno in _FULL and one.filename:
            return os.fsdecode(one.filename)
    return None


def _free(path: str | os.PathLike[str]) -> int:
    """Free bytes of the disk that holds a path or its nearest parent; 0 without free inodes."""
    place = Path(path).absolute()
    for folder in (place, *place.parents):
        with contextlib.suppress(OSError):
            disk = os.statvfs(folder)
            return 0 if disk.f_files and not disk.f_favail else disk.f_bavail * disk.f_frsize
    return _LITTLE
