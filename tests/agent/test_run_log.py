"""``metrics.jsonl`` and trackers: every update once, also after a kill."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bat_agent.files import write_json
from bat_agent.run_log import METRICS, RunLog, check_trackers, run_metrics
from bat_env.errors import ConfigError, UnknownNameError

TRACKIO = """
import json, pathlib
HERE = pathlib.Path(__file__).with_name("told.jsonl")
def _tell(*row):
    with HERE.open("a") as file:
        file.write(json.dumps(row) + "\\n")
def init(project, name, resume):
    _tell("init", project, name, resume)
def log(values, step):
    _tell("log", step, values)
def finish():
    _tell("finish")
"""


def steps(folder: Path, count: int, **metrics: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"step": i, "loss": 1.0 / i, **metrics} for i in range(1, count + 1)]
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def decide(run: Path, number: int) -> None:
    record = {"target": "S3", "promoted": True, "kl_to_best": None}
    scores = {"before": {"mean": 0.3}, "after": {"mean": 0.4}}
    write_json(run / f"rounds/000{number}/record.json", {"schema_version": 1, **record, **scores})


def test_rows_follow_the_phases(tmp_path: Path) -> None:
    assert run_metrics(tmp_path) == []
    steps(tmp_path / "sft", 3)
    steps(tmp_path / "rounds/0001/train", 2, reward=0.5)
    decide(tmp_path, 1)
    steps(tmp_path / "rounds/0002/train", 1, reward=0.6)
    # A line that a kill cut short.
    with (tmp_path / "rounds/0002/train/steps.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    rows = run_metrics(tmp_path)
    assert [(r["phase"], r["update"]) for r in rows] == [
        *(("sft", i) for i in (1, 2, 3)),
        *(("round", i) for i in (4, 5)),
        ("gate", 5),
        ("round", 6),
    ]
    assert rows[5]["overall_after"] == 0.4 and rows[-1]["reward"] == 0.6


def test_a_tracker_hears_every_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trackio.py").write_text(TRACKIO)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    run = tmp_path / "run"
    steps(run / "sft", 2)
    log = RunLog(run, check_trackers(["trackio", "trackio"]))
    log.sync()
    steps(run / "sft", 3)
    log.close()
    RunLog(run, ["trackio"]).close()  # Nothing new: nobody is asked.
    steps(run / "rounds/0001/train", 1, reward=0.5)
    RunLog(run, ["trackio"]).close()
    told = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
    assert [row[0] for row in told] == [
        "init", *["log"] * 3, "finish", "init", "log", "finish"
    ]  # fmt: skip
    assert [row[1] for row in told if row[0] == "log"] == [1, 2, 3, 4]
    assert told[0][1:] == ["automed-bat", "run", "allow"]
    assert told[-2][2] == {"round/loss": 1.0, "round/reward": 0.5}
    assert len((run / METRICS).read_text().splitlines()) == 4
    monkeypatch.delitem(sys.modules, "trackio")


def test_bad_trackers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownNameError, match="tensorboard"):
        check_trackers(["tensorbord"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        check_trackers(["tensorboard"])
    assert check_trackers([]) == ()
