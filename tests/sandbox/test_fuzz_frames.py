"""A hostile worker at the other end: the host raises BatError or nothing, reads little, ends."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bat_env.errors import BatError, SandboxError
from bat_env.sandbox.base import Cell, CellResult, Limits
from bat_env.sandbox.client import WorkerClient
from bat_env.sandbox.session import WorkerSandbox
from bat_env.sandbox.worker import wire

LIMITS = Limits(workspace_mb=1, output_bytes=4096)
DEADLINE_S = 20.0
FUZZ = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


class CountingPipe:
    """The host's end of a socket; counts what it took in."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.taken = 0

    def read(self) -> bytes:
        data = self.sock.recv(1 << 16)
        self.taken += len(data)
        return data

    def write(self, data: bytes) -> None:
        self.sock.sendall(data)

    def close(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR) if self.sock.fileno() >= 0 else None

    def abandon(self) -> None:
        self.sock.close()

    def obituary(self) -> str:
        return ""


Script = Callable[[socket.socket, dict[str, Any]], bool]
"""Answers one request on the socket; False ends the worker."""


class HostileWorker:
    """Serves a session: opens honestly, then answers each request by ``script``."""

    def __init__(self, script: Script) -> None:
        ours, self.theirs = socket.socketpair()
        self.pipe = CountingPipe(ours)
        self.script = script
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()
        self.client = WorkerClient(self.pipe, "hostile")

    def _serve(self) -> None:
        try:
            self.theirs.sendall(wire.pack({"id": 0, "ok": True}))
            framer = wire.Framer()
            while data := self.theirs.recv(1 << 16):
                for header, _ in framer.feed(data):
                    if header["op"] == "open":
                        self.theirs.sendall(wire.pack({"id": header["id"], "ok": True}))
                    elif header["id"] > 0 and not self.script(self.theirs, header):
                        return
        except OSError:
            pass
        finally:
            self.theirs.close()

    def sandbox(self) -> WorkerSandbox:
        self.client.hello(10.0)
        box = WorkerSandbox("hostile", LIMITS, lambda: self.client, lambda client: client.close())
        box.start()
        return box


OPERATIONS: dict[str, Callable[[WorkerSandbox], object]] = {
    "run": lambda box: box.run(Cell("python", "pass"), 1.0),
    "manifest": lambda box: box.manifest(),
    "read": lambda box: box.read("a", 1000),
    "snapshot": lambda box: box.snapshot(),
    "reset": lambda box: box.reset({"data/x": b"1"}),
}
DOCUMENTED: dict[str, tuple[type[Exception], ...]] = {
    "read": (ValueError, FileNotFoundError),
    "reset": (ValueError,),
}


def attempt(name: str, script: Script) -> tuple[object, int]:
    """What an operation gave or raised, and the bytes the host took; never hangs, never else."""
    worker = HostileWorker(script)
    seen: list[object] = []

    def act() -> None:
        box = worker.sandbox()
        try:
            seen.append(OPERATIONS[name](box))
        except Exception as error:
            seen.append(error)
        finally:
            box.close()

    began = time.monotonic()
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), f"{name} hangs"
    worker.client._reader.join(DEADLINE_S)
    assert not worker.client._reader.is_alive(), "the reader goes on after the end"
    worker.thread.join(DEADLINE_S)
    assert time.monotonic() - began < DEADLINE_S
    (outcome,) = seen
    if isinstance(outcome, Exception):
        assert isinstance(outcome, (BatError, *DOCUMENTED.get(name, ()))), repr(outcome)[:500]
        assert len(str(outcome)) < 20_000
    worker.pipe.sock.close()
    return outcome, worker.pipe.taken


# -- strategies ------------------------------------------------------------------------------------

LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["file", "dir", "timeout", "../x", "/etc", "a", "\ud800", "0" * 64])
)
VALUE = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)
KEYS = (
    *("ok", "more", "error", "message", "event", "exit", "out_cut", "err_cut", "limit", "wall"),
    *("cpu", "created", "changed", "deleted", "entries", "path"),
)
HEADER = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), VALUE, max_size=6)
GOOD: dict[str, Any] = {
    **{"ok": True, "exit": 0, "out_cut": 0, "err_cut": 0, "limit": None, "wall": 0.1, "cpu": 0.1},
    **{"created": {"a": ["file", 1, "0" * 64]}, "changed": {}, "deleted": [], "entries": {}},
}


def dump(header: object, blobs: bytes, claim: list[Any] | None = None) -> bytes:
    """A frame whose header may be anything JSON can spell, and whose lengths may lie."""
    if isinstance(header, dict):
        header = {**header, "blobs": [len(blobs)] if claim is None else claim}
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    return struct.pack(">II", 4 + len(text) + len(blobs), len(text)) + text + blobs


def answering(frames: Callable[[int], Iterator[bytes]]) -> Script:
    def script(sock: socket.socket, header: dict[str, Any]) -> bool:
        for frame in frames(int(header["id"])):
            sock.sendall(frame)
        return False

    return script


@FUZZ
@given(name=st.sampled_from(sorted(OPERATIONS)), data=st.data())
def test_strange_headers(name: str, data: st.DataObject) -> None:
    headers = data.draw(st.lists(HEADER, min_size=1, max_size=4))
    base = data.draw(st.booleans())
    claim = data.draw(st.none() | st.lists(LEAF, max_size=3))

    def frames(number: int) -> Iterator[bytes]:
        for header in headers:
            yield dump({"id": number, **(GOOD if base else {}), **header}, b"xy", claim)

    attempt(name, answering(frames))


