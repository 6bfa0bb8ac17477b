"""A tree of files whose contents lie elsewhere, under names that are known to be their sha256."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import Final

_AHEAD: Final = 2
"""Contents that are read and checked while an earlier one is on its way."""


class StoredFiles(Mapping[str, bytes]):
    """A :data:`~bat_env.sandbox.base.FileTree` that is read file by file, when it is asked for.

    A reset to it reads only the contents that the worker does not have.

    Args:
        digests: Path -> sha256 of the content, of the stored files.
        read: Content by sha256; it must have checked what it returns.
        ready: Further files, at hand already; where both have a path, these win.
    """

    def __init__(
        self,
        digests: Mapping[str, str],
        read: Callable[[str], bytes],
        ready: Mapping[str, bytes] | None = None,
    ) -> None:
        self._ready = dict(ready or {})
        self._digests = {path: sha for path, sha in digests.items() if path not in self._ready}
        self._read = read

    def sha256(self, path: str) -> str:
        """The digest of a stored file; empty for one that is at hand."""
        return self._digests.get(path, "")

    def under(self, folder: str, ready: Mapping[str, bytes]) -> StoredFiles:
        """These files below a folder, with others beside and over them.

        Args:
            folder: Put before every path of this tree.
            ready: Files at hand, with their whole paths.
        """
        inner = {f"{folder}/{path}": data for path, data in self._ready.items()}
        moved = {f"{folder}/{path}": sha for path, sha in self._digests.items()}
        return StoredFiles(moved, self._read, {**inner, **ready})

    def each(self, paths: Iterable[str]) -> Generator[bytes, None, None]:
        """Contents in the order asked for; a thread reads stored ones ahead of who takes them.

        Args:
            paths: Paths of this tree.

        Raises:
            Exception: What reading a content raises, when that content's turn has come.
        """
        wanted = list(paths)
        stored = [path for path in wanted if path not in self._ready]
        if len(stored) < 2:
            yield from (self[path] for path in wanted)
            return
        read: queue.Queue[bytes | BaseException] = queue.Queue(_AHEAD)
        left = threading.Event()

        def run() -> None:
            for path in stored:
                try:
                    found: bytes | BaseException = self[path]
                except BaseException as error:  # raised where the content is taken
                    found = error
                while not left.is_set():
                    try:
                        read.put(found, timeout=0.1)
                        break
                    except queue.Full:
                        continue
                if left.is_set() or isinstance(found, BaseException):
                    return

        thread = threading.Thread(target=run, name="bat-read-ahead", daemon=True)
        thread.start()
        try:
            for path in wanted:
                if path in self._ready:
                    yield self._ready[path]
                    continue
                found = read.get()
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            left.set()
            thread.join()

    def __getitem__(self, path: str) -> bytes:
        if path in self._ready:
            return self._ready[path]
        return self._read(self._digests[path])

    def __contains__(self, path: object) -> bool:
        return path in self._ready or path in self._digests

    def __iter__(self) -> Iterator[str]:
        yield from self._ready
        yield from self._digests

    def __len__(self) -> int:
        return len(self._ready) + len(self._digests)
