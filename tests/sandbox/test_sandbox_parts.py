"""The worker's parts alone: frames, capture, trees, filters, translation."""

from __future__ import annotations

import ast
import os
import re
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import bat_env.sandbox.worker
from bat_env.sandbox import Sandbox
from bat_env.sandbox.docker import seccomp_profile
from bat_env.sandbox.session import _parcels
from bat_env.sandbox.stored import StoredFiles
from bat_env.sandbox.view import host_view
from bat_env.sandbox.worker import files, seccomp, wire
from bat_env.sandbox.worker.capture import Capture
from bat_env.sandbox.worker.isolation import Plain, Session

_NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1)
_TREES = st.dictionaries(
    st.lists(
        _NAMES.filter(lambda n: n not in (".", "..") and len(n.encode()) < 200),
        min_size=1,
        max_size=3,
    ).map("/".join),
    st.binary(max_size=300),
    max_size=8,
).filter(lambda tree: not any(b.startswith(a + "/") for a in tree for b in tree))


@given(
    st.lists(st.tuples(st.integers(0, 9), st.lists(st.binary(max_size=50), max_size=3))), st.data()
)
def test_frames_survive_any_split(
    frames: list[tuple[int, list[bytes]]], data: st.DataObject
) -> None:
    stream = b"".join(wire.pack({"n": n}, blobs) for n, blobs in frames)
    framer, seen = wire.Framer(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        seen += [(header["n"], blobs) for header, blobs in framer.feed(stream[:size])]
        stream = stream[size:]
    assert seen == frames


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", wire.MAX_FRAME + 1, 2) + b"{}",
        struct.pack(">II", 6, 9) + b"{}",
        struct.pack(">II", 6, 2) + b"{]",
        struct.pack(">II", 6, 2) + b"{}",
        struct.pack(">II", 4 + 13, 13) + b'{"blobs":[5]}',
    ],
)
def test_malformed_frames_are_refused(data: bytes) -> None:
    with pytest.raises(wire.WireError):
        list(wire.Framer().feed(data))


@given(st.lists(st.binary(max_size=200)), st.integers(2, 120))
def test_capture_keeps_head_and_tail(chunks: list[bytes], keep: int) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    capture = Capture(read, keep)
    try:
        for chunk in chunks:
            os.write(write, chunk)
            capture.pump()
        os.close(write)
        assert capture.pump() is False
    finally:
        capture.close()
    whole = b"".join(chunks)
    kept, dropped = capture.result()
    assert dropped == max(0, len(whole) - keep)
    half = keep // 2
    assert kept == (whole if len(whole) <= keep else whole[:half] + whole[half - keep :])


@hypothesis_settings(max_examples=25, deadline=None)
@given(tree=_TREES)
def test_trees_round_trip(tree: dict[str, bytes], warm: Callable[[str], Sandbox]) -> None:
    box = warm("local")
    box.reset({f"workspace/{path}": content for path, content in tree.items()})
    assert box.snapshot() == dict(sorted(tree.items()))
    regular = {path for path, entry in box.manifest().items() if entry.kind == "file"}
    assert regular == set(tree)


@given(st.dictionaries(st.text("abc", min_size=1), st.binary(max_size=64), max_size=6))
def test_parcels_hold_everything(tree: dict[str, bytes]) -> None:
    back: dict[str, bytes] = {}
    for paths, blobs in _parcels(StoredFiles({}, tree.__getitem__, tree), (), ()):
        for (path, append, _, word), blob in zip(paths, blobs, strict=True):
            assert append == (path in back) and not word
            back[path] = back.get(path, b"") + blob
    assert back == tree


@given(
    st.dictionaries(st.text("abc", min_size=1), st.binary(max_size=64), max_size=8),
    st.sets(st.text("abc", min_size=1), max_size=4),
    st.integers(0, 8),
)
def test_stored_files_are_read_ahead_in_order_and_once(
    tree: dict[str, bytes], held: set[str], at_hand: int
) -> None:
    """Whatever is stored and whatever at hand: as if each was read when its turn came."""
    digests = {path: f"{number:064x}" for number, path in enumerate(sorted(tree))}
    by_digest = {digests[path]: content for path, content in tree.items()}
    ready = {path: tree[path] for path in sorted(tree)[:at_hand]}
    asked: list[str] = []

    def read(digest: str) -> bytes:
        asked.append(digest)
        return by_digest[digest]

    files = StoredFiles(digests, read, ready)
    wanted = [path for path in sorted(tree) if path not in held]
    assert list(files.each(wanted)) == [tree[path] for path in wanted]
    assert asked == [digests[path] for path in wanted if path not in ready]


def test_what_reading_ahead_raises_comes_in_its_turn_and_ends_its_thread() -> None:
    def read(digest: str) -> bytes:
        if digest == "3":
            raise ValueError("corrupt")
        return digest.encode()

    files = StoredFiles({name: name for name in "012345"}, read)
    found = []
    with pytest.raises(ValueError, match="corrupt"):
        for content in files.each("012345"):
            found.append(content)
    assert found == [b"0", b"1", b"2"]
    given_up = files.each("012345")
    assert next(given_up) == b"0"
    given_up.close()
    assert not [t for t in threading.enumerate() if t.name == "bat-read-ahead"]


def test_wipe_deletes_what_an_agent_can_build(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("1")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    os.mkfifo(root / "pipe")
    here = Path.cwd()
    os.chdir(root)
    try:
        for _ in range(120):
            Path("d" * 100).mkdir()
            os.chdir("d" * 100)
    finally:
        os.chdir(here)
    (root / "locked").mkdir()
    (root / "locked" / "f").write_text("")
    (root / "locked").chmod(0)
    files.wipe(str(root))
    assert list(root.iterdir()) == []
    assert (outside / "keep").read_text() == "1"


def test_worker_needs_the_standard_library_only() -> None:
    folder = Path(bat_env.sandbox.worker.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            assert {n.partition(".")[0] for n in names} <= sys.stdlib_module_names, path


def test_filters_deny_the_same_calls() -> None:
    for machine in ("x86_64", "aarch64"):
        program = seccomp.build(machine)
        assert len(program) % 8 == 0 and len(program) // 8 < 4096
    assert seccomp.build("riscv64") == b""
    profile = seccomp_profile()
    allowed = set(re.findall(r'"(\w+)"', profile.partition('"SCMP_ACT_ALLOW"')[0]))
    denied = set(seccomp.DENIED["x86_64"])
    assert {"read", "mmap", "openat", "futex"} <= allowed
    assert not denied & allowed


def test_plain_backend_translates_at_the_boundary() -> None:
    plain = Plain({})
    session = Session("s", {}, {"workspace": "/t/x/s/workspace"})
    text = b"open('/data/a'), \"/workspace\", /models/m:/skills; x/data/y /database ../data /datas"
    inside = plain.inward(session, text)
    assert inside == (
        b"open('/t/x/s/data/a'), \"/t/x/s/workspace\", /t/x/s/models/m:/t/x/s/skills; "
        b"x/data/y /database ../data /datas"
    )
    assert plain.outward(session, inside) == text


def test_view_hides_the_suite() -> None:
    view = host_view()
    assert not any("bat_env" in target for _, target in view["binds"])
    assert all(not t.startswith("/home") for t in view["trees"])
    for path in view["hide"]:
        name = Path(path).name
        assert name.endswith((".pth", ".egg-link", ".dist-info", ".py")) or "." not in name
