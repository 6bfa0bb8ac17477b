"""A sandbox as one session of a worker; the same for every backend."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from bat_env.errors import SandboxError

from . import replies
from .base import MOUNTS, Cell, CellResult, FileTree, Limits, Manifest
from .client import WorkerClient
from .digests import DIGESTS
from .stored import StoredFiles
from .worker import wire
from .worker.keeping import KEPT_FROM

_GRACE_S = 60.0
_PARCEL = 1 << 20
"""Bytes of a frame of files: small, so that the worker writes one while the next is made."""

_PATHS = 4096
"""Files of one frame."""

_BESIDE_FROM = 1 << 18
"""Bytes from which on a thread to hash them pays."""

_ASK_FROM = 1 << 16
"""Bytes that may be saved from which on a question to the worker pays."""


class WorkerSandbox:
    """Implements :class:`~bat_env.sandbox.base.Sandbox` over a :class:`WorkerClient`.

    Args:
        backend: Name of the backend.
        limits: Limits of this sandbox.
        acquire: Returns a live worker; called by :meth:`start`.
        release: Called with the worker by :meth:`close`.
    """

    def __init__(
        self,
        backend: str,
        limits: Limits,
        acquire: Callable[[], WorkerClient],
        release: Callable[[WorkerClient], None],
    ) -> None:
        self.backend = backend
        self.limits = limits
        self._acquire = acquire
        self._release = release
        self._client: WorkerClient | None = None
        self._sid = ""
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "new" if self._client is None else self._sid
        return f"<{type(self).__name__} {self.backend} {state}>"

    @property
    def worker(self) -> WorkerClient:
        """The worker that serves this sandbox (started on demand)."""
        self.start()
        assert self._client is not None
        return self._client

    def ping(self, timeout_s: float) -> bool:
        """Whether the worker behind a started sandbox answers in time. One that hangs is lost."""
        if self._client is None or self._closed:
            return False
        with contextlib.suppress(SandboxError):
            self._client.request({"op": "ping"}, timeout_s=timeout_s)
            return True
        return False

    def start(self) -> None:
        """Boot; returns when a cell could run. Idempotent."""
        if self._closed:
            raise SandboxError("This sandbox is closed; make a new one with make_sandbox().")
        if self._client is not None:
            return
        client = self._acquire()
        sid = client.next_sid()
        limits = {**self.limits.model_dump(), "shm_mb": shm_mb(self.limits)}
        try:
            client.request({"op": "open", "sid": sid, "limits": limits})
        except BaseException:
            self._release(client)
            raise
        self._client, self._sid = client, sid

    def reset(self, files: FileTree) -> None:
        """Kill everything, wipe every writable place, then lay ``files`` down."""
        for path in files:
            first, _, rest = path.partition("/")
            if first not in MOUNTS or not rest:
                raise ValueError(
                    f"Expected a path that starts with one of {', '.join(MOUNTS)}; got {path!r}."
                )
        worker = self.worker
        stored = files if isinstance(files, StoredFiles) else StoredFiles({}, _nothing, files)
        sizes = {path: _size_if_again(path, stored) for path in stored}
        again = {path for path, size in sizes.items() if size >= KEPT_FROM}
        held = None
        if sum(sizes[path] for path in again) >= _ASK_FROM:
            held = self._held({path: _sha256(path, stored) for path in sorted(again)})
        begun = held is not None
        at_hand = {p: stored[p] for p in stored if p not in again and not stored.sha256(p)}
        hashing = _Hashing(at_hand)
        for paths, blobs in _parcels(stored, again, held or set()):
            worker.send({"op": "put", "sid": self._sid, "first": not begun, "files": paths}, blobs)
            begun = True
        *most, last = hashing.result()
        for digests in most:
            worker.send({"op": "put", "sid": self._sid, "first": False, "digests": digests})
        final = {"op": "reset", "sid": self._sid, "first": not begun, "digests": last}
        worker.request(final, timeout_s=300.0)

    def _held(self, asked: Mapping[str, str]) -> set[str]:
        """Begin the reset by asking which contents the worker has from earlier ones.

        Args:
            asked: The sha256, by path, of what it may have.

        Returns:
            The paths that need not be sent, or read.
        """
        worker = self.worker
        digests = sorted(set(asked.values()))
        question = {"op": "known", "sid": self._sid, "digests": digests}
        reply, _ = worker.request(question, timeout_s=300.0)
        known = reply.get("known")
        if not isinstance(known, list) or len(known) != len(digests):
            raise worker.accuse("known", wire.WireError("one answer for each digest"))
        have = {digest for digest, here in zip(digests, known, strict=True) if here is True}
        return {path for path, digest in asked.items() if digest in have}

    def run(self, cell: Cell, timeout_s: float | None = None) -> CellResult:
        """Run one cell to its end; all its processes are gone when this returns."""
        if cell.language not in ("python", "bash"):
            raise ValueError(f"Expected language 'python' or 'bash', got {cell.language!r}.")
        if "\0" in cell.code:
            raise ValueError("Expected source text without NUL bytes.")
        wall = self.limits.cell_timeout_s if timeout_s is None else timeout_s
        wall = min(wall, self.limits.cell_timeout_s)
        header = {
            "op": "run",
            "sid": self._sid,
            "language": cell.language,
            "seed": cell.seed % 2**32,
            "timeout": wall,
        }
        worker = self.worker
        header["sid"] = self._sid
        code = cell.code.encode("utf-8", "surrogatepass")
        # Waiting for a free core may take as long as other cells do; only a started cell is timed.
        patience = {"queued": math.inf, "started": wall + _GRACE_S}

        def heard(part: dict[str, Any], _: list[bytes]) -> float:
            event = str(part.get("event"))
            if event not in patience:
                raise wire.WireError("a cell is queued and started once at most")
            return patience.pop(event)

        reply, blobs = worker.request(
            header,
            [code],
            timeout_s=wall + _GRACE_S,
            on_part=heard,
        )
        try:
            return replies.cell_result(reply, blobs, self.limits)
        except wire.WireError as error:
            raise worker.accuse("run", error) from error

    def interrupt(self) -> None:
        """End the cell that runs, if one does; the only method that another thread may call.

        :meth:`run` raises :class:`~bat_env.errors.SandboxInterruptedError` at once; the cell's
        processes end with the next :meth:`reset` or :meth:`close`.
        """
        client = self._client
        if client is not None:
            client.interrupt(self._sid)

    def manifest(self) -> Manifest:
        """The workspace now."""
        worker = self.worker
        reply, _ = worker.request({"op": "manifest", "sid": self._sid}, timeout_s=300.0)
        try:
            return replies.entries(reply.get("entries"))
        except wire.WireError as error:
            raise worker.accuse("manifest", error) from error

    def read(self, path: str, max_bytes: int) -> bytes:
        """Read a regular workspace file of at most ``max_bytes``."""
        parts: list[bytes] = []
        worker = self.worker
        worker.request(
            {"op": "read", "sid": self._sid, "path": path, "max_bytes": max_bytes},
            timeout_s=300.0,
            on_part=lambda _, blobs: parts.extend(blobs),
            max_bytes=replies.read_bytes(max_bytes),
        )
        content = b"".join(parts)
        if len(content) > max_bytes:
            raise worker.accuse("read", wire.WireError("more bytes than were asked for"))
        return content

    def snapshot(self) -> dict[str, bytes]:
        """All regular workspace files, workspace-relative, sorted by path."""
        parts: dict[str, list[bytes]] = {}
        worker = self.worker

        def keep(header: dict[str, Any], blobs: list[bytes]) -> None:
            parts.setdefault(replies.path(header.get("path")), []).extend(blobs)

        worker.request(
            {"op": "snapshot", "sid": self._sid},
            timeout_s=300.0,
            on_part=keep,
            max_bytes=replies.snapshot_bytes(self.limits),
        )
        return {path: b"".join(parts[path]) for path in sorted(parts)}

    def inputs(self) -> Manifest:
        """What lies in the read-only places now, as the supervisor reads it: ``data/...``, ...

        The host compares it with what it laid there: a difference proves that agent code broke out
        of its rights.
        """
        worker = self.worker
        reply, _ = worker.request({"op": "inputs", "sid": self._sid}, timeout_s=300.0)
        try:
            return replies.entries(reply.get("entries"))
        except wire.WireError as error:
            raise worker.accuse("inputs", error) from error

    def close(self) -> None:
        """Free everything. Idempotent; never raises."""
        if self._closed:
            return
        self._closed = True
        client, self._client = self._client, None
        if client is None:
            return
        with contextlib.suppress(Exception):
            if client.alive:
                client.request({"op": "close", "sid": self._sid})
        with contextlib.suppress(Exception):
            self._release(client)


def shm_mb(limits: Limits) -> int:
    """Size of /dev/shm in MiB: what DataLoader workers need, never over the cell's memory."""
    return min(256, limits.memory_mb)


