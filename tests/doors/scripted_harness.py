"""A harness for verifiers that plays tool calls from a list, through the MCP tools it is given."""

from __future__ import annotations

import json
from typing import Any

import verifiers.v1 as vf
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from pydantic import Field

__all__ = ["ScriptedHarness"]

LOG: list[str] = []
"""Everything that an agent was told: prompts, tools, answers."""


class ScriptedConfig(vf.HarnessConfig):
    id: str = "scripted_harness"
    calls: list[dict[str, Any]] = Field(default_factory=list)


class ScriptedHarness(vf.Harness[ScriptedConfig]):
    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx, trace, runtime, endpoint, secret, mcp_urls, data
    ) -> vf.ProgramResult:
        LOG.append(json.dumps(self.resolve_prompt(data)))
        (url,) = mcp_urls.values()
        async with Client(streamable_http_client(url), cache=None) as client:
            tools = await client.list_tools()
            LOG.append(tools.model_dump_json())
            for call in self.config.calls:
                answer = await client.call_tool(call["name"], call["arguments"])
                LOG.append(answer.model_dump_json())
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
