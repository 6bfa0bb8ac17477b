"""Replaying the start of a script in a real sandbox, and keeping what it leaves behind."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from bat_env.bank.faults import Past
from bat_env.sandbox.base import Cell, CellResult, Sandbox
from bat_env.sandbox.pool import Beside
from bat_env.stages import Stage
from bat_env.tasks import Task, stage_files
from bat_env.tasks.instance import Instance
from bat_env.tasks.scripts import ScriptCell

_EXPOSED_CHARS: Final = 1200


@dataclass(frozen=True)
class Prefix:
    """What a replayed prefix leaves.

    Attributes:
        workspace: Workspace-relative path -> content, without what staging lays down anyway.
        transcript: One JSON-able record a cell.
    """

    workspace: dict[str, bytes]
    transcript: tuple[dict[str, Any], ...]

    @property
    def size(self) -> int:
        """Bytes of the workspace."""
        return sum(len(data) for data in self.workspace.values())


_KEPT_BYTES: Final = 192 << 20


class Prefixes:
    """What replayed beginnings left, for all workers of a build; the least used go first.

    Args:
        max_bytes: Workspace bytes kept.
    """

    def __init__(self, max_bytes: int = _KEPT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[Any, ...], Prefix] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...]) -> Prefix | None:
        """What is known under a key."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: tuple[Any, ...], prefix: Prefix) -> None:
        """Keep a prefix; equal keys always have equal content."""
        with self._lock:
            if key not in self._kept:
                self._bytes += prefix.size
            self._kept[key] = prefix
            while self._bytes > self._max_bytes and len(self._kept) > 1:
                _, gone = self._kept.popitem(last=False)
                self._bytes -= gone.size


class Replayer:
    """Replays prefixes on one instance; equal beginnings run once.

    A snapshot is kept after each stage, so that states of later stages and other faults go on from
    there.

    Args:
        pool: Where sandboxes come from.
        task, instance, tier: What is replayed.
        known: Where beginnings are kept; its own place if omitted.
    """

    def __init__(
        self,
        pool: Beside,
        task: Task,
        instance: Instance,
        tier: str,
        known: Prefixes | None = None,
    ) -> None:
        self._pool = pool
        self._task = task
        self._instance = instance
        # The data and the model are the same for every focus; only the granted skills differ.
        self._files = stage_files(task, instance, tier, Stage.E2E)
        self._laid = {
            path.removeprefix("workspace/"): data
            for path, data in self._files.items()
            if path.startswith("workspace/")
        }
        self._timeout_s = task.spec.budgets.cell_timeout_s
        self._known = Prefixes() if known is None else known
        self._name = (instance.digest, task.digest, tier)

    def run(self, cells: Sequence[ScriptCell], *, fresh: bool = False) -> Prefix:
        """Run cells from an empty workspace.

        Args:
            cells: In order.
            fresh: Ignore what is known and run everything in one go, to compare.

        Raises:
            SandboxError: If the sandbox failed.
        """
        wanted = tuple(cells)
        done, prefix = 0, Prefix({}, ())
        for length in range(0 if fresh else len(wanted), 0, -1):
            start = self._known.get((*self._name, wanted[:length]))
            if start is not None:
                done, prefix = length, start
                break
        if done == len(wanted):
            return prefix
        with self._pool.lease() as sandbox:
            sandbox.reset(self._tree(prefix.workspace))
            transcript = list(prefix.transcript)
            for position in range(done, len(wanted)):
                cell = wanted[position]
                result = sandbox.run(
                    Cell(cell.language, cell.code, self._seed(position)), self._timeout_s
                )
                transcript.append(_record(cell, result))
                last = position + 1 == len(wanted)
                if last or wanted[position + 1].stage is not cell.stage:
                    prefix = Prefix(self._snapshot(sandbox), tuple(transcript))
                    if not fresh:
                        self._known.put((*self._name, wanted[: position + 1]), prefix)
        return prefix

    def leftover(self, past: Past, tier: str) -> dict[str, bytes]:
        """The workspace in which a state with this past begins.

        Where the focus does a replayed stage again, only what the mistake spoilt is left. A correct
        file that is written again unchanged leaves no trace, so nobody could earn credit for it.

        Raises:
            SandboxError: If the sandbox failed.
        """
        files = self.run(past.cells(self._task, tier)).workspace
        redone = past.redone()
        if past.fault is None or not redone:
            return files
        clean = replace(past, fault=None).cells(self._task, tier)
        kept = self.run([cell for cell in clean if cell.stage not in redone]).workspace
        good = self.run(clean).workspace
        return {
            path: data
            for path, data in files.items()
            if good.get(path) != data or kept.get(path) == data
        }

    def check(self, code: str, workspace: dict[str, bytes]) -> str:
        """What a mistake's check prints in a workspace, clipped; empty if it prints nothing.

        Raises:
            SandboxError: If the sandbox failed.
        """
        with self._pool.lease() as sandbox:
            sandbox.reset(self._tree(workspace))
            result = sandbox.run(Cell("python", code, self._seed(-1)), self._timeout_s)
        text = "\n".join(part for part in (result.stdout.strip(), result.stderr.strip()) if part)
        if len(text) <= _EXPOSED_CHARS:
            return text
        half = _EXPOSED_CHARS // 2
        cut = len(text) - 2 * half
        return f"{text[:half]}\n[{cut} characters cut]\n{text[-half:]}"

    def _tree(self, workspace: dict[str, bytes]) -> dict[str, bytes]:
        return {f"workspace/{path}": data for path, data in workspace.items()} | dict(self._files)

    def _snapshot(self, sandbox: Sandbox) -> dict[str, bytes]:
        return {
            path: data for path, data in sandbox.snapshot().items() if self._laid.get(path) != data
        }

    def _seed(self, position: int) -> int:
        text = f"replay {self._instance.seed} {position}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")


def _record(cell: ScriptCell, result: CellResult) -> dict[str, Any]:
    return {
        "stage": cell.stage.name,
        "language": cell.language,
        "code": cell.code,
        "exit_code": result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "limit": result.limit,
    }
