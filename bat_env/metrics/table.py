"""Strict, bounded reading of the CSV files that hold one answer for every case."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from bat_env.metrics.base import Case, UnreadableError

MAX_BYTES: Final = 1 << 20
MAX_ROWS: Final = 20_000
MAX_COLUMNS: Final = 256
MAX_FIELD: Final = 200
ID_COLUMN: Final = "case"


@dataclass(frozen=True)
class Table:
    """A parsed table.

    Attributes:
        columns: Names in the header, in order.
        rows: Case id -> column name -> text, stripped of outer blanks.
        repeated: Case ids that have more than one row; they are not in ``rows``.
    """

    columns: tuple[str, ...]
    rows: Mapping[str, Mapping[str, str]]
    repeated: frozenset[str]


def read_table(data: bytes, required: Sequence[str]) -> Table:
    """Parse a comma-separated table with a header.

    Args:
        data: File content, UTF-8 (a byte-order mark is accepted).
        required: Columns that must be there, besides ``case``.

    Raises:
        UnreadableError: If it is no such table. Every row must have as many fields as the header.
    """
    if len(data) > MAX_BYTES:
        raise UnreadableError(f"holds {len(data)} bytes, expected at most {MAX_BYTES}")
    try:
        # By hand: the codec that skips the mark would be imported where no import is possible.
        text = data.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnreadableError(f"is not UTF-8: {error.reason}") from error
    if "\0" in text:
        raise UnreadableError("holds NUL characters")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines: list[list[str]] = []
    try:
        for line in reader:
            if not line:
                continue
            if len(lines) > MAX_ROWS or len(line) > MAX_COLUMNS:
                raise UnreadableError(f"has over {MAX_ROWS} rows or {MAX_COLUMNS} columns")
            if any(len(text) > MAX_FIELD for text in line):
                raise UnreadableError(f"has a field of over {MAX_FIELD} characters")
            lines.append([text.strip() for text in line])
    except csv.Error as error:
        raise UnreadableError(f"is no CSV table: {error}") from error
    if not lines:
        raise UnreadableError("is empty")
    header = tuple(lines[0])
    absent = [name for name in (ID_COLUMN, *required) if name not in header]
    if absent or len(set(header)) != len(header):
        raise UnreadableError(
            f"must have the header {','.join((ID_COLUMN, *required))}, it has {','.join(header)}"
        )
    rows: dict[str, dict[str, str]] = {}
    repeated: set[str] = set()
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(header):
            raise UnreadableError(f"has {len(line)} fields in row {number}, {len(header)} expected")
        row = dict(zip(header, line, strict=True))
        if row[ID_COLUMN] in rows:
            repeated.add(row[ID_COLUMN])
        rows[row[ID_COLUMN]] = row
    for case in repeated:
        del rows[case]
    return Table(header, rows, frozenset(repeated))


def read_each(cases: Sequence[Case], required: Sequence[str]) -> Callable[[Case], Table]:
    """A reader of the cases' tables that parses each distinct file once.

    The reader raises :class:`UnreadableError` for a file that cannot be parsed.
    """
    parsed: dict[bytes, Table | UnreadableError] = {}
    for data in {case.output for case in cases if case.output is not None}:
        try:
            parsed[data] = read_table(data, required)
        except UnreadableError as error:
            parsed[data] = error

    def table(case: Case) -> Table:
        if case.output is None:
            raise UnreadableError("is missing")
        found = parsed[case.output]
        if isinstance(found, UnreadableError):
            raise UnreadableError(str(found))
        return found

    return table


def row_of(table: Table, case: str) -> Mapping[str, str]:
    """The one row of a case.

    Raises:
        UnreadableError: If it has none, or several.
    """
    if case in table.repeated:
        raise UnreadableError(f"has several rows for {case}")
    if case not in table.rows:
        raise UnreadableError(f"has no row for {case}")
    return table.rows[case]
