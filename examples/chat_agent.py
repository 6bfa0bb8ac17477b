"""Score a chat model on held-out instances.

BAT_CHAT_BASE_URL and BAT_CHAT_MODEL name an OpenAI-compatible endpoint, BAT_CHAT_API_KEY its key.
Without them, a stand-in answers that looks at the data once and hands in.
"""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import bat_agent
from bat_agent.agents.chat import chat_source, make_chat_config


class StandIn(BaseHTTPRequestHandler):
    """What a server has to answer, at the least."""

    def do_POST(self) -> None:
        """Answer one request with one tool call."""
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messages"]
        look: dict[str, Any] = {"language": "bash", "code": "ls /data > seen.txt"}
        name, arguments = ("execute_code", look) if len(messages) == 2 else ("submit_results", {})
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": "1", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        usage = {"prompt_tokens": 1000, "completion_tokens": 20}
        answer = json.dumps({"choices": [{"message": message}], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def main() -> None:
    settings: dict[str, Any] = {"price_in": 0.5, "price_out": 1.5}
    if "BAT_CHAT_BASE_URL" not in os.environ:
        server = HTTPServer(("127.0.0.1", 0), StandIn)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings |= {"base_url": f"http://127.0.0.1:{server.server_port}/v1", "model": "stand-in"}
    agent = chat_source(make_chat_config(settings))
    evaluation = bat_agent.evaluate(agent, suite="seg-mini", repeats=1)
    print(f"Overall {evaluation.overall}, {evaluation.usage}")


if __name__ == "__main__":
    main()
