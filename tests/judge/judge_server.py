"""A scripted judge server: an OpenAI-compatible endpoint that does what a test says."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ROW = re.compile(r"^ *(\d+)\| (.*)$")


@dataclasses.dataclass
class Asked:
    """A request as a judge reads it: only what stands in it, as a model would see it."""

    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def system(self) -> str:
        return str(self.body["messages"][0]["content"])

    @property
    def user(self) -> str:
        return str(self.body["messages"][-1]["content"])

    @property
    def token(self) -> str:
        return re.search(r"BEGIN ([0-9a-f]+) and END", self.system)[1]  # type: ignore[index]

    @property
    def questions(self) -> dict[str, str]:
        """Question id -> file to cite."""
        found = re.findall(r'^- (S\d\.\w+) \(cite file "([^"]+)"', self.user, re.M)
        return dict(found)

    @property
    def files(self) -> dict[str, dict[int, str]]:
        """File -> number -> shown text."""
        pattern = re.compile(
            rf"^BEGIN {self.token} data of (\S+): \d+ lines\n(.*?)^END {self.token}$", re.M | re.S
        )
        found = {}
        for path, body in pattern.findall(self.user):
            rows = filter(None, map(ROW.match, body.splitlines()))
            found[path] = {int(row[1]): row[2] for row in rows}
        return found

    def item(self, name: str, met: bool = True, **changes: Any) -> dict[str, Any]:
        """A well-formed answer to one question, citing its first long line."""
        path = self.questions[name]
        lines = self.files[path]
        number = next((n for n, text in lines.items() if len(text) > 20), min(lines))
        return {
            "id": name,
            "met": met,
            "file": path,
            "line": number,
            "quote": lines[number][:200],
            "reason": "It says so.",
            **changes,
        }

    def answer(self, met: Any = True, **changes: Any) -> str:
        """A well-formed answer to all questions; ``met`` a bool or ``(question id) -> bool``."""
        items = [
            self.item(name, met(name) if callable(met) else met, **changes)
            for name in self.questions
        ]
        return json.dumps({"token": self.token, "items": items})


@dataclasses.dataclass
class Reply:
    """What the server does with one request."""

    text: str = ""
    status: int = 200
    raw: bytes | None = None
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    finish: str = "stop"
    wait_s: float = 0.0
    drop: bool = False
    drip_s: float = 0.0
    short: int = 0


Script = Callable[[Asked], "Reply | str"]


def good(asked: Asked) -> str:
    return asked.answer(True)


class ScriptedServer:
    """Answers by a list of scripts in order; the last one goes on for ever."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.scripts: list[Script] = [good]
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: Any) -> None:
                pass

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                asked = Asked(json.loads(self.rfile.read(length)), dict(self.headers))
                with server._lock:
                    number = len(server.asked)
                    server.asked.append(asked)
                    script = server.scripts[min(number, len(server.scripts) - 1)]
                assert self.path == "/v1/chat/completions"
                reply = script(asked)
                self._send(Reply(reply) if isinstance(reply, str) else reply)

            def _send(self, reply: Reply) -> None:
                time.sleep(reply.wait_s)
                if reply.drop:
                    self.connection.close()
                    return
                message = {"role": "assistant", "content": reply.text}
                choice = {"index": 0, "message": message, "finish_reason": reply.finish}
                data = reply.raw
                if data is None:
                    data = json.dumps({"object": "chat.completion", "choices": [choice]}).encode()
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data) + reply.short))
                self.end_headers()
                try:
                    if reply.drip_s:
                        for byte in data:
                            self.wfile.write(bytes([byte]))
                            time.sleep(reply.drip_s)
                    self.wfile.write(data)
                except OSError:
                    pass  # the client was right to leave

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def play(self, *scripts: Script) -> None:
        """Answer by these from now on."""
        self.asked.clear()
        self.scripts = list(scripts)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
