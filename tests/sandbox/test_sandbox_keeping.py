"""What a worker remembers of earlier resets: nothing but contents, and never the wrong ones."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bat_env.sandbox import session
from bat_env.sandbox.base import Cell, Sandbox
from bat_env.sandbox.digests import Digests
from bat_env.sandbox.worker.keeping import KEEP_BYTES, Keeper

BACKENDS = ["local", pytest.param("docker", marks=pytest.mark.docker)]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@given(st.lists(st.binary(min_size=1, max_size=9), max_size=40), st.integers(0, 30))
def test_a_keeper_holds_the_newest_within_its_limit(contents: list[bytes], limit: int) -> None:
    keeper = Keeper(limit)
    for content in contents:
        keeper.keep(_digest(content), (content[:3], content[3:]))
    found = keeper.find({_digest(content) for content in contents})
    assert all(_digest(b"".join(pieces)) == digest for digest, pieces in found.items())
    assert keeper.size == sum(len(b"".join(pieces)) for pieces in found.values()) <= limit
    if contents and len(contents[-1]) <= limit:
        assert found[_digest(contents[-1])] == (contents[-1][:3], contents[-1][3:])


@given(st.lists(st.binary(max_size=6), max_size=30), st.integers(0, 20))
def test_digests_are_true_and_bounded(contents: list[bytes], limit: int) -> None:
    digests = Digests(limit)
    for content in contents:
        digests.seen(content)
        assert digests.sha256(content) == _digest(content)
        assert digests.seen(content) == (len(content) <= limit)
        assert digests.size == sum(map(len, digests._known)) <= limit


def test_contents_that_look_alike_are_told_apart() -> None:
    digests = Digests()
    alike = [bytes(5000), bytes(2000) + b"\1" + bytes(2999), bytes(2001) + b"\1" + bytes(2998)]
    for _ in range(2):
        assert [digests.sha256(content) for content in alike] == [_digest(c) for c in alike]
    assert all(digests.seen(bytes(bytearray(content))) for content in alike)
    assert not digests.seen(bytes(4999))


def _files(seed: int, count: int = 6, size: int = 200_000) -> dict[str, bytes]:
    made = random.Random(seed)
    files = {f"workspace/d/{n}.bin": made.randbytes(size) for n in range(count)}
    return {**files, "data/c/one.bin": made.randbytes(size), "workspace/note.txt": b"short"}


def _workspace(files: dict[str, bytes]) -> dict[str, bytes]:
    return {
        path.removeprefix("workspace/"): content
        for path, content in sorted(files.items())
        if path.startswith("workspace/")
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_that_comes_again_travels_once(
    backend: str, warm: Callable[[str], Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    box, files, sent = warm(backend), _files(random.randrange(1 << 30)), [0]
    transport = box.worker._transport  # type: ignore[attr-defined]
    write = transport.write

    def counted(data: bytes) -> None:
        sent[0] += len(data)
        write(data)

    monkeypatch.setattr(transport, "write", counted)
    totals = []
    for turn in range(4):
        sent[0] = 0
        # Equal contents in other objects: what counts is what they hold.
        box.reset({path: bytes(bytearray(content)) for path, content in files.items()})
        totals.append(sent[0])
        assert box.snapshot() == _workspace(files)
        assert box.inputs()["data/c/one.bin"].sha256 == _digest(files["data/c/one.bin"])
        entry = box.manifest()["d/0.bin"]
        assert entry.sha256 == _digest(files["workspace/d/0.bin"])
        done = box.run(Cell("python", "open('d/0.bin', 'wb').write(b'spoilt')", turn))
        assert done.ok
    assert totals[0] > 1_400_000 and totals[1] > 1_400_000
    assert totals[2] < 5_000 and totals[3] < 5_000


@pytest.mark.parametrize("backend", ["local", "process"])
def test_digests_of_many_files_follow_in_several_frames(
    backend: str, warm: Callable[[str], Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    box = warm(backend)
    monkeypatch.setattr(session, "_PATHS", 7)
    files = {f"workspace/d{n % 3}/{n}": b"/workspace %d" % n * (n % 4) for n in range(40)}
    files |= {f"workspace/large{n}.bin": random.Random(n).randbytes(1_500_000) for n in range(3)}
    box.reset(files)
    seen, wanted = box.manifest(), _workspace(files)
    digests = {path: entry.sha256 for path, entry in seen.items() if entry.kind == "file"}
    assert digests == {path: _digest(content) for path, content in wanted.items()}
    assert box.snapshot() == wanted


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_of_known_and_new_files_is_whole(
    backend: str, warm: Callable[[str], Sandbox]
) -> None:
    box, one = warm(backend), _files(random.randrange(1 << 30))
    for _ in range(3):
        box.reset(one)
    mixed = {**one, **{f"workspace/e/{n}": b"%d" % n * 9_000 for n in range(3)}}
    mixed["workspace/d/1.bin"] = mixed["workspace/d/0.bin"]  # one content, two places
    large = random.Random(1).randbytes(3_500_000)  # travels in several frames
    mixed["workspace/large.bin"] = large
    for _ in range(3):
        box.reset(mixed)
        assert box.snapshot() == _workspace(mixed)


def test_a_content_too_large_to_keep_is_sent_each_time(warm: Callable[[str], Sandbox]) -> None:
    box = warm("local")
    files = {"data/huge.bin": random.Random(2).randbytes(KEEP_BYTES + 1)}
    for _ in range(3):
        box.reset(files)
        assert box.inputs()["data/huge.bin"].sha256 == _digest(files["data/huge.bin"])


def test_what_was_pushed_out_is_sent_again(warm: Callable[[str], Sandbox]) -> None:
    box = warm("local")
    made = random.Random(3)
    states = [{f"data/{n}.bin": made.randbytes(10 << 20) for n in range(3)} for _ in range(2)]
    for state in (*states, *states, *states):
        box.reset(state)
        found = box.inputs()
        assert {path: found[path].sha256 for path in state} == {
            path: _digest(content) for path, content in state.items()
        }


@pytest.mark.parametrize("ask", [False, True])
def test_a_reset_given_up_in_the_middle_leaves_nothing(
    ask: bool, warm: Callable[[str], Sandbox]
) -> None:
    box = warm("local")
    worker, sid = box.worker, box._sid  # type: ignore[attr-defined]
    if ask:
        worker.request({"op": "known", "sid": sid, "digests": ["0" * 64]})
    put = {"op": "put", "sid": sid, "first": not ask}
    worker.send({**put, "files": [("workspace/old.txt", False, "", "")]}, [b"old"])
    box.reset({"workspace/new.txt": b"new"})
    assert box.snapshot() == {"new.txt": b"new"}
