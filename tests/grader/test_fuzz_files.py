"""Random and mutated files through the real grader, and hostile frames at its host's end."""

from __future__ import annotations

import gzip
import io
import json
import math
import random
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from bat_env.grader import Grader, shared_grader
from bat_env.grader.frames import FrameError, receive_frame, send_frame
from bat_env.tasks import Task, load_task, task_ids
from bat_env.tasks.instance import Instance

FUZZ = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
DEADLINE_S = 30.0
MAX_REPLY = 1 << 20

# -- files that are almost right -------------------------------------------------------------------


def _nifti(dtype: str, version: int = 1) -> bytes:
    kind: Any = nib.Nifti1Image if version == 1 else nib.Nifti2Image
    data = np.arange(6 * 5 * 4).reshape(6, 5, 4) % 3
    return bytes(kind(data.astype(dtype), np.eye(4)).to_bytes())


def _saved(save: Callable[[io.BytesIO], object]) -> bytes:
    buffer = io.BytesIO()
    save(buffer)
    return buffer.getvalue()


BOXES = {"boxes": [{"box": [1, 2, 30, 40], "label": "nodule", "score": 0.5}]}
SEEDS: dict[str, bytes] = {
    "nii": _nifti("uint8"),
    "nii float": _nifti("float32"),
    "nii2": _nifti("int16", 2),
    "nii.gz": gzip.compress(_nifti("uint8")),
    "npy": _saved(lambda b: np.save(b, np.zeros((8, 8), np.float32))),
    "npz": _saved(lambda b: np.savez(b, a=np.zeros(9))),
    "png": _saved(lambda b: Image.new("RGB", (16, 16), "red").save(b, "PNG")),
    "json": json.dumps(BOXES).encode(),
    "json list": json.dumps([BOXES] * 3).encode(),
    "csv": b"case,label,probability\nc1,mel,0.5\nc2,nv,0.25\n",
    "csv answers": b'question_id,answer\r\n1,yes\r\n2,"a,b"\r\n',
    "text": "FINDINGS: No nodule. Émphysème left.\nIMPRESSION: none".encode(),
}
POISON = (
    *(b"\0", b"\xff" * 8, b"\x7f\xf0\0\0\0\0\0\0", b"\x80\0", b"\xff\x7f" * 4, b"\n" * 64),
    *(b"9" * 5000, b"1e999", b"NaN", b"-0", b'"\\ud800"', b"[" * 3000, b'{"a":' * 3000),
    *(b"','shape': (2147483647, 2147483647), }", b"'descr': '|O'", b'"' * 3000, b"," * 3000),
)
MUTATION = st.tuples(
    st.sampled_from(["flip", "put", "cut", "double", "header"]),
    st.integers(0, 2**32),
    st.sampled_from(POISON),
)


def mutate(data: bytes, steps: list[tuple[str, int, bytes]]) -> bytes:
    """Apply a few small damages; the header (first 400 bytes) is the favourite."""
    made = bytearray(data)
    for kind, seed, poison in steps:
        rng = random.Random(seed)
        size = max(1, len(made))
        at = rng.randrange(min(size, 400) if kind in ("header", "put") else size)
        if kind == "flip" and made:
            made[at] ^= 1 << rng.randrange(8)
        elif kind == "header" and made:
            made[at : at + len(poison)] = poison[: max(1, 400 - at)]
        elif kind == "put":
            made[at:at] = poison
        elif kind == "cut":
            del made[at:]
        else:
            made += made[: 1 << 16]
    return bytes(made)


@st.composite
def hostile_files(draw: st.DrawFn) -> bytes:
    """Random bytes, or a good file damaged before or after compression."""
    if draw(st.integers(0, 5)) == 0:
        return draw(st.binary(max_size=2000))
    data = mutate(
        SEEDS[draw(st.sampled_from(sorted(SEEDS)))],
        draw(st.lists(MUTATION, min_size=1, max_size=4)),
    )
    if draw(st.booleans()):
        data = gzip.compress(data)
        if draw(st.booleans()):
            data = mutate(data, draw(st.lists(MUTATION, max_size=2)))
    return data


def _readers() -> list[Any]:
    """Every task; those that are read and scored like one before them are `slow`."""
    seen: set[tuple[str, str]] = set()
    rows = []
    for name in task_ids():
        spec = load_task(name).spec
        kind = (spec.metric.name, spec.output.format)
        rows.append(pytest.param(name, marks=[pytest.mark.slow] if kind in seen else []))
        seen.add(kind)
    return rows


@pytest.fixture(scope="module", params=_readers())
def world(request: pytest.FixtureRequest) -> tuple[Task, Instance]:
    task = load_task(request.param)
    return task, task.instance("train", 3, "mini")


def _quick(began: float) -> None:
    assert time.monotonic() - began < DEADLINE_S


@FUZZ
@given(data=hostile_files())
def test_a_file_never_raises(world: tuple[Task, Instance], data: bytes) -> None:
    task, instance = world
    grader: Grader = shared_grader()
    began = time.monotonic()
    case = instance.cases[0]
    outputs = {task.spec.output.path.format(case=c): data for c in instance.cases}
    result = grader.grade(task, instance, outputs)
    assert 0.0 <= result.score <= 1.0 and math.isfinite(result.score)
    seen = grader.inspect(task, instance, case, data)
    assert isinstance(seen["valid"], bool)
    assert len(json.dumps(seen)) < MAX_REPLY
    assert 0.0 <= grader.agreement(task, data, data, case) <= 1.0
    grader.preview(task, instance, case, data)
    assert isinstance(grader.image(data)["readable"], bool)
    _quick(began)


