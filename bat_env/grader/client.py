"""The host's side of the grader: starts the server, sends requests, believes only bounded JSON."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bat_env.errors import GraderError
from bat_env.grader.frames import FrameError, receive_frame, send_frame

REQUEST_S: Final[float] = 90.0
"""Wall time of one request. CPU time is limited in the child: passing this means a sick host."""
START_S: Final[float] = 120.0
MAX_REPLY_BYTES: Final[int] = 64 * 1024 * 1024

_BOOT: Final[str] = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from bat_env.grader.server import main; main(int(sys.argv[2]))"
)


class ChildCrash(Exception):
    """A grader child died on what it was given: a property of the file, not of the host."""


_servers: weakref.WeakSet[ServerProcess] = weakref.WeakSet()


class ServerProcess:
    """One warm grader server and the socket to it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        _servers.add(self)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        threads = ("OMP", "OPENBLAS", "MKL", "NUMEXPR")
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONHASHSEED": "0",
            "LC_ALL": "C.UTF-8",
        }
        # A server with threads could not fork safely.
        env.update({f"{name}_NUM_THREADS": "1" for name in threads})
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", _BOOT, root, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=env,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise GraderError(f"The grader process could not be started: {error}.") from error
        finally:
            theirs.close()
        message = _first_line(ours)
        if message != "ready":
            process.kill()
            process.wait()
            ours.close()
            raise GraderError(
                f"Expected a ready grader process, got: {message or 'it ended while starting'}. "
                "Check that numpy, scipy, nibabel and pillow import in this interpreter."
            )
        self._process, self._control = process, ours
        return ours

    def _connect(self) -> socket.socket:
        """A socket to a fresh child; starts or restarts the server where needed."""
        with self._lock:
            for _ in range(2):
                control = self._control or self._start()
                ours, theirs = socket.socketpair()
                try:
                    socket.send_fds(control, [b"r"], [theirs.fileno()])
                    return ours
                except OSError:
                    ours.close()
                    self._stop()
                finally:
                    theirs.close()
        raise GraderError("The grader process ended twice in a row; look at the machine's memory.")

    def request(
        self, header: Mapping[str, Any], blobs: Sequence[bytes], timeout_s: float = REQUEST_S
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Run one operation in a fresh confined child.

        Raises:
            ChildCrash: If the child died on its input (crash, memory, CPU time).
            GraderError: If the server or the host failed.
        """
        for attempt in (0, 1):
            deadline = time.monotonic() + timeout_s
            sock = self._connect()
            try:
                sock.settimeout(timeout_s)
                # A child that dies while we still send has closed its end: read says so below.
                with contextlib.suppress(FrameError):
                    send_frame(sock, header, blobs)
                reply, out = receive_frame(sock, deadline=deadline, max_blob=MAX_REPLY_BYTES)
            except FrameError as error:
                if str(error) == "timeout":
                    raise GraderError(
                        f"A grading request took more than {timeout_s:g} s of wall time."
                    ) from None
                if self._alive():
                    raise ChildCrash(f"the parser ended early ({error})") from None
                if attempt:
                    raise GraderError("The grader process ended while it was working.") from None
                continue
            finally:
                sock.close()
            if "infrastructure" in reply:
                raise GraderError(f"The grader failed: {str(reply['infrastructure'])[:500]}.")
            return reply, out
        raise GraderError("The grader process ended while it was working.")

    def _alive(self) -> bool:
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                return True
            self._stop()
            return False

    def _stop(self) -> None:
        process, control = self._process, self._control
        self._process = self._control = None
        if control is not None:
            control.close()
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()

    def close(self) -> None:
        """End the server and its children. Idempotent; a later request starts a new one."""
        with self._lock:
            self._stop()

    def abandon(self) -> None:
        """Forget the server: after a fork it belongs to the parent process."""
        control, self._process, self._control = self._control, None, None
        self._lock = threading.Lock()
        if control is not None:
            control.close()


def _first_line(control: socket.socket) -> str:
    """What the server says first, or why nothing came."""
    deadline = time.monotonic() + START_S
    text = b""
    while not text.endswith(b"\n") and len(text) < 4096:
        ready, _, _ = select.select([control], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return f"nothing within {START_S:g} s"
        more = control.recv(4096)
        if not more:
            break
        text += more
    return text.decode("utf-8", "replace").strip()


_SHARED: Final[ServerProcess] = ServerProcess()


def shared_server() -> ServerProcess:
    """The server of this host process; started when first needed, ended at interpreter exit."""
    return _SHARED


def _after_fork() -> None:
    for server in list(_servers):
        server.abandon()


atexit.register(_SHARED.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
