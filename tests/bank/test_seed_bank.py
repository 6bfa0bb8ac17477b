"""A seed bank: every cell, small, clean, startable, and the same when it is made again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bat_env.bank import Bank, preflight
from bat_env.bank.replaying import replay_states
from bat_env.bank.slices import count_slices
from bat_env.cli import app
from bat_env.env import AutoMedEnv
from bat_env.grader import shared_grader
from bat_env.stages import OUTCOMES, Stage

SUITES = ("lite-mini", "lite-mini-controller", "seg-mini", "seg-mini-controller")


@pytest.fixture
def made_on(seed_bank: Path) -> str:
    """The backend that the bank was built on: bytes are equal there, elsewhere what they say is."""
    with Bank.open(seed_bank) as bank:
        (backend,) = {state.provenance["backend"] for state in bank.query()}
    return str(backend)


def test_a_seed_bank_has_a_state_in_every_cell(seed_bank: Path) -> None:
    with Bank.open(seed_bank) as bank:
        status = bank.status()
        tracks = 7 if "BAT_SEED_BANK" in os.environ else 1
        assert len(status.grid) == tracks and status.empty_cells == []
        assert status.states >= tracks * len(Stage) * len(OUTCOMES)
        assert status.bytes_on_disk <= 40 << 20
        faults = {state.fault for state in bank.query() if state.fault}
        assert len(faults) >= (25 if tracks == 7 else 5)
        assert count_slices(bank.demonstrations()).rows >= 5 * tracks
        assert bank.verify().ok
        for state in bank.query():
            assert state.admission["oracle"] >= 0.8 and state.admission["start"] == 0.0
            assert state.admission["naive"] <= state.admission["oracle"] - 0.2
            assert state.reduction.keys() == {"cases", "input_fraction", "validation_passes"}


def test_a_seed_bank_holds_nothing_held_out(seed_bank: Path) -> None:
    with Bank.open(seed_bank) as bank:
        assert preflight(bank, SUITES).clean


def test_a_state_of_each_track_starts(seed_bank: Path, backend: str) -> None:
    env = AutoMedEnv(track=None, sandbox=backend, bank=seed_bank)
    with Bank.open(seed_bank) as bank:
        states = {state.track: state for state in bank.query(focus="S4", outcome="recovery")}
        for state in states.values():
            observation, info = env.reset(seed=1, options={"state_id": state.state_id})
            assert observation["text"] == state.brief and info["state_id"] == state.state_id
            there = env.workspace()
            files = bank.workspace(state.state_id)
            assert {path: there[path] for path in files} == files
    env.close()


def test_admitted_states_replay_to_the_byte(seed_bank: Path, made_on: str) -> None:
    asked = ["bank", "verify", "--path", str(seed_bank), "--replay", "--backend", made_on]
    done = CliRunner().invoke(app, [*asked, "--sample", "3", "--seed", "1"])
    assert done.exit_code == 0, done.output
    assert f"3 states replayed on {made_on}: 3 to the byte\n" in done.stdout
    assert "3/3" in done.stderr


@pytest.mark.docker
def test_admitted_states_replay_on_the_other_backend(seed_bank: Path, made_on: str) -> None:
    other = "local" if made_on == "docker" else "docker"
    with Bank.open(seed_bank) as bank:
        report = replay_states(bank, backend=other, sample=2, seed=2)
    assert report.ok, report.problems
    assert report.identical + report.close == 2 and report.largest <= 1e-5


def test_a_state_that_is_not_what_its_past_makes_is_named(
    seed_bank: Path, made_on: str, tmp_path: Path
) -> None:
    with Bank.open(seed_bank) as bank, Bank.open(tmp_path / "bank", create=True) as other:
        state = bank.query(focus="S2", outcome="success")[0]
        files = bank.workspace(state.state_id)
        planted = other.add(state, {**files, "plan/plan.md": b"Trust me.\n"})
        report = replay_states(other, backend=made_on, verdicts=False)
    assert report.problems == [f"state {planted.state_id}: replays differently: plan/plan.md"]


def test_a_copied_bank_needs_nothing_else(seed_bank: Path, tmp_path: Path) -> None:
    shutil.copytree(seed_bank, tmp_path / "copy")
    with Bank.open(seed_bank) as bank, Bank.open(tmp_path / "copy") as copy:
        assert copy.digest() == bank.digest()


# ------------------------------------------------------------------------------------- differences


def nifti(values: Any, affine: Any = None) -> bytes:
    import nibabel as nib
    import numpy as np

    image = nib.Nifti1Image(np.asarray(values, np.float32), np.eye(4) if affine is None else affine)
    return bytes(image.to_bytes())


def test_files_are_compared_in_the_limited_process_by_what_they_hold() -> None:
    import numpy as np

    values = np.linspace(-1000, 1000, 60).reshape(3, 4, 5)
    apart = shared_grader().difference
    assert apart("x.nii", nifti(values), nifti(values)) == (0.0, "")
    assert 0 < apart("x.nii", nifti(values), nifti(values + 2e-3))[0] <= 1e-5
    assert apart("x.nii", nifti(values), nifti(values + 1.0))[0] > 1e-5
    assert apart("x.nii", nifti(values), nifti(values, np.diag([2.0, 1, 1, 1])))[0] > 1e-5
    assert apart("x.nii", nifti(values), nifti(values[:2]))[0] == float("inf")
    assert apart("x.nii", nifti(values), b"rubbish")[0] == float("inf")
    one = b'{"a": [1.0, {"b": 2000.0}], "versions": {"python": "3.11"}}'
    two = b'{"a": [1.000001, {"b": 2000.001}], "versions": {"python": "3.12"}}'
    assert 0 < apart("x.json", one, two)[0] <= 1e-5
    assert apart("x.json", b'{"a": 1}', b'{"a": "1"}')[0] == float("inf")
    assert apart("x.json", b'{"a": 1}', b'{"b": 1}')[0] == float("inf")
    assert apart("x.json", b"[" * 100_000, b"[")[0] == float("inf")
    assert 0 < apart("x.csv", b"case,p\nA,0.5\n", b"case,p\nA,0.500001\n")[0] <= 1e-5
    assert apart("x.csv", b"case,p\nA,0.5\n", b"case,p\nB,0.5\n")[0] == float("inf")
    assert apart("x.py", b"a", b"b")[0] == float("inf")