def _bomb(head: bytes, level: int = 1) -> bytes:
    squeeze = zlib.compressobj(level, wbits=31)
    block = bytes(1 << 24)
    parts = [squeeze.compress(head), *(squeeze.compress(block) for _ in range(24))]
    return b"".join([*parts, squeeze.flush()])


def _dims(*dims: int) -> bytes:
    raw = bytearray(SEEDS["nii"])
    struct.pack_into(f"<{len(dims)}h", raw, 40, *dims)
    return bytes(raw)


BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip of zeros": lambda: _bomb(b""),
    "gzip after a good image": lambda: _bomb(SEEDS["nii"]),
    "gzip of gzip": lambda: gzip.compress(_bomb(b"")),
    "huge dims": lambda: gzip.compress(_dims(7, *[32767] * 7)),
    "negative dims": lambda: _dims(3, -1, -1, -1),
    "too many dims": lambda: _dims(32767, 1, 1, 1),
    "npy of terabytes": lambda: mutate(SEEDS["npy"], []).replace(b"(8, 8)", b"(8, 800000000000)"),
    "npy of objects": lambda: SEEDS["npy"].replace(b"<f4", b"|O8"),
    "json depth": lambda: b"[" * 1_000_000,
    "json digits": lambda: b"9" * 1_000_000,
    "json width": lambda: json.dumps({"boxes": [[0, 0, 1, 1]] * 300_000}).encode(),
    "csv width": lambda: b"case,label\n" + b"c," * 1_000_000,
    "csv quote": lambda: b'case,label\n"' + b"x" * 3_000_000,
    "one line": lambda: b"no nodule " * 300_000,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_its_case(world: tuple[Task, Instance], name: str) -> None:
    task, instance = world
    grader, data = shared_grader(), BOMBS[name]()
    began = time.monotonic()
    outputs = {task.spec.output.path.format(case=c): data for c in instance.cases}
    assert grader.grade(task, instance, outputs).score <= 0.1
    assert grader.inspect(task, instance, instance.cases[0], data)["valid"] is False
    _quick(began)


# -- frames of a hostile grader child --------------------------------------------------------------


class CountingSocket:
    """A socket that counts what its owner takes in."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.taken = 0

    def settimeout(self, seconds: float | None) -> None:
        self.sock.settimeout(seconds)

    def recv_into(self, view: memoryview) -> int:
        got = self.sock.recv_into(view)
        self.taken += got
        return got


def receive(data: bytes, *, close: bool, max_header: int, max_blob: int) -> tuple[object, int]:
    """What the host makes of a child's bytes, and how many it took."""
    ours, theirs = socket.socketpair()
    counting = CountingSocket(ours)

    def talk() -> None:
        try:
            theirs.sendall(data)
            if close:
                theirs.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    talker = threading.Thread(target=talk, daemon=True)
    talker.start()
    began = time.monotonic()
    try:
        outcome: object = receive_frame(
            counting,  # type: ignore[arg-type]
            deadline=began + 0.2,
            max_header=max_header,
            max_blob=max_blob,
        )
    except FrameError as error:
        outcome = error
    assert time.monotonic() - began < 5
    ours.close()
    talker.join(5)
    theirs.close()
    assert not talker.is_alive()
    return outcome, counting.taken


GOOD_FRAME = b"".join(
    [struct.pack(">I", 31), b'{"rows":{},"blobs":[3,0,1]}    ', b"abc", b"", b"d"]
)


@settings(FUZZ, max_examples=150)
@given(
    noise=st.binary(max_size=300),
    steps=st.lists(MUTATION, max_size=3),
    good=st.booleans(),
    close=st.booleans(),
)
def test_frames_raise_frame_errors_only(
    noise: bytes, steps: list[tuple[str, int, bytes]], good: bool, close: bool
) -> None:
    data = mutate(GOOD_FRAME, steps) if good else noise
    outcome, taken = receive(data, close=close or good, max_header=512, max_blob=256)
    assert taken <= 4 + 512 + 256
    if isinstance(outcome, tuple):
        header, blobs = outcome
        assert isinstance(header, dict) and sum(map(len, blobs)) <= 256


@pytest.mark.parametrize(
    "header",
    [
        b'{"blobs":[1e3]}',
        b'{"blobs":[true]}',
        b'{"blobs":[-1]}',
        b'{"blobs":[1099511627776]}',
        b'{"blobs":[' + b"0," * 5000 + b"0]}",
        b'{"blobs":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"blobs":[' + b"9" * 10_000 + b"]}",
    ],
)
def test_lying_headers_are_refused_before_the_blobs(header: bytes) -> None:
    data = struct.pack(">I", len(header)) + header + bytes(1 << 20)
    outcome, taken = receive(data, close=True, max_header=1 << 20, max_blob=1 << 20)
    assert isinstance(outcome, FrameError)
    assert taken == 4 + len(header)


def test_what_is_sent_is_received() -> None:
    a, b = socket.socketpair()
    with a, b:
        send_frame(a, {"x": 1}, [b"abc", b""])
        assert receive_frame(b) == ({"x": 1}, [b"abc", b""])
