"""The Stage Bank on disk: immutable rows in SQLite over content-addressed blobs.

A row is written last, in one transaction, after every blob that it names is durable. A reader sees
a whole row or none, whatever killed the writer. One process writes, any number read.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bat_env.bank.archive import MAX_ARCHIVE, ArchiveReport, read_archive, write_archive
from bat_env.bank.blobs import BlobStore
from bat_env.bank.books import Books
from bat_env.bank.garbage import GarbageReport, Gate, collect
from bat_env.bank.index import READABLE, Index
from bat_env.bank.rows import (
    DEMO_COLUMNS,
    DEMO_KEYS,
    STATE_COLUMNS,
    STATE_KEYS,
    Reader,
    demo_statement,
    state_statement,
    where_of,
)
from bat_env.bank.sampler import balanced_order
from bat_env.bank.state import (
    Demonstration,
    StageState,
    Transcript,
    canonical,
    workspace_manifest,
)
from bat_env.bank.status import VerifyReport
from bat_env.errors import BankError
from bat_env.sandbox.base import FileTree
from bat_env.sandbox.stored import StoredFiles
from bat_env.stages import Stage


def default_bank_path() -> Path:
    """``$BAT_BANK``, else ``$BAT_HOME/bank``, else ``~/.cache/automed-bat/bank``."""
    explicit = os.environ.get("BAT_BANK")
    if explicit:
        return Path(explicit)
    home = os.environ.get("BAT_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "automed-bat") / "bank"


@dataclass(frozen=True, slots=True)
class _Row:
    """What a draw needs to know of a state before it is read."""

    state_id: str
    cell: tuple[str, str, str]


class Bank(Books):
    """A Stage Bank. Thread-safe; a child process may use it after a fork.

    Attributes:
        path: Its folder.
        warnings: Reason -> number of rows that were skipped because they are corrupt.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, Index(path))
        self.blobs = BlobStore(path / "objects")
        self.warnings: Counter[str] = Counter()
        self._reader = Reader(path, self._index, self.blobs)
        self._gate = Gate()

    # ------------------------------------------------------------------------------ open and close

    @classmethod
    def open(cls, path: str | Path | None = None, create: bool = False) -> Bank:
        """Open a bank.

        Args:
            path: Its folder; ``None`` is :func:`default_bank_path`.
            create: Make it if it is not there.

        Raises:
            BankError: If there is none, it cannot be made, or its index cannot be read.
        """
        bank = cls(Path(path) if path is not None else default_bank_path())
        if create:
            try:
                bank.blobs.root.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise BankError(
                    f"Expected a folder where a Stage Bank can be written, got {bank.path}: "
                    f"{error.strerror or error}. Give another path."
                ) from error
            bank._index.create()
        elif not bank._index.there():
            objects = sum(1 for _ in bank.blobs.digests())
            lacking = (
                f"The Stage Bank at {bank.path} has lost its index ({bank._index.file.name} is "
                f"missing or empty; {objects} objects are there). Run `bat-env bank build`: it "
                "makes the rows again and keeps the objects that fit."
            )
            none = f"There is no Stage Bank at {bank.path}. Run `bat-env bank build` to make it."
            raise BankError(lacking if objects else none)
        rows = bank._index.rows("SELECT value FROM meta WHERE key='schema_version'")
        if not rows or rows[0][0] not in READABLE:
            raise BankError(
                f"The Stage Bank at {bank.path} has schema version {rows[0][0] if rows else None}, "
                f"expected {' or '.join(READABLE)}. Build a new one with `bat-env bank build`."
            )
        return bank

    def close(self) -> None:
        """Close the index and release the writer's lock. Idempotent."""
        self._index.close()

    def __enter__(self) -> Bank:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])  # type: ignore[misc]

    def _become_writer(self) -> None:
        if self._index.become_writer():
            self.blobs.sweep()

    # ------------------------------------------------------------------------------------- states

    def add(
        self, state: StageState, workspace: FileTree, transcript: Transcript = ()
    ) -> StageState:
        """Add a state; adding the same content again changes nothing.

        Args:
            state: The row; ``state_id``, ``workspace`` and ``transcript`` are set here.
            workspace: Workspace-relative path -> content.
            transcript: JSON-able records of the cells that led here.

        Returns:
            The stored row.

        Raises:
            BankError: If a path is unsafe, the disk refuses, or another process writes.
        """
        manifest = workspace_manifest(workspace)
        with self._gate.shared():
            self._become_writer()
            for path in sorted(workspace):
                self.blobs.put(workspace[path])
            row = state.model_copy(
                update={
                    "workspace": self.blobs.put(manifest),
                    "transcript": self.blobs.put(canonical(list(transcript))),
                }
            )
            row = row.model_copy(update={"state_id": row.content_id()})
            with self._index.lock:
                with contextlib.suppress(BankError):
                    return self.get(row.state_id)
                self._index.write(*state_statement(row))
        return row

    def get(self, state_id: str) -> StageState:
        """The state with this id, its workspace checked.

        Raises:
            BankError: If there is none, or the row or one of its blobs is corrupt.
        """
        state = self._row(state_id)
        self._reader.check(state)
        return state

    def files(self, state_id: str) -> StoredFiles:
        """Workspace of a state, each content read when it is asked for.

        A sandbox asks only for those that its worker does not have.

        Raises:
            BankError: If there is no such state or its manifest is corrupt; on access to a content,
                if that is corrupt.
        """
        return self._reader.files(self._row(state_id))

    def workspace(self, state_id: str) -> dict[str, bytes]:
        """Workspace of a state: path -> content, byte for byte what was added.

        Raises:
            BankError: As :meth:`get`.
        """
        return dict(self.files(state_id))

    def transcript(self, state_id: str) -> list[dict[str, Any]]:
        """The cells that led to a state: for provenance and supervised slices, never observed.

        Raises:
            BankError: As :meth:`get`.
        """
        value = json.loads(self.blobs.get(self._row(state_id).transcript))
        if not isinstance(value, list):
            raise BankError(f"The transcript of state {state_id} is corrupt: not a list.")
        return value

    def query(self, **query: Any) -> list[StageState]:
        """States that match, ordered by id; corrupt rows are skipped and counted in ``warnings``.

        Args:
            query: Any of track, task, task_digest, tier, size, focus, outcome, fault, index;
                ``None`` matches everything. A task may be given without its track.

        Raises:
            UnknownNameError: For an unknown key, focus or outcome.
        """
        where, values = where_of(query, STATE_KEYS)
        found = []
        for row in self._index.rows(
            f"SELECT {STATE_COLUMNS} FROM states{where} ORDER BY id", values
        ):
            try:
                found.append(self._reader.state(row))
            except BankError:
                self.warnings["corrupt state row skipped"] += 1
        return found

    def sample(self, rng: np.random.Generator, **query: Any) -> StageState:
        """Draw a state: uniform over the cells that match and have states, then within the cell.

        A corrupt state is skipped and counted in ``warnings``.

        Args:
            rng: Equal generators over equal banks give equal draws.
            query: As :meth:`query`.

        Raises:
            BankError: If no whole state matches; names the command that builds them.
        """
        where, values = where_of(query, STATE_KEYS)
        rows = self._index.rows(f"SELECT id, track, focus, outcome FROM states{where}", values)
        for row in balanced_order(rng, [_Row(r[0], (r[1], r[2], r[3])) for r in rows]):
            try:
                return self.get(row.state_id)
            except BankError:
                self.warnings["corrupt state skipped"] += 1
        asked = ", ".join(
            f"{k}={Stage.parse(v).name if k == 'focus' else v}"
            for k, v in query.items()
            if v is not None
        )
        raise BankError(
            f"The Stage Bank at {self.path} has no admitted state for {asked or 'any query'}"
            + (f" ({len(rows)} corrupt)" if rows else "")
            + ". Run `bat-env bank build`, or `bat-env bank status` to see what it holds."
        )

    def cells(self, **query: Any) -> dict[tuple[str, str, str], int]:
        """(track, focus, outcome) -> how many states match, for the cells that have any.

        Args:
            query: As :meth:`query`.
        """
        where, values = where_of(query, STATE_KEYS)
        rows = self._index.rows(
            f"SELECT track, focus, outcome, count(*) FROM states{where} "
            "GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
            values,
        )
        return {(row[0], row[1], row[2]): int(row[3]) for row in rows}

    def _row(self, state_id: str) -> StageState:
        rows = self._index.rows(f"SELECT {STATE_COLUMNS} FROM states WHERE id=?", (state_id,))
        if not rows:
            raise BankError(
                f"The Stage Bank at {self.path} has no state {state_id!r}. "
                "`bat-env bank status` shows what it has."
            )
        return self._reader.state(rows[0])

    # ----------------------------------------------------------------------------- demonstrations

    def add_demonstration(self, demo: Demonstration) -> Demonstration:
        """Add a demonstration; adding the same content again changes nothing. Returns the row."""
        row = demo.model_copy(update={"demo_id": demo.content_id()})
        value = row.to_json()
        turns = canonical(value.pop("turns"))
        with self._gate.shared():
            self._become_writer()
            value["turns_blob"] = self.blobs.put(turns)
            self._index.write(*demo_statement(row, canonical(value).decode()))
        return row

    def demonstrations(
        self, *, ids: Collection[str] | None = None, **query: Any
    ) -> Iterator[Demonstration]:
        """Demonstrations that match, ordered by id; corrupt ones are skipped and counted.

        Args:
            ids: Read only these; ``None`` for all.
            query: As :meth:`query`, without ``fault``.
        """
        where, values = where_of(query, DEMO_KEYS)
        for row in self._index.rows(f"SELECT {DEMO_COLUMNS} FROM demos{where} ORDER BY id", values):
            if ids is not None and row[0] not in ids:
                continue
            try:
                yield self._reader.demonstration(*row)
            except BankError:
                self.warnings["corrupt demonstration skipped"] += 1

    def demonstration_rows(self) -> list[tuple[str, str, str]]:
        """(id, digest of the row, task) of every demonstration, ordered by id; none is read."""
        rows = self._index.rows("SELECT id, digest, task FROM demos ORDER BY id")
        return [(row[0], row[1], row[2]) for row in rows]

    # ------------------------------------------------------------------------------------- upkeep

    def retire(self, row_id: str) -> None:
        """Take a state or a demonstration out of the bank; :meth:`collect` frees its contents."""
        self._index.write_all(
            [
                ("DELETE FROM states WHERE id=?", (row_id,)),
                ("DELETE FROM demos WHERE id=?", (row_id,)),
            ]
        )

    def collect(self) -> GarbageReport:
        """Delete the blobs that no row names, and what killed writers left.

        Waits for every row that this process is adding; no other process can add one meanwhile.

        Raises:
            BankError: If another process writes, or the index is damaged: then nothing is deleted.
        """
        with self._gate.exclusive():
            self._become_writer()
            return collect(self._index, self.blobs)

    def export(self, file: str | Path) -> ArchiveReport:
        """Write the whole bank as one file; equal banks give equal bytes.

        Raises:
            BankError: If a row is corrupt or the file cannot be written; there is no file then.
        """
        return write_archive(self, self._index, Path(file))

    def merge(self, file: str | Path, *, max_bytes: int = MAX_ARCHIVE) -> ArchiveReport:
        """Take in an exported bank. Rows that are here already stay as they are.

        Every digest, id and path is checked; nothing counts until all of it has been.

        Args:
            file: Made by :meth:`export`.
            max_bytes: Most bytes of contents, unpacked, that it may bring.

        Raises:
            BankError: If the archive is damaged, hostile or of another version: no row was added.
        """
        with self._gate.shared():
            self._become_writer()
            return read_archive(self, self._index, Path(file), max_bytes)

    def verify(self) -> VerifyReport:
        """Read every row and every blob; name each one that is corrupt. Changes nothing."""
        return self._reader.verify()
