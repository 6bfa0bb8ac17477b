"""Tables that data sets ship: CSV (plain or gzip) and JSON, with their headers checked."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bat_env.errors import DataError

_FIELD_BYTES: Final = 1 << 24


def read_csv(path: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Rows of a table as column -> text.

    Args:
        path: Text or gzip, UTF-8 with or without a mark; fields parted by commas, semicolons or
            tabs, whichever the header has most of.
        columns: Columns that must be there.

    Raises:
        DataError: If it cannot be read or lacks a column.
    """
    csv.field_size_limit(min(_FIELD_BYTES, sys.maxsize))
    try:
        opened: Any = gzip.open if path.suffix == ".gz" else Path.open
        with opened(path, "rb") as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as text:
            header = text.readline()
            delimiter = max(",;\t", key=header.count)
            rows = csv.DictReader(itertools.chain([header], text), delimiter=delimiter)
            absent = [name for name in columns if name not in (rows.fieldnames or ())]
            if absent:
                raise DataError(
                    f"Expected the columns {', '.join(columns)} in {path}, it lacks "
                    f"{', '.join(absent)} (has: {', '.join(rows.fieldnames or ())[:200]}). Give "
                    "the file as published."
                )
            for row in rows:
                yield {key: (value or "").strip() for key, value in row.items() if key}
    except (OSError, UnicodeDecodeError, csv.Error, EOFError) as error:
        raise DataError(f"Expected a readable table {path}: {error}. Get it again.") from error


def read_json(path: Path, kind: type) -> Any:
    """The content of a JSON file.

    Args:
        path: The file.
        kind: ``list`` or ``dict``.

    Raises:
        DataError: If it cannot be read or is of another kind.
    """
    try:
        content = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise DataError(f"Expected JSON in {path}: {error}. Get the file again.") from error
    if not isinstance(content, kind):
        raise DataError(
            f"Expected a JSON {kind.__name__} in {path}, got {type(content).__name__}. Give the "
            "file as published."
        )
    return content


def number(text: str) -> float | None:
    """A finite number, or ``None`` for blanks and everything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None
