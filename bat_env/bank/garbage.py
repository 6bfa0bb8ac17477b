"""Blobs that no row names any more, and how they go without taking one about to be named."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from bat_env.bank.blobs import BlobStore
from bat_env.bank.index import Index
from bat_env.errors import BankError

_NAME: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_TABLES: Final = ("states", "demos", "jobs", "meta")


@dataclass(frozen=True, slots=True)
class GarbageReport:
    """What a collection did.

    Attributes:
        kept: Blobs that rows name.
        removed: Blobs deleted.
        freed_bytes: Bytes that they took on disk.
        leftovers: Temporary files of killed writers, deleted too.
    """

    kept: int
    removed: int
    freed_bytes: int
    leftovers: int

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "schema_version": 1,
            "kept": self.kept,
            "removed": self.removed,
            "freed_bytes": self.freed_bytes,
            "leftovers": self.leftovers,
        }


class Gate:
    """Many may add rows at once, or one may collect: a blob is put before the row that names it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """While rows are added."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """While blobs are deleted: waits for those inside, and holds up those who come."""
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._closed = True
            self._changed.wait_for(lambda: self._inside == 0)
        try:
            yield
        finally:
            with self._changed:
                self._closed = False
                self._changed.notify_all()


def collect(index: Index, blobs: BlobStore) -> GarbageReport:
    """Delete unnamed blobs; the caller holds the writer's lock and the gate.

    Raises:
        BankError: If the index is damaged: what it does not show might be named.
    """
    damage = [row[0] for row in index.rows("PRAGMA integrity_check") if row[0] != "ok"]
    if damage:
        raise BankError(
            f"The index of the Stage Bank at {index.folder} is damaged ({damage[0]}): nothing was "
            "collected. Run `bat-env bank verify`, move the bank away and build it again."
        )
    used = named(index, blobs)
    kept = removed = freed = 0
    for digest in list(blobs.digests()):
        if digest in used:
            kept += 1
            continue
        freed += blobs.remove(digest)
        removed += 1
    return GarbageReport(kept, removed, freed, blobs.sweep())


def named(index: Index, blobs: BlobStore) -> set[str]:
    """Every blob that anything in the index names, by any field: a corrupt row counts as well."""
    used: set[str] = set()
    for table in _TABLES:
        for row in index.rows(f"SELECT * FROM {table}"):
            for value in row:
                if isinstance(value, str):
                    used.update(_NAME.findall(value))
    for (record,) in index.rows("SELECT record FROM states"):
        with contextlib.suppress(BankError, ValueError, KeyError, TypeError, AttributeError):
            manifest = json.loads(blobs.get(json.loads(record)["workspace"]))
            used.update(manifest["files"].values())
    return used
