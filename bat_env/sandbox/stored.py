"""A tree of files whose contents lie elsewhere, under names that are known to be their sha256."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping


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
