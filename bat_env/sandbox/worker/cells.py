"""Cells: who runs, who waits, who is sent ahead, and what is answered when one ends."""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from . import counting, files, proc
from .isolation import Isolation, Session
from .laying import Laying
from .running import Running
from .spares import Spare, Spares, assign

_WATCH_S = 0.1
_FIRST_WATCH_S = 0.02
_REFILL_S = 0.003
"""While another spare waits, the fork of the next does too: first the host gets its answer."""
_LOOKS = 50
_QUICK_LOOKS = 10
"""So many looks follow each other at once: a nap costs a halted processor more than it rests."""
_LOOK_S = 20e-6


class Box:
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


class Cells:
    """Starts, watches and ends the cells of all sessions.

    Args:
        isolation: Of the worker.
        spares: Where their processes come from.
        selector: Of the worker's loop; outputs of cells are registered there.
        reply: Answers a request of the host.
        parallel: Cells that may run at a time.

    Attributes:
        boxes: All sessions by id.
        running: All cells by the id of their process.
        cpu: The CPU that a cell leaves before it dies, or -1.
    """

    def __init__(
        self,
        isolation: Isolation,
        spares: Spares,
        selector: selectors.BaseSelector,
        reply: Callable[..., None],
        parallel: int,
    ) -> None:
        self.isolation = isolation
        self.spares = spares
        self.selector = selector
        self.boxes: dict[str, Box] = {}
        self.running: dict[int, Running] = {}
        self.cpu = -1
        self._reply = reply
        self._parallel = parallel
        self._queue: list[tuple[Box, dict[str, Any], list[bytes]]] = []
        self._next_watch = 0.0
        self._refill_at = 0.0

    def patience(self) -> float | None:
        """Seconds until :meth:`settle` has something to do; None if only events can bring it."""
        if not self.running:
            chores = self.spares.missing or self.isolation.chores or self._unprepared()
            due = max(self._refill_at, self.spares.pause_until)
            return max(0.0, due - time.monotonic()) if chores else None
        if any(cell.looks for cell in self.running.values()):
            return 0.0
        nearest = min(min(c.deadline for c in self.running.values()), self._next_watch)
        return max(0.0, nearest - time.monotonic())

    def rest(self) -> None:
        """Let the host have its answer before chores begin."""
        self._refill_at = time.monotonic() + _REFILL_S if self.spares.ready else 0.0

    def idle(self, sid: str) -> Box:
        """The session, which must not have a cell.

        Raises:
            RuntimeError: If it has.
        """
        box = self.boxes[sid]
        if box.cell is not None or any(item[0] is box for item in self._queue):
            raise RuntimeError("a cell of this session is still running")
        return box

    def scan(self, box: Box) -> dict[str, files.Entry]:
        """The session's workspace now."""
        with self.isolation.as_agent():
            return box.tree.scan()

    def forget(self, box: Box) -> None:
        """Drop what the session waits for and end what it runs."""
        self._queue = [item for item in self._queue if item[0] is not box]
        self.stop(box)
        self.dismiss(box)

    def submit(self, box: Box, header: dict[str, Any], blobs: list[bytes]) -> None:
        """Run a cell as soon as a core is free; its answer follows."""
        item = (box, header, blobs)
        self._queue.append(item)
        self._start_queued()
        if item in self._queue:
            self._reply(int(header["id"]), {"more": True, "event": "queued"})
            header["queued"] = True

    def _start_queued(self) -> None:
        while self._queue and len(self.running) < self._parallel:
            if not self.spares.ready and self._queue[0][0].spare is None:
                return
            box, header, blobs = self._queue.pop(0)
            try:
                self._start(box, header, blobs)
            except Exception as error:
                message = f"could not start a cell: {type(error).__name__}: {error}"
                self._reply(int(header["id"]), {"error": "sandbox", "message": message})

    def _start(self, box: Box, header: dict[str, Any], blobs: list[bytes]) -> None:
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
        self.running[spare.pid] = cell
        soon = cell.started + _FIRST_WATCH_S
        self._next_watch = soon if len(self.running) == 1 else min(self._next_watch, soon)
        for capture in cell.captures:
            self.selector.register(
                capture.fd, selectors.EVENT_READ, partial(self._on_output, cell, capture)
            )
        if header.get("queued"):
            self._reply(cell.request, {"more": True, "event": "started"})
        self._refill_at = soon if self.spares.ready else 0.0

    def _prepare(self, box: Box) -> None:
        """Send a spare ahead to where the session's next cell will run."""
        session = box.session
        spare = box.spare = self.spares.take()
        try:
            self.isolation.admit(session, spare.pid)
            place = {
                **self.isolation.job(session),
                "lock": self.isolation.lock,
                "rlimits": self._rlimits(session),
                "avoid": self.cpu,
            }
            assign(spare, {"enter": place}, session.namespaces)
        except OSError:
            self.dismiss(box)
            raise

    def _prepare_next(self) -> None:
        """Prepare for sessions that have run more than once: another cell is likely."""
        for box in self._unprepared():
            if self.spares.ready:
                try:
                    self._prepare(box)
                except OSError:  # it had died; the next one may do better, but not at once
                    self.spares.pause_until = time.monotonic() + _REFILL_S

    def _unprepared(self) -> list[Box]:
        """Sessions that lack a process sent ahead, as far as there are spares for them."""
        waiting = (b for b in self.boxes.values() if b.cells > 1 and not (b.cell or b.spare))
        return list(islice(waiting, len(self.spares.ready)))

    def dismiss(self, box: Box) -> None:
        """End the process that was sent ahead, if one was."""
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

    def settle(self) -> None:
        """Everything that is due: ended children, deadlines, the watchdog, the queue."""
        ended, self.spares.ended = self.spares.ended, []
        for pid, status, cpu in ended:
            if pid in self.running:
                self._finish_safely(self.running.pop(pid), status, cpu)
            for box in self.boxes.values():
                if box.spare is not None and box.spare.pid == pid:
                    self.dismiss(box)
        self._look()
        now = time.monotonic()
        for cell in self.running.values():
            if now >= cell.deadline:
                cell.kill("timeout")
                cell.deadline = now + 1.0
        if self.running and now >= self._next_watch:
            table = self.isolation.processes()
            for cell in self.running.values():
                self._check_usage(cell, table)
            self._next_watch = time.monotonic() + _WATCH_S
        self._start_queued()
        if now >= max(self._refill_at, self.spares.pause_until):
            self._prepare_next()
            self.spares.refill()
            self.isolation.reap()
            counting.collect()
            if self.isolation.chores:  # the kernel is still at it: no busy waiting
                self._refill_at = now + _REFILL_S

    def _check_usage(self, cell: Running, table: list[proc.Process]) -> None:
        if cell.count is not None and cell.count.overdue:
            self._end_count(cell)
        if cell.check_usage(table) and cell.count is not None:
            on_count = partial(self._on_count, cell)
            self.selector.register(cell.count.fd, selectors.EVENT_READ, on_count)

    def _on_count(self, cell: Running) -> None:
        if cell.count is not None and cell.count.take():
            self._end_count(cell)

    def _end_count(self, cell: Running) -> None:
        if cell.count is not None:
            self._unregister(cell.count.fd)
            cell.end_count(self.spares.report)

    def _look(self) -> None:
        """Find cells that ended before their parent hears of it: the host need not wait for that.

        A cell that falls silent is about to exit. If it only closed its streams, the look ends in
        vain and the parent's word counts, as it does for all other ends.
        """
        for pid, cell in [item for item in self.running.items() if item[1].looks]:
            cell.looks -= 1
            with self.isolation.as_agent():
                ended = proc.exit_of(pid)
            if ended is not None:
                self.spares.late.add(pid)
                self._finish_safely(self.running.pop(pid), *ended)
            elif 0 < cell.looks < _LOOKS - _QUICK_LOOKS:
                time.sleep(_LOOK_S)

    def _finish_safely(self, cell: Running, status: int, cpu: int) -> None:
        """One session's trouble is not another's."""
        try:
            self._finish(cell, status, cpu)
        except Exception as error:
            message = f"could not look at what the cell did: {type(error).__name__}: {error}"
            self._reply(cell.request, {"error": "sandbox", "message": message})
            cell.close()
        self.rest()

    def _finish(self, cell: Running, status: int, cpu: int) -> None:
        for capture in cell.captures:
            self._unregister(capture.fd)
        if cell.count is not None:
            self._unregister(cell.count.fd)
        cell.hear()
        cell.check_left()
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

    def _answer(self, box: Box, cell: Running, code: int, cpu: int) -> None:
        before, box.entries = box.entries, self.scan(box)
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

    def stop(self, box: Box) -> None:
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
                self._finish_safely(self.running.pop(pid), item[1], item[2])
            if time.monotonic() > deadline:
                raise RuntimeError("a killed cell did not end")
            time.sleep(0.001)
