"""The Harbor export: read by Harbor itself, graded as we grade, its truth in one place."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bat_env.env import AutoMedEnv
from bat_env.errors import ConfigError
from bat_env.serve.harbor import export_harbor
from bat_env.tasks import load_suite, load_task
from bat_env.tools import execute_call, submit_call

TASKS = ("seg/kidney_tumor", "vqa/radiograph_mc")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    suite = load_suite("lite-mini").of_tasks(TASKS).first(1)
    return export_harbor(suite, tmp_path_factory.mktemp("harbor") / "out")


def of_task(folders: list[Path], task: str) -> Path:
    return next(f for f in folders if f.name == f"{task.replace('/', '-').replace('_', '-')}-1")


def verify(folder: Path, workspace: Path, reward: Path) -> dict[str, float]:
    """Run the verifier as Harbor does, but for the container."""
    done = subprocess.run(
        ["bash", str(folder / "tests" / "test.sh")],
        env={
            "PATH": os.environ["PATH"],
            "PYTHON": sys.executable,
            "WORKSPACE": str(workspace),
            "REWARD_FILE": str(reward),
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(reward.read_text())
    return found


def played(task: str, script: str) -> tuple[float, dict[str, bytes]]:
    """The Task score of a script on the environment, and the workspace that it left."""
    loaded = load_task(task)
    env = AutoMedEnv(
        track=loaded.spec.track, task=task, split="heldout", size="mini", sandbox="local"
    )
    try:
        env.reset(seed=0, options={"index": 0})
        for cell in loaded.script() if script == "oracle" else ():
            env.step(execute_call(cell.language, cell.code))
        files = env.workspace()
        info = env.step(submit_call())[-1]
        return float(info["result"]["task"]), files
    finally:
        env.close()


def laid(files: dict[str, bytes], folder: Path) -> Path:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_verifier_scores_oracle_and_nop_as_we_do(
    task: str, folders: list[Path], tmp_path: Path
) -> None:
    folder = of_task(folders, task)
    for script in ("oracle", "nop"):
        score, files = played(task, script)
        workspace = laid(files, tmp_path / script)
        found = verify(folder, workspace, tmp_path / f"{script}.json")
        assert found == {"reward": score, "valid_outputs": float(script == "oracle")}
        assert (score > 0.6) if script == "oracle" else (score == 0)


def test_a_link_to_the_truth_earns_nothing(folders: list[Path], tmp_path: Path) -> None:
    folder = of_task(folders, "seg/kidney_tumor")
    truths = folder / "tests" / "truth" / "private"
    workspace = tmp_path / "workspace"
    for case in sorted(p.name for p in truths.iterdir()):
        (workspace / "outputs" / case).mkdir(parents=True)
        label = next((truths / case).glob("*.nii.gz"))
        (workspace / "outputs" / case / "dseg.nii.gz").symlink_to(label)
    assert verify(folder, workspace, tmp_path / "r.json") == {"reward": 0.0, "valid_outputs": 0.0}


def test_truth_lies_under_tests_alone(folders: list[Path]) -> None:
    for folder in folders:
        suite = load_suite("lite-mini").of_tasks(
            [t for t in TASKS if folder == of_task(folders, t)]
        )
        instance = suite.entries[0].instance()
        private = [*instance.private.values(), *instance.probe_private.values()]
        private += [gzip.decompress(d) for d in private if d[:2] == b"\x1f\x8b"]
        for path in (p for p in folder.rglob("*") if p.is_file()):
            if path.relative_to(folder).parts[0] == "tests":
                continue
            data = path.read_bytes()
            views = [data, gzip.decompress(data) if data[:2] == b"\x1f\x8b" else b""]
            assert not any(secret in view for secret in private for view in views), path
            text = data.decode("utf-8", "replace")
            assert "heldout" not in text and str(Path(__file__).parents[2]) not in text, path


def test_harbor_reads_what_was_exported(folders: list[Path], drive: Callable[..., Any]) -> None:
    found = drive("harbor", "harbor_driver.py", {"folder": str(folders[0].parent)})
    assert len(found) == len(TASKS)
    for task in found:
        assert task["valid"] and task["separate"] and task["solution"]
        assert task["name"].startswith("automed-bat/") and task["artifacts"] == ["/workspace"]
        assert task["workdir"] == "/workspace" and task["agent_s"] == 23 * 120
        assert "submit_results" in task["instruction"] and "## Stages" in task["instruction"]


def test_an_export_replaces_nothing(folders: list[Path]) -> None:
    with pytest.raises(ConfigError, match="new or empty folder"):
        export_harbor("lite-mini", folders[0].parent)


@pytest.mark.docker
@pytest.mark.slow
def test_the_solution_runs_in_the_container_of_the_agent(tmp_path: Path) -> None:
    from bat_env.image import default_tag

    suite = load_suite("lite-mini").of_tasks(TASKS[:1]).first(1)
    (folder,) = export_harbor(suite, tmp_path / "out", image=default_tag())
    tag = "automed-bat/harbor-test:dev"

    def docker(*arguments: str) -> str:
        done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    docker("build", "--network", "none", "-t", tag, str(folder / "environment"))
    box = docker("create", "--network", "none", tag, "bash", "/solution/solve.sh")
    try:
        docker("cp", str(folder / "solution"), f"{box}:/solution")
        docker("start", "-a", box)
        docker("cp", f"{box}:/workspace", str(tmp_path / "workspace"))
    finally:
        docker("rm", "-f", box)
        docker("rmi", "-f", tag)
    score, _ = played(TASKS[0], "oracle")
    found = verify(folder, tmp_path / "workspace", tmp_path / "r.json")
    assert found["reward"] == pytest.approx(score, abs=1e-3) and found["valid_outputs"] == 1
