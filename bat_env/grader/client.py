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


class ServerProcess:
    """One warm grader server and the socket to it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._pid = os.getpid()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
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
        ready, _, _ = select.select([ours], [], [], START_S)
        message = ours.recv(4096) if ready else b"no answer in time"
        if message != b"ready":
            process.kill()
            process.wait()
            ours.close()
            why = message.decode("utf-8", "replace") or "it ended while starting"
            raise GraderError(
                f"Expected a ready grader process, got: {why}. Check that numpy, scipy, nibabel, "
                "scikit-image and pillow import in this interpreter."
            )
        self._process, self._control = process, ours
        return ours

    def _connect(self) -> socket.socket:
        """A socket to a fresh child; starts or restarts the server where needed."""
        with self._lock:
            if self._pid != os.getpid():
                # After a fork the server belongs to the parent process.
                self._process, self._control, self._pid = None, None, os.getpid()
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
            if self._pid == os.getpid():
                self._stop()


_SHARED: ServerProcess | None = None
_SHARED_LOCK = threading.Lock()


def shared_server() -> ServerProcess:
    """The server of this host process; ended at interpreter exit."""
    global _SHARED
    with _SHARED_LOCK:
        if _SHARED is None:
            _SHARED = ServerProcess()
            atexit.register(_SHARED.close)
        return _SHARED
