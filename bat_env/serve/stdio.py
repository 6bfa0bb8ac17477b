"""MCP over standard input and output: one process, one episode.

Clients end a server by closing its input and kill it seconds later, which is less than the grading
of an unfinished episode may take. So the work is done in a child in a session of its own, which
inherits both streams: it sees the end of the input too, and finishes when its parent was killed.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import anyio
from mcp.server.stdio import stdio_server

from bat_env.serve.door import Door
from bat_env.serve.mcp import Sessions, mcp_server

CHILD: Final = "BAT_SERVE_CHILD"
_PDEATHSIG: Final = 1


def run_stdio(door: Door) -> None:
    """Serve one client until it goes; then the episode is over."""
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(_serve, door)


async def _serve(door: Door) -> None:
    sessions = Sessions(lambda _: door, shared=True)
    server = mcp_server(sessions.of)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_on_signal, sessions)
            async with stdio_server() as (incoming, outgoing):
                await server.run(incoming, outgoing, server.create_initialization_options())
            group.cancel_scope.cancel()
    finally:
        await sessions.close("the client disconnected")


async def _stop_on_signal(sessions: Sessions) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async for _ in signals:
            await sessions.close("the server was stopped")
            # The thread that waits for input cannot be woken, so the interpreter would wait for it.
            atexit._run_exitfuncs()
            os._exit(0)


def detached(command: Sequence[str]) -> int:
    """Run a command that outlives this process until its work is done; returns its exit status.

    Args:
        command: Program and arguments; it finds ``BAT_SERVE_CHILD`` in its environment.
    """
    parent = os.getpid()

    def orphaned() -> None:
        ctypes.CDLL(None).prctl(_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    child = subprocess.Popen(
        command,
        env={**os.environ, CHILD: "1"},
        start_new_session=True,
        preexec_fn=orphaned if sys.platform == "linux" else None,
    )
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _: child.send_signal(received))
    return child.wait()
