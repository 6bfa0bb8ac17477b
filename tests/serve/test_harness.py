"""Commands that play over MCP: scored as the direct run, held by limits, and gone afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bat_agent.agents import guard
from bat_agent.agents.harness import harness_source
from bat_agent.evaluate import evaluate
from bat_env.errors import ConfigError
from bat_env.trajectory import read_trajectory

SEG: dict[str, Any] = {"suite": "seg-mini", "repeats": 1, "sandbox": "local"}

PLAYER = """
import asyncio, json, os, shlex, sys
from mcp import Client, StdioServerParameters

async def main():
    if sys.argv[1] == "stdio":
        command, *rest = shlex.split(os.environ["BAT_MCP_COMMAND"])
        server = StdioServerParameters(command=command, args=rest, env=dict(os.environ))
    else:
        server = os.environ["BAT_MCP_URL"]
    cells = json.load(open(sys.argv[2]))
    async with Client(server) as client:
        brief = (await client.get_prompt("brief")).messages[0].content.text
        assert brief == open(os.environ["BAT_BRIEF_FILE"]).read()
        assert os.environ["BAT_MCP_URL"] in open(os.environ["BAT_MCP_CONFIG"]).read()
        assert not os.listdir(".") and not [n for n in os.environ if n.endswith("_API_KEY")]
        for call in cells[: int(sys.argv[3])]:
            await client.call_tool(call["name"], call["arguments"])

asyncio.run(main())
"""


@pytest.fixture
def player(direct: Any, tmp_path: Path) -> Any:
    """Command that plays so many of the expert's cells."""
    (tmp_path / "player.py").write_text(PLAYER)
    (tmp_path / "cells.json").write_text(json.dumps(direct.actions))

    def command(door: str, count: int = 99) -> str:
        return f"{sys.executable} {tmp_path}/player.py {door} {tmp_path}/cells.json {count}"

    return command


@pytest.fixture(scope="module")
def oracle() -> Any:
    return evaluate("oracle", **SEG).cells[0]


@pytest.mark.parametrize("door", ["http", "stdio"])
def test_a_command_scores_as_the_direct_run(
    door: str, player: Any, oracle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner in ("CHAT", "JUDGE", "TEACHER"):
        monkeypatch.setenv(f"BAT_{owner}_API_KEY", "sk-secret")
    [cell] = evaluate(harness_source(player(door)), **SEG).cells
    assert cell.error == "" and cell.status == "submitted"
    assert (cell.overall, cell.stages, cell.turns) == (oracle.overall, oracle.stages, oracle.turns)


def test_ctrl_c_waits_for_no_command(tmp_path: Path) -> None:
    # Whoever runs the tests in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = tmp_path / "begun"

    def press() -> None:
        deadline = time.monotonic() + 60
        while not begun.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            evaluate(harness_source(f"touch {begun}; sleep 300"), **SEG)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert time.monotonic() - began < 100


def test_what_a_command_did_is_scored_and_nothing_of_it_survives(
    player: Any, oracle: Any, tmp_path: Path
) -> None:
    # A process of its own session outlives a process group, but not the guard.
    mark = f"3{os.getpid()}.25"
    stray = f"setsid sleep {mark} & (setsid sh -c 'sleep {mark} & exec sleep {mark}' &)"
    command = f"{stray}; {player('http', 3)}; exit 5"
    evaluation = evaluate(harness_source(command), **SEG, trajectory_dir=tmp_path / "t")
    [cell] = evaluation.cells
    assert cell.status == "truncated" and cell.turns == 3
    assert 0 < cell.overall < oracle.overall
    [path] = (tmp_path / "t").glob("*.json")
    assert "status 5" in read_trajectory(path).result["end_reason"]
    assert subprocess.run(["pgrep", "-f", f"sleep {mark}"], stdout=subprocess.DEVNULL).returncode


@pytest.mark.parametrize(
    ("command", "settings", "status", "said"),
    [
        ("echo no model >&2; exit 3", {}, "agent_error", "status 3 before it called a tool"),
        ("sleep 60", {"timeout_s": 0.5}, "truncated", ""),
        (
            f"{sys.executable} -c 'b = bytearray(3 << 28); import time; time.sleep(60)'",
            {"memory_mb": 256},
            "truncated",
            "",
        ),
    ],
    ids=["broken", "slow", "greedy"],
)
def test_limits_of_a_command(command: str, settings: Any, status: str, said: str) -> None:
    began = time.monotonic()
    [cell] = evaluate(harness_source(command, **settings), **SEG).cells
    assert cell.status == status and said in cell.error
    assert (cell.overall is None) == (status == "agent_error")
    assert time.monotonic() - began < 50


def test_a_command_gets_the_endpoint_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-mine")
    check = '[ "$OPENAI_BASE_URL $OPENAI_API_KEY $OPENAI_MODEL" = "http://m:1/v1 sk-mine x" ]'
    settings = {"base_url": "http://m:1/v1", "model": "x", "api_key_env": "MY_KEY"}
    source = harness_source(f"{check} || exit 9", **settings)
    [cell] = evaluate(source, **SEG).cells
    assert cell.status == "truncated", cell.error
    assert "sk-mine" not in str(source.settings)
    with pytest.raises(ConfigError, match="empty"):
        harness_source("  ")


SMOL = """
import json, os, sys
sys.path.insert(0, EXAMPLES)
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, Model
from smolagents_mcp import play

class Scripted(Model):
    cells = json.load(open(sys.argv[1])) + [{"name": "final_answer", "arguments": {"answer": "x"}}]

    def generate(self, messages, stop_sequences=None, tools_to_call_from=None, **_):
        assert {t.name for t in tools_to_call_from} >= {"execute_code", "submit_results"}
        call = self.cells.pop(0)
        function = ChatMessageToolCallFunction(name=call["name"], arguments=call["arguments"])
        calls = [ChatMessageToolCall(id="1", type="function", function=function)]
        return ChatMessage(role="assistant", content="", tool_calls=calls)

play(os.environ["BAT_MCP_URL"], Scripted())
"""


def test_smolagents_plays_over_mcp(
    direct: Any, oracle: Any, repo_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "cells.json").write_text(json.dumps(direct.actions))
    (tmp_path / "smol.py").write_text(SMOL.replace("EXAMPLES", repr(str(repo_root / "examples"))))
    command = f"{sys.executable} {tmp_path}/smol.py {tmp_path}/cells.json"
    [cell] = evaluate(harness_source(command), **SEG).cells
    assert cell.error == "" and cell.status == "submitted"
    assert (cell.overall, cell.stages, cell.turns) == (oracle.overall, oracle.stages, oracle.turns)


def test_nothing_of_a_command_survives_its_killed_parent() -> None:
    mark = f"4{os.getpid()}.5"
    start = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-I', {guard.__file__!r}, str(os.getpid()), '999',\n"
        f"                  'setsid sleep {mark} & sleep {mark}'])\n"
        "time.sleep(100)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", start])

    def alive() -> bool:
        look = ["pgrep", "-fc", f"^sleep {mark}"]
        return int(subprocess.run(look, capture_output=True, text=True).stdout) > 0

    def soon(wanted: bool) -> None:
        end = time.monotonic() + 60
        while alive() is not wanted:
            assert time.monotonic() < end
            time.sleep(0.1)

    try:
        soon(True)
    finally:
        parent.kill()
        parent.wait()
    soon(False)
