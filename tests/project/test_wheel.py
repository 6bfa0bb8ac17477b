"""The wheel carries both packages, tasks and image inputs, and works without a checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def wheel(repo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", str(folder), str(repo_root)),
        ],
        check=True,
    )
    (built,) = folder.glob("automed_bat-*.whl")
    return built


def _tracked(repo_root: Path, folder: str) -> set[str]:
    files = (repo_root / folder).rglob("*")
    return {
        path.relative_to(repo_root / folder).as_posix()
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("bat_env", "bat_env"),
        ("bat_agent", "bat_agent"),
        ("envs", "bat_env/_envs"),
        ("sandbox_images", "bat_env/_sandbox_images"),
    ],
)
def test_wheel_contains(wheel: Path, repo_root: Path, source: str, target: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    missing = {name for name in _tracked(repo_root, source) if f"{target}/{name}" not in names}
    assert not missing


def test_wheel_contains_no_rubbish(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"automed_bat.py", "bat_env", "bat_agent"}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_installed_wheel_finds_its_data(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = "import bat_env.image as image; print(image.source_folder())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()) == site / "bat_env" / "_sandbox_images"


def test_installed_wheel_plays_its_tasks(wheel: Path, tmp_path: Path, repo_root: Path) -> None:
    """Task folders, the briefs' base templates, suites and digests are all inside."""
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    script = """
import json
from pathlib import Path
import bat_env
from bat_env.stages import Stage
from bat_env.tasks import load_suite, load_task, render_brief, suite_names, task_ids
from bat_env.tasks.digests import committed
home = Path(bat_env.__file__).parent / "_envs"
seen = {}
for name in task_ids():
    task = load_task(name)
    assert task.folder.is_relative_to(home), task.folder
    drawn = task.instance("dev", 3, "mini")
    assert drawn.digest == committed().get(name, {}).get("dev mini 3", drawn.digest)
    briefs = [render_brief(task, drawn, tier=t, focus=Stage.E2E) for t in task.spec.tiers]
    assert all(drawn.cases[0] in brief for brief in briefs)
    seen[name] = len(task.script())
print(json.dumps({"tasks": seen, "suites": {n: load_suite(n).digest for n in suite_names()}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site), "BAT_TASKS_PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    here = {
        path.parent.relative_to(repo_root / "envs").as_posix()
        for path in (repo_root / "envs").glob("*/*/task.yaml")
    }
    assert set(found["tasks"]) == here and min(found["tasks"].values()) >= 5
    assert set(found["suites"]) >= {"lite", "lite-mini", "seg-mini"}


@pytest.mark.parametrize("backend", ["local", "process"])
def test_cells_see_what_is_installed_beside_us(wheel: Path, tmp_path: Path, backend: str) -> None:
    """In an ordinary installation the suite shares its folder with the packages that cells need."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "beside.py").write_text("value = 7\n")
    (site / "host.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    hidden = "hidden" if backend == "local" else "seen"  # `process` hides nothing
    script = """
import sys
import bat_env
from bat_env.sandbox import Cell, make_sandbox
box = make_sandbox(sys.argv[1])
box.start()
box.reset({})
code = '''
import beside
print(beside.value)
try:
    import bat_env.errors
    print("seen")
except ImportError:
    print("hidden")
'''
ran = box.run(Cell("python", code))
print(bat_env.__file__, ran.stdout.split(), ran.stderr)
from bat_env.sandbox.probes.probe import Probe
from bat_env.sandbox.probes.walls import CHECKS
if sys.argv[1] == "local":
    print(CHECKS["suite invisible"](Probe(box)))
box.close()
"""
    done = subprocess.run(
        [str(folder / "bin" / "python"), "-c", script, backend],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(site) in done.stdout and f"['7', '{hidden}']" in done.stdout, done.stdout
    # The self-check says the same: an empty folder in the suite's place is no leak.
    assert backend != "local" or "(True, 'no file of the suite')" in done.stdout, done.stdout
