"""A scripted OpenAI-compatible endpoint that plays tasks by their scripts, and its faults."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bat_env.tasks import load_task
from bat_env.tools import execute_call, submit_call

FAULTS = ("429", "500", "truncated", "nonsense", "slow", "dropped", "date")
PROMPT_TOKENS, ANSWER_TOKENS = 1000, 50

Reply = Mapping[str, Any]
Script = Callable[[Mapping[str, Any]], "Reply | int | str"]


def function_call(call: Mapping[str, Any], number: int = 0) -> dict[str, Any]:
    """A message with one function call."""
    function = {"name": call["name"], "arguments": json.dumps(call["arguments"])}
    item = {"id": f"c{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [item]}


def hermes_call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A message with one call in text, after a thought."""
    text = f"<think>no <tool_call> here</think>\n<tool_call>\n{json.dumps(call)}\n</tool_call>"
    return {"role": "assistant", "content": text}


class Expert:
    """Plays the script of the task that a brief is about, one cell an answer.

    Args:
        tasks: Tasks that it knows.
        malformed: Whether every episode has two broken calls in it.
    """

    def __init__(self, tasks: list[str], *, malformed: bool = False) -> None:
        self._malformed = malformed
        self._scripts: dict[str, list[dict[str, Any]]] = {}
        for name in tasks:
            task = load_task(name)
            cells = [execute_call(c.language, c.code) for c in task.script()]
            self._scripts[task.spec.model.name] = [*cells, submit_call()]

    def actions(self, messages: list[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The next call; ``None`` where a broken one is due."""
        brief = next(m["content"] for m in messages if m["role"] == "user")
        script = next(s for name, s in self._scripts.items() if name in brief)
        turn = sum(m["role"] == "assistant" for m in messages)
        if self._malformed:
            if turn in (1, 3):
                return None
            turn -= (turn > 1) + (turn > 3)
        return script[turn]

    def __call__(self, body: Mapping[str, Any]) -> Reply:
        action = self.actions(body["messages"])
        turn = sum(m["role"] == "assistant" for m in body["messages"])
        if "tools" not in body:
            return {"content": "I forgot"} if action is None else hermes_call(action)
        if action is None:
            broken = {"name": "execute_code", "arguments": '{"language": "python", "code": "prin'}
            return {"tool_calls": [{"id": "", "function": broken}]}
        return function_call(action, turn)


class ChatServer:
    """Answers by a script; before every answer it may fail, as its faults say.

    Args:
        script: Body of a request -> message, or a status, or "dropped".
        faults: Kinds of faults.
        rate: Share of requests that fail.
        seed: Of the faults.
    """

    def __init__(
        self, script: Script, faults: tuple[str, ...] = (), rate: float = 0.4, seed: int = 0
    ) -> None:
        self.script, self.usage = script, True
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.answered = 0
        self.failed: dict[str, int] = {}
        self._faults, self._rate = faults, rate
        self._rng, self._lock = random.Random(seed), threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server._serve(self, body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> ChatServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _serve(self, handler: Any, body: dict[str, Any]) -> None:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(dict(handler.headers))
            self.times.append(time.monotonic())
            fails = bool(self._faults) and self._rng.random() < self._rate
            fault = self._rng.choice(self._faults) if fails else ""
            if fault:
                self.failed[fault] = self.failed.get(fault, 0) + 1
        assert handler.path == "/v1/chat/completions"
        reply: Any = {"429": 429, "date": 503, "500": 500, "dropped": "dropped"}.get(fault)
        if reply is None:
            reply = self.script(body)
        if fault == "slow":
            time.sleep(1.5)
        if reply == "dropped":
            handler.connection.close()
            return
        headers: dict[str, str] = {}
        if isinstance(reply, int):
            data = b'{"error": {"message": "tools are unknown; you sent the key sk-secret"}}'
            status = reply
            headers = {"429": {"Retry-After": "0.05"}}.get(fault, {})
            if fault == "date":
                headers = {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}
        else:
            status = 200
            answer: dict[str, Any] = {
                "choices": [{"message": dict(reply), "finish_reason": "stop"}]
            }
            if self.usage:
                answer["usage"] = {
                    "prompt_tokens": PROMPT_TOKENS,
                    "completion_tokens": ANSWER_TOKENS,
                }
            data = b'{"choices": [' if fault == "nonsense" else json.dumps(answer).encode()
            if not fault:
                with self._lock:
                    self.answered += 1
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(data) + (9 if fault == "truncated" else 0)))
        handler.end_headers()
        with contextlib.suppress(OSError):  # the client was right to leave
            handler.wfile.write(data)
