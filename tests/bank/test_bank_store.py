from __future__ import annotations

import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.bank import Bank, Demonstration, StageState, default_bank_path
from bat_env.bank.state import workspace_digest
from bat_env.errors import BankError, UnknownNameError


def make_state(**changes: Any) -> StageState:
    values: dict[str, Any] = {
        "track": "seg",
        "task": "seg/kidney_tumor",
        "task_digest": "t" * 64,
        "focus": "S3",
        "outcome": "recovery",
        "index": 4,
        "instance_digest": "i" * 64,
    }
    return StageState.model_validate({**values, **changes})


def make_demo(**changes: Any) -> Demonstration:
    values: dict[str, Any] = {
        "source_trajectory": "tr-1",
        "track": "seg",
        "task": "seg/kidney_tumor",
        "task_digest": "t" * 64,
        "focus": "S1",
        "index": 1,
        "seed": 5,
        "choices": {"reorient": "yes"},
        "score": 0.5,
        "turns": [{"observation": "brief", "action": {"name": "submit_results", "arguments": {}}}],
    }
    return Demonstration.model_validate({**values, **changes})


@pytest.fixture
def bank(tmp_path: Path) -> Any:
    with Bank.open(tmp_path / "bank", create=True) as opened:
        yield opened


def test_a_lost_index_is_named_and_made_again_over_the_same_objects(tmp_path: Path) -> None:
    folder, files = tmp_path / "bank", {"a.txt": b"a", "b.txt": b"b"}
    with Bank.open(folder, create=True) as bank:
        row = bank.add(make_state(), files)
        objects = set(bank.blobs.digests())
        digest = bank.digest()
    (folder / "index.sqlite").unlink()
    with pytest.raises(BankError, match=rf"lost its index.*{len(objects)} objects.*bank build"):
        Bank.open(folder)
    (folder / "index.sqlite").touch()  # as a full disk leaves it
    with pytest.raises(BankError, match="lost its index"):
        Bank.open(folder)
    with Bank.open(folder, create=True) as bank:
        assert bank.query() == [] and bank.verify().ok
        assert bank.add(make_state(), files) == row
        assert set(bank.blobs.digests()) == objects and bank.digest() == digest
        assert bank.workspace(row.state_id) == files and bank.verify().orphans == 0
    with pytest.raises(BankError, match="There is no Stage Bank"):
        Bank.open(tmp_path / "none")


def test_round_trip_and_deduplication(bank: Bank) -> None:
    files = {"plan/plan.md": b"plan", "outputs/a/x.bin": bytes(range(256)) * 40, "empty": b""}
    first = bank.add(make_state(), files, [{"code": "print(1)"}])
    assert bank.get(first.state_id) == first
    assert bank.workspace(first.state_id) == files
    assert bank.transcript(first.state_id) == [{"code": "print(1)"}]
    assert first.workspace == workspace_digest(files)
    before = len(list(bank.blobs.digests()))
    second = bank.add(make_state(focus="S4"), files, [{"code": "print(1)"}])
    assert second.state_id != first.state_id
    assert len(list(bank.blobs.digests())) == before
    assert bank.add(make_state(), files).state_id == first.state_id
    assert len(bank.query()) == 2


path_part = st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=8).filter(
    lambda p: p not in (".", "..")
)
trees = st.dictionaries(
    st.lists(path_part, min_size=1, max_size=3).map("/".join), st.binary(max_size=200), max_size=6
)


