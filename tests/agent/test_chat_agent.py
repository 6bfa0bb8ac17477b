"""The chat agent against a scripted endpoint with faults: scores, books, limits, secrets."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from chat_server import (
    ANSWER_TOKENS,
    FAULTS,
    PROMPT_TOKENS,
    ChatServer,
    Expert,
    function_call,
    hermes_call,
)
from private_words import leaked, needles

from bat_agent.agents.chat import ChatAgent, chat_source, make_chat_config
from bat_agent.agents.chat.calls import function_calls, text_calls
from bat_agent.agents.chat.endpoint import Endpoint
from bat_agent.agents.chat.ledger import Ledger
from bat_agent.agents.chat.transcript import Transcript
from bat_agent.agents.failures import ServiceError, StopEvaluation
from bat_agent.evaluate import evaluate
from bat_env.errors import ConfigError, UnknownNameError
from bat_env.tasks import load_suite
from bat_env.tools import execute_call, submit_call
from bat_env.trajectory import read_trajectory

FAST = {"backoff_s": 0.01, "model": "scripted"}
PRICES = {"price_in": 2.0, "price_out": 10.0}
SEG = {"suite": "seg-mini", "repeats": 1, "sandbox": "local"}
BRIEF = {"stage": 5, "text": "Do the task."}


def config_of(server: ChatServer, **changes: Any) -> Any:
    return make_chat_config({"base_url": server.url, **FAST, **changes})


def played(server: ChatServer, **changes: Any) -> ChatAgent:
    agent = ChatAgent(Endpoint(config_of(server, **changes)))
    agent.reset(BRIEF, {})
    return agent


@pytest.fixture(scope="module")
def oracle() -> Any:
    """The script's own episode of the first instance."""
    return evaluate("oracle", **SEG).cells[0]


