"""File trees as the supervisor handles them: lay down, list, read, wipe.

The agent's processes are dead whenever these run, so a tree holds still; but it is hostile: links,
devices, trees of any depth, unreadable modes, names in no encoding. Links are never followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator

MAX_DEPTH = 64
"""Folders deeper than this are listed but not entered (and count as unread)."""

_LIFT_DEPTH = 12

MAX_NAME_BYTES = 1 << 20
"""All paths of one listing together; what comes after is left out, so that a frame holds it."""

Entry = tuple[str, int, str]
"""kind, size in bytes, sha256."""
Stamp = tuple[int, int, int, int]

_NOFOLLOW = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def check_path(path: str) -> tuple[str, ...]:
    """Split a relative POSIX path; refuses empty, absolute and climbing ones."""
    parts = tuple(path.split("/"))
    if "\0" in path or any(p in ("", ".", "..") for p in parts):
        raise ValueError(f"expected a relative path inside the sandbox, got {path!r}")
    return parts


def write(root: str, parts: tuple[str, ...], data: bytes, *, append: bool) -> None:
    """Write below ``root``, making folders on the way. The tree must be host-made."""
    folder = os.path.join(root, *parts[:-1])
    os.makedirs(folder, mode=0o755, exist_ok=True)
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    flags |= os.O_APPEND if append else os.O_CREAT | os.O_EXCL
    fd = os.open(os.path.join(folder, parts[-1]), flags, 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def printable(name: str) -> str:
    r"""A name as UTF-8 text; bytes that are not UTF-8 appear as ``\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _open(path: str) -> int:
    try:
        return os.open(path, _NOFOLLOW)
    except PermissionError:
        # The owner (us, or the agent whose uid we took) may always give itself the right back.
        info = os.lstat(path)
        os.chmod(path, stat.S_IMODE(info.st_mode) | 0o600, follow_symlinks=True)
        return os.open(path, _NOFOLLOW)


def _children(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as it:
            return list(it)
    except PermissionError:
        os.chmod(path, 0o700)
        with os.scandir(path) as it:
            return list(it)


def walk(root: str, max_entries: int) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield ``(relative path, full path, lstat)`` of everything below ``root``."""
    stack = [("", root, 0)]
    seen = 0
    while stack:
        relative, full, depth = stack.pop()
        try:
            children = _children(full)
        except OSError:  # longer than a path may be: listed by its parent, not entered
            continue
        for child in children:
            seen += 1
            if seen > max_entries:
                return
            try:
                info = child.stat(follow_symlinks=False)
            except OSError:
                continue
            name = f"{relative}/{child.name}" if relative else child.name
            yield name, child.path, info
            if stat.S_ISDIR(info.st_mode) and depth < MAX_DEPTH:
                stack.append((name, child.path, depth + 1))


class Tree:
    """The workspace's manifest, kept up to date: only files whose stamp changed are hashed.

    Args:
        root: The workspace.
        max_bytes: Sum of file sizes that may be read. Only sparse files (or a missing disk limit)
            get beyond; what does not fit counts as unread and is never opened.
        max_entries: Paths that may be listed.
        outward: Translation of file contents, or None.

    Attributes:
        over: Whether the last scan found more than ``max_bytes`` or ``max_entries``.
    """

    def __init__(
        self,
        root: str,
        max_bytes: int,
        max_entries: int,
        outward: Callable[[bytes], bytes] | None,
    ) -> None:
        self.root = root
        self.max_bytes = max_bytes
        self.max_entries = max_entries
        self.over = False
        self._outward = outward
        self._cache: dict[str, tuple[Stamp, Entry]] = {}

    def scan(self) -> dict[str, Entry]:
        """All entries now, sorted by path."""
        entries: dict[str, Entry] = {}
        cache: dict[str, tuple[Stamp, Entry]] = {}
        room, names = self.max_bytes, MAX_NAME_BYTES
        self.over = False
        for name, full, info in walk(self.root, self.max_entries + 1):
            shown = printable(name)
            names -= len(shown.encode())
            if len(entries) >= self.max_entries or names < 0:
                self.over = True
                break
            mode = info.st_mode
            entry: Entry
            if stat.S_ISREG(mode):
                room -= info.st_size
                if room < 0:
                    self.over = True
                    entry = ("unread", 0, "")
                else:
                    stamp = (info.st_mtime_ns, info.st_size, info.st_ino, info.st_ctime_ns)
                    known = self._cache.get(name)
                    entry = known[1] if known and known[0] == stamp else self._digest(full)
                    cache[name] = (stamp, entry)
            elif stat.S_ISDIR(mode):
                deep = name.count("/") >= MAX_DEPTH
                entry = ("unread" if deep else "dir", 0, "")
            else:
                entry = ("symlink" if stat.S_ISLNK(mode) else "special", 0, "")
            entries[shown] = entry
        self._cache = cache
        return dict(sorted(entries.items()))

    def _digest(self, full: str) -> Entry:
        with os.fdopen(_open(full), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if self._outward is not None and size <= 1 << 20:
                data = self._outward(file.read())
                return "file", len(data), hashlib.sha256(data).hexdigest()
            return "file", size, hashlib.file_digest(file, "sha256").hexdigest()

    def read(self, path: str, max_bytes: int) -> bytes:
        """The content of a regular file of at most ``max_bytes``.

        Raises:
            FileNotFoundError: If there is nothing at ``path``.
            ValueError: If it is no regular file inside the workspace, or too large.
        """
        parts = check_path(path)
        full = self.root
        for index, part in enumerate(parts):
            full = os.path.join(full, part)
            mode = os.lstat(full).st_mode
            last = index == len(parts) - 1
            if not last and not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode):
                raise FileNotFoundError(path)
            if not (stat.S_ISREG(mode) if last else stat.S_ISDIR(mode)):
                raise ValueError(
                    f"expected a regular file at {path!r}, reached through folders only"
                )
        with os.fdopen(_open(full), "rb") as file:
            data = file.read(min(os.fstat(file.fileno()).st_size, max_bytes) + 1)
        if self._outward is not None:
            data = self._outward(data)
        if len(data) > max_bytes:
            raise ValueError(f"{path!r} is larger than {max_bytes} bytes")
        return data

    def regular_files(self) -> list[str]:
        """Workspace-relative paths of all regular files with a printable name, sorted."""
        files = [name for name, entry in self.scan().items() if entry[0] == "file"]
        return [name for name in files if os.path.lexists(os.path.join(self.root, name))]

    def forget(self) -> None:
        """Drop the cache (after a wipe)."""
        self._cache = {}


def wipe(root: str) -> None:
    """Delete everything below ``root``, whatever its depth or modes."""
    while True:
        stack = [(entry.path, 0) for entry in _children(root)]
        if not stack:
            return
        folders: list[str] = []
        while stack:
            path, depth = stack.pop()
            info = os.lstat(path)
            if not stat.S_ISDIR(info.st_mode):
                os.unlink(path)
            elif depth >= _LIFT_DEPTH:
                # Lift deep folders to the top: paths stay short however deep the agent dug.
                os.chmod(path, 0o700)
                os.rename(path, os.path.join(root, f".bat-wipe-{os.urandom(8).hex()}"))
            else:
                os.chmod(path, 0o700)
                folders.append(path)
                stack += [(entry.path, depth + 1) for entry in _children(path)]
        for folder in reversed(folders):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
