"""The MCP door with the official client: equal to the direct run, and nothing private crosses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from bat_env.errors import ConfigError
from bat_env.extras import EXTRAS, require
from bat_env.serve import EnvDoor, EpisodePlan
from bat_env.serve.http import HttpThread, http_app
from bat_env.serve.mcp import BRIEF_URI
from bat_env.tools import mcp_tools
from bat_env.trajectory import Trajectory, read_trajectory

PLAN = {"task": "kidney_tumor", "size": "mini", "sandbox": "local", "index": 11, "seed": 3}
PROBE = {"language": "bash", "code": "ls"}


def arguments(folder: Path) -> list[str]:
    plan = [f"--{key}={value}" for key, value in PLAN.items()]
    return ["-m", "bat_env.cli", "serve", "mcp", *plan, f"--trajectories={folder}"]


def written(folder: Path, count: int = 1, wait_s: float = 60.0) -> list[Trajectory]:
    """Trajectories, once so many are there."""
    end = time.monotonic() + wait_s
    while len(list(folder.glob("[!.]*.json"))) < count and time.monotonic() < end:
        time.sleep(0.05)
    found = [read_trajectory(path) for path in sorted(folder.glob("[!.]*.json"))]
    assert len(found) == count
    return found


class Wire:
    """Everything that an HTTP client gets, byte by byte."""

    def __init__(self) -> None:
        self.text = ""

    def client(self, **settings: Any) -> httpx2.AsyncClient:
        wire = self

        class Tap(httpx2.AsyncByteStream):
            def __init__(self, inner: Any) -> None:
                self._inner = inner

            async def __aiter__(self) -> Any:
                async for part in self._inner:
                    wire.text += part.decode("utf-8", "replace")
                    yield part

            async def aclose(self) -> None:
                await self._inner.aclose()

        async def tap(response: httpx2.Response) -> None:
            wire.text += str(dict(response.headers))
            response.stream = Tap(response.stream)

        return httpx2.AsyncClient(timeout=120, event_hooks={"response": [tap]}, **settings)


async def play(client: Client, actions: list[dict[str, Any]]) -> list[str]:
    texts = []
    for action in actions:
        result = await client.call_tool(action["name"], action["arguments"])
        assert not result.is_error
        texts.append(result.content[0].text)
    return texts


def test_stdio_plays_as_the_direct_run(direct, trajectories, tmp_path: Path) -> None:
    tee = tmp_path / "tee.py"
    log = tmp_path / "wire"
    # Between client and server: what the server says is kept, byte by byte.
    tee.write_text(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, *sys.argv[2:]], stdout=subprocess.PIPE)\n"
        "with open(sys.argv[1], 'wb') as log:\n"
        "    for line in child.stdout:\n"
        "        log.write(line); log.flush()\n"
        "        sys.stdout.buffer.write(line); sys.stdout.buffer.flush()\n"
    )
    server = StdioServerParameters(
        command=sys.executable,
        args=[str(tee), str(log), *arguments(trajectories)],
        env=dict(os.environ),
    )

    async def session() -> tuple[str, list[str]]:
        async with Client(server) as client:
            tools = [t.model_dump(by_alias=True) for t in (await client.list_tools()).tools]
            for ours, theirs in zip(mcp_tools(), tools, strict=True):
                assert ours.items() <= theirs.items()
            prompt = await client.get_prompt((await client.list_prompts()).prompts[0].name)
            skills = [r.uri for r in (await client.list_resources()).resources][1:]
            assert skills == [f"bat://skills/S{n}.md" for n in range(1, 6)]
            text = (await client.read_resource(skills[0])).contents[0].text
            assert text.startswith("#")
            texts = await play(client, direct.actions)
            late = await client.call_tool("execute_code", PROBE)
            assert late.is_error and "over" in late.content[0].text
            return prompt.messages[0].content.text, texts

    brief, texts = asyncio.run(session())
    assert (brief, texts) == (direct.brief, direct.texts)
    [trajectory] = written(trajectories)
    assert trajectory.result == direct.result and trajectory.status == "submitted"
    assert trajectory.document["agent"]["name"].startswith("mcp:")
    said = log.read_text()
    assert len(said) > len(brief) + sum(map(len, texts)) and direct.leaks(said) == []


def test_http_sessions_are_episodes_of_their_own(direct, trajectories) -> None:
    plan = EpisodePlan(**PLAN, trajectory_dir=trajectories)
    wire = Wire()

    async def one(url: str, actions: list[dict[str, Any]]) -> list[str]:
        transport = streamable_http_client(url, http_client=wire.client())
        async with Client(transport) as client:
            brief = (await client.read_resource(BRIEF_URI)).contents[0].text
            return [brief, *await play(client, actions)]

    async def both(url: str) -> list[list[str]]:
        work = (one(url, direct.actions), one(url, direct.actions[:1]))
        return list(await asyncio.gather(*work))

    app = http_app(lambda number: EnvDoor(plan, number))
    with HttpThread(app) as address:
        full, cut = asyncio.run(both(f"{address}/mcp"))
        found = written(trajectories, 2)
    assert full == [direct.brief, *direct.texts]
    assert cut[0] == direct.brief
    by_status = {t.status: t for t in found}
    assert by_status["submitted"].result == direct.result
    left = by_status["truncated"]  # gone without a hand-in: graded as it is
    assert left.result["end_reason"] == "the client disconnected" and left.result["turns"] == 1
    assert len(wire.text) > sum(map(len, full)) and direct.leaks(wire.text) == []


def test_a_client_without_prompts_reads_the_brief_in_its_first_result(direct) -> None:
    plan = EpisodePlan(**PLAN)

    async def session(url: str) -> list[str]:
        async with Client(url, mode="legacy") as client:
            first = await client.call_tool("execute_code", PROBE)
            bad = await client.call_tool("execute_code", {"language": "cobol"})
            assert bad.is_error
            with pytest.raises(MCPError, match="no such resource"):
                await client.read_resource("bat://skills/../../x")
            return [first.content[0].text, bad.content[0].text]

    with HttpThread(http_app(lambda number: EnvDoor(plan, number))) as address:
        first, bad = asyncio.run(session(f"{address}/mcp"))
    assert direct.brief in first and "exit code: 0" in first
    assert bad.startswith("Invalid action") and direct.brief not in bad


def test_too_many_sessions_and_foreign_hosts_are_refused_and_tokens_asked_for() -> None:
    plan = EpisodePlan(**PLAN)
    app = http_app(lambda number: EnvDoor(plan, number), max_sessions=1, token="secret")

    async def session(url: str) -> None:
        right = {"Authorization": "Bearer secret"}
        for headers, status in (({}, 401), ({**right, "Host": "evil.example"}, 421)):
            async with httpx2.AsyncClient(headers=headers) as http:
                body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
                accept = {"Accept": "application/json, text/event-stream"}
                assert (await http.post(url, json=body, headers=accept)).status_code == status
        async with (
            httpx2.AsyncClient(headers=right) as http,
            Client(streamable_http_client(url, http_client=http), mode="legacy"),
        ):
            with pytest.raises(BaseException) as refused:
                async with (
                    httpx2.AsyncClient(headers=right) as other,
                    Client(streamable_http_client(url, http_client=other), mode="legacy"),
                ):
                    raise AssertionError("a second session was opened")
            assert not isinstance(refused.value, AssertionError)

    with HttpThread(app) as address:
        asyncio.run(session(f"{address}/mcp"))


def test_a_killed_server_still_writes_its_episode(trajectories) -> None:
    server = subprocess.Popen(
        [sys.executable, *arguments(trajectories)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdin is not None and server.stdout is not None

    def ask(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        server.stdin.write(json.dumps(message) + "\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())

    client = {"name": "raw", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    assert "bat://brief" in ask(1, "initialize", hello)["result"]["instructions"]
    server.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    call = {"name": "execute_code", "arguments": PROBE}
    assert "exit code: 0" in ask(2, "tools/call", call)["result"]["content"][0]["text"]
    os.kill(server.pid, signal.SIGKILL)  # its input stays open
    server.wait()
    [trajectory] = written(trajectories)
    assert trajectory.status == "truncated" and trajectory.result["turns"] == 1
    server.stdin.close()
    server.stdout.close()


def test_bad_requests_are_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for extra in (["--task=kidny"], ["--http", "--host=0.0.0.0"], ["--connect=http://127.0.0.1:9"]):
        done = subprocess.run(
            [sys.executable, "-m", "bat_env.cli", "serve", "mcp", *extra],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("error: ") and done.stdout == ""
    monkeypatch.setitem(EXTRAS, "serve", ("no_such_module",))  # type: ignore[index]
    with pytest.raises(ConfigError, match="serve"):
        require("serve", "`bat-env serve mcp`")


def test_a_client_that_vanished_is_graded_when_it_was_silent_for_long(trajectories) -> None:
    plan = EpisodePlan(**PLAN, trajectory_dir=trajectories)
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "vanishing", "version": "1"},
    }

    def post(url: str, number: int, method: str, params: Any, session: str = "") -> httpx2.Response:
        headers = {"Accept": "application/json, text/event-stream"}
        headers |= {"Mcp-Session-Id": session} if session else {}
        body = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        return httpx2.post(url, json=body, headers=headers, timeout=120)

    app = http_app(lambda number: EnvDoor(plan, number), idle_s=1.0)
    with HttpThread(app) as address:
        url = f"{address}/mcp"
        session = post(url, 1, "initialize", hello).headers["mcp-session-id"]
        call = {"name": "execute_code", "arguments": PROBE}
        assert "exit code: 0" in post(url, 2, "tools/call", call, session).text
        [trajectory] = written(trajectories)
        assert post(url, 3, "tools/call", call, session).status_code == 404
    assert trajectory.status == "truncated" and trajectory.result["turns"] == 1
    assert trajectory.document["agent"]["name"] == "mcp:vanishing"