@settings(max_examples=40, deadline=None)
@given(trees=st.lists(trees, min_size=1, max_size=3))
def test_any_workspace_round_trips(trees: list[dict[str, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as folder, Bank.open(folder, create=True) as bank:
        rows = [bank.add(make_state(index=i), tree) for i, tree in enumerate(trees)]
        bank.close()
        with Bank.open(folder) as reader:
            for row, tree in zip(rows, trees, strict=True):
                assert reader.workspace(row.state_id) == tree
            assert reader.verify().ok


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a/../../b", "a//b", "./a", "a\0b"])
def test_paths_that_leave_the_workspace_are_refused(bank: Bank, path: str) -> None:
    with pytest.raises(BankError, match="workspace path"):
        bank.add(make_state(), {path: b"x"})
    assert bank.query() == []


def test_query_by_every_key(bank: Bank) -> None:
    bank.add(make_state(), {"a": b"1"})
    bank.add(make_state(focus="S1", outcome="success", size="full", fault="lung_window"), {})
    assert [s.focus.name for s in bank.query(focus="S1")] == ["S1"]
    assert len(bank.query(task="kidney_tumor")) == len(bank.query(task="seg/kidney_tumor")) == 2
    assert len(bank.query(size="full", outcome="success", fault="lung_window", index=4)) == 1
    assert bank.query(tier="pro") == []
    assert len(bank.query(track=None)) == 2
    with pytest.raises(UnknownNameError, match="Did you mean 'recovery'"):
        bank.query(outcome="recovry")
    with pytest.raises(UnknownNameError, match="bank query key"):
        bank.query(stage="S1")


def test_missing_bank_and_empty_cell_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(BankError, match="bat-env bank build"):
        Bank.open(tmp_path / "none")
    with (
        Bank.open(tmp_path / "b", create=True) as bank,
        pytest.raises(BankError, match=r"focus=S2.*bat-env bank build"),
    ):
        bank.sample(np.random.default_rng(0), focus="S2")


def test_default_path_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAT_HOME", "/h")
    monkeypatch.delenv("BAT_BANK", raising=False)
    assert default_bank_path() == Path("/h/bank")
    monkeypatch.setenv("BAT_BANK", "/elsewhere")
    assert default_bank_path() == Path("/elsewhere")


def test_corrupt_blob_is_named_refused_and_skipped(bank: Bank) -> None:
    bad = bank.add(make_state(index=1), {"x": b"bad" * 100})
    good = bank.add(make_state(index=2), {"x": b"good" * 100})
    import hashlib

    victim = bank.blobs.path(hashlib.sha256(b"bad" * 100).hexdigest())
    raw = bytearray(victim.read_bytes())
    raw[-1] ^= 1
    victim.write_bytes(raw)
    with pytest.raises(BankError, match=bad.state_id):
        bank.get(bad.state_id)
    with pytest.raises(BankError, match="corrupt"):
        bank.workspace(bad.state_id)
    draws = {bank.sample(np.random.default_rng(i)).state_id for i in range(20)}
    assert draws == {good.state_id}
    assert bank.warnings["corrupt state skipped"] > 0
    assert any(bad.state_id in problem for problem in bank.verify().problems)
    # Adding the same content again repairs it: the name says what the bytes must be.
    bank.close()
    with Bank.open(bank.path) as again:
        again.add(make_state(index=1), {"x": b"bad" * 100})
        assert again.verify().ok


@pytest.mark.parametrize("damage", [b"", b"\x28\xb5\x2f\xfd", b"not zstd at all"])
def test_blob_with_any_damage_is_refused(bank: Bank, damage: bytes) -> None:
    row = bank.add(make_state(), {"x": b"content"})
    bank.blobs.path(row.workspace).write_bytes(damage)
    with pytest.raises(BankError, match="corrupt"):
        bank.get(row.state_id)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE states SET record = replace(record, 'recovery', 'success')",
        "UPDATE states SET outcome = 'success'",
        "UPDATE states SET record = '{'",
        "UPDATE states SET digest = 'x'",
    ],
)
def test_corrupt_row_is_refused_and_skipped(bank: Bank, sql: str) -> None:
    row = bank.add(make_state(), {"x": b"1"})
    other = bank.add(make_state(focus="S1"), {"x": b"1"})
    with sqlite3.connect(bank.path / "index.sqlite") as db:
        db.execute(sql + " WHERE id = ?", (row.state_id,))
    db.close()
    with pytest.raises(BankError, match=f"State {row.state_id}.*corrupt"):
        bank.get(row.state_id)
    assert [s.state_id for s in bank.query()] == [other.state_id]
    assert bank.sample(np.random.default_rng(1)).state_id == other.state_id
    assert not bank.verify().ok


def test_garbage_index_is_a_bank_error(tmp_path: Path) -> None:
    (tmp_path / "index.sqlite").write_bytes(b"this is not a database" * 100)
    with pytest.raises(BankError, match="cannot be used"):
        Bank.open(tmp_path)


def test_demonstrations_round_trip_and_corrupt_ones_are_skipped(bank: Bank) -> None:
    rows = [bank.add_demonstration(make_demo(seed=i)) for i in range(3)]
    bank.add_demonstration(make_demo(seed=1))
    found = list(bank.demonstrations(focus="S1"))
    assert sorted(d.demo_id for d in found) == sorted(d.demo_id for d in rows)
    assert found[0] in rows
    digest = bank.demonstrations_digest()
    with sqlite3.connect(bank.path / "index.sqlite") as db:
        db.execute("UPDATE demos SET record = '{}' WHERE id = ?", (rows[0].demo_id,))
    db.close()
    assert len(list(bank.demonstrations())) == 2
    assert bank.warnings["corrupt demonstration skipped"] == 1
    assert bank.demonstrations_digest() == digest


def test_a_bank_survives_pickling_forking_and_closing_twice(bank: Bank) -> None:
    row = bank.add(make_state(), {"x": b"1"})
    copy = pickle.loads(pickle.dumps(bank))
    assert copy.get(row.state_id) == row
    pid = os.fork()
    if pid == 0:
        os._exit(0 if bank.get(row.state_id) == row else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    copy.close()
    copy.close()
    with pytest.raises(BankError, match="closed"):
        copy.get(row.state_id)


def test_second_writer_is_told_and_readers_go_on(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bat_env.bank.index._LOCK_WAIT_S", 0.1)
    row = bank.add(make_state(), {"x": b"1"})
    with Bank.open(bank.path) as other:
        assert other.get(row.state_id) == row
        with pytest.raises(BankError, match="Another process is writing"):
            other.add(make_state(index=9), {})


def test_status_counts_and_shows_empty_cells(bank: Bank) -> None:
    bank.add(make_state(), {"x": b"1"})
    bank.finish_job("a", "admitted", {})
    bank.finish_job("b", "rejected", {"reason": "naive too good"})
    bank.set_meta("mixture", {"p_good": 0.5})
    status = bank.status()
    assert status.grid["seg"]["S3"]["recovery"] == status.states == 1
    assert len(status.empty_cells) == 17
    assert status.rejections == {"naive too good": 1}
    assert status.to_json()["jobs"] == {"admitted": 1, "rejected": 1}
    assert bank.meta("mixture") == {"p_good": 0.5} and bank.meta("none") is None


_WRITER = """
import sys
from bat_env.bank import Bank, StageState
bank = Bank.open(sys.argv[1], create=True)
print("ready", flush=True)
start = len(bank.query())
for i in range(start, 10_000):
    state = StageState(track="seg", task="seg/t", task_digest="d", focus="S1", outcome="success",
                       index=i, instance_digest="x")
    bank.add(state, {f"f{k}": bytes([i % 256, k]) * 5000 for k in range(4)}, [{"i": i}])
"""


def test_kill_dash_nine_leaves_only_whole_rows(tmp_path: Path) -> None:
    folder = tmp_path / "bank"
    seen = 0
    for round_number in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_WRITER), str(folder)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(0.05 + 0.037 * round_number)
        with Bank.open(folder) as reader:
            for state in reader.query():  # while it writes
                assert len(reader.workspace(state.state_id)) == 4
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        with Bank.open(folder) as reader:
            report = reader.verify()
            assert report.problems == ()
            assert report.states >= seen
            assert [s.index for s in sorted(reader.query(), key=lambda s: s.index)] == list(
                range(report.states)
            )
            assert not reader.warnings
            seen = report.states
    assert seen > 0
    with Bank.open(folder) as bank:
        bank.add(make_state(), {})
        assert not list((folder / "objects").glob("tmp-*"))
