"""Banks that tests share: built once a run, never written to by a test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from bat_env.bank.build import build
from bat_env.sandbox import resolve_backend

TASK: Final = "seg/kidney_tumor"
ARGS: Final[dict[str, Any]] = {
    "tasks": [TASK],
    "per_cell": 1,
    "demos": 8,
    "instances": 3,
    "workers": 2,
}


@pytest.fixture(scope="session")
def backend() -> str:
    return resolve_backend("local")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, backend: str) -> tuple[Path, Any]:
    """A bank with one state in each cell of one task, and the report of its build."""
    path = tmp_path_factory.mktemp("built") / "bank"
    return path, build(path, backend=backend, **ARGS)


@pytest.fixture(scope="session")
def seed_bank(request: pytest.FixtureRequest) -> Path:
    """The seed bank that CI built (``$BAT_SEED_BANK``, all tracks), else that of one task."""
    given = os.environ.get("BAT_SEED_BANK")
    return Path(given) if given else request.getfixturevalue("built")[0]
