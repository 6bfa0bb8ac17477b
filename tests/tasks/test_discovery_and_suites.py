"""Finding tasks, bad input, and the frozen suites."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bat_env.errors import TaskError, UnknownNameError
from bat_env.stages import Stage
from bat_env.tasks import load_suite, load_task, render_brief, suite_names, task_ids
from bat_env.tasks.suite import CONTROLLER_START, SuiteEntry


def test_short_and_full_names_load_one_task() -> None:
    assert load_task("kidney_tumor") is load_task("seg/kidney_tumor")


@pytest.mark.parametrize("name", ["kidney_tumour", "seg/kidney", "", "../seg"])
def test_unknown_task_is_named_with_the_nearest(name: str) -> None:
    with pytest.raises(UnknownNameError, match="kidney_tumor"):
        load_task(name)


def test_unknown_parts_of_a_task_are_named() -> None:
    task = load_task("kidney_tumor")
    with pytest.raises(UnknownNameError, match="'train'"):
        task.instance("trian", 0)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="mini"):
        task.instance("train", 0, "minni")  # type: ignore[arg-type]
    with pytest.raises(TaskError, match="index"):
        task.instance("train", -1)
    with pytest.raises(UnknownNameError, match="orient"):
        task.script({"orientt": "none"})
    with pytest.raises(UnknownNameError, match="'none'"):
        task.script({"orient": "non"})
    with pytest.raises(UnknownNameError, match="lite"):
        task.script(tier="light")
    with pytest.raises(UnknownNameError, match="lite"):
        drawn = task.instance("dev", 0, "mini")
        render_brief(task, drawn, tier="light", focus=Stage.E2E)


def copy_task(root: Path, name: str) -> Path:
    folder = root / "seg" / name
    shutil.copytree(
        load_task("kidney_tumor").folder, folder, ignore=shutil.ignore_patterns("__pycache__")
    )
    spec = yaml.safe_load((folder / "task.yaml").read_text())
    spec["id"] = f"seg/{name}"
    (folder / "task.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    return folder


def test_a_folder_on_the_path_adds_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_task(tmp_path, "second_kidney")
    monkeypatch.setenv("BAT_TASKS_PATH", str(tmp_path))
    assert "seg/second_kidney" in task_ids()
    added, own = load_task("second_kidney"), load_task("kidney_tumor")
    assert added.digest != own.digest
    one, other = (t.instance("dev", 0, "mini") for t in (added, own))
    assert one.task == "seg/second_kidney" and one.digest != other.digest


def test_an_entry_point_adds_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_task(tmp_path / "tasks", "shipped_kidney")
    (tmp_path / "shipper.py").write_text(
        "from pathlib import Path\n\n\ndef folder():\n    return Path(__file__).parent / 'tasks'\n"
    )
    info = tmp_path / "shipper-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shipper\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bat_env.tasks]\nshipper = shipper:folder\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "seg/shipped_kidney" in task_ids()


def test_a_broken_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_task(tmp_path, "broken_kidney")
    (folder / "task.yaml").write_text("id: seg/broken_kidney\nversion: minus one\n")
    monkeypatch.setenv("BAT_TASKS_PATH", str(tmp_path))
    with pytest.raises(TaskError, match=r"task\.yaml"):
        load_task("broken_kidney")


def test_a_task_without_its_modules_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_task(tmp_path, "bare_kidney")
    (folder / "oracle.py").unlink()
    monkeypatch.setenv("BAT_TASKS_PATH", str(tmp_path))
    with pytest.raises(TaskError, match=r"oracle\.py"):
        load_task("bare_kidney").script()


def test_importing_tasks_is_light() -> None:
    code = (
        "import sys, bat_env.tasks\n"
        "bat_env.tasks.load_task('kidney_tumor').script()\n"
        "heavy = {'torch', 'monai', 'nibabel', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------------- suites


def test_suites_are_frozen_and_disjoint() -> None:
    assert set(suite_names()) >= {"lite", "lite-mini", "lite-mini-controller"}
    indices = {}
    for name in ("lite", "lite-mini", "lite-mini-controller"):
        suite = load_suite(name)
        assert suite.name == name and len(suite.entries) >= 24
        assert len(suite.digest) == 64 and load_suite(name).digest == suite.digest
        assert {entry.split for entry in suite.entries} == {"heldout"}
        indices[name] = {entry.index for entry in suite.entries}
    assert {e.size for e in load_suite("lite").entries} == {"full"}
    assert {e.size for e in load_suite("lite-mini").entries} == {"mini"}
    assert max(indices["lite"] | indices["lite-mini"]) < CONTROLLER_START
    assert min(indices["lite-mini-controller"]) >= CONTROLLER_START


@pytest.mark.parametrize("name", ["lite-mini", "lite-mini-controller"])
def test_every_mini_instance_matches_its_digest(name: str) -> None:
    for entry in load_suite(name).entries:
        assert entry.instance().digest == entry.digest


def test_full_instances_match_their_digests() -> None:
    for entry in load_suite("lite").entries[::8]:
        assert entry.instance().digest == entry.digest


def test_a_changed_instance_is_refused() -> None:
    entry = load_suite("lite-mini").entries[0]
    changed = SuiteEntry(**{**entry.model_dump(), "digest": "0" * 64})
    with pytest.raises(TaskError, match="digest"):
        changed.instance()


@pytest.mark.parametrize("name", ["lite-mni", "../lite", ""])
def test_unknown_suite_is_named(name: str) -> None:
    with pytest.raises(UnknownNameError, match="lite-mini"):
        load_suite(name)


def test_manifests_have_a_schema_version() -> None:
    from bat_env.tasks.discovery import builtin_root

    for path in (builtin_root() / "suites").glob("*.json"):
        assert json.loads(path.read_text())["schema_version"] == 1
