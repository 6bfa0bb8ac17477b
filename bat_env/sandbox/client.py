"""The host's end of a worker: one connection, many sandboxes, any number of threads."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from bat_env.errors import SandboxDiedError, SandboxError, SandboxInterruptedError

from . import replies
from .worker import wire

_START: Final = 0
"""Number of the frame with which a worker says that it is up."""

Reply = tuple[dict[str, Any], list[bytes]]
_MESSAGE_CHARS = 2000


class Transport(Protocol):
    """A byte stream to a worker process, wherever it runs."""

    def read(self) -> bytes:
        """Some bytes from the worker; empty at the end."""

    def write(self, data: bytes) -> None:
        """All bytes to the worker."""

    def close(self) -> None:
        """End the worker and free everything it holds. Idempotent; never raises."""

    def abandon(self) -> None:
        """In a forked child: free this process's copies of the descriptors, nothing else."""

    def obituary(self) -> str:
        """Why the worker may have died, for error messages."""

    def oom_within(self, seconds: float) -> bool:
        """Whether the host saw the worker's own memory cgroup kill in the last ``seconds``."""


class _Box:
    """Where the reader leaves the frames that answer one request.

    Attributes:
        room: Bytes that may still come. The reader enforces it, so that a worker that talks without
            end costs the host no more memory than the longest honest answer.
        interrupted: Whether the host gave the request up.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.interrupted = False
        self._frames: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        self.put = self._frames.put
        self.get = self._frames.get


class WorkerClient:
    """Sends requests and hands each reply to the thread that waits for it.

    Args:
        transport: Connected; the worker's bootstrap has been written already.
        name: For error messages.
    """

    def __init__(self, transport: Transport, name: str) -> None:
        self.name = name
        self.info: dict[str, Any] = {}
        self._transport = transport
        self._ids = itertools.count(1)
        self._sids = itertools.count(1)
        self._lock = threading.Lock()
        self._write_lock = threading.Lock()
        self._inbox = {_START: _Box(replies.REPLY_BYTES)}
        self._stray = replies.REPLY_BYTES
        self._dead = ""
        self._babble = ""
        self._running = 0
        self._cells: dict[int, str] = {}
        self._abandoned = False
        _clients.add(self)
        self._reader = threading.Thread(target=self._read, name=f"bat-{name}", daemon=True)
        self._reader.start()

    @property
    def alive(self) -> bool:
        """Whether the stream still stands."""
        return not self._dead

    def hello(self, timeout_s: float) -> None:
        """Wait until the worker is up.

        Raises:
            SandboxInterruptedError: After :meth:`interrupt_start`.
            SandboxError: If it failed to start or did not within ``timeout_s``.
        """
        self.info, _ = self._next(_START, time.monotonic() + timeout_s, "start")
        self._inbox.pop(_START, None)

    def interrupt_start(self) -> None:
        """End the wait in :meth:`hello`, from any thread; nothing happens once the worker is up."""
        box = self._inbox.get(_START)
        if box is not None:
            box.interrupted = True
            box.put(None)

    def next_sid(self) -> str:
        """A session id that this worker has not seen."""
        return f"s{next(self._sids)}"

    def _read(self) -> None:
        framer = wire.Framer()
        reason = "its stream ended"
        try:
            while data := self._transport.read():
                for header, blobs in framer.feed(data):
                    self._deliver(header, blobs, framer.size)
                if self._dead:
                    return
        except OSError as error:
            reason = str(error)
        except (wire.WireError, KeyError, TypeError, ValueError) as error:
            reason = f"it sent a malformed frame: {error}"
            # Only one cell can have done it, if only one ran.
            self._babble = "frame" if self._running == 1 else ""
        self._die(reason)

    def _deliver(self, header: dict[str, Any], blobs: list[bytes], size: int) -> None:
        number = header["id"]
        if type(number) is not int:
            raise wire.WireError("a frame's id is no number")
        box = self._inbox.get(number)
        if box is not None:
            box.room -= size
            if box.room < 0:
                raise wire.WireError("an answer is longer than it can honestly be")
            box.put((header, blobs))
            return
        # An interrupted request's answer may still come; nothing else has a reason to.
        self._stray -= size
        if self._stray < 0:
            raise wire.WireError("frames that nobody asked for")

    def _die(self, reason: str) -> None:
        with self._lock:
            self._dead = self._dead or reason
            boxes = list(self._inbox.values())
        for box in boxes:
            box.put(None)

    def _next(
        self, request: int, deadline: float | None, op: str, began: float | None = None
    ) -> Reply:
        box = self._inbox[request]
        try:
            patience = None
            if deadline is not None and math.isfinite(deadline):
                patience = max(0.0, deadline - time.monotonic())
            reply = box.get(timeout=patience)
        except queue.Empty:
            reason = f"no answer to {op!r} in time"
            self._die(reason)
            raise SandboxError(f"The {self.name} sandbox worker hangs: {reason}.") from None
        if reply is None:
            if box.interrupted:
                raise SandboxInterruptedError(f"The {op!r} in a {self.name} sandbox was ended.")
            raise self._death(op, began)
        header, _ = reply
        if not header.get("more") or "error" in header:
            box.room = 0  # the end: nothing else may come
        if "error" in header:
            raise _error(header, self.name, op)
        return reply

    def _death(self, op: str, began: float | None = None) -> SandboxDiedError:
        said = self._transport.obituary()
        tail = f" It said: {said}" if said else ""
        evidence = ""
        if op == "run" and began is not None:
            evidence = self._babble
            killed = getattr(self._transport, "oom_within", None)
            if not evidence and killed is not None and killed(time.monotonic() - began + 1.0):
                evidence = "oom"
        return SandboxDiedError(
            f"The {self.name} sandbox worker died during {op!r} ({self._dead}).{tail} "
            "The episode is invalid; open a new sandbox.",
            evidence,
        )

    def accuse(self, op: str, error: Exception) -> SandboxDiedError:
        """End the stream because a reply makes no sense; returns what to raise."""
        self._die(f"a reply to {op!r} makes no sense: {type(error).__name__}: {error}")
        return SandboxDiedError(
            f"The {self.name} sandbox worker sent a reply to {op!r} that makes no sense "
            f"({type(error).__name__}: {error}). The episode is invalid; open a new sandbox.",
            "frame" if op == "run" else "",
        )

    def send(self, header: dict[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Send a frame that gets no reply."""
        pieces = wire.pieces({"id": -1, **header}, blobs)
        try:
            with self._write_lock:
                for piece in pieces:
                    self._transport.write(piece)
        except OSError as error:
            self._die(str(error))
            raise self._death(str(header["op"])) from None

    def interrupt(self, sid: str) -> None:
        """End the wait for a session's cell, from any thread; the session's end ends the cell.

        The waiting thread gets a :class:`~bat_env.errors.SandboxInterruptedError`.
        """
        for number, session in list(self._cells.items()):
            box = self._inbox.get(number)
            if session == sid and box is not None:
                box.interrupted = True
                box.put(None)

    def request(
        self,
        header: dict[str, Any],
        blobs: Sequence[bytes] = (),
        *,
        timeout_s: float | None = 60.0,
        on_part: Callable[[dict[str, Any], list[bytes]], float | None] | None = None,
        max_bytes: int = replies.REPLY_BYTES,
    ) -> Reply:
        """Send one request and wait for its final reply.

        Args:
            header: ``op`` and its arguments.
            blobs: Binary arguments.
            timeout_s: Patience until the next reply; None for as long as the worker lives.
            on_part: Called for each partial reply; a number it returns replaces ``timeout_s``. May
                raise :class:`~bat_env.sandbox.worker.wire.WireError` for a part that is malformed.
            max_bytes: Bound of all frames of the answer; more of them end the worker.
        """
        if self._dead:
            raise self._death(str(header["op"]))
        number, began = next(self._ids), time.monotonic()
        box = self._inbox[number] = _Box(max_bytes)
        runs = header["op"] == "run"
        with self._lock:
            self._running += runs
        if runs:
            self._cells[number] = str(header["sid"])
        try:
            self.send({"id": number, **header}, blobs)
            patience = timeout_s
            while True:
                if not self.alive:  # died between the check above and the registration
                    box.put(None)
                deadline = None if patience is None else time.monotonic() + patience
                reply, parts = self._next(number, deadline, str(header["op"]), began)
                if not reply.get("more"):
                    return reply, parts
                if on_part is not None:
                    changed = on_part(reply, parts)
                    patience = patience if changed is None else changed
        except wire.WireError as error:
            raise self.accuse(str(header["op"]), error) from error
        finally:
            del self._inbox[number]
            self._cells.pop(number, None)
            with self._lock:
                self._stray += max(0, box.room)
                self._running -= runs

    def close(self) -> None:
        """End the worker. Idempotent; never raises."""
        if self._abandoned:
            return
        if not self._dead:
            with contextlib.suppress(SandboxError):
                # A forked child may hold our end of the stream open, so closing it is not enough.
                self.send({"op": "quit"})
        self._die("closed by the host")
        self._transport.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's worker without talking to it."""
        self._abandoned = True
        self._dead = "it belongs to the parent process"
        self._transport.abandon()


_clients: weakref.WeakSet[WorkerClient] = weakref.WeakSet()


def interrupt_starts() -> None:
    """End the wait for every worker of this process that is not up yet."""
    for client in list(_clients):
        client.interrupt_start()


def _after_fork() -> None:
    for client in list(_clients):
        client.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _error(header: dict[str, Any], name: str, op: str) -> Exception:
    message = str(header.get("message", ""))[:_MESSAGE_CHARS]
    # Only these two promise such errors; from any other request they would surprise the caller.
    if header["error"] == "value" and op in ("read", "reset"):
        return ValueError(message)
    if header["error"] == "missing" and op == "read":
        return FileNotFoundError(message)
    return SandboxError(f"The {name} sandbox worker reports: {message}")
