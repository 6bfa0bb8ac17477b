"""A sandbox of somebody else: it relays to another backend, as a provider's client would.

``fault`` breaks one promise on purpose, for the tests of the conformance suite.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from bat_env.sandbox import Cell, CellResult, Delta, FileTree, Limits, Manifest, make_sandbox


class AcmeSandbox:
    """Relays every call."""

    fault: ClassVar[str] = ""
    shared: ClassVar[Any] = None

    def __init__(self, limits: Limits) -> None:
        self.backend = "acme"
        self.limits = limits
        self._inner = make_sandbox("local", limits, preload=())
        self._leaked = False
        self._cells = 0
        if self.fault == "shared":
            type(self).shared = self._inner = type(self).shared or self._inner
        if self.fault == "limits":
            self.limits = limits.model_copy(update={"pids": 5})

    @staticmethod
    def problem() -> str:
        return ""

    def start(self) -> None:
        self._inner.start()
        if self.fault == "restart":
            self._inner.reset({})

    def reset(self, files: FileTree) -> None:
        if self.fault == "forgets":
            files = {path: data for path, data in files.items() if not path.startswith("skills")}
        if self.fault == "anywhere":
            files = {path: data for path, data in files.items() if path == "data/x"}
        if self.fault == "keeps":
            kept = {f"workspace/{path}": data for path, data in self._inner.snapshot().items()}
            files = {**kept, **files}
        self._inner.reset(files)

    def run(self, cell: Cell, timeout_s: float | None = None) -> CellResult:
        fault: Callable[[CellResult], CellResult] = {
            "deltas": lambda seen: replace(seen, delta=Delta()),
            "exits": lambda seen: replace(seen, exit_code=0),
            "text": lambda seen: replace(
                seen, stdout=seen.stdout.encode("ascii", "replace").decode()
            ),
            "cuts": lambda seen: replace(seen, stdout_dropped=0),
            "timeout": lambda seen: replace(seen, limit=None),
            "memory": lambda seen: replace(seen, limit=None),
            "pids": lambda seen: replace(seen, limit=None),
            "disk": lambda seen: replace(seen, limit=None),
        }.get(self.fault, lambda seen: seen)
        self._cells += 1
        if self.fault == "amnesia":
            self._inner.reset({})
        if self.fault == "seeds":
            cell = replace(cell, seed=self._cells)
        if self.fault == "polyglot" and cell.language not in ("python", "bash"):
            return CellResult(127)
        if self.fault == "stale" and self._leaked:
            cell = replace(cell, code="import os; os.environ['LEAK'] = '1'\n" + cell.code)
        self._leaked = True
        return fault(self._inner.run(cell, timeout_s))

    def manifest(self) -> Manifest:
        seen = self._inner.manifest()
        if self.fault == "unsorted":
            return dict(reversed(list(seen.items())))
        if self.fault == "daemons" and "alive" in seen:
            self._cells += 1
            return {**seen, "alive": replace(seen["alive"], size=self._cells)}
        return seen

    def read(self, path: str, max_bytes: int) -> bytes:
        return self._inner.read(path, 1 << 30 if self.fault == "greedy" else max_bytes)

    def snapshot(self) -> dict[str, bytes]:
        seen = self._inner.snapshot()
        return (
            {path: data[: 4 << 20] for path, data in seen.items()} if self.fault == "torn" else seen
        )

    def close(self) -> None:
        if self.fault not in ("undead", "shared"):
            self._inner.close()
