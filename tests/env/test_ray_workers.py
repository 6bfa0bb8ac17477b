"""Ray workers on one bank that they may only read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from bat_env.bank import Bank, StageState
from bat_env.config import lite_task
from bat_env.extras import there

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not there("ray"), reason="Ray is not installed: automed-bat[ray]"),
]


def test_two_ray_workers_draw_from_a_bank_that_they_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    folder = tmp_path / "bank"
    task = lite_task("seg")
    with Bank.open(folder, create=True) as bank:
        for index in range(4):
            row = {
                "track": "seg",
                "task": task.id,
                "task_digest": task.digest,
                "focus": "S1",
                "outcome": "failure",
                "index": index,
                "instance_digest": "",
            }
            bank.add(StageState.model_validate(row), {"n": bytes([index])})
    names = {state.state_id for state in Bank.open(folder).query()}
    (folder / "writer.lock").unlink()
    for path in (*folder.rglob("*"), folder):
        path.chmod(0o555 if path.is_dir() else 0o444)

    def play(seed: int) -> tuple[str, dict[str, float], bytes]:
        import gymnasium as gym

        import bat_env  # noqa: F401

        env: Any = gym.make("AutoMed-Bank-v0", bank=str(folder), sandbox="local", size="mini")
        try:
            env.unwrapped.set_distribution({"seg/S1/failure": 1})
            _, info = env.reset(seed=seed)
            return info["state_id"], env.unwrapped.distribution, env.unwrapped.workspace()["n"]
        finally:
            env.close()

    # Workers inherit the environment; a runtime environment would need more of Ray than `ray` is.
    root = str(Path(__file__).resolve().parents[2])
    monkeypatch.setenv("PYTHONPATH", root, prepend=os.pathsep)
    monkeypatch.setenv("RAY_worker_niceness", "0")  # 15 starves on a busy machine
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        configure_logging=False,
        log_to_driver=False,
        object_store_memory=80 << 20,
    )
    try:
        remote = ray.remote(num_cpus=1)(play)
        found = ray.get([remote.remote(seed) for seed in (1, 2, 1)], timeout=400)
    finally:
        ray.shutdown()
        folder.chmod(0o755)
    assert {state for state, _, _ in found} <= names
    assert found[0] == found[2], "equal seeds, equal starts, whichever worker plays"
    assert all(weights == {"seg/S1/failure": 1.0} for _, weights, _ in found)
    if os.getuid() != 0:  # root may write anything
        assert sorted(p.name for p in folder.iterdir()) == ["index.sqlite", "objects"]
