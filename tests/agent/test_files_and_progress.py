from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bat_agent.files import (
    check_file,
    check_folder,
    derived_seed,
    digest_of,
    locked,
    read_json,
    sweep,
    write_bytes,
    write_json,
)
from bat_agent.progress import JobCount, Phase, RunProgress
from bat_env.errors import ConfigError, DiskFullError


def test_a_file_is_whole_or_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "deep" / "x.json"
    write_json(file, {"schema_version": 1, "a": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError, match=r"x\.json is full; free space"):
        write_bytes(file, b"new")
    assert read_json(file, schema_version=1)["a"] == 1
    assert [p.name for p in file.parent.iterdir()] == ["x.json"]
    with pytest.raises(ValueError, match="JSON"):
        write_json(file, {"a": float("nan")})


def test_what_a_killed_process_began_is_swept(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from bat_agent.files import write_json\n"
        "os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_json(Path('deep/x.json'), {'a': 1})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    (tmp_path / "deep" / ".hidden").touch()
    (begun,) = tmp_path.glob("deep/.x.json.*")
    sweep(tmp_path)
    assert not begun.exists()
    assert [p.name for p in (tmp_path / "deep").iterdir()] == [".hidden"]


def test_work_of_a_new_kind_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    phases = [Phase("sft", "Supervised start", 60.0)]
    with RunProgress(phases) as progress, progress.phase("sft") as advance:
        for note in ("reading", "reading", "making the tokenizer", "step 1/9", "step 2/9"):
            advance(0.0, 1.0, note)
    told = [line.split(" % ")[1] for line in capsys.readouterr().err.splitlines() if " % " in line]
    assert [line.partition(" (")[0] for line in told] == [
        "reading",
        "making the tokenizer",
        "step 1/9",
    ]


def test_digests_and_seeds_do_not_depend_on_order_or_process() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert 0 <= derived_seed("round", 1) < 2**31
    code = "from bat_agent.files import derived_seed; print(derived_seed('round', 1))"
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
    }
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment)
    assert int(other.stdout) == derived_seed("round", 1) != derived_seed("round", 2)


def test_one_process_a_run(tmp_path: Path) -> None:
    lock = tmp_path / "run.lock"
    refused = pytest.raises(ConfigError, match="Another process")
    with locked(lock), refused, locked(lock):
        pass
    with locked(tmp_path / "run.lock"):
        pass
    with locked(lock, "the evaluation", keep=False):
        refused = pytest.raises(ConfigError, match="working on the evaluation")
        with refused, locked(lock, "the evaluation", keep=False):
            pass
        assert lock.exists()
    assert not lock.exists()


