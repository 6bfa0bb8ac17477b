"""How a command ends: by a signal, or by code of others that ends the process under it."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import time
import warnings
from typing import ClassVar, Final, NoReturn

from bat_env import command_line

_PDEATHSIG: Final = 1


class Termination:
    """SIGTERM ends the work as Ctrl-C does, so that sandboxes and locks are given back.

    A second SIGTERM does not stop that; a second Ctrl-C does, for somebody waits at the keyboard.
    """

    current: ClassVar[Termination | None] = None

    def __init__(self) -> None:
        self._came = 0
        self._since = 0.0
        self._owner = os.getpid()
        signal.signal(signal.SIGTERM, self._handle)
        # Whoever starts us in the background may have Ctrl-C ignored.
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
        Termination.current = self

    @property
    def status(self) -> int:
        """Exit status of a command that was told to stop."""
        return command_line.TERMINATED if self._came == signal.SIGTERM else command_line.INTERRUPTED

    def _waited(self) -> float:
        return time.monotonic() - self._since

    def adopt(self) -> None:
        """This process is a fork that does the work itself."""
        self._owner = os.getpid()

    def _handle(self, number: int, frame: object) -> None:
        if os.getpid() != self._owner:
            # A forked child has nothing to give back.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif not self._came:
            self._came, self._since = number, time.monotonic()
            raise KeyboardInterrupt
        elif number == signal.SIGINT and self._waited() > command_line.PRESSED_TWICE_S:
            command_line.leave()


def watched(what: str, advice: str = "") -> None:
    """Go on in a child, and tell if code of others ends it: ``os._exit(0)`` looks like a success.

    The caller goes on in the child. This process passes signals on, waits, and leaves with the
    child's status, or 1 and a line that says why where the child did not come to its own end.

    Args:
        what: Whose code it is, for the message.
        advice: What to do next, a sentence.
    """
    if sys.platform != "linux":
        return
    heard, told = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # nothing of ours runs in threads yet
        child = os.fork()
    if child:
        os.close(told)
        _stand_by(child, heard, what, advice)
    os.close(heard)
    ctypes.CDLL(None).prctl(_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    if Termination.current is not None:
        Termination.current.adopt()
    # Whatever ends this process without Python's own end does not come here.
    atexit.register(os.write, told, b"1")


def _stand_by(child: int, heard: int, what: str, advice: str) -> NoReturn:
    def pass_on(number: int, frame: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, pass_on)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    # The child's own children may still hold its end: only what is there already counts.
    os.set_blocking(heard, False)
    with contextlib.suppress(BlockingIOError):
        if os.read(heard, 1):
            os._exit(code)
    if code == command_line.INTERRUPTED:  # left at once, and said so
        os._exit(code)
    how = f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
    os.write(2, f"bat-agent: {what} ended the process ({how}): no scores. {advice}\n".encode())
    os._exit(1)