def test_all_tracks_twice_with_faults_and_right_books(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAT_CHAT_API_KEY", "sk-secret")
    tasks = sorted({entry.task for entry in load_suite("lite-mini").entries})
    assert len(tasks) == 7
    with ChatServer(Expert(tasks), FAULTS) as server:
        source = chat_source(config_of(server, **PRICES, timeout_s=1.0, tries=50))
        played = evaluate(
            source,
            suite="lite-mini",
            repeats=2,
            sandbox="local",
            workers=3,
            trajectory_dir=tmp_path / "episodes",
            journal=tmp_path / "out.part",
        )
        assert set(server.failed) == set(FAULTS)
        assert {h["Authorization"] for h in server.headers} == {"Bearer sk-secret"}
    assert played.invalid == 0 and len(played.cells) == 14
    assert {cell.status for cell in played.cells} == {"submitted"}
    answers = sum(cell.turns for cell in played.cells)
    usage = played.usage
    assert usage["requests"] == server.answered == answers
    assert usage["failures"] == sum(server.failed.values()) and usage["estimated"] == 0
    assert usage["prompt_tokens"] == answers * PROMPT_TOKENS
    assert sum(c.tokens for c in played.cells) == usage["completion_tokens"]
    assert usage["completion_tokens"] == answers * ANSWER_TOKENS
    cost = answers * (PROMPT_TOKENS * 2.0 + ANSWER_TOKENS * 10.0) / 1e6
    assert usage["cost"] == pytest.approx(cost) == played.summary()["cost"]
    assert sum(c.cost for c in played.cells) == pytest.approx(cost)
    assert all(cell.overall > 0.7 for cell in played.cells)  # equal to the script's: see below
    files = list((tmp_path / "episodes").glob("*.json"))
    assert len(files) == 14 and not any("sk-secret" in file.read_text() for file in files)
    # Everything that went to the server, against what the host alone knows of the episodes.
    episodes = [read_trajectory(file).document["extra"] for file in files]
    private = [word for e in episodes for word in needles(e["reset"], e["result"])]
    assert len(private) > 28
    assert leaked((json.dumps(body) for body in server.bodies), private) == []
    assert leaked(["score " + private[-1]], private) == [private[-1]]


@pytest.mark.parametrize("tools", ["native", "text", "auto"])
def test_malformed_calls_cost_turns_and_no_more(tools: str, oracle: Any, tmp_path: Path) -> None:
    expert = Expert(["kidney_tumor"], malformed=True)

    def no_tools(body: Any) -> Any:
        return 400 if "tools" in body else expert(body)

    with ChatServer(no_tools if tools == "auto" else expert) as server:
        source = chat_source(config_of(server, tools=tools))
        chat = evaluate(source, **SEG, trajectory_dir=tmp_path)
    [cell] = chat.cells
    assert (cell.overall, cell.stages) == (oracle.overall, oracle.stages)
    assert cell.turns == oracle.turns + 2
    [path] = tmp_path.glob("*.json")
    trajectory = read_trajectory(path)
    assert trajectory.result["errors"]["invalid_actions"] == 2
    assert trajectory.steps[1]["extra"]["policy"]["completion_tokens"] == ANSWER_TOKENS
    for body in server.bodies:  # what goes back can be read by any template
        for message in body["messages"]:
            for call in message.get("tool_calls", ()):
                assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_the_cost_limit_stops_cleanly_and_the_same_command_goes_on(
    oracle: Any, tmp_path: Path
) -> None:
    """Three episodes; the limit falls into the second one."""
    journal = tmp_path / "scores.json.part"
    with ChatServer(Expert(["kidney_tumor"])) as server:
        asked = dict(SEG, repeats=3, workers=1, journal=journal)

        def source(limit: float) -> Any:
            settings = {**PRICES, "max_cost": limit, "max_tokens": ANSWER_TOKENS}
            return chat_source(config_of(server, **settings))

        one = (PROMPT_TOKENS * 2 + ANSWER_TOKENS * 10) / 1e6
        turns = oracle.turns
        limit = (1.5 * turns) * one
        with pytest.raises(StopEvaluation, match="1 of 3 episodes"):
            evaluate(source(limit), **asked)
        spent = server.answered * one
        assert turns * one < spent <= limit
        with pytest.raises(ConfigError, match="other settings"):
            evaluate(source(limit), **{**asked, "seed": 1})
        before = server.answered
        whole = evaluate(source(100.0), **asked)
        assert server.answered - before == 2 * turns  # the first episode was kept
    assert whole.invalid == 0 and len(whole.cells) == 3
    assert whole.usage["cost"] == pytest.approx(server.answered * one)
    assert whole.usage["cost"] > sum(cell.cost for cell in whole.cells)


def test_an_endpoint_that_is_down_is_nobodys_fault() -> None:
    with ChatServer(lambda body: 500) as server:
        agent = played(server, tries=3)
        with pytest.raises(ServiceError, match="no answer in 3 requests; last: HTTP 500"):
            agent.act(BRIEF)
        assert len(server.bodies) == 3
        result = evaluate(chat_source(config_of(server, tries=1)), **SEG)
    assert result.invalid == 1 and "gave no answer" in result.cells[0].error
    for status, words in ((401, "refused the API key"), (404, "refuses the request")):
        with ChatServer(lambda body, status=status: status) as server:
            with pytest.raises(StopEvaluation, match=words) as stop:
                played(server, tools="native").act(BRIEF)
            assert len(server.bodies) == 1 and "sk-secret" not in str(stop.value) * (status == 401)


def test_an_interrupt_ends_the_waiting() -> None:
    with ChatServer(lambda body: 500) as server:
        agent = played(server, backoff_s=60.0)
        threading.Timer(0.3, agent.interrupt).start()
        began = time.monotonic()
        with pytest.raises(StopEvaluation, match="was interrupted"):
            agent.act(BRIEF)
    assert time.monotonic() - began < 15 and len(server.bodies) == 1


def test_a_refusal_in_the_middle_ends_its_episode_only() -> None:
    def picky(body: Any) -> Any:
        return {"content": ""} if len(body["messages"]) == 2 else 400

    with ChatServer(picky) as server:
        agent = played(server)
        assert agent.act(BRIEF) == ""
        with pytest.raises(ServiceError, match="refuses the conversation"):
            agent.act({"text": "that was no call"})
    assert server.bodies[-1]["messages"][2]["content"] == "(empty)"


def test_several_calls_of_one_answer_are_played_one_by_one() -> None:
    def two(body: Any) -> Any:
        if len(body["messages"]) > 2:
            return function_call(submit_call())
        calls = [function_call(execute_call("bash", c), i) for i, c in enumerate("ab")]
        return {"content": "both", "tool_calls": [c["tool_calls"][0] for c in calls]}

    with ChatServer(two) as server:
        agent = played(server)
        names = [agent.act({"text": str(n)})["arguments"].get("code") for n in range(3)]
    assert names == ["a", "b", None] and len(server.bodies) == 2
    roles = [m["role"] for m in server.bodies[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool"]
    assert [m["content"] for m in server.bodies[1]["messages"][3:]] == ["1", "2"]


def test_calls_are_read_as_models_write_them() -> None:
    call = {"name": "submit_results", "arguments": {}}
    assert [c.action for c in text_calls(hermes_call(call)["content"])] == [call]
    assert [c.action for c in text_calls("<tool_call>{oops</tool_call>")] == ["{oops"]
    assert text_calls("<tool_call>" * 3) and not text_calls("nothing")
    for strange in (None, [], [None], [{"function": 3}], {"a": 1}, [{"function": {}}]):
        calls, kept = function_calls({"tool_calls": strange})
        assert len(calls) == len(kept)


def test_the_context_is_cut_by_the_stated_rule() -> None:
    transcript = Transcript("system", "the brief", room=3000)
    for turn in range(12):
        transcript.begin({"role": "assistant", "content": f"answer {turn}"})
        transcript.result({"role": "tool", "content": f"{turn} " + "x" * 2000})
        messages = transcript.messages()
        assert transcript.tokens() <= 3000
    assert messages[1]["content"].startswith("the brief")
    assert messages[-1]["content"] == "11 " + "x" * 2000  # the last turns are whole
    cut = [m["content"] for m in messages if "characters of this result were cut" in m["content"]]
    assert cut and "2002" in cut[0]
    transcript.cut(1500)
    assert "turns were left out" in transcript.messages()[1]["content"]
    transcript.begin({"role": "assistant", "content": ""})
    transcript.result({"role": "tool", "content": "y" * 100_000})
    last = transcript.messages()[-1]["content"]
    assert "characters were cut" in last and last.startswith("yy") and transcript.tokens() <= 3000
    with pytest.raises(ConfigError, match="does not fit"):
        Transcript("s", "b" * 9000, room=500).messages()


def test_a_server_that_finds_the_conversation_too_long_gets_a_shorter_one() -> None:
    def strict(body: Any) -> Any:
        if len(json.dumps(body["messages"])) > 4000:
            return 413
        return function_call(execute_call("bash", "ls"))

    with ChatServer(strict) as server:
        agent = played(server)
        agent.act(BRIEF)
        agent.act({"text": "z" * 5000})
    sizes = [len(json.dumps(body["messages"])) for body in server.bodies]
    assert len(sizes) > 2 and sizes[1] > 4000 >= sizes[-1]
    assert "characters were cut" in server.bodies[-1]["messages"][-1]["content"]


def test_rates_are_kept_and_a_server_that_asks_is_waited_for() -> None:
    now = [0.0]
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    config = make_chat_config({"base_url": "http://x/v1", "model": "m", "rpm": 3, "tpm": 1000})
    ledger = Ledger(config, clock=lambda: now[0], sleep=sleep)
    stamps = []
    for _ in range(7):
        with ledger.request(100, 10) as ticket:
            stamps.append(now[0])
            ledger.settle(ticket, 100, 10, 0)
    assert all(b - a >= 60 for a, b in zip(stamps, stamps[3:], strict=False)) and len(waits) == 2
    now[0] += 1000
    with ledger.request(950, 10) as ticket:
        ledger.settle(ticket, 950, 10, 0)
    start = now[0]
    with ledger.request(100, 10) as ticket:
        assert now[0] - start >= 60
    ledger.hold_back(500)
    start = now[0]
    with ledger.request(1, 1):
        assert now[0] - start >= 500


def test_a_reservation_waits_for_those_of_others() -> None:
    config = make_chat_config(
        {"base_url": "http://x/v1", "model": "m", "price_out": 1e6, "max_cost": 10}
    )
    ledger = Ledger(config)
    inside, done = threading.Event(), threading.Event()

    def first() -> None:
        with ledger.request(0, 8) as ticket:
            inside.set()
            done.wait(10)
            ledger.settle(ticket, 0, 1, 0)

    thread = threading.Thread(target=first)
    thread.start()
    inside.wait(10)
    threading.Timer(0.1, done.set).start()
    with ledger.request(0, 8):  # 8 + 8 > 10, but the first one came to 1
        assert done.is_set()
    thread.join()
    with pytest.raises(StopEvaluation, match="--max-cost"), ledger.request(0, 10):
        pass


def test_bad_settings_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"base_url": "http://127.0.0.1:1/v1", "model": "m"}
    with pytest.raises(UnknownNameError, match="max_tokens"):
        make_chat_config({**good, "max_token": 3})
    with pytest.raises(ConfigError, match="--model"):
        make_chat_config({"base_url": good["base_url"]})
    with pytest.raises(ConfigError, match="must hold no user name") as refused:
        make_chat_config({**good, "base_url": "http://me:hunter2@host/v1"})
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError, match="--price"):
        make_chat_config({**good, "max_cost": 1.0})
    with pytest.raises(ConfigError, match="NO_SUCH"):
        make_chat_config({**good, "api_key_env": "NO_SUCH"})
    monkeypatch.setenv("BAT_CHAT_BASE_URL", good["base_url"])
    monkeypatch.setenv("BAT_CHAT_MODEL", "m")
    assert ChatAgent() and os.environ["BAT_CHAT_MODEL"] == "m"
