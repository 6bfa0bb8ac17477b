"""`bat-env tasks show`: the picture holds inputs and truth, whatever files a track has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from bat_env.grader import shared_grader
from bat_env.metrics.base import Case
from bat_env.metrics.floors import cases_of
from bat_env.metrics.truths import true_files
from bat_env.montage import COLOURS, TILE
from bat_env.task_rules import FOLDER_RULES
from bat_env.tasks import load_task, task_ids
from bat_env.tasks.spec import TaskSpec
from bat_env.tasks_cli import tasks_app


def lit(part: np.ndarray) -> float:
    """Share of pixels that are not black."""
    return float((part.max(-1) > 24).mean())


@pytest.mark.parametrize("task_id", task_ids())
def test_three_cases_are_seen_with_their_truth(task_id: str, tmp_path: Path) -> None:
    file = tmp_path / "shown.png"
    command = ["show", task_id, "--size", "mini", "--picture", str(file), "--json"]
    done = CliRunner().invoke(tasks_app, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["picture"] == str(file)
    picture = np.asarray(Image.open(file))
    spec = load_task(task_id).spec
    cases = min(3, len(json.loads(done.stdout)["cases"]))
    assert picture.shape == (cases * TILE, 3 * TILE, 3)
    for top in range(0, cases * TILE, TILE):
        row = picture[top + 14 : top + TILE]  # Below the case's name.
        image, beside = row[:, :TILE], row[:, TILE:]
        assert lit(image) > 0.2 and image.std() > 10, "the input is seen"
        assert lit(beside) > 0.002, "and the truth beside it, or further slices"
        assert "unreadable" not in done.output
    if spec.output.format == "nifti-labels":
        shown = {tuple(int(v) for v in pixel) for pixel in picture.reshape(-1, 3)}
        assert shown & set(COLOURS), "labels are outlined"


def test_no_file_is_left_that_nobody_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for option in ([], ["--json"]):
        done = CliRunner().invoke(tasks_app, ["show", "skin_lesion", "--size", "mini", *option])
        assert done.exit_code == 0, done.output
        assert "--picture FILE.png" in done.stdout or json.loads(done.stdout)["picture"] is None
    assert not list(tmp_path.iterdir())
    command = ["show", "skin_lesion", "--size", "mini", "--picture", "made/here.png"]
    assert CliRunner().invoke(tasks_app, command).exit_code == 0
    assert [p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.*")] == ["made/here.png"]


def test_a_truth_that_does_not_score_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = next(rule for rule in FOLDER_RULES if rule.__name__ == "full_marks")
    task = load_task("cls/skin_lesion")
    rule(task)

    def first_case(spec: TaskSpec, cases: Sequence[Case]) -> dict[str, bytes]:
        return true_files(spec, cases[:1])

    monkeypatch.setattr("bat_env.task_rules.floors.true_files", first_case)
    with pytest.raises(AssertionError, match="The truth is no valid output"):
        rule(task)
    monkeypatch.setattr(
        "bat_env.task_rules.floors.true_files",
        lambda spec, cases: {
            path: data.replace(b"nevus", b"melanoma")
            for path, data in true_files(spec, cases).items()
        },
    )
    with pytest.raises(AssertionError, match=r"The truth itself scores 0\."):
        rule(task)


@pytest.mark.parametrize("task_id", task_ids())
def test_the_truth_of_one_case_is_worth_that_case(task_id: str) -> None:
    """The rest stays in the denominator."""
    task = load_task(task_id)
    drawn = task.instance("dev", 1, "mini")
    if task.spec.output.is_table or task.spec.track in ("det", "report"):
        pytest.skip("pooled over cases")
    files = true_files(task.spec, cases_of(drawn)[:1])
    score = shared_grader().grade(task, drawn, files).score
    assert score == pytest.approx(1 / len(drawn.cases), abs=1e-6)