def test_time_left_follows_the_pace_and_ignores_what_was_on_disk(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    phases = [Phase("a", "A", 100.0), Phase("b", "B", 100.0), Phase("c", "C", 100.0)]
    with RunProgress(phases) as progress:
        assert progress.seconds_left() == 300.0
        with progress.phase("a"):
            now += 1.0  # read from disk
        assert progress.seconds_left() == 200.0
        with progress.phase("b") as advance:
            now += 100.0  # half of it, at half the pace
            advance(1, 2, "half")
            assert progress.seconds_left() == pytest.approx(300.0)
            now += 100.0
        assert progress.seconds_left() == pytest.approx(200.0)
        progress.skip("c")
        assert progress.seconds_left() == 0.0
    shown = capsys.readouterr()
    assert shown.out == "" and "B: 50 % half" in shown.err and "left in all" in shown.err


def test_no_time_is_told_before_it_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    phases = [Phase("eval", "Evaluate", 60.0, known=False)]
    with RunProgress(phases) as progress, progress.phase("eval") as advance:
        assert progress.seconds_left() is None
        now += 50.0
        advance(1, 4, "1/4 episodes")
        assert progress.seconds_left() == pytest.approx(150.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["Evaluate ...", "  Evaluate: 25 % 1/4 episodes (2:30 left in all)"]


def test_a_path_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    check_folder(tmp_path / "a" / "b", "a folder")
    check_file(tmp_path / "a" / "b.json", "a file")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "taken").write_text("x")
    for bad in (Path("/proc/x"), tmp_path / "taken", tmp_path / "taken" / "deeper"):
        with pytest.raises(ConfigError, match=f"a folder where files .* {bad}"):
            check_folder(bad, "a folder")
    with pytest.raises(ConfigError, match="Name a file"):
        check_file(tmp_path, "a file")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_jobs_are_counted_on_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    first = JobCount(file)
    assert first("states", 0, 216) == (0, 216)
    assert first("states", 143, 216) == (143, 216)
    again = JobCount(file)
    assert again("states", 0, 73) == (143, 216)
    assert again("states", 73, 73) == (216, 216)
    assert again("demonstrations", 0, 240) == (0, 240)
    file.write_text("{")
    assert JobCount(file)("states", 0, 73) == (0, 73)  # damaged: only a display


def test_what_a_resumed_phase_finds_does_not_count_as_pace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with RunProgress([Phase("a", "A", 100.0), Phase("b", "B", 100.0)]) as progress:
        with progress.phase("a") as advance:
            advance(50, 100, "from disk")
            assert progress.seconds_left() == 150.0
            now += 50.0  # half the pace
            advance(75, 100, "")
            assert progress.seconds_left() == pytest.approx(2 * 125.0)
            now += 50.0
        assert progress.seconds_left() == pytest.approx(200.0)
    assert "A: 75 %" in capsys.readouterr().err


def clocked(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that stands until it is put on."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)

    def put_on(seconds: float) -> None:
        nonlocal now
        now += seconds

    return put_on


def test_time_left_follows_a_load_that_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    put_on = clocked(monkeypatch)
    phases = [Phase("a", "A", 1000.0), Phase("b", "B", 500.0)]
    with RunProgress(phases, quiet=True) as progress, progress.phase("a") as advance:
        for done in range(1, 51):
            put_on(10.0)
            advance(done, 100)
        assert progress.seconds_left() == pytest.approx(500.0 + 500.0)
        for done in range(51, 61):
            put_on(40.0)  # others use the machine
            advance(done, 100)
        assert progress.seconds_left() == pytest.approx(4 * (400.0 + 500.0))
        for done in range(61, 71):
            put_on(10.0)
            advance(done, 100)
        assert progress.seconds_left() == pytest.approx(300.0 + 500.0)


def test_a_round_is_expected_to_take_what_the_last_one_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_on = clocked(monkeypatch)
    rounds = [Phase(f"r{n}", f"Round {n}", 200.0, kind="round") for n in (1, 2)]
    with RunProgress([*rounds, Phase("end", "End", 100.0)], quiet=True) as progress:
        with progress.phase("r1") as advance:
            for done in range(1, 11):
                put_on(60.0)  # three times what was expected
                advance(done, 10)
        assert progress.seconds_left() == pytest.approx(600.0 + 300.0)
        with progress.phase("r2") as advance:
            for done in range(1, 11):
                put_on(20.0)
                advance(done, 10)
                if done == 5:
                    assert progress.seconds_left() == pytest.approx(100.0 + 100.0)
        assert progress.seconds_left() == pytest.approx(100.0)
        with progress.phase("end") as advance:
            put_on(50.0)
            advance(1, 10)  # another kind of work: only its own pace counts
            assert progress.seconds_left() == pytest.approx(5 * 90.0)


def test_many_small_steps_are_measured_together(monkeypatch: pytest.MonkeyPatch) -> None:
    put_on = clocked(monkeypatch)
    with RunProgress([Phase("a", "A", 100.0)], quiet=True) as progress:
        with progress.phase("a") as advance:
            for done in range(1, 401):
                put_on(0.5)
                advance(done, 1000)
                advance(done, 1000)
        assert progress.seconds_left() == 0.0
        assert progress._pace.value == pytest.approx(5.0)  # 200 s for 40 expected ones


def test_a_pipe_is_never_replaced(tmp_path: Path) -> None:
    """As root that would take a device from the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(ConfigError, match="is a device, a pipe or a socket"):
            check_file(path, "--out")
        with pytest.raises(ConfigError, match="is a device, a pipe or a socket"):
            write_json(path, {})
    assert pipe.is_fifo() and link.is_symlink()
