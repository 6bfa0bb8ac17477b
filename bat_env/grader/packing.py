"""Cases on the wire: names in the header, bytes as blobs, each distinct file once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from bat_env.metrics.base import Case

PackedCase: TypeAlias = tuple[str, Mapping[str, bytes], Mapping[str, bytes], bytes | None]
"""Case id, truth and inputs by file name, output."""


def pack_cases(cases: Sequence[PackedCase]) -> tuple[list[dict[str, Any]], list[bytes]]:
    """Header rows and blobs of cases; a table that all of them share travels once."""
    blobs: list[bytes] = []
    places: dict[int, int] = {}

    def place(data: bytes) -> int:
        if id(data) not in places:
            places[id(data)] = len(blobs)
            blobs.append(data)
        return places[id(data)]

    rows = [
        {
            "id": name,
            "truth": {file: place(data) for file, data in truth.items()},
            "inputs": {file: place(data) for file, data in inputs.items()},
            "output": None if output is None else place(output),
        }
        for name, truth, inputs, output in cases
    ]
    return rows, blobs


def unpack_cases(rows: Sequence[Mapping[str, Any]], blobs: Sequence[bytes]) -> list[Case]:
    """The reverse, on the side of the grader child."""
    return [
        Case(
            id=row["id"],
            truth={file: blobs[n] for file, n in row["truth"].items()},
            inputs={file: blobs[n] for file, n in row["inputs"].items()},
            output=None if row["output"] is None else blobs[row["output"]],
        )
        for row in rows
    ]
