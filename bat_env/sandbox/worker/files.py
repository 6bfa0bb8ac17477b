"""File trees as the supervisor handles them: lay down, list, read, wipe.

The agent's processes are dead whenever these run, so a tree holds still; but it is hostile: links,
devices, trees of any depth, unreadable modes, names in no encoding. Links are never followed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator

from . import linux

MAX_DEPTH = 64
"""Folders deeper than this are listed but not entered (and count as unread)."""

_LIFT_DEPTH = 12

MAX_NAME_BYTES = 1 << 20
"""All paths of one listing together; what comes after is left out, so that a frame holds it."""


def _tick_ns() -> int:
    numbers = os.uname().release.split(".")[:2]
    fine = all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) >= (6, 13)
    return 0 if fine else 20_000_000


_TICK_NS = _tick_ns()
"""Kernels before 6.13 stamp changes by the clock tick: a file as young as this may change once more
without a new stamp, so its digest is not remembered."""

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


def write(
    root: str, path: str, data: bytes, append: bool, owner: int | None, made: set[str]
) -> None:
    """Write below ``root``, making folders on the way. The tree must be host-made.

    Args:
        root: Where ``path`` begins.
        path: As :func:`check_path` accepts it.
        data: Content.
        append: Whether to continue the file of an earlier call.
        owner: Uid and gid of what is made, or None for our own.
        made: Folders that exist, for the next calls.
    """
    _make_folder(root, path.rpartition("/")[0], owner, made)
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    flags |= os.O_APPEND if append else os.O_CREAT | os.O_EXCL
    fd = os.open(f"{root}/{path}", flags, 0o644)
    try:
        if owner is not None and not append:
            os.fchown(fd, owner, owner)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)


def _make_folder(root: str, path: str, owner: int | None, made: set[str]) -> None:
    full = f"{root}/{path}" if path else root
    if full in made:
        return
    if path:
        _make_folder(root, path.rpartition("/")[0], owner, made)
        with contextlib.suppress(FileExistsError):
            os.mkdir(full, 0o755)
            if owner is not None:
                os.chown(full, owner, owner, follow_symlinks=False)
    made.add(full)


def printable(name: str) -> str:
    r"""A name as UTF-8 text; bytes that are not UTF-8 appear as ``\xNN``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _open(root: int, path: str, flags: int = _NOFOLLOW) -> int:
    """Open what lies at ``path`` below the open folder ``root``; never through a link."""
    try:
        return linux.open_beneath(root, path, flags)
    except PermissionError:
        # The owner (us, or the agent whose uid we took) may always give itself the right back. The
        # mode is changed by descriptor: a path could have become a link since it was looked at.
        handle = linux.open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            info = os.fstat(handle)
            if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode)):
                raise
            os.chmod(f"/proc/self/fd/{handle}", stat.S_IMODE(info.st_mode) | 0o700)
        finally:
            os.close(handle)
        return linux.open_beneath(root, path, flags)


def _top(root: str) -> int:
    if stat.S_IMODE(os.stat(root).st_mode) & 0o700 != 0o700:
        with contextlib.suppress(OSError):
            os.chmod(root, 0o755)
    return os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def _unlock(folder: int) -> None:
    """Without the right to search a folder its names show, but not what they are."""
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & 0o500 != 0o500:
        with contextlib.suppress(OSError):
            os.fchmod(folder, mode | 0o700)


