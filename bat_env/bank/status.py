"""What a bank says of itself: the grid of counts, and the outcome of a full check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BankStatus:
    """Counts of a bank.

    Attributes:
        grid: track -> focus name -> outcome -> admitted states; zeros included.
        demonstrations: focus name -> count.
        jobs: Status of build jobs -> count.
        rejections: Reason -> rejected build jobs.
        digest: Names the whole content: admitted states and demonstrations.
        bytes_on_disk: Size of all blobs and the index.
    """

    grid: Mapping[str, Mapping[str, Mapping[str, int]]]
    demonstrations: Mapping[str, int]
    jobs: Mapping[str, int]
    rejections: Mapping[str, int]
    digest: str
    bytes_on_disk: int

    @property
    def states(self) -> int:
        """Admitted states."""
        return sum(n for t in self.grid.values() for f in t.values() for n in f.values())

    @property
    def empty_cells(self) -> list[tuple[str, str, str]]:
        """Cells without a state."""
        return [
            (track, focus, outcome)
            for track, foci in self.grid.items()
            for focus, outcomes in foci.items()
            for outcome, count in outcomes.items()
            if count == 0
        ]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "schema_version": 1,
            "states": self.states,
            "grid": {t: {f: dict(o) for f, o in foci.items()} for t, foci in self.grid.items()},
            "demonstrations": dict(self.demonstrations),
            "jobs": dict(self.jobs),
            "rejections": dict(self.rejections),
            "digest": self.digest,
            "bytes_on_disk": self.bytes_on_disk,
        }


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Outcome of :meth:`Bank.verify`: what was read, and every problem by name."""

    states: int
    demonstrations: int
    blobs: int
    orphans: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every row and every blob is whole."""
        return not self.problems
