"""Rows of the Stage Bank's index: their columns, queries over them, and how they are read back.

Whatever is read is checked against its digest and its own id: a row is whole, or it is an error.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bat_env.bank.blobs import BlobStore
from bat_env.bank.index import Index
from bat_env.bank.state import Demonstration, StageState, canonical, check_path, digest_of
from bat_env.bank.status import VerifyReport
from bat_env.errors import BankError, unknown_name
from bat_env.sandbox.stored import StoredFiles
from bat_env.stages import OUTCOMES, Stage

STATE_KEYS: Final = (
    "track",
    "task",
    "task_digest",
    "tier",
    "size",
    "focus",
    "outcome",
    "fault",
    "index",
)
STATE_COLUMNS: Final = (
    "id, track, task, task_digest, tier, size, focus, outcome, fault, idx, record, digest"
)
DEMO_KEYS: Final = tuple(key for key in STATE_KEYS if key != "fault")
DEMO_COLUMNS: Final = "id, record, digest"

_BROKEN: Final = (BankError, ValueError, KeyError, TypeError, AttributeError)


def columns_of(state: StageState) -> tuple[Any, ...]:
    """The indexed columns of a state, in table order."""
    return (
        state.state_id,
        state.track,
        state.task,
        state.task_digest,
        state.tier,
        state.size,
        state.focus.name,
        state.outcome,
        state.fault,
        state.index,
    )


def state_statement(state: StageState) -> tuple[str, tuple[Any, ...]]:
    """SQL and values that write the row of a state."""
    record = canonical(state.to_json()).decode()
    return (
        "INSERT OR REPLACE INTO states VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
        (*columns_of(state), record, digest_of(record)),
    )


def demo_statement(demo: Demonstration, record: str) -> tuple[str, tuple[Any, ...]]:
    """SQL and values that write the row of a demonstration.

    Args:
        demo: The demonstration.
        record: Its JSON with ``turns_blob`` in place of its turns.
    """
    return (
        "INSERT OR REPLACE INTO demos VALUES (?,?,?,?,?,?,?,?,?,?,?)",
        (
            demo.demo_id,
            demo.track,
            demo.task,
            demo.task_digest,
            demo.tier,
            demo.size,
            demo.focus.name,
            demo.outcome,
            demo.index,
            record,
            digest_of(record),
        ),
    )


def where_of(query: Mapping[str, Any], known: tuple[str, ...]) -> tuple[str, list[Any]]:
    """SQL clause and values for a query by keyword."""
    clauses, values = [], []
    for key, value in query.items():
        if key not in known:
            raise unknown_name("bank query key", key, known)
        if value is None:
            continue
        if key == "focus":
            value = Stage.parse(value).name
        elif key == "outcome" and value not in OUTCOMES:
            raise unknown_name("outcome", value, OUTCOMES)
        if key == "task" and "/" not in str(value):
            clauses.append("substr(task, instr(task, '/') + 1) = ?")
        else:
            clauses.append(f"{'idx' if key == 'index' else key} = ?")
        values.append(value)
    return (" WHERE " + " AND ".join(clauses) if clauses else ""), values


class Reader:
    """Reads rows and blobs of a bank. Thread-safe.

    Args:
        path: Folder of the bank, for messages.
        index: Its index.
        blobs: Its contents.
    """

    def __init__(self, path: Path, index: Index, blobs: BlobStore) -> None:
        self._path, self._index, self._blobs = path, index, blobs

    def state(self, row: tuple[Any, ...]) -> StageState:
        """The state of a row of :data:`STATE_COLUMNS`.

        Raises:
            BankError: If it is corrupt.
        """
        *columns, record, digest = row
        try:
            if digest_of(record) != digest:
                raise ValueError("its digest differs")
            state = StageState.from_json(json.loads(record))
            if columns_of(state) != tuple(columns) or state.content_id() != state.state_id:
                raise ValueError("its columns and its record differ")
        except (ValueError, TypeError) as error:
            raise BankError(
                f"State {row[0]} of the Stage Bank at {self._path} is corrupt: {error}. "
                "`bat-env bank build` makes it again."
            ) from error
        return state

    def manifest(self, state: StageState) -> dict[str, str]:
        """Workspace path -> digest of its content."""
        try:
            manifest = json.loads(self._blobs.get(state.workspace))
            if manifest["schema_version"] != 1:
                raise ValueError(f"its manifest has schema version {manifest['schema_version']}")
            files = {str(path): str(digest) for path, digest in manifest["files"].items()}
            for path in files:
                check_path(path)
        except _BROKEN as error:
            raise BankError(
                f"The workspace manifest of state {state.state_id} is corrupt: {error} "
                "`bat-env bank build` makes it again."
            ) from error
        return files

    def check(self, state: StageState) -> None:
        """Make sure that the workspace is whole.

        Raises:
            BankError: If the manifest or a blob is corrupt.
        """
        files = self.manifest(state)
        with self._named(state):
            for digest in files.values():
                self._blobs.check(digest)

    def files(self, state: StageState) -> StoredFiles:
        """Workspace path -> content; each content is read, and checked, when it is asked for.

        Raises:
            BankError: If the manifest is corrupt; on access, if a blob is.
        """

        def read(digest: str) -> bytes:
            with self._named(state):
                return self._blobs.get(digest)

        return StoredFiles(self.manifest(state), read)

    @contextlib.contextmanager
    def _named(self, state: StageState) -> Iterator[None]:
        try:
            yield
        except BankError as error:
            raise BankError(
                f"The workspace of state {state.state_id} is corrupt: {error} "
                "`bat-env bank build` makes it again."
            ) from error

    def demonstration(self, demo_id: str, record: str, digest: str) -> Demonstration:
        """The demonstration of a row of :data:`DEMO_COLUMNS`.

        Raises:
            BankError: If it is corrupt.
        """
        try:
            if digest_of(record) != digest:
                raise ValueError("its digest differs")
            value = json.loads(record)
            value["turns"] = json.loads(self._blobs.get(value.pop("turns_blob")))
            demo = Demonstration.from_json(value)
            if demo.demo_id != demo_id or demo.content_id() != demo_id:
                raise ValueError("its content does not match its id")
        except _BROKEN as error:
            raise BankError(f"Demonstration {demo_id} is corrupt: {error}") from error
        return demo

    def verify(self) -> VerifyReport:
        """Read every row and every blob; name each one that is corrupt. Changes nothing."""
        problems = [
            f"index: {row[0]}"
            for row in self._index.rows("PRAGMA integrity_check")
            if row[0] != "ok"
        ]
        used: set[str] = set()
        states = self._index.rows(f"SELECT {STATE_COLUMNS} FROM states ORDER BY id")
        for row in states:
            try:
                state = self.state(row)
                used |= {state.workspace, state.transcript}
                used |= set(self.manifest(state).values())
                dict(self.files(state))
                self._blobs.get(state.transcript)
            except BankError as error:
                problems.append(f"state {row[0]}: {error}")
        demos = self._index.rows(f"SELECT {DEMO_COLUMNS} FROM demos ORDER BY id")
        for row in demos:
            try:
                self.demonstration(*row)
                used.add(json.loads(row[1])["turns_blob"])
            except BankError as error:
                problems.append(f"demonstration {row[0]}: {error}")
        on_disk = set(self._blobs.digests())
        orphans = on_disk - used
        problems += [
            f"blob {digest}: corrupt (no whole row uses it)"
            for digest in sorted(orphans)
            if not self._blobs.intact(digest)
        ]
        return VerifyReport(len(states), len(demos), len(on_disk), len(orphans), tuple(problems))
