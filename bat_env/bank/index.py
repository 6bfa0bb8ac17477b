"""The SQLite index of a Stage Bank: one writer process, any number of readers, whole rows only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
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
SCHEMA_VERSION: Final = "1"


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
                + "INSERT OR IGNORE INTO meta VALUES ('schema_version', '1'); COMMIT;"
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

    def become_writer(self) -> bool:
        """Take the writer's lock; held until :meth:`close`.

        Returns:
            Whether it was taken just now.

        Raises:
            BankError: If another process holds it.
        """
        with self.lock:
            self._db()
            if self._writer is not None:
                return False
            file = (self.folder / "writer.lock").open("ab")
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
            return True

    def close(self) -> None:
        """Close and release the writer's lock. Idempotent."""
        with self.lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None
            if self._writer is not None:
                self._writer.close()
                self._writer = None
            self._closed = True

    def _db(self, create: bool = False) -> sqlite3.Connection:
        """The connection of this process; SQLite forbids carrying one across a fork."""
        if self._closed:
            raise BankError(f"The Stage Bank at {self.folder} is closed. Open it again.")
        if self._connection is None or self._pid != os.getpid():
            mode = "rwc" if create else "rw" if os.access(self.file, os.W_OK) else "ro"
            connection = sqlite3.connect(
                f"{self.file.absolute().as_uri()}?mode={mode}",
                uri=True,
                timeout=_LOCK_WAIT_S,
                isolation_level=None,
                check_same_thread=False,
            )
            if mode != "ro":
                connection.execute("PRAGMA synchronous=FULL")
            self._connection, self._pid = connection, os.getpid()
            self._writer = None
        return self._connection

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
