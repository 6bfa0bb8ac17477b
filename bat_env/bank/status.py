"""What a bank says of itself: counts, the outcome of a full check, the report of a build."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bat_env.bank.state import StageState


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


@dataclass
class BuildReport:
    """What a build did.

    Attributes:
        states: Admitted states of the bank that this build asked for.
        demonstrations: Demonstrations stored.
        rejected: (cell, fault, reason, detail) of every refused candidate.
        failed: The same, of jobs without a verdict because sandboxes failed; built again next time.
        resumed: Jobs that an earlier build had finished.
        short: Cells with fewer states than asked for -> how many they have.
        rows: SFT rows that the bank's demonstrations give, one a response.
        rows_refused: Why others are left out -> count.
        seconds: Phase -> wall seconds, summed over workers.
        teacher_refused: Why answers of an LLM teacher were not used -> count.
        digest: Of the bank.
        demonstrations_digest: Of the frozen set of demonstrations.
    """

    states: list[StageState] = field(default_factory=list)
    demonstrations: int = 0
    rejected: list[tuple[tuple[str, ...], str, str, str]] = field(default_factory=list)
    failed: list[tuple[tuple[str, ...], str, str, str]] = field(default_factory=list)
    resumed: int = 0
    short: dict[tuple[str, ...], int] = field(default_factory=dict)
    rows: int = 0
    rows_refused: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    teacher_refused: dict[str, int] = field(default_factory=dict)
    digest: str = ""
    demonstrations_digest: str = ""

    @property
    def reasons(self) -> dict[str, int]:
        """Reason -> number of rejected candidates."""
        return dict(sorted(Counter(reason for _, _, reason, _ in self.rejected).items()))

    @property
    def faults(self) -> dict[str, int]:
        """Fault of recovery and failure states -> number of states."""
        return dict(sorted(Counter(state.fault for state in self.states if state.fault).items()))

    def to_json(self) -> dict[str, Any]:
        """JSON-able summary."""
        scores: dict[str, list[dict[str, float]]] = defaultdict(list)
        for state in self.states:
            scores[f"{state.track}/{state.focus.name}/{state.outcome}"].append(state.admission)
        return {
            "schema_version": 1,
            "states": len(self.states),
            "demonstrations": self.demonstrations,
            "resumed": self.resumed,
            "failed": len(self.failed),
            "rejections": self.reasons,
            "rejected": [
                {"cell": "/".join(cell), "fault": fault, "reason": reason, "detail": detail}
                for cell, fault, reason, detail in self.rejected
            ],
            "short": {"/".join(cell): count for cell, count in self.short.items()},
            "rows": self.rows,
            "rows_refused": self.rows_refused,
            "seconds": self.seconds,
            "teacher_refused": self.teacher_refused,
            "faults": self.faults,
            "admission": {
                cell: {
                    key: sum(row[key] for row in rows) / len(rows)
                    for key in ("start", "oracle", "naive")
                }
                for cell, rows in sorted(scores.items())
            },
            "digest": self.digest,
            "demonstrations_digest": self.demonstrations_digest,
        }

    def __str__(self) -> str:
        lines = [
            f"{len(self.states)} states, {self.demonstrations} demonstrations "
            f"({self.resumed} jobs were there already), {self.rows} SFT rows"
        ]
        lines += [f"  {count} rows left out: {why}" for why, count in self.rows_refused.items()]
        lines += [f"  refused {count}: {reason}" for reason, count in self.reasons.items()]
        lines += [f"  short: {'/'.join(cell)} has {n}" for cell, n in sorted(self.short.items())]
        if self.failed:
            lines.append(f"  {len(self.failed)} jobs failed with their sandbox; build again")
        return "\n".join(lines)
