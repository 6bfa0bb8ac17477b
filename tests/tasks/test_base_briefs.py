"""The templates that briefs extend: every track, every tier, and blocks of a task's own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from bat_env.errors import TaskError
from bat_env.stages import Stage
from bat_env.task_rules import FOLDER_RULES
from bat_env.tasks import Task, load_task, render_brief
from bat_env.tasks.tracks import TRACK_DEFAULTS

OUTPUTS: dict[str, dict[str, Any]] = {
    "seg": {"path": "outputs/{case}/dseg.nii.gz", "format": "nifti-labels", "dtype": ["uint8"]},
    "enh": {"path": "outputs/{case}/enhanced.npy", "format": "npy-image", "dtype": ["float32"]},
    "synth": {"path": "outputs/{case}/synth.nii.gz", "format": "nifti-image", "dtype": ["int16"]},
    "det": {"path": "outputs/{case}/prediction.json", "format": "boxes-json"},
    "cls": {"path": "outputs/predictions.csv", "format": "class-table", "columns": ["case"]},
    "vqa": {"path": "outputs/answers.csv", "format": "answer-table", "columns": ["case"]},
    "report": {"path": "outputs/{case}/report.txt", "format": "text"},
}
LABELS = {"seg": {0: "background", 1: "organ"}, "det": {0: "nodule"}, "cls": {0: "a", 1: "b"}}
LABELS["vqa"] = {0: "A", 1: "B"}


def of_track(track: str, tmp_path: Path, **changes: Any) -> Task:
    """A task folder with the contract of a track, and everything else of the skin task."""
    folder = tmp_path / track / "skin_lesion"
    shutil.copytree(load_task("cls/skin_lesion").folder, folder)
    task = Task(folder)
    output = {"labels": LABELS.get(track, {}), **OUTPUTS[track]}
    data = task.spec.model_dump() | {"id": f"{track}/skin_lesion", "output": output}
    task.spec = type(task.spec).model_validate(data | changes)
    return task


def brief(task: Task, tier: str = "lite", focus: Stage = Stage.E2E) -> str:
    return render_brief(task, task.instance("train", 0, "mini"), tier=tier, focus=focus)


@pytest.mark.parametrize("track", TRACK_DEFAULTS)
def test_the_base_fits_every_track(track: str, tmp_path: Path) -> None:
    task = of_track(track, tmp_path)
    next(rule for rule in FOLDER_RULES if rule.__name__ == "briefs")(task)
    for tier in task.spec.tiers:
        text = brief(task, tier)
        assert ("Output of a case: " in text) == ("{case}" in task.spec.output.path)
        assert all(name in text for name in task.spec.output.labels.values())
        assert ("\nClasses:\n" in text) == (track in ("det", "cls"))
        assert "\n\n\n" not in text and "{%" not in text and "one file a case: /data" in text


def test_several_files_of_a_case_are_named(tmp_path: Path) -> None:
    text = brief(of_track("enh", tmp_path, extra_inputs=["dose.json", "mask.npy"]))
    files = [f"/data/{{case}}/{name}" for name in ("photo.png", "dose.json", "mask.npy")]
    assert f"\nFiles of a case: {', '.join(files)}\n" in text and "one file a case" not in text


def test_a_brief_words_its_own_blocks(tmp_path: Path) -> None:
    task = of_track("report", tmp_path)
    path = task.folder / "briefs" / "lite.md.j2"
    path.write_text(
        path.read_text()
        + "{% block notes %}\nName the side of every finding.\n{% endblock %}\n"
        + "{% block look %}read every picture{% endblock %}\n"
    )
    text = brief(task)
    assert "\nName the side of every finding.\n\n## This study" in text
    assert "\nS1 Plan: read every picture; write plan and facts.\n" in text


def test_a_whole_template_of_its_own_is_a_brief_too(tmp_path: Path) -> None:
    task = of_track("synth", tmp_path)
    (task.folder / "briefs" / "lite.md.j2").write_text(
        "{{ spec.title }}: {{ public.output.labels | length }} labels, "
        "{{ public.output.columns | length }} columns, {{ public.extra_inputs | length }} more"
    )
    assert brief(task) == f"{task.spec.title}: 0 labels, 0 columns, 0 more"


@pytest.mark.parametrize(
    "source", ["{{ spec.titel }}", "{{ nothing }}", '{% extends "base/lit.md.j2" %}', "{% if %}"]
)
def test_a_broken_template_is_named(source: str, tmp_path: Path) -> None:
    task = of_track("cls", tmp_path)
    (task.folder / "briefs" / "standard.md.j2").write_text(source)
    with pytest.raises(TaskError, match=r"tier standard cannot be rendered.*standard\.md\.j2"):
        brief(task, "standard")
