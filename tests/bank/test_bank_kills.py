"""Builder and trainer killed at random: nothing is lost, nothing is there twice.

A child counts down over the writes that it makes (before and after each) and then kills itself with
SIGKILL, so that every kill hits a point that matters, however slow the machine is.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from bat_env.bank import Bank
from bat_env.bank.build import build
from bat_env.sandbox import resolve_backend

TASK = "cls/skin_lesion"
_DEADLY = """
import os, random, signal, sys
left = random.Random(int(sys.argv[2])).randrange(1, int(sys.argv[3])) if sys.argv[2] != "0" else -1

def hit():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

def deadly(owner, name):
    method = getattr(owner, name)
    def call(*args, **kwargs):
        hit()
        result = method(*args, **kwargs)
        hit()
        return result
    setattr(owner, name, call)
"""
_BUILDER = """
from bat_env.bank.blobs import BlobStore
from bat_env.bank.build import build
from bat_env.bank.index import Index
deadly(BlobStore, "put")
deadly(Index, "write")
build(sys.argv[1], backend="local", **eval(sys.argv[4]))
"""
# A trainer: draws states while the builder writes, and keeps a journal that it goes on with.
_TRAINER = """
import json, time
import numpy as np
from bat_env.bank import Bank
from bat_env.bank.state import workspace_digest
from bat_env.errors import BankError
journal = open(sys.argv[1] + ".journal", "ab+")
journal.seek(0)
whole = journal.read()
whole = whole[: whole.rfind(b"\\n") + 1]
journal.truncate(len(whole))
done, wanted = whole.count(b"\\n"), int(sys.argv[4])
end = time.monotonic() + 120
while done < wanted and time.monotonic() < end:
    try:
        with Bank.open(sys.argv[1]) as bank:
            state = bank.sample(np.random.default_rng(done))
            assert workspace_digest(bank.workspace(state.state_id)) == state.workspace
            assert state.admission["oracle"] >= 0.8 and not bank.warnings
    except BankError:
        time.sleep(0.2)
        continue
    hit()
    journal.write(json.dumps({"draw": done, "state": state.state_id}).encode() + b"\\n")
    journal.flush()
    os.fsync(journal.fileno())
    hit()
    done += 1
    time.sleep(0.02)
"""


def start(body: str, path: Path, seed: int, most: int, argument: str) -> subprocess.Popen[bytes]:
    """A child that kills itself after at most ``most`` writes; seed 0: it lives."""
    code = textwrap.dedent(_DEADLY + body)
    words = [sys.executable, "-c", code, str(path), str(seed), str(most), argument]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL)


def kill_at_random(path: Path, options: dict[str, Any], kills: int, seed: int) -> int:
    """Run builder and trainer side by side, killing one or both; returns the draws made."""
    rng = random.Random(seed)
    hits, draws = 0, 0
    while hits < kills:
        draws += 6
        victim = rng.choice(("builder", "trainer", "both"))
        deadly = {who: rng.randrange(1, 2**31) for who in ("builder", "trainer")}
        if victim != "both":
            deadly["trainer" if victim == "builder" else "builder"] = 0
        builder = start(_BUILDER, path, deadly["builder"], 60, repr(options))
        trainer = start(_TRAINER, path, deadly["trainer"], 10, str(draws))
        codes = [builder.wait(timeout=500), trainer.wait(timeout=500)]
        assert set(codes) <= {0, -signal.SIGKILL}, codes
        hits += codes.count(-signal.SIGKILL)
        if (path / "index.sqlite").exists():
            with Bank.open(path) as bank:
                assert bank.verify().ok, bank.verify().problems
    assert start(_TRAINER, path, 0, 1, str(draws)).wait(timeout=500) == 0
    return draws


def check(path: Path, options: dict[str, Any], cells: int, draws: int) -> str:
    """Nothing lost, nothing twice; returns the digest of the bank."""
    report = build(path, backend="local", **options)
    assert report.failed == [] and report.short == {}, str(report)
    with Bank.open(path) as bank:
        states = bank.query()
        assert len(states) == cells * options["per_cell"] == len({s.state_id for s in states})
        admitted = [d["state_id"] for status, d in bank.jobs().values() if status == "admitted"]
        assert sorted(admitted) == sorted(state.state_id for state in states)
        assert bank.verify().ok
        ids = {state.state_id for state in states}
    rows = [json.loads(line) for line in Path(f"{path}.journal").read_text().splitlines()]
    assert [row["draw"] for row in rows] == list(range(draws))
    assert {row["state"] for row in rows} <= ids
    return report.digest


def test_three_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    assert resolve_backend("local") == "local"
    options = {
        "tasks": [TASK],
        "stages": ["S1"],
        "per_cell": 1,
        "demos": 0,
        "suites": ["lite-mini"],
        "workers": 1,
    }
    draws = kill_at_random(tmp_path / "bank", options, 3, seed=5)
    check(tmp_path / "bank", options, 3, draws)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_twenty_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    options = {
        "tasks": [TASK],
        "stages": ["S1", "S4"],
        "per_cell": 2,
        "demos": 4,
        "trajectories": 1,
        "styles": ["usual", "shell"],
        "briefs": "varied",
        "suites": ["lite-mini"],
        "workers": 2,
    }
    draws = kill_at_random(tmp_path / "bank", options, 20, seed=6)
    digest = check(tmp_path / "bank", options, 6, draws)
    undisturbed = build(tmp_path / "other", backend="local", **options)
    assert undisturbed.digest == digest
