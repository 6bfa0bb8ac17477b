"""Packages of the doors that would move the tested versions, and direct scores.

``make doors`` puts each door's into a folder of its own, to be laid over the environment that runs
the tests. ``BAT_REQUIRE_DOORS=1`` turns a missing one into a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bat_env.env import AutoMedEnv
from bat_env.tasks import load_task
from bat_env.tools import execute_call, submit_call

Drive = Callable[..., Any]
HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Drive:
    """Runs a driver script of this folder with a door's packages; JSON in, JSON out."""

    home = tmp_path_factory.mktemp("home")

    def run(door: str, driver: str, request: dict[str, Any]) -> Any:
        folder = Path(sys.prefix) / "doors" / door
        if not folder.exists():
            reason = f"no packages of {door}: run `make doors`"
            if os.environ.get("BAT_REQUIRE_DOORS") == "1":
                pytest.fail(f"BAT_REQUIRE_DOORS=1, but {reason}", pytrace=False)
            pytest.skip(reason)
        # Where a package wants a newer Python, `make doors` leaves a link to one.
        newer = folder / "bin" / "newer-python"
        done = subprocess.run(
            [str(newer if newer.exists() else sys.executable), str(HERE / driver)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            # Some keep caches in the home folder.
            env={**os.environ, "PYTHONPATH": str(folder), "HOME": str(home)},
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def scripts() -> dict[str, list[dict[str, Any]]]:
    """The expert's, the careless and the idle episode of the kidney task, as tool calls."""
    task = load_task("seg/kidney_tumor")

    def calls(choices: dict[str, str]) -> list[dict[str, Any]]:
        cells = task.script(choices)
        return [*(execute_call(c.language, c.code) for c in cells), submit_call()]

    return {"oracle": calls({}), "naive": calls(task.naive_choices), "nop": [submit_call()]}


@pytest.fixture(scope="session")
def direct(scripts: dict[str, list[dict[str, Any]]]) -> Callable[..., dict[str, Any]]:
    """The final result of a script on the environment itself; each is played once."""
    known: dict[tuple[str, int], dict[str, Any]] = {}

    def play(name: str, seed: int = 7) -> dict[str, Any]:
        if (name, seed) not in known:
            env = AutoMedEnv(sandbox="local", size="mini")
            try:
                env.reset(seed=seed)
                for call in scripts[name]:
                    info = env.step(call)[-1]
            finally:
                env.close()
            known[name, seed] = info["result"]
        return known[name, seed]

    return play


PRIVATE_WORDS = ("items", "components", "agentic", "secondary", "taxonomy", "false_claims", "Dice")


@pytest.fixture(scope="session")
def nothing_private() -> Callable[[list[str]], None]:
    """Asserts that no message holds what an agent must not see."""

    def check(messages: list[str]) -> None:
        assert messages
        for text in messages:
            for word in (*(f'"{w}"' for w in PRIVATE_WORDS), str(Path(__file__).parents[2])):
                assert word not in text, f"{word} in {text[:2000]}"

    return check
