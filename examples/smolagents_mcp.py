"""An agent that owns its loop: smolagents plays one episode over MCP.

bat-agent eval --harness "python examples/smolagents_mcp.py" --suite lite-mini --repeats 1 \
    --model MODEL --base-url http://127.0.0.1:8000/v1

It needs smolagents, and the package openai for a real model.
"""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

from mcp import Client
from smolagents import Tool, ToolCallingAgent

LOOP = asyncio.new_event_loop()


def wait(coroutine: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(coroutine, LOOP).result()


class McpTool(Tool):
    """A tool of an MCP session."""

    skip_forward_signature_validation = True
    output_type = "string"

    def __init__(self, client: Client, tool: Any) -> None:
        self.name, self.description, self._client = tool.name, tool.description, client
        fields = tool.input_schema["properties"].items()
        self.inputs = {k: {"type": "string", "description": v["description"]} for k, v in fields}
        super().__init__()

    def forward(self, **arguments: str) -> str:
        """Call it."""
        return wait(self._client.call_tool(self.name, arguments)).content[0].text


def play(url: str, model: Any) -> None:
    threading.Thread(target=LOOP.run_forever, daemon=True).start()
    client = wait(Client(url).__aenter__())
    brief = wait(client.get_prompt("brief")).messages[0].content.text
    tools = [McpTool(client, tool) for tool in wait(client.list_tools()).tools]
    ToolCallingAgent(tools, model, max_steps=30).run(brief)


if __name__ == "__main__":
    if "BAT_MCP_URL" in os.environ:
        from smolagents import OpenAIServerModel

        play(os.environ["BAT_MCP_URL"], OpenAIServerModel(os.environ["OPENAI_MODEL"]))
    else:
        print("no episode here: start this with bat-agent eval --harness")