@FUZZ
@given(name=st.sampled_from(sorted(OPERATIONS)), number=VALUE, header=VALUE)
def test_strange_ids_and_roots(name: str, number: object, header: object) -> None:
    attempt(name, answering(lambda _: iter([dump({"id": number}, b""), dump(header, b"")])))


@FUZZ
@given(name=st.sampled_from(sorted(OPERATIONS)), noise=st.binary(min_size=1, max_size=400))
def test_random_bytes(name: str, noise: bytes) -> None:
    outcome, _ = attempt(name, answering(lambda _: iter([noise])))
    assert isinstance(outcome, SandboxError)


@FUZZ
@given(name=st.sampled_from(sorted(OPERATIONS)), seed=st.integers(0, 2**32), cut=st.booleans())
def test_truncated_and_flipped_frames(name: str, seed: int, cut: bool) -> None:
    rng = random.Random(seed)

    def frames(number: int) -> Iterator[bytes]:
        frame = bytearray(wire.pack({"id": number, **GOOD}, [b"out", b"err"]))
        for _ in range(rng.randint(1, 6)):
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        yield bytes(frame[: rng.randrange(len(frame))] if cut else frame)

    attempt(name, answering(frames))


HUGE = {
    "prefix": struct.pack(">II", 0xFFFFFFFF, 8),
    "header": struct.pack(">II", 64, 0xFFFFFFFF),
    "just over": struct.pack(">II", wire.MAX_FRAME + 1, 8),
    "zero": struct.pack(">II", 0, 0),
}


@pytest.mark.parametrize("kind", HUGE)
def test_a_frame_over_the_limit_is_refused_by_its_first_bytes(kind: str) -> None:
    def script(sock: socket.socket, header: dict[str, Any]) -> bool:
        sock.sendall(HUGE[kind])
        for _ in range(256):  # until the host hangs up
            sock.sendall(bytes(1 << 16))
        return False

    outcome, taken = attempt("manifest", script)
    assert isinstance(outcome, SandboxError)
    assert taken < 1 << 20


def _deep(number: int) -> Iterator[bytes]:
    text = b'{"blobs":[],"id":%d,"x":%s%s}' % (number, b"[" * 200_000, b"]" * 200_000)
    yield struct.pack(">II", 4 + len(text), len(text)) + text


def _digits(number: int) -> Iterator[bytes]:
    text = b'{"blobs":[],"id":%s}' % (b"9" * 100_000)
    yield struct.pack(">II", 4 + len(text), len(text)) + text


@pytest.mark.parametrize("frames", [_deep, _digits])
def test_json_that_breaks_parsers(frames: Callable[[int], Iterator[bytes]]) -> None:
    outcome, _ = attempt("manifest", answering(frames))
    assert isinstance(outcome, SandboxError)


def _flood(make: Callable[[int], bytes]) -> Script:
    """The same frame until the host hangs up, or a gigabyte is through."""

    def script(sock: socket.socket, header: dict[str, Any]) -> bool:
        frame = make(int(header["id"]))
        for _ in range((1 << 30) // len(frame)):
            sock.sendall(frame)
        return False

    return script


FLOODS: dict[str, tuple[str, Callable[[int], bytes], int]] = {
    # operation, frame, most bytes that the host may take
    "file parts": (
        "read",
        lambda n: wire.pack({"id": n, "more": True, "path": "a"}, [bytes(1 << 16)]),
        1 << 20,
    ),
    "empty parts": ("read", lambda n: wire.pack({"id": n, "more": True, "path": "a"}), 1 << 20),
    "snapshot parts": (
        "snapshot",
        lambda n: wire.pack({"id": n, "more": True, "path": "a"}, [bytes(1 << 20)]),
        100 << 20,
    ),
    "started": ("run", lambda n: wire.pack({"id": n, "more": True, "event": "started"}), 18 << 20),
    "hello": ("manifest", lambda n: wire.pack({"id": 0}, [bytes(1 << 16)]), 18 << 20),
    "unasked": ("manifest", lambda n: wire.pack({"id": n + 9}, [bytes(1 << 16)]), 18 << 20),
    "old": ("manifest", lambda n: wire.pack({"id": 1}, [bytes(1 << 16)]), 18 << 20),
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_is_cut(kind: str) -> None:
    name, frame, most = FLOODS[kind]
    outcome, taken = attempt(name, _flood(frame))
    assert isinstance(outcome, SandboxError), repr(outcome)[:500]
    assert taken <= most


def test_errors_keep_to_the_contract() -> None:
    for name in OPERATIONS:
        for kind in ("value", "missing", "sandbox", "other", 3):
            frame = {"error": kind, "message": "m" * (1 << 20)}
            outcome, _ = attempt(
                name, answering(lambda n, f=frame: iter([wire.pack({"id": n, **f})]))
            )
            assert isinstance(outcome, Exception)


def test_silence_has_a_deadline() -> None:
    worker = HostileWorker(lambda sock, header: True)
    worker.client.hello(10.0)
    began = time.monotonic()
    with pytest.raises(SandboxError, match="hangs"):
        worker.client.request({"op": "ping"}, timeout_s=0.3)
    assert time.monotonic() - began < 5
    worker.client.close()


def test_an_honest_answer_passes() -> None:
    def frames(number: int) -> Iterator[bytes]:
        yield wire.pack({"id": number, "more": True, "event": "started"})
        yield wire.pack({"id": number, **GOOD}, [b"out", b"err"])

    outcome, _ = attempt("run", answering(frames))
    assert isinstance(outcome, CellResult)
    assert outcome.stdout == "out" and list(outcome.delta.created) == ["a"]
