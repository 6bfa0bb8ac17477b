"""Whole files or none: JSON and text that a killed process can never leave half-written."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bat_env.disk import is_full, named_if_full
from bat_env.errors import ConfigError, DiskFullError

UNFINISHED: Final = ".writing"
"""How the name of a file ends that is not whole yet."""


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` through a temporary file in the same folder and ``os.replace``.

    Raises:
        ConfigError: If a device, a pipe or the like is at ``path``: it is never replaced.
        DiskFullError: If the disk is full; what was there before is still there.
    """
    _refuse_special(path, "the output")
    temporary: Path | None = None
    with named_if_full(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(
                prefix=f".{path.name}.", suffix=UNFINISHED, dir=path.parent
            )
            temporary = Path(name)
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            if temporary is not None:
                temporary.unlink(missing_ok=True)
            raise


def sweep(folder: Path) -> None:
    """Remove what killed processes had begun to write anywhere in a folder.

    Args:
        folder: It must belong to this process (:func:`locked`): another one may be writing.
    """
    for path in folder.rglob(f".*{UNFINISHED}"):
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, all or nothing."""
    write_bytes(path, text.encode("utf-8", errors="replace"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON with sorted keys, all or nothing. NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path, *, schema_version: int) -> dict[str, Any]:
    """Read a JSON object that carries ``schema_version``.

    Raises:
        ConfigError: If the file is missing, is no JSON object, or has another schema version.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise OSError("it is no regular file")
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"Expected a file {path}, there is none.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"Expected JSON in {path}, came: {error}. Delete it and rerun.") from None
    if not isinstance(value, dict) or value.get("schema_version") != schema_version:
        came = value.get("schema_version") if isinstance(value, dict) else type(value).__name__
        raise ConfigError(
            f"Expected schema version {schema_version} in {path}, came {came!r}. "
            "It was written by another version; use a new folder."
        )
    return value


def check_folder(path: Path, what: str) -> None:
    """Check that files can be written in ``path``, which need not exist; leaves nothing behind.

    Args:
        path: The folder.
        what: What it is for, to name it in the message.

    Raises:
        ConfigError: If it is a file, or the system refuses to write there.
        DiskFullError: If the disk is full.
    """
    made: list[Path] = []
    try:
        # Tried, not asked: permission bits say nothing about /proc or a read-only mount.
        for folder in reversed((path, *path.parents)):
            if not folder.exists():
                folder.mkdir()
                made.append(folder)
        handle, name = tempfile.mkstemp(prefix=".check-", dir=path)
        os.close(handle)
        Path(name).unlink()
    except OSError as error:
        if is_full(error):
            raise DiskFullError(path) from error
        raise ConfigError(
            f"Expected {what} where files can be written, came {path}: "
            f"{error.strerror or error}. Give another path."
        ) from None
    finally:
        for folder in reversed(made):
            with contextlib.suppress(OSError):
                folder.rmdir()


def check_file(path: Path, what: str) -> None:
    """Check that a file can be written at ``path``; leaves nothing behind.

    Raises:
        ConfigError: If it is a folder, a device or the like, or the system refuses to write there.
    """
    if path.is_dir():
        raise ConfigError(f"Expected {what} to be a file, came the folder {path}. Name a file.")
    check_folder(path.parent, what)
    _refuse_special(path, what)


def _refuse_special(path: Path, what: str) -> None:
    """A device would be replaced by a file, for every program of the machine."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ConfigError(
            f"Expected {what} to be a regular file, but {path} is a device, a pipe or a socket. "
            "Name a file."
        )


@contextlib.contextmanager
def locked(path: Path, what: str = "", *, keep: bool = True) -> Iterator[None]:
    """Hold an exclusive lock for the block; it goes with the process, however that ends.

    Args:
        path: Its file.
        what: What is worked on, for messages: the folder of ``path`` if not given.
        keep: Whether the file stays.

    Raises:
        ConfigError: If another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    busy = f"Another process is working on {what or path.parent}. Wait for it, or stop it first."
    with path.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(busy) from None
        if os.fstat(stream.fileno()).st_nlink == 0:  # the last holder was just about to go
            raise ConfigError(busy)
        try:
            yield
        finally:
            if not keep:
                path.unlink(missing_ok=True)


def digest_of(value: Any) -> str:
    """sha256 of the canonical JSON of ``value``, as hex."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def derived_seed(*parts: object) -> int:
    """A 31-bit seed made of the parts; equal parts give equal seeds on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big") >> 1
