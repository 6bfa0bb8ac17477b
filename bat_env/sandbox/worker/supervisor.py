"""The supervisor: one event loop that serves every session of a worker.

Trusted, lean, single-threaded. It never runs agent code, imports nothing heavy, and observes cells
only from outside: their pipes, their wait status, their files after their last process is gone.
"""

from __future__ import annotations

import os
import selectors
import signal
import sys
from typing import Any

from . import files, linux, wire
from .cells import Box, Cells
from .isolation import READ_ONLY, Container, Isolation, Plain, Session
from .keeping import Keeper
from .laying import Laying
from .spares import Spares

_KINDS: dict[str, type[Isolation]] = {"container": Container, "plain": Plain}


class Supervisor:
    """Serves frames from descriptor ``source`` and answers on ``sink`` until the host is gone."""

    def __init__(
        self, config: dict[str, Any], boot: str, sources: bytes, source: int, sink: int, watch: int
    ) -> None:
        self.config = config
        self.source, self.sink, self.host = source, sink, watch
        self.isolation = self._isolation(config)
        self.isolation.setup()
        self.spares = Spares(self.isolation, config, boot, sources)
        self.framer = wire.Framer()
        self.keeper = Keeper()
        self.selector = selectors.DefaultSelector()
        self.cells = Cells(
            self.isolation, self.spares, self.selector, self._reply, int(config["parallel"])
        )

    @staticmethod
    def _isolation(config: dict[str, Any]) -> Isolation:
        if config["isolation"] == "namespaces":
            from .namespaces import Namespaces

            return Namespaces(config)
        return _KINDS[config["isolation"]](config)

    def serve(self) -> None:
        """Run until end of input."""
        os.set_blocking(self.source, False)
        linux.prctl(linux.PR_SET_TIMERSLACK, 1)
        self.cells.cpu = _settle_on_a_cpu()
        linux.keep_freed(32 << 20)  # frames come and go: their memory need not be cleared each time
        self.selector.register(self.source, selectors.EVENT_READ, self._on_host)
        self.selector.register(self.spares.control, selectors.EVENT_READ, self.spares.pump)
        self._hear_of_children()
        if self.host >= 0:
            self.selector.register(self.host, selectors.EVENT_READ, self._on_host_death)
        self.spares.refill()
        facts = {"zygote": self.spares.report, "cgroup": self.isolation.cgroup_version}
        self._reply(0, {"ok": True, "pid": os.getpid(), **facts})
        try:
            while True:
                for key, _ in self.selector.select(self.cells.patience()):
                    # An earlier event of this round may have ended what this one is about.
                    if self.selector.get_map().get(key.fd) is key:
                        key.data()
                self.cells.settle()
        except EOFError:
            pass
        finally:
            for cell in list(self.cells.running.values()):
                cell.kill(None)
            self.spares.close()
            self.isolation.teardown()

    def _hear_of_children(self) -> None:
        """Wake for what ends late: orphans of a cell become ours and are collected when they go."""
        read, write = os.pipe()
        for fd in (read, write):
            os.set_blocking(fd, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)

        def collect() -> None:
            os.read(read, 4096)
            self.isolation.reap()

        self.selector.register(read, selectors.EVENT_READ, collect)

    def _on_host_death(self) -> None:
        raise EOFError

    def _on_host(self) -> None:
        space = self.framer.space()
        try:
            if space is not None:
                frames = self.framer.filled(_some(os.readv(self.source, [space])))
            else:
                data = os.read(self.source, 1 << 16)
                _some(len(data))
                frames = self.framer.feed(data)
        except BlockingIOError:
            return
        for header, blobs in frames:
            self._dispatch(header, blobs)

    def _dispatch(self, header: dict[str, Any], blobs: list[bytes]) -> None:
        request = int(header["id"])
        try:
            getattr(self, f"_do_{header['op']}")(request, header, blobs)
        except EOFError:
            raise
        except ValueError as error:
            self._reply(request, {"error": "value", "message": str(error)})
        except FileNotFoundError as error:
            self._reply(request, {"error": "missing", "message": str(error)})
        except Exception as error:
            self._reply(
                request, {"error": "sandbox", "message": f"{type(error).__name__}: {error}"}
            )

    def _reply(
        self, request: int, header: dict[str, Any], blobs: list[bytes] | None = None
    ) -> None:
        for piece in wire.pieces({"id": request, **header}, blobs or []):
            view = memoryview(piece)
            while view:
                view = view[os.write(self.sink, view) :]

    # -- requests --------------------------------------------------------------------------------

    def _do_quit(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        raise EOFError

    def _do_ping(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        prepared = sum(box.spare is not None for box in self.cells.boxes.values())
        state = {
            "sessions": len(self.cells.boxes),
            "cells": len(self.cells.running),
            "prepared": prepared,
            "spares": len(self.spares.ready),
        }
        self._reply(request, {"ok": True, **state, "fork_us": self.spares.fork_us})

    def _do_rooms(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        """Of each session its network namespace (0: none of its own) and processes sent ahead.

        With this a look from outside can tell the processes of one session from another's.
        """
        rooms = {}
        for sid, box in self.cells.boxes.items():
            network = os.fstat(box.session.namespaces[1]).st_ino if box.session.namespaces else 0
            rooms[sid] = (network, int(box.spare is not None))
        self._reply(request, {"ok": True, "rooms": rooms})

    def _do_open(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        if len(self.cells.boxes) >= self.isolation.max_sessions:
            raise RuntimeError("this worker takes no further session")
        session = Session(header["sid"], header["limits"], {})
        self.isolation.open(session)
        self.cells.boxes[session.sid] = Box(session, self._tree(session))
        self._reply(request, {"ok": True})

    def _tree(self, session: Session, place: str = "workspace") -> files.Tree:
        translates = type(self.isolation).outward is not Isolation.outward
        outward = (lambda data: self.isolation.outward(session, data)) if translates else None
        size, count = 1 << 62, 1 << 20
        if place == "workspace":
            limits = session.limits
            size, count = int(limits["workspace_mb"]) << 20, int(limits["workspace_inodes"])
        return files.Tree(session.folders[place], size, count, outward)

    def _do_close(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box = self.cells.boxes.get(header["sid"])
        if box is not None:
            self.cells.forget(box)
            del self.cells.boxes[box.session.sid]
            self.isolation.close(box.session)
        self._reply(request, {"ok": True})

    def _do_known(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        """Begin a reset; say which contents need not be sent. They are held until its end."""
        laying = self._begin(self.cells.boxes[header["sid"]])
        laying.held = self.keeper.find(header["digests"])
        self._reply(request, {"ok": True, "known": [d in laying.held for d in header["digests"]]})

    def _do_put(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        laying = self._laying(header)
        laying.take(header.get("files", []), blobs)
        laying.note(header.get("digests", {}))

    def _laying(self, header: dict[str, Any]) -> Laying:
        """The reset under way, or a new one: the last may have been given up in the middle."""
        box = self.cells.boxes[header["sid"]]
        return self._begin(box) if header["first"] or box.laying is None else box.laying

    def _do_reset(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        laying = self._laying(header)
        box = self.cells.boxes[header["sid"]]
        box.laying = None
        laying.note(header.get("digests", {}))
        laying.finish()
        box.tree.expect(laying.digests)
        box.entries = self.cells.scan(box)
        self._reply(request, {"ok": True})
        self.cells.rest()

    def _begin(self, box: Box) -> Laying:
        """Leave nothing of the last episode."""
        self.cells.stop(box)
        box.cells = 0
        if self.isolation.namespaces:
            self.cells.dismiss(box)  # its namespaces end here
        self.isolation.wipe(box.session)
        box.tree.forget()
        box.laying = Laying(self.isolation, box.session, self.keeper)
        return box.laying

    def _do_manifest(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box = self.cells.idle(header["sid"])
        box.entries = self.cells.scan(box)
        self._reply(request, {"ok": True, "entries": box.entries})

    def _do_inputs(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box, entries = self.cells.idle(header["sid"]), {}
        for place in READ_ONLY:
            tree = self._tree(box.session, place)
            entries.update({f"{place}/{name}": entry for name, entry in tree.scan().items()})
            if tree.over:
                raise RuntimeError(f"/{place} holds too much to be compared")
        self._reply(request, {"ok": True, "entries": entries})

    def _do_read(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box = self.cells.idle(header["sid"])
        with self.isolation.as_agent():
            data = box.tree.read(header["path"], int(header["max_bytes"]))
        self._stream(request, header["path"], data)
        self._reply(request, {"ok": True})

    def _stream(self, request: int, name: str, data: bytes) -> None:
        for start in range(0, max(1, len(data)), wire.CHUNK):
            self._reply(request, {"more": True, "path": name}, [data[start : start + wire.CHUNK]])

    def _do_snapshot(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box = self.cells.idle(header["sid"])
        with self.isolation.as_agent():
            for name in box.tree.regular_files():
                self._stream(request, name, box.tree.read(name, 1 << 40))
        self._reply(request, {"ok": True})

    def _do_run(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        self.cells.submit(self.cells.idle(header["sid"]), header, blobs)


def _some(count: int) -> int:
    if count == 0:
        raise EOFError
    return count


def _settle_on_a_cpu() -> int:
    """Stay on one CPU, which dying cells then leave; -1 where there is only one.

    A kernel without preemption tears a process down in one go. Whoever wakes on that CPU meanwhile
    waits milliseconds, and nobody who waits for a cell may be that one.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        return -1
    cpu = allowed[os.urandom(1)[0] % len(allowed)]
    os.sched_setaffinity(0, {cpu})
    return cpu


def main(config: dict[str, Any], boot: str, sources: bytes) -> None:
    """Entry point of the worker process; the first frame has been read from descriptor 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    watch = -1
    if config["host_pid"]:
        watch = os.pidfd_open(config["host_pid"])
        if os.getppid() != config["host_pid"]:
            raise SystemExit("the host is gone")
    try:
        if config["isolation"] == "namespaces":
            from . import namespaces

            namespaces.enter([source, sink, watch])
        elif config["isolation"] == "plain":
            linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
        supervisor = Supervisor(config, boot, sources, source, sink, watch)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        os.write(sink, wire.pack({"id": 0, "error": "sandbox", "message": message}))
        sys.stderr.write(message + "\n")
        os._exit(3)
    supervisor.serve()
    os._exit(0)
