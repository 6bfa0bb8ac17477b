"""Small copies of published layouts, and a folder for each staged one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import published_layouts

from bat_env.data import Staged, stage_data

StageFn = Callable[..., Staged]


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Layout name -> folder as it is published; written once a session."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "download"
            published_layouts.write(name, made[name])
        return made[name]

    return get


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small MONAI bundle of a user's own."""
    return published_layouts.write_bundle(tmp_path_factory.mktemp("bundle") / "Users Net")


@pytest.fixture(scope="session")
def staged(
    published: Callable[[str], Path],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Staged]:
    """Layout name -> staged once a session, with a user's bundle where no phantom is a sibling."""
    from bat_env.tasks import task_ids

    made: dict[str, Staged] = {}

    def get(name: str) -> Staged:
        if name not in made:
            from bat_env.data import load_layout

            track = load_layout(name).track
            own = any(task.startswith(f"{track}/") for task in task_ids())
            kwargs: dict[str, Any] = {}
            if not own:
                kwargs = {"model": request.getfixturevalue("bundle"), "sandbox": "local"}
            folder = tmp_path_factory.mktemp(f"staged-{name}") / "out"
            made[name] = stage_data(name, published(name), folder, seed=1, **kwargs)
        return made[name]

    return get
