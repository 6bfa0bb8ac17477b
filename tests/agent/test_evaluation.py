from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from bat_agent.curriculum import ControllerScores
from bat_agent.evaluation import CellScore, Evaluation, classify
from bat_agent.files import read_json, write_json
from bat_agent.pipeline import representative
from bat_env.errors import ConfigError


def cell(i: int, score: float | None, track: str = "seg", **changes: Any) -> CellScore:
    stages = dict.fromkeys(("S1", "S2", "S3", "S4", "S5"), score)
    base = CellScore(
        task=f"{track}/secret_task_name",
        track=track,
        index=i,
        repeat=i,
        seed=77_000 + i,
        status="submitted" if score is not None else "invalid",
        overall=score,
        agentic=score,
        task_score=score,
        stages=stages,
        trajectory=f"secret-{i}.json",
    )
    return replace(base, **changes)


def evaluation(*cells: CellScore, **changes: Any) -> Evaluation:
    return Evaluation("x", "lite-mini", "d" * 64, cells, **changes)


def test_summary_is_the_object_of_the_command() -> None:
    value = evaluation(cell(0, 0.25), cell(1, 0.75), seconds=3.0).summary()
    assert value["overall"] == value["agentic"] == value["task"] == 0.5
    assert value["stages"] == dict.fromkeys(("S1", "S2", "S3", "S4", "S5"), 0.5)
    assert value["tracks"] == {"seg": 0.5}
    assert value["ci95"]["overall"][0] <= 0.5 <= value["ci95"]["overall"][1]
    assert (value["episodes"], value["invalid"], value["seconds"]) == (2, 0, 3.0)
    assert "\n" not in json.dumps(value, allow_nan=False)


def test_tracks_weigh_equally_whatever_their_number_of_repeats() -> None:
    cells = [cell(i, 1.0) for i in range(9)] + [cell(0, 0.0, "cls")]
    assert evaluation(*cells).overall == 0.5


def test_a_null_cell_is_counted_and_never_zero() -> None:
    some = evaluation(cell(0, 0.5), cell(1, None))
    assert some.overall == 0.5 and some.invalid == 1
    with pytest.raises(ConfigError, match="null cell"):
        some.scores()
    none = evaluation(cell(0, None)).summary()
    assert none["overall"] is None and none["ci95"]["overall"] is None
    json.dumps(none, allow_nan=False)


def test_a_stage_that_does_not_apply_drops_out() -> None:
    part = replace(cell(0, 0.5), stages={"S3": 0.25})
    value = evaluation(part).summary()["stages"]
    assert value["S3"] == 0.25 and value["S1"] is None
    assert set(evaluation(part).scores().stages) == {"S3"}


def test_a_tracks_mean_comes_with_its_standard_error() -> None:
    scores = evaluation(*(cell(i, 0.1 * i) for i in range(5))).scores()
    (track,) = scores.tracks
    # Overall of 0, .1, .2, .3, .4: variance .025 (n - 1), of five.
    assert scores.errors[track] == pytest.approx((0.025 / 5) ** 0.5)
    assert evaluation(cell(0, 0.5)).scores().errors == {}


def test_only_aggregates_reach_the_controller() -> None:
    scores = evaluation(*(cell(i, 0.1 * i) for i in range(5))).scores()
    text = json.dumps(scores.to_json())
    assert "secret" not in text and "77000" not in text and "lite-mini" not in text
    assert {f.name for f in fields(ControllerScores)} == {
        *("overall", "agentic", "task", "stages", "tracks", "errors", "track_stages"),
        *("episodes", "completed", "failures", "pairing"),
    }


def test_pairing_changes_with_every_setting_and_cell() -> None:
    base = evaluation(cell(0, 0.5), settings={"temperature": 0.7})
    assert base.pairing == evaluation(cell(0, 0.9), settings={"temperature": 0.7}).pairing
    assert base.pairing != evaluation(cell(0, 0.5), settings={"temperature": 0.0}).pairing
    assert base.pairing != evaluation(cell(1, 0.5), settings={"temperature": 0.7}).pairing


def test_difference_pairs_by_instance() -> None:
    sft = evaluation(*(cell(i, 0.1 * i) for i in range(5)))
    bat = evaluation(*(cell(i, 0.1 * i + 0.2) for i in range(5)))
    difference = bat.difference(sft)
    assert difference is not None and difference.mean == pytest.approx(0.2)
    with pytest.raises(ConfigError):
        bat.difference(evaluation(cell(0, 0.1)))


def test_file_round_trip_and_tampering(tmp_path: Path) -> None:
    file = tmp_path / "e.json"
    original = evaluation(cell(0, 0.5), cell(1, None), settings={"seed": 1}, seconds=2.0)
    original.save(file)
    assert Evaluation.load(file) == original
    value = read_json(file, schema_version=1)
    value["cells"][0]["index"] = 9
    write_json(file, value)
    with pytest.raises(ConfigError, match="changed"):
        Evaluation.load(file)
    file.write_text("{}")
    with pytest.raises(ConfigError, match="schema version"):
        Evaluation.load(file)


def test_failure_classes_follow_the_workflow() -> None:
    stages = {"S1": 0.9, "S2": 0.9, "S3": 0.4, "S4": 0.1, "S5": 1.0}
    assert classify("submitted", {"score": 0.6, "task": 0.9, "stages": stages}) == "weak_S3"
    assert classify("submitted", {"score": 0.6, "task": 0.1, "stages": {"S1": 1.0}}) == "weak_task"
    assert classify("submitted", {"score": 0.9, "task": 0.9, "stages": {"S1": 1.0}}) == "none"
    assert classify("submitted", {"score": 0.0}) == "nothing_done"
    assert classify("truncated", {"score": 0.4}) == "out_of_budget"
    assert classify("disqualified", {"score": 0.0}) == "disqualified"
    assert classify("submitted", {"score": None}) == classify("invalid", None) == "invalid"


def test_the_shown_episode_is_the_median_gain() -> None:
    sft = evaluation(*(cell(i, 0.1) for i in range(5)))
    bat = evaluation(*(cell(i, s) for i, s in enumerate((0.9, 0.1, 0.4, 0.5, 0.2))))
    assert representative(sft, bat) == 2
