"""Staging is whole or resumable, wrong folders are named, and a changed folder is refused."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from published_layouts import copied, ct, kits19, msd, nifti, table

import bat_env  # noqa: F401  (registers the environments)
from bat_env.data import Bounds, Staged, layout_names, load_layout, open_staged, stage_data
from bat_env.env import AutoMedEnv
from bat_env.errors import ConfigError, DataError, UnknownNameError

Get = Callable[[str], Path]


def run(*arguments: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bat_env.cli", "data", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TERM": "dumb"},
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }


_KILLED = """
import os, signal, sys
from bat_env.data import stage_data
from bat_env.data import stage, manifest
writes = 0
whole = manifest.write_whole
def counted(path, data):
    global writes
    writes += 1
    if writes == int(sys.argv[3]):
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / ".part-half").write_bytes(data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    whole(path, data)
stage.write_whole = manifest.write_whole = counted
import bat_env.data.folder as folder
folder.write_whole = counted
stage_data("kits19", sys.argv[1], sys.argv[2], seed=1)
"""


@pytest.mark.parametrize("at", [1, 2, 9, 27, 34])
def test_killed_anywhere_it_goes_on_to_the_same_folder(
    at: int, published: Get, staged: Callable[[str], Staged], tmp_path: Path
) -> None:
    wanted = staged("kits19")
    folder = tmp_path / "out"
    arguments = [str(published("kits19")), str(folder), str(at)]
    done = subprocess.run([sys.executable, "-c", _KILLED, *arguments], timeout=120)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(DataError, match=r"interrupted|does not exist|holds no manifest"):
        open_staged(folder)
    again = stage_data("kits19", published("kits19"), folder, seed=1)
    assert again.manifest == wanted.manifest and tree(folder) == tree(wanted.folder)
    done_before = min(len(wanted.manifest.cases), max(0, (at - 2) // 3))
    assert again.made == len(wanted.manifest.cases) - done_before
    assert stage_data("kits19", published("kits19"), folder, seed=1).made == 0


def test_other_options_foreign_folders_and_the_source_are_refused(
    published: Get, tmp_path: Path
) -> None:
    source = published("kits19")
    stage_data("kits19", source, tmp_path / "out", limit=4)
    with pytest.raises(DataError, match="was begun with limit 4 \\(now 5\\)"):
        stage_data("kits19", source, tmp_path / "out", limit=5)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(DataError, match="holds other things"):
        stage_data("kits19", source, tmp_path / "mine")
    with pytest.raises(DataError, match="outside the source"):
        stage_data("kits19", source, source / "staged")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"


@pytest.mark.parametrize("name", layout_names())
def test_a_wrong_folder_says_what_is_missing_and_where_to_get_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "src" / "holiday").mkdir(parents=True)
    (tmp_path / "src" / "holiday" / "beach.txt").write_text("x")
    layout = load_layout(name)
    with pytest.raises(DataError) as caught:
        stage_data(name, tmp_path / "src", tmp_path / "out")
    text = str(caught.value)
    assert all(part in text for part in (layout.tree[0], layout.source, layout.terms)), text
    assert not (tmp_path / "out").exists()
    with pytest.raises(DataError, match="there is no folder"):
        stage_data(name, tmp_path / "nowhere", tmp_path / "out")


def test_names_options_and_numbers_are_checked_first(published: Get, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'kits19'"):
        stage_data("kits-19", published("kits19"), tmp_path / "out")
    with pytest.raises(UnknownNameError, match="option of totalsegmentator"):
        stage_data("totalsegmentator", published("totalsegmentator"), options={"class": "liver"})
    with pytest.raises(UnknownNameError, match="Did you mean 'spleen'"):
        stage_data(
            "totalsegmentator", published("totalsegmentator"), options={"classes": "spleeen"}
        )
    with pytest.raises(ConfigError, match="limit must be at least 2"):
        stage_data("kits19", published("kits19"), tmp_path / "out", limit=1)
    with pytest.raises(ConfigError, match="max_voxels"):
        stage_data("kits19", published("kits19"), tmp_path / "out", bounds=Bounds(10, 10))
    assert not (tmp_path / "out").exists()


def test_bad_cases_are_left_out_by_name(published: Get, tmp_path: Path) -> None:
    source = copied(published("kits19"), tmp_path / "src")
    data = source / "data"
    (data / "case_00000" / "imaging.nii.gz").write_bytes(b"")
    nifti(data / "case_00001" / "segmentation.nii.gz", ct(1)[1])
    for name in ("imaging.nii.gz", "segmentation.nii.gz"):
        shutil.copy(data / "case_00002" / name, data / "case_00003" / name)
    labels = ct(4)[1].T.copy()
    labels[0, 0, 0] = 7
    nifti(data / "case_00004" / "segmentation.nii.gz", labels)
    manifest = stage_data("kits19", source, tmp_path / "out").manifest
    why = manifest.skipped
    assert "0 bytes" in why["case_00000"] and "has the shape" in why["case_00001"]
    copy = next(case for case in ("case_00002", "case_00003") if case in why)
    assert why[copy].startswith("its content equals that of case_0000")
    assert "mm away" in why["case_00004"] or "labels hold [7]" in why["case_00004"]
    assert len(manifest.cases) == 4
    assert {p.name for p in (tmp_path / "out" / "public").iterdir()} == {
        row.key for row in manifest.cases
    }


def test_nothing_usable_is_an_error_and_two_equal_ids_too(tmp_path: Path) -> None:
    kits19(tmp_path / "src")
    for path in (tmp_path / "src").rglob("imaging.nii.gz"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"0 of 8 are.*0 bytes"):
        stage_data("kits19", tmp_path / "src", tmp_path / "out")
    source = tmp_path / "twice"
    source.mkdir()
    msd(source)
    path = source / "Task09_Spleen" / "dataset.json"
    content = json.loads(path.read_text())
    content["training"].append(content["training"][0])
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="spleen_0 are there twice"):
        stage_data("msd", source, tmp_path / "out2")


def test_tables_without_a_column_are_named(published: Get, tmp_path: Path) -> None:
    source = copied(published("ham10000"), tmp_path / "src")
    path = source / "HAM10000_metadata.csv"
    rows = list(csv.reader(path.open()))
    table(path, ["lesion", *rows[0][1:]], rows[1:])
    with pytest.raises(DataError, match="it lacks lesion_id"):
        stage_data("ham10000", source, tmp_path / "out")


def test_channels_and_the_other_tasks_of_the_decathlon(published: Get, tmp_path: Path) -> None:
    msd(tmp_path / "src", "Task01_BrainTumour", ("FLAIR", "T1w", "t1gd", "T2w"))
    done = stage_data("msd", tmp_path / "src", tmp_path / "out")
    spec = open_staged(done.folder).spec
    assert spec.id == "seg/msd_task01_braintumour" and spec.input_file == "mri.nii.gz"
    assert spec.extra_inputs == ("mri_t1w.nii.gz", "mri_t1gd.nii.gz", "mri_t2w.nii.gz")
    assert "intensity" in spec.facts and "CC-BY-SA" in done.manifest.licence
    msd(tmp_path / "src", "Task09_Spleen")
    with pytest.raises(DataError, match="Task01_BrainTumour, Task09_Spleen"):
        stage_data("msd", tmp_path / "src", tmp_path / "more")


# ------------------------------------------------------------------------------------- playing


def test_a_changed_file_is_refused_before_any_work(
    staged: Callable[[str], Staged], tmp_path: Path
) -> None:
    wanted = staged("kits19")
    key = wanted.manifest.cases[0].key
    for name, change, words in (
        (
            f"private/{key}/dseg.nii.gz",
            lambda p: p.write_bytes(p.read_bytes()[:-1] + b"\1"),
            "checksum",
        ),
        (f"public/{key}/ct.nii.gz", lambda p: p.unlink(), "is missing"),
        ("task/task.yaml", lambda p: p.write_text(p.read_text() + "\n"), "bytes, not"),
        (
            "manifest.json",
            lambda p: p.write_text(p.read_text().replace("heldout", "train")),
            "digest",
        ),
    ):
        folder = copied(wanted.folder, tmp_path / name.replace("/", "-"))
        change(folder / name)
        for make in (open_staged, lambda data: AutoMedEnv(data=data)):
            with pytest.raises(DataError, match=words):
                make(folder)


def test_a_file_changed_during_play_is_refused(
    staged: Callable[[str], Staged], tmp_path: Path
) -> None:
    folder = copied(staged("kits19").folder, tmp_path / "out")
    env = AutoMedEnv(data=folder, size="mini", sandbox="local")
    for path in (folder / "private").rglob("*.nii.gz"):
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="has changed"):
        env.reset(seed=1)
    env.close()


def test_wrong_tracks_tasks_and_bank_starts_are_refused(
    staged: Callable[[str], Staged], tmp_path: Path
) -> None:
    folder = staged("kits19").folder
    with pytest.raises(DataError, match=r"does not exist\. Stage the data"):
        gym.make("AutoMed-Seg-v0", task="kits19", data=str(tmp_path / "none"))
    with pytest.raises(DataError, match=r"holds no manifest\.json"):
        gym.make("AutoMed-Seg-v0", data=str(tmp_path))
    with pytest.raises(ConfigError, match="of track 'seg', but this environment is of track 'cls'"):
        AutoMedEnv(track="cls", data=folder)
    with pytest.raises(ConfigError, match="task 'kidney_tumor' was asked for"):
        AutoMedEnv(data=folder, task="kidney_tumor")
    with pytest.raises(ConfigError, match="data must be a folder"):
        AutoMedEnv(data=7)  # type: ignore[arg-type]
    for kwargs in ({"stage": "S3"}, {"distribution": "uniform"}):
        with pytest.raises(ConfigError, match="the Stage Bank holds no state of it"):
            AutoMedEnv(data=folder, **kwargs)  # type: ignore[arg-type]
    env = AutoMedEnv(data=folder, size="mini", sandbox="local")
    for options in ({"outcome": "recovery"}, {"stage": "S2"}, {"task": "kidney_tumor"}):
        with pytest.raises(ConfigError, match=r"staged data|was asked for"):
            env.reset(options=options)
    env.close()


def test_a_small_staging_has_training_cases_only(published: Get, tmp_path: Path) -> None:
    done = stage_data("kits19", published("kits19"), tmp_path / "out", limit=4)
    assert {row.split for row in done.manifest.cases} == {"train"}
    task = open_staged(done.folder)
    assert len(task.instance("train", 0, "mini").cases) == 2
    with pytest.raises(DataError, match=r"split 'heldout'.*'train': 4"):
        task.instance("heldout", 0, "mini")


# ----------------------------------------------------------------------------------- bundles


def test_a_bundle_of_the_users_own(published: Get, bundle: Path, tmp_path: Path) -> None:
    done = stage_data(
        "kits19", published("kits19"), tmp_path / "out", limit=4, model=bundle, sandbox="local"
    )
    task = open_staged(done.folder)
    assert task.spec.model.name == "users_net" and task.spec.model.parameters > 50
    assert set(task.spec.model.preprocessing) == set(task.model_card) - {"channels", "labels"}
    assert np.isfinite(list(task.probe_expected.values())).all()
    assert "users_net/probe.npy" in task.model_files()
    broken = copied(bundle, tmp_path / "broken")
    (broken / "models" / "model.pt").write_bytes(b"no weights")
    with pytest.raises(DataError, match="broken does not"):
        stage_data("kits19", published("kits19"), tmp_path / "x", model=broken, sandbox="local")
    (broken / "models" / "model.pt").unlink()
    with pytest.raises(DataError, match=r"lacks models/model.pt"):
        stage_data("kits19", published("kits19"), tmp_path / "x", model=broken)
    assert not (tmp_path / "x").exists()


# --------------------------------------------------------------------------------------- CLI


def test_the_command_line(published: Get, tmp_path: Path) -> None:
    listed = run("list", "--json")
    names = [row["name"] for row in json.loads(listed.stdout)["layouts"]]
    assert names == list(layout_names())
    out = str(tmp_path / "out")
    began = time.monotonic()
    done = run(
        "stage", "ham10000", "--src", str(published("ham10000")), "--dest", out, "--limit", "21"
    )
    assert done.returncode == 0, done.stderr
    assert "cls/ham10000, 21 cases" in done.stdout and "CC BY-NC 4.0" in done.stdout
    assert time.monotonic() - began < 100
    checked = run("check", out, "--json")
    assert sum(json.loads(checked.stdout)["cases"].values()) == 21
    wrong = run("stage", "ham10000", "--src", str(tmp_path), "--dest", str(tmp_path / "no"))
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: Expected ham10000")
    assert wrong.stderr.count("\n") == 1
    bad = run("stage", "slake", "--src", str(tmp_path), "--set", "language")
    assert bad.returncode == 2 and "key=value" in bad.stderr
