"""The grader's fork server: imports the imaging stack once, then one confined child per request.

Runs in its own interpreter, started by :mod:`bat_env.grader.client`. It never touches agent bytes
itself: a request's socket goes straight to the child. It ends when the host's end of the control
socket closes.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from typing import Final

from bat_env.grader.confine import confine, prepare_filter
from bat_env.grader.frames import FrameError, receive_frame, send_frame

CHILD_WALL_S: Final[float] = 120.0
_POLL_S: Final[float] = 2.0


def _child(sock: socket.socket, server_pid: int, program: object) -> None:
    """Confine, read one request, answer it. Never returns."""
    from bat_env.grader import operations

    code = 1
    try:
        confine(server_pid, program)  # type: ignore[arg-type]
        header, blobs = receive_frame(sock)
        try:
            reply, out = operations.run(header, blobs)
        except ImportError as error:
            # A module that the server did not load is our mistake, never the agent's.
            reply, out = {"infrastructure": f"{type(error).__name__}: {error}"}, []
        send_frame(sock, reply, out)
        code = 0
    except FrameError:
        pass
    finally:
        os._exit(code)


def serve(control: socket.socket) -> None:
    """Fork a child for every descriptor that arrives, until the host is gone."""
    parent = os.getppid()
    server_pid = os.getpid()
    program = prepare_filter()
    children: dict[int, float] = {}
    gc.collect()
    gc.freeze()
    control.sendall(b"ready\n")
    while True:
        ready, _, _ = select.select([control], [], [], _POLL_S)
        now = time.monotonic()
        for pid, deadline in list(children.items()):
            if now > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if os.waitpid(pid, os.WNOHANG)[0]:
                del children[pid]
        if os.getppid() != parent:
            return
        if not ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not message:
            return
        for descriptor in descriptors:
            sock = socket.socket(fileno=descriptor)
            try:
                pid = os.fork()
            except OSError as error:
                with contextlib.suppress(FrameError):
                    send_frame(sock, {"infrastructure": f"fork: {error}"})
                sock.close()
                continue
            if pid == 0:
                control.close()
                _child(sock, server_pid, program)
            children[pid] = now + CHILD_WALL_S
            sock.close()


def main(descriptor: int) -> None:
    """Entry of the server process; ``descriptor`` is its end of the control socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    try:
        from bat_env.grader import operations

        operations.warm()
    except BaseException as error:
        control.sendall(f"{type(error).__name__}: {error}"[:2000].encode() + b"\n")
        sys.exit(1)
    try:
        serve(control)
    finally:
        # Children die with the server; nothing else needs an orderly end.
        os._exit(0)
