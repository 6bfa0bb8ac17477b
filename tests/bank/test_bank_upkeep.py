"""Collecting, exporting, importing and attaching a Stage Bank, and writers that are killed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import select
import shutil
import signal
import sqlite3
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from bat_env.bank import Bank, Demonstration, StageState
from bat_env.bank.blobs import packed, unpacked
from bat_env.cli import app
from bat_env.errors import BankError


def make_state(**changes: Any) -> StageState:
    values: dict[str, Any] = {
        "track": "seg",
        "task": "seg/t",
        "task_digest": "d",
        "focus": "S1",
        "outcome": "success",
        "index": 0,
        "instance_digest": "x",
    }
    return StageState.model_validate({**values, **changes})


def make_demo(seed: int) -> Demonstration:
    turn = {"observation": f"brief {seed}", "action": {"name": "submit_results", "arguments": {}}}
    return Demonstration.model_validate(
        {
            "source_trajectory": "tr",
            "track": "seg",
            "task": "seg/t",
            "task_digest": "d",
            "focus": "S1",
            "index": 1,
            "seed": seed,
            "choices": {},
            "score": 0.5,
            "turns": [turn],
        }
    )


def fill(bank: Bank, indices: range) -> None:
    for index in indices:
        files = {"a/shared": b"shared" * 99, f"own{index}": bytes([index]) * 50, "empty": b""}
        bank.add(make_state(index=index), files, [{"i": index}])
        bank.add_demonstration(make_demo(index))
    bank.finish_job(f"job-{indices}", "rejected", {"reason": "because"})
    bank.set_meta("mixture", {"p_good": 0.5})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A small bank and its archive."""
    folder = tmp_path_factory.mktemp("exported")
    with Bank.open(folder / "bank", create=True) as bank:
        fill(bank, range(4))
        bank.export(folder / "bank.tar.zst")
    return folder / "bank", folder / "bank.tar.zst"


# ------------------------------------------------------------------------------------ contents


@given(data=st.one_of(st.binary(max_size=300), st.binary(max_size=40).map(lambda b: b * 50)))
@settings(max_examples=60, deadline=None)
def test_contents_are_packed_where_that_helps(data: bytes) -> None:
    for content in (data, b"\x28\xb5\x2f\xfd" + data):
        raw = packed(content)
        assert unpacked(raw) == content
        assert len(raw) <= len(content) or content[:4] == b"\x28\xb5\x2f\xfd"


def test_a_bank_of_the_first_schema_is_read_and_written_on(tmp_path: Path) -> None:
    with Bank.open(tmp_path, create=True) as bank:
        data = os.urandom(500)  # version 1 framed everything
        row = bank.add(make_state(), {"x": data})
        file = bank.blobs.path(hashlib.sha256(data).hexdigest())
        assert file.read_bytes() == data
        file.write_bytes(zstandard.compress(data))
    with sqlite3.connect(tmp_path / "index.sqlite") as db:
        db.execute("UPDATE meta SET value='1' WHERE key='schema_version'")
    db.close()
    with Bank.open(tmp_path) as bank:
        assert bank.workspace(row.state_id) == {"x": data} and bank.verify().ok
        bank.add(make_state(index=1), {})
    with sqlite3.connect(tmp_path / "index.sqlite") as db:
        assert db.execute("SELECT value FROM meta").fetchall() == [("2",)]
        db.execute("UPDATE meta SET value='9'")
    db.close()
    with pytest.raises(BankError, match=r"schema version 9, expected 1 or 2.*Build a new one"):
        Bank.open(tmp_path)


def test_contents_are_read_when_asked_for_and_checked_once(tmp_path: Path) -> None:
    with Bank.open(tmp_path, create=True) as bank:
        row = bank.add(make_state(), {"a": b"1" * 99, "b": b"2" * 99})
    with Bank.open(tmp_path) as bank:
        reads: list[str] = []
        plain = bank.blobs.get
        bank.blobs.get = lambda digest: (reads.append(digest), plain(digest))[1]  # type: ignore
        files = bank.files(row.state_id)
        assert len(reads) == 1 and sorted(files) == ["a", "b"] and "a" in files
        assert files["b"] == b"2" * 99 and len(reads) == 2
        assert files.sha256("a") == hashlib.sha256(b"1" * 99).hexdigest()
        bank.get(row.state_id)
        seen = len(reads)
        bank.get(row.state_id)
        assert len(reads) == seen + 1, "only the manifest is looked at again"


# ------------------------------------------------------------------------------------- garbage


