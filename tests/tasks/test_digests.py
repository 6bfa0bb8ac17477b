"""Every Python that the machine has draws the same instances, as committed in envs/digests.json."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bat_env.errors import TaskError
from bat_env.task_rules import FOLDER_RULES
from bat_env.tasks import digests, load_task, task_ids
from bat_env.tasks.discovery import builtin_root

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
NEEDED = ("numpy", "nibabel", "pydantic", "pyyaml", "gymnasium", "scipy", "pillow")
"""What drawing an instance imports."""


def _interpreters(version: str) -> list[str]:
    """Where Pythons of a version may be: on the path, the system's, pyenv's, uv's."""
    name, home = f"python{version}", Path.home()
    places = [shutil.which(name), f"/usr/bin/{name}", f"/usr/local/bin/{name}"]
    for pattern in (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin"):
        places += [str(folder / name) for folder in sorted(home.glob(pattern))]
    return [place for place in places if place is not None and os.access(place, os.X_OK)]


def _answers(command: list[str]) -> bool:
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode == 0


def _python(version: str, cache: Path) -> str:
    """A Python of this version that has what is needed, made in the cache if none is there."""
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    modules = "import numpy, nibabel, pydantic, yaml, gymnasium, scipy, PIL, sys; "
    asked = modules + f"assert '%d.%d' % sys.version_info[:2] == '{version}'"
    made = cache / version / "bin" / "python"
    found = _interpreters(version)
    for python in (str(made), *found):
        if os.access(python, os.X_OK) and _answers([python, "-c", asked]):
            return python
    base = [p for p in found if _answers([p, "-c", "import ensurepip, venv"])]
    if not base:
        pytest.skip(f"no Python {version} on this machine")
    shutil.rmtree(cache / version, ignore_errors=True)
    subprocess.run([base[0], "-m", "venv", str(cache / version)], check=True)
    pip = [str(made), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    constraints = ROOT / "requirements" / "constraints.txt"
    done = subprocess.run(
        [*pip, "--only-binary", ":all:", "-c", str(constraints), *NEEDED],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(
            f"Python {version} has no numpy, and none can be installed: {done.stderr[-200:]}"
        )
    return str(made)


@pytest.mark.parametrize("version", PYTHONS)
def test_every_python_draws_the_committed_instances(
    version: str, pytestconfig: pytest.Config
) -> None:
    assert pytestconfig.cache is not None
    python = _python(version, pytestconfig.cache.mkdir("pythons"))
    done = subprocess.run(
        [python, str(builtin_root() / "digests.py"), "--print"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "3", "BAT_TASKS_PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-1000:]
    made, written = json.loads(done.stdout), digests.committed()
    own = {name for name in task_ids() if load_task(name).folder.is_relative_to(builtin_root())}
    assert own == set(made)
    for name in sorted(own & set(written)):  # A task that is not written down fails its own rule.
        assert made[name] == written[name], f"{name} differs on Python {version}"


def test_a_digest_that_is_not_the_committed_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = next(rule for rule in FOLDER_RULES if rule.__name__ == "determinism")
    task = load_task("vqa/radiograph_mc")
    rule(task)
    changed = {**digests.measured(task), "dev mini 3": "0" * 64}
    monkeypatch.setattr("bat_env.task_rules.instances.committed", lambda: {task.id: changed})
    with pytest.raises(
        AssertionError, match=r"another instance dev mini 3 than envs/digests\.json"
    ):
        rule(task)
    monkeypatch.setattr("bat_env.task_rules.instances.committed", dict)
    with pytest.raises(AssertionError, match=r"Run: python envs/digests\.py vqa/radiograph_mc"):
        rule(task)


def test_a_damaged_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "digests.json"
    monkeypatch.setattr(digests, "digests_path", lambda: path)
    for text in ("", "{}", '{"schema_version": 2, "tasks": {}}'):
        path.write_text(text)
        with pytest.raises(TaskError, match=r"python envs/digests\.py"):
            digests.committed()


def test_the_command_adds_one_task_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = digests.digests_path()
    target = tmp_path / "envs"
    shutil.copytree(source.parent / "vqa", target / "vqa")
    shutil.copy(source.parent / "digests.py", target)
    written = json.loads(source.read_text())
    written["tasks"]["vqa/radiograph_mc"] = {}
    (target / "digests.json").write_text(json.dumps(written))
    shutil.copytree(ROOT / "bat_env", tmp_path / "bat_env")
    subprocess.run(
        [sys.executable, str(target / "digests.py"), "radiograph_mc"],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "BAT_TASKS_PATH": ""},
        check=True,
        capture_output=True,
    )
    assert json.loads((target / "digests.json").read_text()) == json.loads(source.read_text())
