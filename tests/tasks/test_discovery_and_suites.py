"""Finding tasks, bad input, and the frozen suites."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from bat_env.cli import app
from bat_env.errors import TaskError, UnknownNameError
from bat_env.stages import Stage
from bat_env.tasks import load_suite, load_task, render_brief, suite_names, task_ids
from bat_env.tasks.suite import CONTROLLER_START, SuiteEntry, check_refrozen, freeze


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
    task = load_task("shipped_kidney")
    assert task.folder == tmp_path / "tasks" / "seg" / "shipped_kidney"
    drawn = task.instance("train", 0, "mini")
    brief = render_brief(task, drawn, tier="standard", focus=Stage.S1)
    assert drawn.cases[0] in brief and task.mistakes and len(task.script()) >= 5


def test_a_broken_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copy_task(tmp_path, "broken_kidney")
    (folder / "task.yaml").write_text("id: seg/broken_kidney\nversion: minus one\n")
    monkeypatch.setenv("BAT_TASKS_PATH", str(tmp_path))
    with pytest.raises(TaskError, match=r"task\.yaml"):
        load_task("broken_kidney")


def test_a_broken_folder_hides_no_other_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copy_task(tmp_path, "broken_kidney")
    monkeypatch.setenv("BAT_TASKS_PATH", f"{tmp_path}:{tmp_path / 'nowhere'}")
    for text, told in (
        ("id: seg/broken_kidney\nversion: minus one\n", "version: Input should be"),
        ("id: [", "is no YAML: while parsing"),
        ("- 1\n", "the whole: Input should be"),
    ):
        (folder / "task.yaml").write_text(text)
        done = CliRunner().invoke(app, ["tasks", "list"])
        assert done.exit_code == 1 and done.stdout.startswith("cls/")
        assert "broken_kidney" not in done.stdout
        wrong = [line for line in done.stderr.splitlines() if line.startswith("seg/broken_kidney")]
        assert len(wrong) == 1 and told in wrong[0] and "http" not in done.stderr
    assert f"BAT_TASKS_PATH names {tmp_path / 'nowhere'}, which does not exist." in done.stderr
    listed = json.loads(CliRunner().invoke(app, ["tasks", "list", "--json"]).stdout)
    assert [row["id"] for row in listed["broken"]] == ["seg/broken_kidney"]
    assert len(listed["tasks"]) >= 12
    with pytest.raises(UnknownNameError, match=r"nowhere: no task is there"):
        load_task("no_such_task")


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
    for kind in ("lite", "seg"):
        names = (kind, f"{kind}-mini", f"{kind}-mini-controller")
        assert set(suite_names()) >= set(names)
        indices = {}
        for name in names:
            suite = load_suite(name)
            assert suite.name == name and len(suite.entries) >= 24
            assert len(suite.digest) == 64 and load_suite(name).digest == suite.digest
            assert {entry.split for entry in suite.entries} == {"heldout"}
            assert {e.size for e in suite.entries} == {"full" if name == kind else "mini"}
            indices[name] = {entry.index for entry in suite.entries}
        assert max(indices[kind] | indices[f"{kind}-mini"]) < CONTROLLER_START
        assert min(indices[f"{kind}-mini-controller"]) >= CONTROLLER_START


def test_the_suites_of_all_tracks_hold_the_lite_tasks() -> None:
    lite = {name for name in task_ids() if load_task(name).spec.lite}
    for name in ("lite", "lite-mini", "lite-mini-controller"):
        entries = load_suite(name).entries
        frozen = {entry.task for entry in entries}
        assert frozen <= lite
        if len(lite) == 7:  # While a track has no Lite task yet, suites wait for all of them.
            assert frozen == lite, "run envs/suites/freeze.py"
        turns = [entry.task for entry in entries]
        count = len(frozen)
        assert turns[:count] == turns[count : 2 * count], "tasks take turns"
    assert {entry.task for entry in load_suite("seg").entries} == {"seg/kidney_tumor"}


def test_scores_of_the_first_suite_still_compare() -> None:
    assert load_suite("seg-mini").digest.startswith("ae26becc7e6c")


@pytest.mark.parametrize("name", ["lite-mini", "lite-mini-controller", "seg-mini-controller"])
def test_mini_instances_match_their_digests(name: str) -> None:
    for entry in load_suite(name).entries[::3]:
        assert entry.instance().digest == entry.digest


def test_full_instances_match_their_digests() -> None:
    first = {entry.task: entry for entry in reversed(load_suite("lite").entries)}
    for entry in first.values():
        assert entry.instance().digest == entry.digest


def test_an_instance_that_was_frozen_may_not_change() -> None:
    task = load_task("vqa/radiograph_mc")
    old = freeze("x", [task], "mini", 0, 2)
    new = freeze("x", [task, load_task("cls/skin_lesion")], "mini", 0, 3)
    assert [row["index"] for row in new["entries"]] == [0, 0, 1, 1, 2, 2]
    check_refrozen(old, new)
    new["entries"][2]["digest"] = "0" * 64
    with pytest.raises(TaskError, match=r"instance 1 of vqa/radiograph_mc \(mini\).*000000000000"):
        check_refrozen(old, new)


def test_a_part_of_a_suite_is_of_the_tasks_asked_for() -> None:
    suite = load_suite("lite-mini")
    part = suite.of_tasks({"cls/skin_lesion", "seg/none"})
    assert {entry.task for entry in part.entries} == {"cls/skin_lesion"}
    assert part.digest != suite.digest and not suite.of_tasks(()).entries
    assert suite.of_tasks(set(task_ids())) is suite


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