def test_collecting_takes_only_what_no_row_names(tmp_path: Path) -> None:
    with Bank.open(tmp_path, create=True) as bank:
        fill(bank, range(3))
        gone = next(s for s in bank.query() if s.index == 1)
        bank.retire(gone.state_id)
        orphan = bank.blobs.put(b"nobody's")
        (tmp_path / "objects" / "tmp-1-1").write_bytes(b"half")
        report = bank.collect()
        # Its own file, manifest and transcript went; what it shared with the others stayed.
        assert (report.removed, report.leftovers) == (4, 1) and report.freed_bytes > 0
        assert orphan not in set(bank.blobs.digests())
        assert bank.verify().ok and bank.verify().orphans == 0
        assert bank.collect().removed == 0
        again = bank.add(gone, {"own1": bytes([1]) * 50})  # a memory of what was there would lie
        assert bank.workspace(again.state_id) == {"own1": bytes([1]) * 50}


def test_collecting_beside_writers_takes_nothing_from_them(tmp_path: Path) -> None:
    with Bank.open(tmp_path, create=True) as bank:
        over = threading.Event()

        def add(first: int) -> None:
            for index in range(first, first + 5):
                bank.add(make_state(index=index), {"x": bytes([index]) * 9, "y": b"same"})

        def gather() -> None:
            while not over.wait(0.02):
                bank.collect()

        writers = [threading.Thread(target=add, args=(n,)) for n in (0, 100)]
        collector = threading.Thread(target=gather)
        for thread in (collector, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        over.set()
        collector.join()
        report = bank.verify()
        assert report.ok and report.states == 10


def test_a_second_process_cannot_collect_and_a_damaged_index_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bat_env.bank.index._LOCK_WAIT_S", 0.1)
    with Bank.open(tmp_path, create=True) as bank:
        bank.add(make_state(), {})
        with Bank.open(tmp_path) as other, pytest.raises(BankError, match="Another process"):
            other.collect()
        victim = bank.blobs.path(bank.query()[0].workspace)
        with sqlite3.connect(tmp_path / "index.sqlite") as db:
            db.execute("UPDATE states SET digest='x'")
        db.close()
        bank.collect()
        assert victim.exists(), "what a corrupt row names may still be wanted"


# ------------------------------------------------------------------------------ export, import


def test_equal_banks_give_equal_bytes_and_come_back_whole(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    source, archive = exported
    with Bank.open(tmp_path / "other", create=True) as bank:
        for index in reversed(range(4)):  # another order, and waste that is not exported
            fill(bank, range(index, index + 1))
            bank.blobs.put(bytes([index]))
        with sqlite3.connect(tmp_path / "other" / "index.sqlite") as db:
            db.execute("DELETE FROM jobs")
        db.close()
        bank.finish_job("job-range(0, 4)", "rejected", {"reason": "because"})
        bank.export(tmp_path / "other.tar.zst")
    assert (tmp_path / "other.tar.zst").read_bytes() == archive.read_bytes()
    with Bank.open(source) as one, Bank.open(tmp_path / "copy", create=True) as copy:
        report = copy.merge(archive)
        assert (report.states, report.demonstrations, report.added) == (4, 4, 8)
        assert copy.digest() == one.digest() == report.digest and copy.verify().ok
        assert copy.jobs() == one.jobs() and copy.meta("mixture") == one.meta("mixture")
        for state in one.query():
            assert copy.workspace(state.state_id) == one.workspace(state.state_id)
            assert copy.transcript(state.state_id) == one.transcript(state.state_id)
        copy.export(tmp_path / "again.tar.zst")
    assert (tmp_path / "again.tar.zst").read_bytes() == archive.read_bytes()
    plain = zstandard.ZstdDecompressor().stream_reader(archive.read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:  # ordinary tools read it
        assert tar.getnames()[0] == "index.json"


def test_merging_loses_and_duplicates_nothing(exported: tuple[Path, Path], tmp_path: Path) -> None:
    _, archive = exported
    with Bank.open(tmp_path / "bank", create=True) as bank:
        fill(bank, range(2, 6))
        bank.set_meta("mixture", "mine")
        bad = next(s for s in bank.query() if s.index == 3)
        bank.blobs.path(bad.workspace).write_bytes(b"rubbish")
        assert bank.merge(archive).added == 4  # two states, two demonstrations; one was mended
        assert sorted(s.index for s in bank.query()) == list(range(6))
        assert len(list(bank.demonstrations())) == 6 and len(bank.jobs()) == 2
        assert bank.meta("mixture") == "mine" and bank.verify().ok
        assert bank.merge(archive).added == 0


Tamper = Callable[[list[tuple[str, bytes]]], list[tuple[str, bytes]]]


def _index(change: Callable[[dict[str, Any]], Any]) -> Tamper:
    def tamper(entries: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        head = json.loads(entries[0][1])
        change(head)
        return [("index.json", json.dumps(head).encode()), *entries[1:]]

    return tamper


def _escape(entries: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """A manifest with a path out of the workspace, correctly hashed and referred to."""
    head, contents = json.loads(entries[0][1]), dict(entries[1:])
    state = head["states"][0]
    manifest = json.loads(contents["objects/" + state["workspace"]])
    manifest["files"]["../../etc/cron.d/x"] = next(iter(manifest["files"].values()))
    data = json.dumps(manifest).encode()
    state["workspace"] = hashlib.sha256(data).hexdigest()
    state["state_id"] = StageState.from_json(state).content_id()
    contents["objects/" + state["workspace"]] = data
    head["blobs"] = [[name.split("/")[1], len(contents[name])] for name in sorted(contents)]
    return [("index.json", json.dumps(head).encode()), *sorted(contents.items())]


HOSTILE: dict[str, Tamper] = {
    "an absolute path": lambda e: [e[0], ("/etc/passwd", e[1][1]), *e[2:]],
    "a path upwards": lambda e: [e[0], ("objects/../../x", e[1][1]), *e[2:]],
    "a workspace path upwards": _escape,
    "another content": lambda e: [*e[:1], (e[1][0], bytes(len(e[1][1]))), *e[2:]],
    "a content too few": lambda e: e[:-1],
    "a content too many": lambda e: [*e, ("objects/" + "f" * 64, b"x")],
    "another order": lambda e: [e[0], e[2], e[1], *e[3:]],
    "an id that lies": _index(lambda h: h["states"][0].update(index=77)),
    "a row without its content": _index(lambda h: h["states"][0].update(transcript="0" * 64)),
    "a key too many": _index(lambda h: h.update(extra=1)),
    "another version": _index(lambda h: h.update(schema_version=2)),
    "a huge content": _index(lambda h: h["blobs"][0].__setitem__(1, 1 << 40)),
    "no list of contents": _index(lambda h: h.update(blobs={"a": "b"})),
    "states that are none": _index(lambda h: h.update(states=[1])),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_and_adds_nothing(
    exported: tuple[Path, Path], tmp_path: Path, what: str
) -> None:
    plain = zstandard.ZstdDecompressor().stream_reader(exported[1].read_bytes()).read()
    with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
        entries = [(m.name, tar.extractfile(m).read()) for m in tar]  # type: ignore[union-attr]
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in HOSTILE[what](entries):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (tmp_path / "bad").write_bytes(zstandard.compress(made.getvalue()))
    _refused(tmp_path)


@pytest.mark.parametrize("kind", ["link", "long name", "bomb", "cut", "tail", "flip", "no zstd"])
def test_damage_and_tricks_of_the_container_are_refused(
    exported: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    raw = exported[1].read_bytes()
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("index.json" if kind == "link" else "n" * 300)
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    bomb = bytearray(512)
    bomb[:10], bomb[124:136] = b"index.json", b"77777777777\0"
    bad = {
        "link": zstandard.compress(made.getvalue()),
        "long name": zstandard.compress(made.getvalue()),
        "bomb": zstandard.compress(bytes(bomb) + bytes(1 << 24)),
        "cut": raw[:-9],
        "tail": raw + b"x",
        "flip": raw[: len(raw) // 2] + bytes([raw[len(raw) // 2] ^ 64]) + raw[len(raw) // 2 + 1 :],
        "no zstd": b"PK\x03\x04" + raw,
    }[kind]
    (tmp_path / "bad").write_bytes(bad)
    _refused(tmp_path)


def _refused(folder: Path) -> None:
    with Bank.open(folder / "bank", create=True) as bank:
        with pytest.raises(BankError, match=r"no archive|Nothing was"):
            bank.merge(folder / "bad")
        assert bank.query() == [] and not list(bank.demonstrations()) and bank.jobs() == {}
        assert bank.verify().ok
    assert sorted(p.name for p in folder.iterdir()) == ["bad", "bank"]


def test_an_archive_may_not_bring_more_than_is_allowed(
    exported: tuple[Path, Path], tmp_path: Path
) -> None:
    with (
        Bank.open(tmp_path / "bank", create=True) as bank,
        pytest.raises(BankError, match="are allowed"),
    ):
        bank.merge(exported[1], max_bytes=100)


def test_the_commands(exported: tuple[Path, Path], tmp_path: Path) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["bank", *arguments])
        assert done.exit_code == code, done.output
        return done.output

    path = ["--path", str(tmp_path / "bank")]
    assert "8 rows added, 0 were" in run("import", str(exported[1]), *path)
    assert json.loads(run("import", str(exported[1]), *path, "--json"))["added"] == 0
    with Bank.open(tmp_path / "bank") as bank:
        bank.blobs.put(b"waste")
    assert json.loads(run("gc", *path, "--json"))["removed"] == 1
    assert "4 states, 4 demonstrations" in run("export", str(tmp_path / "out"), *path)
    assert (tmp_path / "out").read_bytes() == exported[1].read_bytes()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "log.txt").write_text("see /home/alice/x")
    suite = ["--suite", "seg-mini-controller", "--files", str(tmp_path / "files")]
    report = json.loads(run("scan", *suite, "--json", code=1))
    assert report["files"] == 1 and report["findings"][0]["what"] == "a home directory"
    assert "1 files scanned: 1 leaks" in run("scan", *suite, code=1)


# ---------------------------------------------------------------------------- read-only attach


@pytest.mark.parametrize("log", [False, True])
def test_a_bank_of_someone_else_is_attached_read_only(tmp_path: Path, log: bool) -> None:
    folder = tmp_path / "bank"
    writer = Bank.open(folder, create=True)
    row = writer.add(make_state(), {"x": b"1" * 99})
    if log:  # a writer that was killed leaves its rows in the log
        kept = {p.name: p.read_bytes() for p in folder.glob("index.sqlite*")}
    writer.close()
    if log:
        for name, data in kept.items():
            (folder / name).write_bytes(data)
        (folder / "index.sqlite-shm").unlink()
    (folder / "writer.lock").unlink()
    tops = [p for p in (tmp_path, *tmp_path.parents) if p.owner() == tmp_path.owner()]
    modes = {p: p.stat().st_mode for p in tops}
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for path in tops:
        if path != Path("/"):
            path.chmod(modes[path] | 0o111)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            with Bank.open(folder) as bank:
                good = bank.query() == [row] and bank.workspace(row.state_id) == {"x": b"1" * 99}
                try:
                    bank.add(make_state(index=1), {})
                except BankError as error:
                    code = 0 if good and "read-only" in str(error) else 2
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    for path in tops:
        path.chmod(modes[path])
    folder.chmod(0o755)
    for path in folder.rglob("*"):
        path.chmod(0o755)
    assert code == 0
    assert before == {p: p.stat().st_mtime_ns for p in folder.rglob("*")}


# --------------------------------------------------------------------------------------- kills


def _write_until_killed(folder: Path, report: int) -> None:
    with Bank.open(folder) as bank:
        log = folder / "index.sqlite-wal"
        start = len(bank.query())
        for index in range(start, 10_000):
            files = {f"f{k}": bytes([index % 256, k]) * 3000 for k in range(2)}
            bank.add(make_state(index=index), files, [{"i": index}])
            # Acknowledged: the row, and how far the log had been made durable for it.
            os.write(report, f"{index} {log.stat().st_size}\n".encode())


def test_killed_and_torn_at_random_bytes_every_committed_row_is_whole(tmp_path: Path) -> None:
    rng = random.Random(7)
    folder = tmp_path / "bank"
    Bank.open(folder, create=True).close()
    torn = 0
    for _ in range(24):
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _write_until_killed(folder, theirs)
            finally:
                os._exit(1)
        os.close(theirs)
        select.select([ours], [], [], 20)  # it has begun
        time.sleep(rng.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(ours) as lines:
            acknowledged = [tuple(map(int, line.split())) for line in lines if line.endswith("\n")]
        log = folder / "index.sqlite-wal"
        safe = log.stat().st_size if log.exists() else 0
        if safe and rng.random() < 0.7:  # what was written last is lost, or wrong
            size = log.stat().st_size
            safe = max(0, size - rng.randrange(1, 9000))
            with log.open("r+b") as file:
                if rng.random() < 0.5:
                    file.truncate(safe)
                else:
                    file.seek(safe)
                    file.write(rng.randbytes(size - safe))
            torn += 1
        for path in (folder / "objects").glob("tmp-*"):
            path.write_bytes(path.read_bytes()[: rng.randrange(1 + path.stat().st_size)])
        with Bank.open(folder) as bank:
            report = bank.verify()
            assert report.problems == ()
            found = sorted(state.index for state in bank.query())
            assert found == list(range(report.states)), (
                "a row is lost in the middle, or there twice"
            )
            durable = [index for index, size in acknowledged if size <= safe]
            assert report.states > max(durable, default=-1)
    assert torn >= 8 and report.states >= 5
    with Bank.open(folder) as bank:
        bank.collect()
        final = bank.verify()
        assert final.ok and final.orphans == 0
    shutil.rmtree(folder)
