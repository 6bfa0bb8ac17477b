"""Self-check of a sandbox backend: what holds on this machine and what does not.

Every probe runs agent code that tries to break one promise and looks at what the host saw. Run it
with ``bat-env sandbox check --backend NAME`` on any backend, a plug-in's too. What a backend is
known not to hold, found by the attacks of ``tests/redteam``, is printed with its reason.
"""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass
from typing import Any

from .base import Limits
from .exceptions import KnownException, known_exceptions
from .probes import CHECKS, NEED_WALLS, Probe, walls_stand
from .registry import make_sandbox

CHECK_LIMITS = Limits(
    cell_timeout_s=30.0,
    memory_mb=512,
    pids=32,
    workspace_mb=16,
    workspace_inodes=256,
    tmp_mb=8,
    output_bytes=4096,
)


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One promise: its name, whether it holds, and what was seen."""

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All rows of one backend, and what it is known not to hold."""

    backend: str
    rows: tuple[CheckRow, ...]
    exceptions: tuple[KnownException, ...] = ()
    enforcement: str = ""
    """What limits memory and processes of a cell as a whole, where the backend says so."""

    @property
    def ok(self) -> bool:
        """Whether every promise holds; known exceptions are no promises."""
        return all(row.holds for row in self.rows)

    def failures(self) -> tuple[CheckRow, ...]:
        """The rows that do not hold."""
        return tuple(row for row in self.rows if not row.holds)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON-able values."""
        return {
            "schema_version": 1,
            "backend": self.backend,
            "enforcement": self.enforcement,
            "ok": self.ok,
            "rows": [asdict(row) for row in self.rows],
            "exceptions": [asdict(row) for row in self.exceptions],
        }

    def __str__(self) -> str:
        width = max((len(row.name) for row in self.rows), default=0)
        how = f", cells limited by {self.enforcement}" if self.enforcement else ""
        lines = [f"sandbox backend {self.backend}{how}"]
        for row in self.rows:
            word = "holds" if row.holds else "FAILS"
            lines.append(f"{word}  {row.name:<{width}}  {row.detail}")
        if self.exceptions:
            lines.append(f"\nknown not to hold on {self.backend}:")
            for known in self.exceptions:
                lines.append(f"  {known.promise}")
                lines += textwrap.wrap(
                    known.reason, 92, initial_indent=" " * 6, subsequent_indent=" " * 6
                )
        return "\n".join(lines)


def check_sandbox(backend: str, **options: Any) -> CheckReport:
    """Run the self-check suite against a backend.

    Args:
        backend: A registered name.
        options: Further keyword arguments of the backend.

    Returns:
        One row for each promise, and the known exceptions.

    Raises:
        SandboxError: If the backend cannot start here, or died during a check.
    """
    sandbox = make_sandbox(backend, CHECK_LIMITS, **options)
    rows = []
    try:
        sandbox.start()
        probe = Probe(sandbox)
        walls = walls_stand(probe)
        for name, check in CHECKS.items():
            if name in NEED_WALLS and not walls:
                rows.append(CheckRow(name, False, "not tried: cells can reach the host"))
                continue
            sandbox.reset({"data/in.txt": b"input"})
            holds, detail = check(probe)
            rows.append(CheckRow(name, holds, detail))
        known = tuple(e for e in known_exceptions(sandbox.backend) if e.stands(sandbox))
        enforcement = str(getattr(sandbox, "enforcement", ""))
    finally:
        sandbox.close()
    return CheckReport(sandbox.backend, tuple(rows), known, enforcement)
