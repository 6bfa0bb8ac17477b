"""Episodes of this process, reachable from tool servers of this machine by a secret address."""

from __future__ import annotations

import json
import secrets
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from bat_agent.integrations.episodes import OVER, Rollout

_MAX_BYTES: Final = 8 << 20
CALL_S: Final = 3600.0
"""Seconds to wait for a call: a cell may take minutes, the grading of a hand-in too."""


class EpisodeHost:
    """Serves rollouts on the loopback, each under an address that nobody can guess.

    Harnesses run tools in processes of their own, one an episode. The environments stay here, so
    that episodes share warm sandboxes, and that the score is not where the tools are.
    """

    def __init__(self) -> None:
        self._open: dict[str, Rollout] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._server: ThreadingHTTPServer | None = None
        self._starting = threading.Lock()

    def open(self, rollout: Rollout) -> str:
        """Make a rollout reachable; its address."""
        key = secrets.token_urlsafe(32)
        self._locks[key], self._open[key] = threading.Lock(), rollout
        return f"http://127.0.0.1:{self._port()}/{key}"

    def close(self, address: str) -> Rollout | None:
        """Take a rollout away again, when a running call has ended; ``None`` if it is gone."""
        key = address.rpartition("/")[2]
        rollout, lock = self._open.pop(key, None), self._locks.pop(key, None)
        if lock is not None:
            with lock:
                pass
        return rollout

    def _port(self) -> int:
        with self._starting:
            if self._server is None:
                self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
                self._server.daemon_threads = True
                threading.Thread(target=self._server.serve_forever, daemon=True).start()
            return int(self._server.server_address[1])

    def _call(self, key: str, body: bytes) -> str:
        rollout, lock = self._open.get(key), self._locks.get(key)
        if rollout is None or lock is None:
            return OVER
        asked = json.loads(body)
        with lock:
            return rollout.call(str(asked["name"]), dict(asked["arguments"]))

    def _handler(host) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                if not 0 < length <= _MAX_BYTES:
                    self.send_error(413)
                    return
                try:
                    text = host._call(self.path[1:], self.rfile.read(length))
                except (ValueError, KeyError, TypeError):
                    self.send_error(400)
                    return
                data = json.dumps({"text": text}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def call_host(address: str, name: str, arguments: dict[str, Any]) -> str:
    """Do one tool call at an address of :class:`EpisodeHost`; blocks.

    Raises:
        OSError: If nothing answers there.
    """
    body = json.dumps({"name": name, "arguments": arguments}).encode()
    asked = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=CALL_S) as answer:
        return str(json.load(answer)["text"])
