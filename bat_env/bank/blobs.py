"""Content-addressed blobs on disk: sha256 names, packed contents, whole or absent after a crash."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import zstandard

from bat_env.disk import is_full
from bat_env.errors import BankError, DiskFullError

_LEVEL: Final = 3
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_KEPT_BYTES: Final = 64 << 20
MAX_BLOB: Final = 1 << 30
_HEX64: Final = re.compile(r"[0-9a-f]{64}\Z")


class BlobStore:
    """Blobs under ``root/ab/<62 more digits>``. Safe for many threads and processes.

    The name is the sha256 of the plain content; on disk it is a zstd frame where that is smaller.
    Two writers of one blob write equal bytes, so whichever rename comes last changes nothing. What
    was read and found whole is not hashed again while its file is untouched, and contents read last
    stay in memory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._counter = itertools.count()
        self._checked: dict[str, tuple[int, ...]] = {}
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0
        self._lock = threading.Lock()

    def path(self, digest: str) -> Path:
        """Where a blob lives.

        Raises:
            BankError: If ``digest`` is not 64 hex digits.
        """
        if not _HEX64.match(digest):
            raise BankError(f"A blob name is 64 hex digits; got {digest!r}: the row is corrupt.")
        return self.root / digest[:2] / digest[2:]

    def put(self, data: bytes) -> str:
        """Store ``data`` durably; returns its sha256. A corrupt older copy is replaced.

        Raises:
            DiskFullError: If the disk is full.
            BankError: If the disk refuses for another reason; names the path.
        """
        digest = hashlib.sha256(data).hexdigest()
        target = self.path(digest)
        if target.exists() and self.intact(digest):
            return digest
        temp = self.root / f"tmp-{os.getpid()}-{next(self._counter)}"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temp.open("wb") as file:
                file.write(packed(data))
                file.flush()
                os.fsync(file.fileno())
            temp.replace(target)
            _fsync_folder(target.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                temp.unlink()
            if is_full(error):
                raise DiskFullError(target) from error
            raise BankError(
                f"Cannot store a blob at {target}: {error}. Choose another BAT_BANK, or make that "
                "folder writable, and run `bat-env bank build` again: it continues."
            ) from error
        self._remember(digest, self._stamp(digest), None)
        return digest

    def get(self, digest: str) -> bytes:
        """Read a blob and check it.

        Raises:
            BankError: If it is missing or its bytes do not match its name.
        """
        path = self.path(digest)
        stamp = self._stamp(digest)
        with self._lock:
            if stamp and self._checked.get(digest) == stamp and digest in self._contents:
                self._contents.move_to_end(digest)
                return self._contents[digest]
        try:
            raw = path.read_bytes()
        except OSError as error:
            self.forget(digest)
            raise BankError(f"Blob {digest} is missing from {path}: {error.strerror}.") from error
        try:
            data = unpacked(raw)
        except zstandard.ZstdError as error:
            self.forget(digest)
            raise BankError(f"Blob {digest} is corrupt ({error}): {path}.") from error
        if hashlib.sha256(data).hexdigest() != digest:
            self.forget(digest)
            raise BankError(f"Blob {digest} is corrupt (its sha256 differs): {path}.")
        self._remember(digest, stamp, data)
        return data

    def check(self, digest: str) -> None:
        """As :meth:`get`, but without reading what this process has found whole before.

        Raises:
            BankError: As :meth:`get`.
        """
        stamp = self._stamp(digest)
        if not stamp or self._checked.get(digest) != stamp:
            self.get(digest)

    def intact(self, digest: str) -> bool:
        """Whether the blob is there and matches its name."""
        try:
            self.check(digest)
        except BankError:
            return False
        return True

    def digests(self) -> Iterator[str]:
        """Names of all blobs on disk, sorted."""
        if not self.root.is_dir():
            return
        for folder in sorted(self.root.iterdir()):
            if folder.is_dir() and len(folder.name) == 2:
                for path in sorted(folder.iterdir()):
                    yield folder.name + path.name

    def remove(self, digest: str) -> int:
        """Delete a blob that no row names; only the one writer may call this.

        Returns:
            Bytes freed on disk; 0 if it was gone.
        """
        self.forget(digest)
        path = self.root / digest[:2] / digest[2:]
        try:
            size = path.stat().st_size
            path.unlink()
        except OSError:
            return 0
        return size

    def sweep(self) -> int:
        """Delete temporary files that killed writers left; only the one writer may call this."""
        count = 0
        for path in self.root.glob("tmp-*"):
            with contextlib.suppress(OSError):
                path.unlink()
                count += 1
        return count

    def forget(self, digest: str) -> None:
        """Look at the file again the next time."""
        with self._lock:
            self._checked.pop(digest, None)
            self._kept_bytes -= len(self._contents.pop(digest, b""))

    def _stamp(self, digest: str) -> tuple[int, ...]:
        """What changes when the file does; empty if there is none."""
        try:
            seen = self.path(digest).stat()
        except OSError:
            return ()
        return (seen.st_mtime_ns, seen.st_size, seen.st_ino)

    def _remember(self, digest: str, stamp: tuple[int, ...], data: bytes | None) -> None:
        with self._lock:
            if stamp:
                self._checked[digest] = stamp
            if data is None or len(data) > _KEPT_BYTES:
                return
            self._kept_bytes += len(data) - len(self._contents.pop(digest, b""))
            self._contents[digest] = data
            while self._kept_bytes > _KEPT_BYTES:
                self._kept_bytes -= len(self._contents.popitem(last=False)[1])

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["root"])  # type: ignore[misc]


def packed(data: bytes) -> bytes:
    """What is written for a content: a zstd frame, or the content where that is not smaller.

    A content that looks like a frame is always framed, so that reading never has to guess.
    """
    frame: bytes = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
    return frame if len(frame) < len(data) or data[:4] == _MAGIC else data


def unpacked(raw: bytes) -> bytes:
    """The content behind :func:`packed`.

    Raises:
        zstandard.ZstdError: If a frame is broken, or claims more than a blob may hold.
    """
    if raw[:4] != _MAGIC:
        return raw
    size = zstandard.get_frame_parameters(raw).content_size
    if size > MAX_BLOB:
        raise zstandard.ZstdError(f"it claims {size} bytes")
    data: bytes = zstandard.ZstdDecompressor().decompress(raw)
    return data


def _fsync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
