"""The SQLite index of a Stage Bank: one writer process, any number of readers, whole rows only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

from bat_env.disk import is_full
from bat_env.errors import BankError, DiskFullError

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS states (
  id TEXT PRIMARY KEY, track TEXT NOT NULL, task TEXT NOT NULL, task_digest TEXT NOT NULL,
  tier TEXT NOT NULL, size TEXT NOT NULL, focus TEXT NOT NULL, outcome TEXT NOT NULL,
  fault TEXT NOT NULL, idx INTEGER NOT NULL, record TEXT NOT NULL, digest TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS states_cell ON states (track, focus, outcome);
CREATE TABLE IF NOT EXISTS demos (
  id TEXT PRIMARY KEY, track TEXT NOT NULL, task TEXT NOT NULL, task_digest TEXT NOT NULL,
  tier TEXT NOT NULL, size TEXT NOT NULL, focus TEXT NOT NULL, outcome TEXT,
  idx INTEGER NOT NULL, record TEXT NOT NULL, digest TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (
  id TEXT PRIMARY KEY, status TEXT NOT NULL, detail TEXT NOT NULL);
"""
_LOCK_WAIT_S: Final = 30.0
SCHEMA_VERSION: Final = "2"
"""Written by this version: contents that zstd does not shrink lie plain."""

READABLE: Final = ("1", "2")


class Index:
    """Rows of a bank. Thread-safe; a child process may use it after a fork.

    Every statement is its own transaction with full synchronisation: a row is there whole, or not.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0
        self._writer: IO[bytes] | None = None
        self._closed = False
        self._copy: tempfile.TemporaryDirectory[str] | None = None

    @property
    def file(self) -> Path:
        """The database file."""
        return self.folder / "index.sqlite"

    def there(self) -> bool:
        """Whether there is a database; one that a full disk left empty is none."""
        return self.file.is_file() and self.file.stat().st_size > 0

    def create(self) -> None:
        """Make the tables if they are not there. Two processes may do so at once.

        Raises:
            DiskFullError: If the disk is full.
            BankError: If the index cannot be made.
        """
        with self.lock, self._errors():
            connection = self._db(create=True)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(
                "BEGIN IMMEDIATE;"
                + _SCHEMA
                + f"INSERT OR IGNORE INTO meta VALUES ('schema_version', '{SCHEMA_VERSION}');"
                + "COMMIT;"
            )

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a query and fetch everything.

        Raises:
            BankError: If the index is closed or cannot be read.
        """
        with self.lock, self._errors():
            return self._db().execute(sql, values).fetchall()

    def write(self, sql: str, values: Sequence[Any]) -> None:
        """Run one statement as one durable transaction.

        Raises:
            BankError: If another process writes, or the disk refuses.
        """
        with self.lock, self._errors():
            self.become_writer()
            self._db().execute(sql, values)

    def write_all(self, statements: Iterable[tuple[str, Sequence[Any]]]) -> None:
        """Run several statements as one durable transaction: all of them count, or none.

        Raises:
            BankError: As :meth:`write`.
        """
        with self.lock, self._errors():
            self.become_writer()
            connection = self._db()
            connection.execute("BEGIN IMMEDIATE")
            try:
                for sql, values in statements:
                    connection.execute(sql, values)
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def become_writer(self) -> bool:
        """Take the writer's lock; held until :meth:`close`.

        Returns:
            Whether it was taken just now.

        Raises:
            BankError: If another process holds it.
        """
        with self.lock:
            connection = self._db()
            if self._writer is not None:
                return False
            try:
                file = (self.folder / "writer.lock").open("ab")
            except OSError as error:
                raise BankError(
                    f"The Stage Bank at {self.folder} is attached read-only ({error.strerror}), "
                    "but something is to be written. Use a copy: `bat-env bank export` and import."
                ) from error
            deadline = time.monotonic() + _LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        file.close()
                        raise BankError(
                            f"Another process is writing to the Stage Bank at {self.folder}. "
                            "Wait for it to end, or stop it; readers need not wait."
                        ) from None
                    time.sleep(0.05)
            self._writer = file
            with self._errors():
                connection.execute(
                    "UPDATE meta SET value=? WHERE key='schema_version' AND value<>?",
                    (SCHEMA_VERSION, SCHEMA_VERSION),
                )
            return True

    def close(self) -> None:
        """Close and release the writer's lock. Idempotent."""
        with self.lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
                if self._copy is not None:
                    self._copy.cleanup()
            self._connection = self._copy = None
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            self._closed = True

    def _db(self, create: bool = False) -> sqlite3.Connection:
        """The connection of this process; SQLite forbids carrying one across a fork."""
        if self._closed:
            raise BankError(f"The Stage Bank at {self.folder} is closed. Open it again.")
        if self._connection is None or self._pid != os.getpid():
            writable = create or all(os.access(path, os.W_OK) for path in (self.file, self.folder))
            if writable:
                self._connection = _connect(self.file, "mode=rwc" if create else "mode=rw")
                self._connection.execute("PRAGMA synchronous=FULL")
            else:
                self._connection = self._attach()
            self._pid, self._writer = os.getpid(), None
        return self._connection

    def _attach(self) -> sqlite3.Connection:
        """Read-only, where this process may write neither the index nor beside it.

        A log beside the index holds rows that are not in it yet. SQLite reads it only together with
        a shared file that it may have to make: then a private copy of both is read instead.
        """
        connection = _connect(self.file, "mode=ro")
        try:
            connection.execute("SELECT count(*) FROM meta").fetchall()
            return connection
        except sqlite3.Error:
            connection.close()
        log = self.file.with_name(self.file.name + "-wal")
        if not log.is_file() or log.stat().st_size == 0:
            return _connect(self.file, "mode=ro&immutable=1")
        self._copy = tempfile.TemporaryDirectory(prefix="bat-bank-")
        copy = Path(self._copy.name) / self.file.name
        shutil.copyfile(log, copy.with_name(log.name))
        shutil.copyfile(self.file, copy)
        return _connect(copy, "mode=rw")

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if is_full(error, self.folder):
                raise DiskFullError(self.folder) from error
            raise BankError(
                f"The index of the Stage Bank at {self.folder} cannot be used ({error}). "
                "Move the folder away and run `bat-env bank build`."
            ) from error


def _connect(file: Path, options: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{file.absolute().as_uri()}?{options}",
        uri=True,
        timeout=_LOCK_WAIT_S,
        isolation_level=None,
        check_same_thread=False,
    )
