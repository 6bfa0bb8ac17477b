"""Shared test set-up: a private BAT_HOME, no network look-ups, and honest skips.

A test marked ``docker`` or ``browser`` skips, with the reason, where its tool is missing.
``BAT_REQUIRE_DOCKER=1`` and ``BAT_REQUIRE_BROWSER=1`` turn those skips into failures.

``pytest -n 2`` (what ``make test`` runs) plays the suite in two processes, lane by lane: a lane is
a folder or a file whose tests share warm sandboxes, policies or banks, and is never split.
"""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

# Before any test module imports torch or a hub client.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_BAT_HOME = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    home = tempfile.mkdtemp(prefix="bat-home-")
    if hasattr(config, "workerinput"):  # One process of several; BAT_HOME is that of the first.
        # Made once for all: they are written whole, by digest.
        shared = Path(os.environ["BAT_HOME"]) / "fingerprints"
        shared.mkdir(exist_ok=True)
        (Path(home) / "fingerprints").symlink_to(shared)
    config.stash[_BAT_HOME] = home
    os.environ["BAT_HOME"] = home


def pytest_unconfigure(config: pytest.Config) -> None:
    home = config.stash.get(_BAT_HOME, None)
    if home is not None:
        shutil.rmtree(home, ignore_errors=True)


# ------------------------------------------------------------------------------------------ lanes

SHARED_FOLDERS: Final = ("redteam", "sandbox", "train")
"""Folders whose tests share a fixture of the session that is dear to make: one lane each."""

FIRST: Final = (
    # Takes every sandbox of its process for its own, so it goes before those that leave some idle.
    "redteam",
    # The longest, so that the last to end are short ones.
    "sandbox",
    "hacks/test_hack_matrix.py",
    "tasks/test_every_folder.py",
    "tasks/test_task_folders.py",
    "agent/test_agent_cli.py",
    "docs/test_docs_blocks.py",
    "bank/test_bank_build.py",
    "train",
    "agent/test_pipeline_run.py",
)
"""Lanes that several processes begin with, in this order."""


def lane(nodeid: str) -> str:
    """The lane of a test: its folder below ``tests``, or its file."""
    file = nodeid.split("::")[0].removeprefix("tests/")
    folder = file.split("/")[0]
    return folder if folder in SHARED_FOLDERS else file


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        rank = {name: place for place, name in enumerate(FIRST)}
        items.sort(key=lambda item: rank.get(lane(item.nodeid), len(FIRST)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hands out whole lanes, in the order of collection."""
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return lane(nodeid)

    config.option.loadscopereorder = False
    return Lanes(config, log)


# ------------------------------------------------------------------------------------------ tools


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


@pytest.fixture
def as_nobody(repo_root: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run this interpreter as an ordinary user: ``as_nobody(*arguments, timeout=, input=)``.

    In a mount namespace where the interpreter's folders can be reached, in the checkout. Skips
    where the tests run as an ordinary user already.
    """
    if os.getuid() != 0:
        pytest.skip("the other tests already run as an ordinary user")
    if not shutil.which("unshare") or not shutil.which("setpriv"):
        pytest.skip("needs unshare and setpriv (util-linux)")
    user = pwd.getpwnam("nobody")
    prefix = Path(sys.base_prefix).resolve()
    closed = next((p for p in reversed(prefix.parents) if not p.stat().st_mode & 0o001), None)
    reach = ""
    if closed is not None:  # for example /root, where pyenv lives
        inner = prefix.relative_to(closed)
        reach = (
            f"mkdir -p {tmp_path}/hold && mount --bind {prefix} {tmp_path}/hold && "
            f"mount -t tmpfs -o mode=755 t {closed} && mkdir -p {closed}/{inner} && "
            f"mount --bind {tmp_path}/hold {prefix} && "
        )
    command = (
        f"{reach}cd {repo_root} && exec setpriv --reuid={user.pw_uid} --regid={user.pw_gid} "
        f'--clear-groups {sys.executable} "$@"'
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "TMPDIR")}

    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", command, "sh", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            **options,
        )

    return run
