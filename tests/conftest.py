"""Shared test set-up: a private BAT_HOME, no network look-ups, and honest skips.

A test marked ``docker`` or ``browser`` skips, with the reason, where its tool is missing.
``BAT_REQUIRE_DOCKER=1`` and ``BAT_REQUIRE_BROWSER=1`` turn those skips into failures.
"""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

# Before any test module imports torch or a hub client.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_BAT_HOME = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    home = tempfile.mkdtemp(prefix="bat-home-")
    config.stash[_BAT_HOME] = home
    os.environ["BAT_HOME"] = home


def pytest_unconfigure(config: pytest.Config) -> None:
    home = config.stash.get(_BAT_HOME, None)
    if home is not None:
        shutil.rmtree(home, ignore_errors=True)


@functools.cache
def docker_problem() -> str | None:
    """Why Docker tests cannot run here, or ``None``."""
    from bat_env.errors import BatError
    from bat_env.image import default_tag, image_exists

    try:
        if not image_exists():
            return f"the daemon has no image {default_tag()}: run `make image`"
    except BatError as error:
        return str(error)
    return None


@functools.cache
def browser_problem() -> str | None:
    """Why browser tests cannot run here, or ``None``."""
    chrome = ("chromium", "chromium-browser", "google-chrome")
    if not any(shutil.which(name) for name in chrome):
        return "no Chromium: install the packages chromium and chromium-driver"
    if not shutil.which("chromedriver"):
        return "no chromedriver: install the package chromium-driver"
    return None


_NEEDS: dict[str, tuple[str, Callable[[], str | None]]] = {
    "docker": ("BAT_REQUIRE_DOCKER", docker_problem),
    "browser": ("BAT_REQUIRE_BROWSER", browser_problem),
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker, (variable, problem) in _NEEDS.items():
        if item.get_closest_marker(marker) is None:
            continue
        reason = problem()
        if reason is None:
            continue
        if os.environ.get(variable) == "1":
            pytest.fail(f"{variable}=1, but {reason}", pytrace=False)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The source checkout that these tests belong to."""
    return Path(__file__).resolve().parent.parent
