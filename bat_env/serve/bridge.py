"""A stdio server that passes everything on to an HTTP one: for clients that only start commands."""

from __future__ import annotations

import os
from typing import Any, Final

import anyio
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    GetPromptRequestParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
)

from bat_env.errors import BatError
from bat_env.serve.mcp import NAME, Context

TOKEN: Final = "BAT_SERVE_TOKEN"
"""Environment variable of the bearer token, if the server asks for one."""


def bridge(url: str) -> None:
    """Serve the episode behind ``url`` over standard input and output.

    Raises:
        BatError: If nothing answers there.
    """
    try:
        anyio.run(_bridge, url)
    except* (OSError, httpx2.HTTPError) as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise BatError(
            f"No MCP server answers at {url} ({type(first).__name__}). Start one with "
            "`bat-env serve mcp --http`."
        ) from None


async def _bridge(url: str) -> None:
    token = os.environ.get(TOKEN, "")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # A cell may take minutes.
    async with (
        httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=3600)) as http,
        Client(streamable_http_client(url, http_client=http), cache=None) as client,
        stdio_server() as (incoming, outgoing),
    ):
        server = _passing_on(client)
        await server.run(incoming, outgoing, server.create_initialization_options())


def _passing_on(client: Client) -> Server[Any]:
    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> Any:
        return await client.list_tools()

    async def call_tool(_: Context, params: CallToolRequestParams) -> Any:
        return await client.session.call_tool(params.name, params.arguments)

    async def list_prompts(_: Context, __: PaginatedRequestParams | None) -> Any:
        return await client.list_prompts()

    async def get_prompt(_: Context, params: GetPromptRequestParams) -> Any:
        return await client.get_prompt(params.name, params.arguments)

    async def list_resources(_: Context, __: PaginatedRequestParams | None) -> Any:
        return await client.list_resources()

    async def read_resource(_: Context, params: ReadResourceRequestParams) -> Any:
        return await client.read_resource(params.uri)

    return Server(
        NAME,
        instructions=client.instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )
