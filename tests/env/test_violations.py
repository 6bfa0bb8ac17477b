"""What the host can prove from one result, and what is only a limit."""

from __future__ import annotations

import pytest

from bat_env.sandbox.base import CellResult, Delta, FileEntry
from bat_env.workbench import violations_of


def test_a_planted_special_file_is_a_violation() -> None:
    result = CellResult(0, delta=Delta(created={"pipe": FileEntry("special")}))
    assert [kind for kind, _ in violations_of(result)] == ["special_file"]


@pytest.mark.parametrize("kind", ["file", "dir", "symlink", "unread"])
def test_nothing_else_is(kind: str) -> None:
    result = CellResult(0, delta=Delta(created={"x": FileEntry(kind)}), limit="disk")  # type: ignore[arg-type]
    assert violations_of(result) == ()
