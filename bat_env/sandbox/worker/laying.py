"""A reset under way: files go down as their frames arrive, while the host sends the next ones."""

from __future__ import annotations

from . import files
from .isolation import Isolation, Session
from .keeping import Keeper, Pieces

_TRANSLATED_BYTES = 1 << 20
"""Texts up to this size are translated where the contract's paths do not exist."""


class Laying:
    """Writes into a freshly wiped session.

    Args:
        isolation: Of the worker.
        session: Whose folders are filled.
        keeper: Where contents go that may be asked for again.

    Attributes:
        digests: Size and sha256 of each workspace file, by path, where nothing translates them.
        held: Contents by sha256 that are here already.
    """

    def __init__(self, isolation: Isolation, session: Session, keeper: Keeper) -> None:
        self.digests: dict[str, tuple[int, str]] = {}
        self.held: dict[str, Pieces] = {}
        self._keeper = keeper
        self._parts: dict[str, Pieces] = {}
        self._isolation = isolation
        self._session = session
        self._translates = type(isolation).inward is not Isolation.inward
        self._owner = isolation.owner(session)
        self._made: set[str] = set()
        self._sizes: dict[str, int] = {}
        self._error: Exception | None = None

    def take(self, paths: list[tuple[str, bool, str, str]], blobs: list[bytes]) -> None:
        """Write one frame's files. The first error is kept for :meth:`finish`.

        Args:
            paths: Of each file: its path, whether it continues the file of an earlier frame, the
                sha256 of the whole file where this is the end of it, and a word: ``held`` if the
                content is here already, ``keep`` if it is to be kept.
            blobs: Contents of those that are not held.
        """
        if self._error is not None:
            return
        try:
            sent = iter(blobs)
            plan = []
            for path, append, digest, word in paths:
                pieces = self.held[digest] if word == "held" else (next(sent),)
                plan.append((self._place(path), path, pieces, append, digest))
                if word == "keep":
                    self._remember(path, pieces[0], append, digest)
            for place, path, pieces, append, _ in plan:
                if place != "workspace":
                    self._write(place, path, pieces, append, None)
            with self._isolation.as_agent():
                for place, path, pieces, append, digest in plan:
                    if place == "workspace":
                        self._write(place, path, pieces, append, self._owner)
                        size = sum(map(len, pieces))
                        self._note(path[len(place) + 1 :], size, append, digest)
        except Exception as error:
            self._error = error

    def _remember(self, path: str, data: bytes, append: bool, digest: str) -> None:
        """Keep a content once it is whole."""
        before = self._parts.pop(path, None) if append else ()
        if before is None:  # had grown too large to be kept
            return
        parts = (*before, data)
        if digest:
            self._keeper.keep(digest, parts)
        elif sum(map(len, parts)) <= self._keeper.limit:
            self._parts[path] = parts

    def _place(self, path: str) -> str:
        place, *rest = files.check_path(path)
        if place not in self._session.folders or place in ("tmp", "shm") or not rest:
            raise ValueError(f"expected a path below data, models, skills or workspace: {path!r}")
        return place

    def _write(
        self, place: str, path: str, pieces: Pieces, append: bool, owner: int | None
    ) -> None:
        inner = path[len(place) + 1 :]
        for data in pieces:
            if self._translates and len(data) <= _TRANSLATED_BYTES and _is_text(data):
                data = self._isolation.inward(self._session, data)
            files.write(self._session.folders[place], inner, data, append, owner, self._made)
            append = True

    def _note(self, path: str, size: int, append: bool, digest: str) -> None:
        self._sizes[path] = size + (self._sizes.get(path, 0) if append else 0)
        if digest and not self._translates:
            self.digests[path] = (self._sizes[path], digest)

    def note(self, digests: dict[str, str]) -> None:
        """Take the sha256, by path, of workspace files that came without."""
        for path, digest in digests.items():
            inner = path.partition("/")[2]
            if not self._translates and inner in self._sizes:
                self.digests[inner] = (self._sizes[inner], digest)

    def finish(self) -> None:
        """All frames have come.

        Raises:
            ValueError: If a path was none that may be written.
            OSError: If something could not be written.
        """
        if self._error is not None:
            raise self._error


def _is_text(data: bytes) -> bool:
    if b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
