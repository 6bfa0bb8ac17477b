"""MCP over streamable HTTP: many sessions at once, each with an episode of its own."""

from __future__ import annotations

import contextlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bat_env.errors import BatError
from bat_env.serve.door import Door
from bat_env.serve.mcp import Sessions, mcp_server

PATH: Final = "/mcp"
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_STOP_S: Final = 5
"""Seconds that open streams get when the server stops."""


class _Guard:
    """Asks for the token, and keeps out versions of the protocol that know no session.

    Newer versions send every request on its own: nothing would say which episode it belongs to.
    Their clients fall back to the handshake when they are told so.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, sessions: bool) -> None:
        self._app, self._token, self._sessions = app, token, sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if self._token is not None:
            came = request.headers.get("authorization", "")
            if not hmac.compare_digest(came.encode(), f"Bearer {self._token}".encode()):
                refusal = JSONResponse({"error": "a bearer token is needed"}, 401)
                await refusal(scope, receive, send)
                return
        version = request.headers.get("mcp-protocol-version")
        if self._sessions and version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await _sessionless(request, await request.body())(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _sessionless(request: Request, body: bytes) -> JSONResponse:
    try:
        number = json.loads(body).get("id")
    except (ValueError, AttributeError, RecursionError):
        number = None
    data = {
        "supported": list(HANDSHAKE_PROTOCOL_VERSIONS),
        "requested": request.headers.get("mcp-protocol-version", "")[:40],
    }
    error = {
        "code": UNSUPPORTED_PROTOCOL_VERSION,
        "message": "One episode per session: a version with the initialize handshake is needed.",
        "data": data,
    }
    return JSONResponse({"jsonrpc": "2.0", "id": number, "error": error}, 400)


def http_app(
    make_door: Callable[[int], Door],
    *,
    path: str = PATH,
    host: str = "127.0.0.1",
    shared: bool = False,
    token: str | None = None,
    idle_s: float = 1800.0,
    max_sessions: int = 8,
) -> Starlette:
    """The web application.

    Args:
        make_door: Gives the door of the n-th session.
        path: Of the end point.
        host: Where it will listen; on the loopback, other names of the host are refused.
        shared: Whether all connections play one episode.
        token: Bearer token to ask for, or ``None``.
        idle_s: A session without a request for so long is over, seconds.
        max_sessions: Open sessions at once; one more is refused.
    """
    sessions = Sessions(make_door, shared=shared, threads=max_sessions + 4)
    local = host in LOOPBACK
    names = [f"{name}:*" for name in ("127.0.0.1", "localhost", "[::1]")]
    manager = StreamableHTTPSessionManager(
        mcp_server(sessions.of),
        security_settings=TransportSecuritySettings(
            enable_dns_rebinding_protection=local,
            allowed_hosts=names if local else [],
            allowed_origins=[f"http://{name}" for name in names] if local else [],
        ),
        session_idle_timeout=idle_s,
        max_sessions=max_sessions,
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        try:
            async with manager.run():
                yield
        finally:
            await sessions.close("the server stopped")

    guard = _Guard(StreamableHTTPASGIApp(manager), token=token, sessions=not shared)
    return Starlette(routes=[Route(path, endpoint=guard)], lifespan=lifespan)


def serve_http(app: Starlette, *, host: str, port: int, ready: Callable[[str], Any]) -> None:
    """Serve until a signal; ``ready`` gets the address once it listens.

    Raises:
        BatError: If the address cannot be listened at.
    """
    server = _Server(_config(app, host, port), ready)
    try:
        server.run()
    except SystemExit:  # uvicorn has said why
        raise BatError(
            f"Cannot listen at {host}:{port}; give another --port, or 0 for any free one."
        ) from None


class HttpThread:
    """A server in a thread of this process, for one block.

    Args:
        app: What to serve, on a free port of the loopback.
    """

    def __init__(self, app: Starlette) -> None:
        self._address = ""
        self._server = _Server(_config(app, "127.0.0.1", 0), self._set)
        self._thread = threading.Thread(target=self._server.run, name="mcp-http", daemon=True)

    def _set(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> str:
        """The address, without a path."""
        self._thread.start()
        end = time.monotonic() + 30
        while not self._address:
            if not self._thread.is_alive() or time.monotonic() > end:
                raise BatError("The MCP server could not listen on the loopback.")
            time.sleep(0.005)
        return self._address

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


def _config(app: Starlette, host: str, port: int) -> uvicorn.Config:
    return uvicorn.Config(
        app, host=host, port=port, log_level="error", timeout_graceful_shutdown=_STOP_S
    )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[str], Any]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets=sockets)
        if self.started:
            name, port = self.servers[0].sockets[0].getsockname()[:2]
            self._ready(f"http://{f'[{name}]' if ':' in name else name}:{port}")
