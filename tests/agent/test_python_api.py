"""`bat_agent.evaluate`: objects, classes, names; and the name is its module's too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import bat_agent
from bat_env.errors import ConfigError, UnknownNameError
from bat_env.tools import execute_call, submit_call

SEG: dict[str, Any] = {"suite": "seg-mini", "repeats": 2, "sandbox": "local"}


class Looker:
    """Looks once, then hands in; one object may play many episodes."""

    def __init__(self) -> None:
        self.looked, self.episodes = False, 0
        self.closed = False

    def reset(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        self.looked, self.episodes = False, self.episodes + 1

    def act(self, observation: Mapping[str, Any]) -> dict[str, Any]:
        self.looked, looked = True, self.looked
        return submit_call() if looked else execute_call("bash", "ls /data > list.txt")

    def close(self) -> None:
        self.closed = True


def test_an_object_plays_one_by_one_and_is_not_closed() -> None:
    agent = Looker()
    assert isinstance(agent, bat_agent.Agent)
    evaluation = bat_agent.evaluate(agent, **SEG, workers=4)
    assert isinstance(evaluation, bat_agent.Evaluation)
    assert agent.episodes == 2 and not agent.closed
    assert evaluation.agent == "Looker" and [c.turns for c in evaluation.cells] == [2, 2]


def test_a_class_and_a_name_play_too() -> None:
    one = {**SEG, "repeats": 1}
    assert bat_agent.evaluate(Looker, **one).cells[0].turns == 2
    assert bat_agent.evaluate("nop", **one).overall == 0.0
    with pytest.raises(UnknownNameError, match="naive"):
        bat_agent.evaluate("naiv", **one)
    for wrong in (3, object(), int):
        with pytest.raises(ConfigError, match="reset and act"):
            bat_agent.evaluate(wrong, **one)


def test_the_name_is_one_object_and_loads_late() -> None:
    code = (
        "import sys, bat_agent\n"
        "assert 'bat_agent.evaluate' not in sys.modules and 'numpy' not in sys.modules\n"
        "from bat_agent.evaluate import check_request\n"
        "assert callable(bat_agent.evaluate) and bat_agent.evaluate.check_request\n"
        "from bat_agent import Agent, evaluate\n"
        "assert evaluate is bat_agent.evaluate and not hasattr(bat_agent, 'nothing')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_line_names_what_is_wrong(tmp_path: Path) -> None:
    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bat_agent.cli", "eval", "--suite=seg-mini", *options]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    for options, words in (
        (("--agent=nop", "--harness=x"), "one of --agent and --harness"),
        (("--agent=nop", "--model=m"), "only for --agent chat"),
        (("--agent=chat", "--model=m"), "--base-url"),
    ):
        done = run(*options)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    done = run("--agent=nop", "--repeats=1", "--sandbox=local", "--out=o.json", "--json")
    assert json.loads(done.stdout)["overall"] == 0.0 and not (tmp_path / "o.json.part").exists()
    assert json.loads((tmp_path / "o.json").read_text())["summary"]["cost"] == 0
