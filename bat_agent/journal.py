"""Episodes of an unfinished evaluation, kept beside its file so that the same command goes on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bat_agent.files import read_json, write_json
from bat_agent.rollout import EpisodeResult, ResetSpec
from bat_env.errors import ConfigError

JOURNAL_SCHEMA: Final = 1
SUFFIX: Final = ".part"


class Journal:
    """What is known of an evaluation before it is finished. Thread-safe.

    Args:
        path: Its file.
        key: Digest of everything that the scores depend on.

    Raises:
        ConfigError: If the file is of an evaluation with other settings, or damaged.
    """

    def __init__(self, path: Path, key: str) -> None:
        self._path, self._key = path, key
        self._lock = threading.Lock()
        self._rows: dict[str, dict[str, Any]] = {}
        self.usage: dict[str, Any] = {}
        if not path.exists():
            return
        value = read_json(path, schema_version=JOURNAL_SCHEMA)
        if value.get("key") != key:
            raise ConfigError(
                f"{path} holds the episodes of an evaluation with other settings. Delete it, or "
                "give another --out."
            )
        self._rows, self.usage = dict(value["episodes"]), dict(value["usage"])

    def __len__(self) -> int:
        return len(self._rows)

    def known(self, specs: list[ResetSpec]) -> dict[int, EpisodeResult]:
        """Number -> result of the episodes that were played before."""
        rows = {int(number): row for number, row in self._rows.items()}
        return {n: EpisodeResult(specs[n], **row) for n, row in rows.items() if n < len(specs)}

    def add(self, number: int, episode: EpisodeResult, usage: Mapping[str, Any]) -> None:
        """Keep an episode that has a score, and what was spent so far."""
        row = asdict(episode)
        del row["spec"]
        with self._lock:
            self._rows[str(number)] = row
            self._write(usage)

    def stop(self, usage: Mapping[str, Any]) -> None:
        """Keep what was spent, on unfinished episodes too."""
        with self._lock:
            self._write(usage)

    def done(self) -> None:
        """The evaluation has its file: this one is not needed any more."""
        self._path.unlink(missing_ok=True)

    def _write(self, usage: Mapping[str, Any]) -> None:
        document = {
            "schema_version": JOURNAL_SCHEMA,
            "key": self._key,
            "usage": dict(usage),
            "episodes": self._rows,
        }
        write_json(self._path, document)
