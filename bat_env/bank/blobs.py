"""Content-addressed blobs on disk: sha256 names, zstd content, whole or absent after any crash."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import zstandard

from bat_env.disk import is_full
from bat_env.errors import BankError, DiskFullError

_LEVEL: Final = 3
_MAX_BLOB: Final = 1 << 30
_HEX64: Final = re.compile(r"[0-9a-f]{64}\Z")


class BlobStore:
    """Blobs under ``root/ab/<62 more digits>``. Safe for many threads and processes.

    Two writers of one blob write equal bytes, so whichever rename comes last changes nothing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._counter = itertools.count()
        self._good: set[str] = set()

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
        if digest in self._good:
            return digest
        target = self.path(digest)
        if target.exists() and self.intact(digest):
            self._good.add(digest)
            return digest
        temp = self.root / f"tmp-{os.getpid()}-{next(self._counter)}"
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with temp.open("wb") as file:
                file.write(zstandard.ZstdCompressor(level=_LEVEL).compress(data))
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
        self._good.add(digest)
        return digest

    def get(self, digest: str) -> bytes:
        """Read a blob and check it.

        Raises:
            BankError: If it is missing or its bytes do not match its name.
        """
        path = self.path(digest)
        try:
            raw = path.read_bytes()
        except OSError as error:
            self._good.discard(digest)
            raise BankError(f"Blob {digest} is missing from {path}: {error.strerror}.") from error
        try:
            size = zstandard.get_frame_parameters(raw).content_size
            if size > _MAX_BLOB:
                raise zstandard.ZstdError(f"it claims {size} bytes")
            data: bytes = zstandard.ZstdDecompressor().decompress(raw)
        except zstandard.ZstdError as error:
            self._good.discard(digest)
            raise BankError(f"Blob {digest} is corrupt ({error}): {path}.") from error
        if hashlib.sha256(data).hexdigest() != digest:
            self._good.discard(digest)
            raise BankError(f"Blob {digest} is corrupt (its sha256 differs): {path}.")
        return data

    def intact(self, digest: str) -> bool:
        """Whether the blob is there and matches its name."""
        try:
            self.get(digest)
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

    def sweep(self) -> int:
        """Delete temporary files that killed writers left; only the one writer may call this."""
        count = 0
        for path in self.root.glob("tmp-*"):
            with contextlib.suppress(OSError):
                path.unlink()
                count += 1
        return count


def _fsync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
