"""The Model Context Protocol over a :class:`~bat_env.serve.door.Door`.

Two tools, generated from the one schema; the brief as a prompt and as a resource; the stage skills
as resources. A client that shows neither prompts nor resources to its model gets the brief in front
of its first tool result. What crosses is made here and nowhere else: texts of the door.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from anyio import CapacityLimiter
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    Prompt,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    TextContent,
    TextResourceContents,
    Tool,
)

from bat_env import __version__
from bat_env.errors import BatError
from bat_env.serve.door import Door
from bat_env.tools import mcp_tools

NAME: Final = "automed-bat"
BRIEF: Final = "brief"
BRIEF_URI: Final = "bat://brief"
SKILLS_URI: Final = "bat://skills/"
INSTRUCTIONS: Final = (
    "One episode of medical-imaging work in a sandbox, one per session. Read the brief first: the "
    f"prompt {BRIEF!r} or the resource {BRIEF_URI}; else it stands in front of the first tool "
    "result. State lives in files of /workspace. Hand in with submit_results; it ends the episode."
)
_FIRST: Final = "BRIEF OF THIS EPISODE\n{brief}\n\nRESULT OF THE CALL\n{text}"

Context = ServerRequestContext[Any, Any]
_T = TypeVar("_T")
_logger = logging.getLogger(__name__)


class Session:
    """One client at one door: calls are taken one at a time, in the order in which they come."""

    def __init__(self, door: Door, threads: CapacityLimiter) -> None:
        self.door = door
        self._threads = threads
        self._turn = anyio.Lock()
        self._told = self._named = False

    async def brief(self, ctx: Context) -> str:
        """The brief."""
        self._name(ctx)
        async with self._turn:
            text = await self._ask(self.door.brief)
            self._told = True
            return text

    async def skills(self) -> dict[str, str]:
        """URI -> text."""
        files = await self._ask(self.door.skills)
        return {SKILLS_URI + name: text for name, text in files.items()}

    async def call(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        """One tool call; a bad one is answered, not refused."""
        self._name(ctx)
        async with self._turn:
            brief = "" if self._told else await self._ask(self.door.brief)
            answer = await self._ask(lambda: self.door.call(params.name, params.arguments or {}))
            self._told = True
        text = _FIRST.format(brief=brief, text=answer.text) if brief else answer.text
        return CallToolResult(content=[TextContent(text=text)], is_error=not answer.ok)

    async def leave(self, reason: str) -> None:
        """Close the door."""
        await anyio.to_thread.run_sync(self.door.leave, reason, limiter=self._threads)

    def _name(self, ctx: Context) -> None:
        client = ctx.session.client_params
        if not self._named and client is not None:
            self._named = True
            self.door.introduce(f"mcp:{client.client_info.name}")

    async def _ask(self, question: Callable[[], _T]) -> _T:
        try:
            return await anyio.to_thread.run_sync(question, limiter=self._threads)
        except BatError:
            # Its words are for the host: they may name folders.
            _logger.exception("The episode could not go on")
            message = "The episode could not go on; the server's log says why."
            raise MCPError(INTERNAL_ERROR, message) from None


def mcp_server(session_of: Callable[[Context], Session]) -> Server[Any]:
    """A server for every session that ``session_of`` finds or makes."""

    async def list_tools(_: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[Tool.model_validate(tool) for tool in mcp_tools()])

    async def call_tool(ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        return await session_of(ctx).call(ctx, params)

    async def list_prompts(_: Context, __: PaginatedRequestParams | None) -> ListPromptsResult:
        return ListPromptsResult(prompts=[Prompt(name=BRIEF, description="The task to be done.")])

    async def get_prompt(ctx: Context, params: GetPromptRequestParams) -> GetPromptResult:
        if params.name != BRIEF:
            raise MCPError(INVALID_PARAMS, f"There is one prompt, {BRIEF!r}.")
        text = TextContent(text=await session_of(ctx).brief(ctx))
        return GetPromptResult(messages=[PromptMessage(role="user", content=text)])

    async def list_resources(ctx: Context, _: PaginatedRequestParams | None) -> ListResourcesResult:
        brief = Resource(name=BRIEF, uri=BRIEF_URI, description="The task.", mime_type="text/plain")
        skills = [
            Resource(name=uri.removeprefix(SKILLS_URI), uri=uri, mime_type="text/markdown")
            for uri in await session_of(ctx).skills()
        ]
        return ListResourcesResult(resources=[brief, *skills])

    async def read_resource(ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        session, uri = session_of(ctx), params.uri
        if uri == BRIEF_URI:
            text = await session.brief(ctx)
        else:
            skills = await session.skills()
            if uri not in skills:
                raise MCPError(INVALID_PARAMS, f"There is no such resource; {BRIEF_URI} is one.")
            text = skills[uri]
        kind = "text/plain" if uri == BRIEF_URI else "text/markdown"
        content = TextResourceContents(uri=uri, mime_type=kind, text=text)
        return ReadResourceResult(contents=[content])

    return Server(
        NAME,
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )


class Sessions:
    """A session, and so an episode, for every connection; or one that they all share.

    Args:
        make_door: Gives the door of the n-th session.
        shared: Whether every connection plays the same episode.
        threads: Calls that may run at once.
    """

    def __init__(
        self, make_door: Callable[[int], Door], *, shared: bool = False, threads: int = 40
    ) -> None:
        self._make, self._shared = make_door, shared
        self._threads = CapacityLimiter(threads)
        self._made = 0
        self._open: list[Session] = []

    def of(self, ctx: Context) -> Session:
        """The session of a request; made at the first one of its connection."""
        if self._shared:
            return self._open[0] if self._open else self._new()
        # The connection is where the library keeps state and clean-up of a session; it hands it to
        # handlers in this attribute only.
        connection = ctx.session._connection
        session: Session | None = connection.state.get(NAME)
        if session is None:
            session = connection.state[NAME] = self._new()
            connection.exit_stack.push_async_callback(self._end, session)
        return session

    async def close(self, reason: str) -> None:
        """End every session."""
        with anyio.CancelScope(shield=True):
            for session in list(self._open):
                await self._end(session, reason)

    def _new(self) -> Session:
        session = Session(self._make(self._made), self._threads)
        self._made += 1
        self._open.append(session)
        return session

    async def _end(self, session: Session, reason: str = "the client disconnected") -> None:
        await session.leave(reason)
        with suppress(ValueError):
            self._open.remove(session)