def _nothing(digest: str) -> bytes:
    raise KeyError(digest)


def _size_if_again(path: str, files: StoredFiles) -> int:
    """Bytes of a content that was laid down before; -1 of any other. Reads no stored content."""
    digest = files.sha256(path)
    if digest:
        return DIGESTS.laid(digest)
    content = files[path]
    return len(content) if len(content) >= KEPT_FROM and DIGESTS.seen(content) else -1


def _sha256(path: str, files: StoredFiles) -> str:
    return files.sha256(path) or DIGESTS.sha256(files[path])


class _Hashing:
    """The sha256 of each workspace file, made while the files are on their way.

    Args:
        files: Contents by path; what lies elsewhere than in the workspace needs no digest.
    """

    def __init__(self, files: FileTree) -> None:
        self._files = {p: c for p, c in files.items() if p.startswith("workspace/")}
        self._found: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        if sum(map(len, self._files.values())) >= _BESIDE_FROM:
            self._thread = threading.Thread(target=self._run, name="bat-sha256", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        for path, content in self._files.items():
            self._found[path] = DIGESTS.sha256(content)

    def result(self) -> list[dict[str, str]]:
        """Digests by path when all are made, as many together as a frame may hold; not empty."""
        if self._thread is None:
            self._run()
        else:
            self._thread.join()
        found = list(self._found.items())
        starts = range(0, max(1, len(found)), _PATHS)
        return [dict(found[start : start + _PATHS]) for start in starts]


def _parcels(
    files: StoredFiles, again: Collection[str], held: Collection[str]
) -> Iterator[tuple[list[tuple[str, bool, str, str]], list[bytes]]]:
    """Pack files into frames of bounded size; a large file is continued by appending.

    What the worker is to keep, contents that come for the second time, and stored files have their
    digest with the last piece; those of other workspace files follow when all have been sent.

    Args:
        files: What to lay down.
        again: Paths of contents that have been laid down before.
        held: Paths of those that the worker still has.

    Yields:
        For each frame (path, whether it continues a file, sha256 or nothing, ``held``, ``keep`` or
        nothing) and the contents of those that are not held.
    """
    paths: list[tuple[str, bool, str, str]] = []
    blobs: list[bytes] = []
    size = 0
    unheld = [path for path in sorted(files) if path not in held]
    with contextlib.closing(files.each(unheld)) as contents:
        for path in sorted(files):
            if path in held:
                paths.append((path, False, _sha256(path, files), "held"))
                if len(paths) >= _PATHS:
                    yield paths, blobs
                    paths, blobs, size = [], [], 0
                continue
            content = next(contents)
            if files.sha256(path):
                DIGESTS.lay(files.sha256(path), len(content))
            word = "keep" if path in again else ""
            wanted = word or (files.sha256(path) and path.startswith("workspace/"))
            for start in range(0, max(1, len(content)), _PARCEL):
                piece = content[start : start + _PARCEL]
                if paths and (size + len(piece) > _PARCEL or len(paths) >= _PATHS):
                    yield paths, blobs
                    paths, blobs, size = [], [], 0
                last = start + _PARCEL >= len(content)
                digest = _sha256(path, files) if last and wanted else ""
                paths.append((path, start > 0, digest, word))
                blobs.append(piece)
                size += len(piece)
    if paths:
        yield paths, blobs
