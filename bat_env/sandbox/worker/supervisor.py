"""The supervisor: one event loop that serves every session of a worker.

Trusted, lean, single-threaded. It never runs agent code, imports nothing heavy, and observes cells
only from outside: their pipes, their wait status, their files after their last process is gone.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from functools import partial
from typing import Any

from . import files, linux, proc, wire
from .isolation import READ_ONLY, Container, Isolation, Plain, Session
from .laying import Laying
from .running import Running
from .spares import Spare, Spares, assign

_KINDS: dict[str, type[Isolation]] = {"container": Container, "plain": Plain}
_WATCH_S = 0.1
_FIRST_WATCH_S = 0.02
_REFILL_S = 0.003
"""While another spare waits, the fork of the next does too: first the host gets its answer."""
_LOOKS = 50
_LOOK_S = 20e-6


class _Sandbox:
    """A session plus what the supervisor remembers about it."""

    def __init__(self, session: Session, tree: files.Tree) -> None:
        self.session = session
        self.tree = tree
        self.entries: dict[str, files.Entry] = {}
        self.cell: Running | None = None
        self.spare: Spare | None = None
        """Already where the next cell belongs, with its rights and limits."""
        self.cells = 0
        """How many began since the last reset."""
        self.laying: Laying | None = None


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
        self.boxes: dict[str, _Sandbox] = {}
        self.queue: list[tuple[_Sandbox, dict[str, Any], list[bytes]]] = []
        self.cells: dict[int, Running] = {}
        self.parallel = int(config["parallel"])
        self.framer = wire.Framer()
        self.selector = selectors.DefaultSelector()
        self.next_watch = 0.0
        self.refill_at = 0.0

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
        linux.keep_freed(32 << 20)  # frames come and go: their memory need not be cleared each time
        self.selector.register(self.source, selectors.EVENT_READ, self._on_host)
        self.selector.register(self.spares.control, selectors.EVENT_READ, self.spares.pump)
        if self.host >= 0:
            self.selector.register(self.host, selectors.EVENT_READ, self._on_host_death)
        self.spares.refill()
        facts = {"zygote": self.spares.report, "cgroup": self.isolation.cgroup_version}
        self._reply(0, {"ok": True, "pid": os.getpid(), **facts})
        try:
            while True:
                for key, _ in self.selector.select(self._patience()):
                    # An earlier event of this round may have ended what this one is about.
                    if self.selector.get_map().get(key.fd) is key:
                        key.data()
                self._settle()
        except EOFError:
            pass
        finally:
            for cell in list(self.cells.values()):
                cell.kill(None)
            self.spares.close()
            self.isolation.teardown()

    def _patience(self) -> float | None:
        if not self.cells:
            chores = self.spares.missing or self.isolation.chores
            return max(0.0, self.refill_at - time.monotonic()) if chores else None
        if any(cell.looks for cell in self.cells.values()):
            return 0.0
        nearest = min(min(c.deadline for c in self.cells.values()), self.next_watch)
        return max(0.0, nearest - time.monotonic())

    def _on_host_death(self) -> None:
        raise EOFError

    def _on_host(self) -> None:
        try:
            data = os.read(self.source, 1 << 18)
        except BlockingIOError:
            return
        if not data:
            raise EOFError
        for header, blobs in self.framer.feed(data):
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
        prepared = sum(box.spare is not None for box in self.boxes.values())
        state = {"sessions": len(self.boxes), "cells": len(self.cells), "prepared": prepared}
        self._reply(request, {"ok": True, **state, "fork_us": self.spares.fork_us})

    def _do_open(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        if len(self.boxes) >= self.isolation.max_sessions:
            raise RuntimeError("this worker takes no further session")
        session = Session(header["sid"], header["limits"], {})
        self.isolation.open(session)
        self.boxes[session.sid] = _Sandbox(session, self._tree(session))
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
        box = self.boxes.get(header["sid"])
        if box is not None:
            self.queue = [item for item in self.queue if item[0] is not box]
            self._stop(box)
            self._dismiss(box)
            del self.boxes[box.session.sid]
            self.isolation.close(box.session)
        self._reply(request, {"ok": True})

    def _do_put(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box = self.boxes[header["sid"]]
        laying = box.laying or self._begin(box)
        laying.take(header["files"], blobs)

    def _do_reset(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box = self.boxes[header["sid"]]
        laying = box.laying or self._begin(box)
        box.laying = None
        laying.finish()
        box.tree.expect(laying.digests)
        box.entries = self._scan(box)
        self._reply(request, {"ok": True})
        self.refill_at = time.monotonic() + _REFILL_S if self.spares.ready else 0.0

    def _begin(self, box: _Sandbox) -> Laying:
        """Leave nothing of the last episode."""
        self._stop(box)
        box.cells = 0
        if self.isolation.namespaces:
            self._dismiss(box)  # its namespaces end here
        self.isolation.wipe(box.session)
        box.tree.forget()
        box.laying = Laying(self.isolation, box.session)
        return box.laying

    def _scan(self, box: _Sandbox) -> dict[str, files.Entry]:
        with self.isolation.as_agent():
            return box.tree.scan()

    def _idle(self, header: dict[str, Any]) -> _Sandbox:
        box = self.boxes[header["sid"]]
        if box.cell is not None or any(item[0] is box for item in self.queue):
            raise RuntimeError("a cell of this session is still running")
        return box

    def _do_manifest(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box = self._idle(header)
        box.entries = self._scan(box)
        self._reply(request, {"ok": True, "entries": box.entries})

    def _do_inputs(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box, entries = self._idle(header), {}
        for place in READ_ONLY:
            tree = self._tree(box.session, place)
            entries.update({f"{place}/{name}": entry for name, entry in tree.scan().items()})
            if tree.over:
                raise RuntimeError(f"/{place} holds too much to be compared")
        self._reply(request, {"ok": True, "entries": entries})

    def _do_read(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box = self._idle(header)
        with self.isolation.as_agent():
            data = box.tree.read(header["path"], int(header["max_bytes"]))
        self._stream(request, header["path"], data)
        self._reply(request, {"ok": True})

    def _stream(self, request: int, name: str, data: bytes) -> None:
        for start in range(0, max(1, len(data)), wire.CHUNK):
            self._reply(request, {"more": True, "path": name}, [data[start : start + wire.CHUNK]])

    def _do_snapshot(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box = self._idle(header)
        with self.isolation.as_agent():
            for name in box.tree.regular_files():
                self._stream(request, name, box.tree.read(name, 1 << 40))
        self._reply(request, {"ok": True})

    # -- cells -----------------------------------------------------------------------------------

    def _do_run(self, request: int, header: dict[str, Any], blobs: list[bytes]) -> None:
        box = self._idle(header)
        item = (box, header, blobs)
        self.queue.append(item)
        self._start_queued()
        if item in self.queue:
            self._reply(request, {"more": True, "event": "queued"})
            header["queued"] = True

    def _start_queued(self) -> None:
        while self.queue and len(self.cells) < self.parallel:
            if not self.spares.ready and self.queue[0][0].spare is None:
                return
            box, header, blobs = self.queue.pop(0)
            try:
                self._start(box, header, blobs)
            except Exception as error:
                message = f"could not start a cell: {type(error).__name__}: {error}"
                self._reply(int(header["id"]), {"error": "sandbox", "message": message})

    def _start(self, box: _Sandbox, header: dict[str, Any], blobs: list[bytes]) -> None:
        session = box.session
        code = self.isolation.inward(session, blobs[0])
        job = {
            "cwd": self.isolation.job(session)["cwd"],
            "language": header["language"],
            "code": code.decode("utf-8", "surrogatepass"),
            "seed": header["seed"],
            "threads": max(1, -int(-session.limits["cpus"] // 1)),
        }
        if box.spare is None:
            self._prepare(box)
        spare, box.spare = box.spare, None
        assert spare is not None
        self.isolation.trusted.discard(spare.pid)
        box.cells += 1
        (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe()
        for fd in (out_read, err_read):
            os.set_blocking(fd, False)
        timeout = float(header["timeout"])
        cell = Running(
            self.isolation, session, spare, int(header["id"]), timeout, (out_read, err_read)
        )
        cell.before = self.isolation.counters(session)
        try:
            assign(spare, {"run": job}, [out_write, err_write])
        except OSError:
            cell.close()
            self.isolation.finish(spare.cage, spare.pid)
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        box.cell = cell
        self.cells[spare.pid] = cell
        soon = cell.started + _FIRST_WATCH_S
        self.next_watch = soon if len(self.cells) == 1 else min(self.next_watch, soon)
        for capture in cell.captures:
            self.selector.register(
                capture.fd, selectors.EVENT_READ, partial(self._on_output, cell, capture)
            )
        if header.get("queued"):
            self._reply(cell.request, {"more": True, "event": "started"})
        self.refill_at = soon if self.spares.ready else 0.0

    def _prepare(self, box: _Sandbox) -> None:
        """Send a spare ahead to where the session's next cell will run."""
        session = box.session
        spare = self.spares.take()
        self.isolation.admit(session, spare.pid)
        place = {
            **self.isolation.job(session),
            "lock": self.isolation.lock,
            "rlimits": self._rlimits(session),
        }
        assign(spare, {"enter": place}, session.namespaces)
        box.spare = spare

    def _prepare_next(self) -> None:
        """Prepare for sessions that have run more than once: another cell is likely."""
        for box in self.boxes.values():
            if box.cells > 1 and box.cell is None and box.spare is None and self.spares.ready:
                with contextlib.suppress(OSError):
                    self._prepare(box)

    def _dismiss(self, box: _Sandbox) -> None:
        spare, box.spare = box.spare, None
        if spare is not None:
            spare.retire()
            self.isolation.trusted.discard(spare.pid)
            self.isolation.finish(spare.cage, spare.pid)

    def _rlimits(self, session: Session) -> dict[str, int]:
        limits = session.limits
        memory = int(limits["memory_mb"]) << 20
        base = {
            name: kib << 10 for name, kib in self.spares.report.items() if name.startswith("Vm")
        }
        values = {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": max(int(limits[f"{name}_mb"]) for name in ("workspace", "tmp", "shm"))
            << 20,
            "RLIMIT_NOFILE": 1024,
            "RLIMIT_DATA": base.get("VmData", 0) + memory,
        }
        if self.isolation.namespaces:
            # One more than allowed: the watchdog sees the breach before fork fails forever.
            values["RLIMIT_NPROC"] = int(limits["pids"]) + 1
        return values

    def _on_output(self, cell: Running, capture: Any) -> None:
        if not capture.pump():
            self._unregister(capture.fd)
            if cell.silent and self.isolation.sees_exit:
                cell.looks = _LOOKS
        cell.check_output()

    def _unregister(self, fileobj: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(fileobj)

    def _settle(self) -> None:
        """Everything that is due: ended children, deadlines, the watchdog, the queue."""
        ended, self.spares.ended = self.spares.ended, []
        for pid, status, cpu in ended:
            if pid in self.cells:
                self._finish_safely(self.cells.pop(pid), status, cpu)
            for box in self.boxes.values():
                if box.spare is not None and box.spare.pid == pid:
                    self._dismiss(box)
        self._look()
        now = time.monotonic()
        for cell in self.cells.values():
            if now >= cell.deadline:
                cell.kill("timeout")
                cell.deadline = now + 1.0
        if self.cells and now >= self.next_watch:
            table = proc.processes(pidns=self.isolation.namespaces)
            for cell in self.cells.values():
                cell.check_usage(table, self.spares.report)
            self.next_watch = time.monotonic() + _WATCH_S
        self._start_queued()
        if now >= self.refill_at:
            self._prepare_next()
            self.spares.refill()
            self.isolation.reap()

    def _look(self) -> None:
        """Find cells that ended before their parent hears of it: the host need not wait for that.

        A cell that falls silent is about to exit. If it only closed its streams, the look ends in
        vain and the parent's word counts, as it does for all other ends.
        """
        for pid, cell in [item for item in self.cells.items() if item[1].looks]:
            cell.looks -= 1
            with self.isolation.as_agent():
                ended = proc.exit_of(pid)
            if ended is not None:
                self.spares.late.add(pid)
                self._finish_safely(self.cells.pop(pid), *ended)
            elif cell.looks:
                time.sleep(_LOOK_S)

    def _finish_safely(self, cell: Running, status: int, cpu: int) -> None:
        """One session's trouble is not another's."""
        try:
            self._finish(cell, status, cpu)
        except Exception as error:
            message = f"could not look at what the cell did: {type(error).__name__}: {error}"
            self._reply(cell.request, {"error": "sandbox", "message": message})
            cell.close()
        self.refill_at = time.monotonic() + _REFILL_S if self.spares.ready else 0.0

    def _finish(self, cell: Running, status: int, cpu: int) -> None:
        for capture in cell.captures:
            self._unregister(capture.fd)
        cell.hear()
        self.isolation.finish(cell.spare.cage, cell.spare.pid)
        cell.drain()
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        box = self.boxes.get(cell.session.sid)
        if box is not None and box.cell is cell:
            box.cell = None
            if cell.failure:
                message = f"the cell's process could not be set up: {cell.failure.decode()}"
                self._reply(cell.request, {"error": "sandbox", "message": message})
            else:
                self._answer(box, cell, code, cpu)
        cell.close()

    def _answer(self, box: _Sandbox, cell: Running, code: int, cpu: int) -> None:
        before, box.entries = box.entries, self._scan(box)
        after = box.entries
        created = {p: e for p, e in after.items() if p not in before}
        changed = {p: e for p, e in after.items() if p in before and before[p] != e}
        deleted = sorted(p for p in before if p not in after)
        growth = {}
        if cell.before:
            now = self.isolation.counters(box.session)
            growth = {k: v - cell.before.get(k, 0) for k, v in now.items()}
        header, blobs = cell.describe(code, cpu)
        header["limit"] = cell.verdict(code, growth, bool(created or changed), box.tree.over)
        header |= {"created": created, "changed": changed, "deleted": deleted}
        self._reply(cell.request, {"ok": True, **header}, blobs)

    def _stop(self, box: _Sandbox) -> None:
        """End the session's cell, if one runs, inside a request."""
        if box.cell is None:
            return
        box.cell.kill(None)
        deadline = time.monotonic() + 30
        while box.cell is not None:
            self.spares.pump()
            pid = box.cell.spare.pid
            for item in [e for e in self.spares.ended if e[0] == pid]:
                self.spares.ended.remove(item)
                self._finish_safely(self.cells.pop(pid), item[1], item[2])
            if time.monotonic() > deadline:
                raise RuntimeError("a killed cell did not end")
            time.sleep(0.001)


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
