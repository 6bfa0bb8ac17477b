"""The books of a Stage Bank: which jobs are done, facts about it, what it holds in numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bat_env.bank.index import Index
from bat_env.bank.state import canonical, digest_of
from bat_env.bank.status import BankStatus
from bat_env.stages import OUTCOMES, Stage


class Books:
    """What a bank knows about itself. Thread-safe, as its index is.

    Args:
        path: The bank's folder.
        index: Its rows.
    """

    def __init__(self, path: Path, index: Index) -> None:
        self.path = path
        self._index = index

    def jobs(self) -> dict[str, tuple[str, dict[str, Any]]]:
        """Finished build jobs: id -> (status, detail). What a resumed build need not do again."""
        rows = self._index.rows("SELECT id, status, detail FROM jobs ORDER BY id")
        return {row[0]: (row[1], json.loads(row[2])) for row in rows}

    def finish_job(self, job_id: str, status: str, detail: Mapping[str, Any]) -> None:
        """Record a build job as finished, after everything it made was added."""
        self._index.write(
            "INSERT OR REPLACE INTO jobs VALUES (?,?,?)",
            (job_id, status, canonical(dict(detail)).decode()),
        )

    def set_meta(self, key: str, value: Any) -> None:
        """Store a JSON-able fact about the bank, for example the frozen demonstration mixture."""
        self._index.write(
            "INSERT OR REPLACE INTO meta VALUES (?,?)", (f"x-{key}", canonical(value).decode())
        )

    def meta(self, key: str) -> Any:
        """A fact stored by :meth:`set_meta`, or ``None``."""
        rows = self._index.rows("SELECT value FROM meta WHERE key=?", (f"x-{key}",))
        return json.loads(rows[0][0]) if rows else None

    def demonstrations_digest(self) -> str:
        """Names the set of demonstrations, so that a mixture stays frozen."""
        rows = self._index.rows("SELECT id FROM demos ORDER BY id")
        return digest_of(["demonstrations", [row[0] for row in rows]])

    def digest(self) -> str:
        """Names the whole content: states and demonstrations."""
        rows = self._index.rows("SELECT id FROM states ORDER BY id")
        return digest_of(["bank", [row[0] for row in rows], self.demonstrations_digest()])

    def status(self) -> BankStatus:
        """Counts for people: the grid, demonstrations, jobs, reasons of rejection."""
        grid: dict[str, dict[str, dict[str, int]]] = {}
        for track, focus, outcome, count in self._index.rows(
            "SELECT track, focus, outcome, count(*) FROM states GROUP BY 1, 2, 3 ORDER BY 1, 2, 3"
        ):
            empty = {stage.name: dict.fromkeys(OUTCOMES, 0) for stage in Stage}
            grid.setdefault(track, empty)[focus][outcome] = count
        jobs = list(self.jobs().values())
        reasons = Counter(str(d.get("reason", "unknown")) for s, d in jobs if s == "rejected")
        return BankStatus(
            grid=grid,
            demonstrations=dict(
                self._index.rows("SELECT focus, count(*) FROM demos GROUP BY 1 ORDER BY 1")
            ),
            jobs=dict(sorted(Counter(status for status, _ in jobs).items())),
            rejections=dict(sorted(reasons.items())),
            digest=self.digest(),
            bytes_on_disk=sum(p.stat().st_size for p in self.path.rglob("*") if p.is_file()),
        )