def walk(root: str, max_entries: int) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield ``(relative path, full path, lstat)`` of everything below ``root``."""
    top = _top(root)
    try:
        stack = [("", 0)]
        seen = 0
        while stack:
            folder, depth = stack.pop()
            try:
                fd = _open(top, folder or ".", _NOFOLLOW | os.O_DIRECTORY)
            except OSError:  # longer than a path may be: listed by its parent, not entered
                continue
            try:
                _unlock(fd)
                with os.scandir(fd) as children:
                    for child in children:
                        seen += 1
                        if seen > max_entries:
                            return
                        try:
                            info = child.stat(follow_symlinks=False)
                        except OSError:
                            continue
                        name = f"{folder}/{child.name}" if folder else child.name
                        yield name, os.path.join(root, name), info
                        if stat.S_ISDIR(info.st_mode) and depth < MAX_DEPTH:
                            stack.append((name, depth + 1))
            finally:
                os.close(fd)
    finally:
        os.close(top)


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
        self._expected: dict[str, tuple[int, str]] = {}

    def expect(self, digests: dict[str, tuple[int, str]]) -> None:
        """For the next scan alone: size and sha256 of files that nobody touched since."""
        self._expected = digests

    def scan(self) -> dict[str, Entry]:
        """All entries now, sorted by path."""
        entries: dict[str, Entry] = {}
        cache: dict[str, tuple[Stamp, Entry]] = {}
        room, names = self.max_bytes, MAX_NAME_BYTES
        self.over = False
        settled = time.time_ns() - _TICK_NS
        odd: list[tuple[str, Entry]] = []
        for name, _, info in walk(self.root, self.max_entries + 1):
            shown = printable(name)
            names -= len(shown.encode())
            if len(entries) + len(odd) >= self.max_entries or names < 0:
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
                    size, digest = self._expected.get(name, (-1, ""))
                    if known and known[0] == stamp:
                        entry = known[1]
                    elif size == info.st_size:
                        entry = ("file", size, digest)
                    else:
                        entry = self._digest(name)
                    if info.st_ctime_ns < settled:
                        cache[name] = (stamp, entry)
            elif stat.S_ISDIR(mode):
                deep = name.count("/") >= MAX_DEPTH
                entry = ("unread" if deep else "dir", 0, "")
            else:
                entry = ("symlink" if stat.S_ISLNK(mode) else "special", 0, "")
            if shown == name:
                entries[shown] = entry
            else:
                odd.append((shown, entry))
        for shown, entry in odd:
            while shown in entries:  # a name that spells out another one's escaped bytes
                shown += "'"
            entries[shown] = entry
        self._cache, self._expected = cache, {}
        return dict(sorted(entries.items()))

    def _digest(self, name: str) -> Entry:
        try:
            top = _top(self.root)
            try:
                fd = _open(top, name)
            finally:
                os.close(top)
        except OSError:  # the path is longer than a path may be, or the file is gone
            return "unread", 0, ""
        with os.fdopen(fd, "rb") as file:
            size = os.fstat(fd).st_size
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
        top = _top(self.root)
        try:
            # Look first: to open a device may have effects, and links have an error of their own.
            self._look(top, parts)
            fd = _open(top, "/".join(parts))
        except NotADirectoryError:
            raise FileNotFoundError(path) from None
        except (FileNotFoundError, ValueError):
            raise
        except OSError as error:
            raise ValueError(f"{path!r} cannot be read: {error.strerror}") from None
        finally:
            os.close(top)
        with os.fdopen(fd, "rb") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise ValueError(f"expected a regular file at {path!r}")
            data = file.read(min(info.st_size, max_bytes) + 1)
        if self._outward is not None:
            data = self._outward(data)
        if len(data) > max_bytes:
            raise ValueError(f"{path!r} is larger than {max_bytes} bytes")
        return data

    @staticmethod
    def _look(top: int, parts: tuple[str, ...]) -> None:
        for count in range(1, len(parts) + 1):
            place = "/".join(parts[:count])
            mode = os.lstat(place, dir_fd=top).st_mode
            last = count == len(parts)
            if not last and not stat.S_ISDIR(mode) and not stat.S_ISLNK(mode):
                raise FileNotFoundError("/".join(parts))
            if not (stat.S_ISREG(mode) if last else stat.S_ISDIR(mode)):
                raise ValueError(
                    f"expected a regular file at {'/'.join(parts)!r}, reached through folders only"
                )

    def regular_files(self) -> list[str]:
        """Workspace-relative paths of all regular files with a printable name, sorted."""
        files = [name for name, entry in self.scan().items() if entry[0] == "file"]
        return [name for name in files if os.path.lexists(os.path.join(self.root, name))]

    def forget(self) -> None:
        """Drop the cache (after a wipe)."""
        self._cache = {}


def _children(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as it:
            return list(it)
    except PermissionError:
        os.chmod(path, 0o700)
        with os.scandir(path) as it:
            return list(it)


def _restore(root: str) -> None:
    """Take back what an agent did to a folder of its own that outlives the wipe."""
    with contextlib.suppress(OSError):
        os.chmod(root, 0o755)
    with contextlib.suppress(OSError):
        for name in os.listxattr(root):
            os.removexattr(root, name)


def wipe(root: str) -> None:
    """Delete everything below ``root``, whatever its depth or modes; restore ``root`` itself."""
    _restore(root)
    while True:
        stack = [(entry.path, 0) for entry in _children(root)]
        if not stack:
            with contextlib.suppress(OSError):
                os.utime(root, (0, 0))
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
