"""Starts from a Stage Bank: what is drawn, what is in the workspace, and what may earn."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from bat_env.bank import Bank, StageState
from bat_env.env import AutoMedEnv
from bat_env.errors import BankError, ConfigError
from bat_env.rubric import compile_contract
from bat_env.stages import Stage
from bat_env.tasks import load_task
from bat_env.testing import play
from bat_env.tools import execute_call, submit_call

MakeEnv = Callable[..., AutoMedEnv]


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A bank with the state before S3, made by the careful script, and a bare S1 state."""
    task = load_task("seg/kidney_tumor")
    env = AutoMedEnv(sandbox="local", size="mini")
    env.reset(seed=0, options={"index": 7})
    before = [c for c in task.script() if c.stage < Stage.S3]
    for cell in before:
        assert env.step(execute_call(cell.language, cell.code))[4]["valid"]
    workspace = {p: d for p, d in env.workspace().items() if p != "task/spec.json"}
    common: dict[str, Any] = {
        "track": "seg",
        "task": task.spec.id,
        "task_digest": task.digest,
        "index": 7,
        "instance_digest": env.instance.digest,
    }
    env.close()
    bank = Bank.open(tmp_path_factory.mktemp("bank"), create=True)
    for focus, files in ((Stage.S3, workspace), (Stage.S1, {})):
        digest = compile_contract(task.spec, tier="lite", focus=focus, outcome="success").digest
        bank.add(StageState(focus=focus, outcome="success", rubric_digest=digest, **common), files)
    stale = {**common, "task_digest": "0" * 64, "index": 8}
    bank.add(StageState(focus=Stage.S2, outcome="failure", **stale), {})
    yield bank
    bank.close()


def test_a_stage_is_practised_from_its_state(make_env: MakeEnv, bank: Bank) -> None:
    env = make_env(bank=bank)
    task = load_task("seg/kidney_tumor")
    cells = task.script(focus=Stage.S3, outcome="success")
    actions = [execute_call(cell.language, cell.code) for cell in cells] + [submit_call()]
    observation, info = env.reset(seed=0, options={"stage": "S3", "outcome": "success"})
    assert observation["stage"] == 2 and "plan/facts.json" in observation["text"]
    assert (info["stage"], info["outcome"], info["index"]) == ("S3", "success", 7)
    assert "pipeline/predict.py" in env.episode.initial
    steps = [env.step(action) for action in actions]
    result = steps[-1][4]["result"]
    assert steps[-1][2] and set(result["stages"]) == {"S3"}
    assert sum(step[1] for step in steps) == result["score"] >= 0.8
    assert result["task"] is None


def test_inherited_work_earns_nothing(make_env: MakeEnv, bank: Bank) -> None:
    env = make_env(bank=bank, stage="S3")
    steps = play(env, [execute_call("bash", "ls -R"), submit_call()])
    assert [step[1] for step in steps] == [0.0, 0.0]


def test_group_members_start_from_equal_workspaces(make_env: MakeEnv, bank: Bank) -> None:
    env = make_env(bank=bank.path)
    _, one = env.reset(seed=1, options={"stage": "S3"})
    first = env.workspace()
    env.step(execute_call("bash", "rm -r plan; echo x > pipeline/predict.py"))
    _, two = env.reset(seed=2, options={"state_id": one["state_id"]})
    assert one["workspace_digest"] == two["workspace_digest"] and first == env.workspace()


def test_the_bank_environment_draws_every_start(bank: Bank) -> None:
    env = gym.make("AutoMed-Bank-v0", bank=bank, sandbox="local", distribution={"S1": 1, "S3": 3})
    seen = [env.reset(seed=seed)[1]["stage"] for seed in range(8)]
    again = [env.reset(seed=seed)[1]["stage"] for seed in range(8)]
    env.close()
    assert seen == again and set(seen) == {"S1", "S3"}


def test_states_that_do_not_fit_are_refused(make_env: MakeEnv, bank: Bank) -> None:
    env = make_env(bank=bank)
    with pytest.raises(BankError, match="another version of task"):
        env.reset(seed=0, options={"stage": "S2"})
    with pytest.raises(BankError, match="bank build"):
        env.reset(seed=0, options={"stage": "S5"})
    state = bank.query(focus=Stage.S3)[0]
    with pytest.raises(ConfigError, match="asked for"):
        env.reset(seed=0, options={"state_id": state.state_id, "stage": "S4"})
    with pytest.raises(BankError):
        env.reset(seed=0, options={"state_id": "f" * 32})
    _, info = env.reset(seed=0)
    assert info["state_id"] is None, "without a wish the start is fresh"


def test_a_corrupt_state_is_never_half_used(make_env: MakeEnv, tmp_path: Path, bank: Bank) -> None:
    state = bank.query(focus=Stage.S3)[0]
    with Bank.open(tmp_path / "copy", create=True) as copy:
        copy.add(state, bank.workspace(state.state_id))
    for blob in (tmp_path / "copy" / "objects").rglob("*"):
        if blob.is_file():
            blob.write_bytes(b"rubbish")
    env = make_env(bank=tmp_path / "copy")
    with pytest.raises(BankError, match=state.state_id):
        env.reset(seed=0, options={"state_id": state.state_id})


def test_a_reset_reads_only_what_its_worker_lacks(make_env: MakeEnv, tmp_path: Path) -> None:
    task = load_task("seg/kidney_tumor")
    row: dict[str, Any] = {
        "track": "seg",
        "task": task.spec.id,
        "task_digest": task.digest,
        "focus": "S1",
        "outcome": "failure",
        "index": 7,
        "instance_digest": "",
    }
    files = {f"big{n}": os.urandom(60_000) for n in range(3)}
    with Bank.open(tmp_path / "bank", create=True) as bank:
        state = bank.add(StageState.model_validate(row), files)
        reads: list[str] = []
        plain = bank.blobs.get

        def get(digest: str) -> bytes:
            reads.append(digest)
            return plain(digest)

        bank.blobs.get = get  # type: ignore[method-assign]
        env, wanted = make_env(bank=bank), {"state_id": state.state_id}
        for _ in range(2):  # a worker keeps what comes for the second time
            env.reset(seed=0, options=wanted)
        reads.clear()
        env.reset(seed=0, options=wanted)
        contents = {hashlib.sha256(data).hexdigest() for data in files.values()}
        assert not contents & set(reads), "a manifest is looked at, no content"
        assert {p: d for p, d in env.workspace().items() if p in files} == files
        big = bank.blobs.path(hashlib.sha256(files["big1"]).hexdigest())
        big.write_bytes(b"rubbish")
        with pytest.raises(BankError, match="corrupt"):
            env.reset(seed=0, options=wanted)
        assert env.episode.status == "running", "a refused reset leaves the episode as it was"
