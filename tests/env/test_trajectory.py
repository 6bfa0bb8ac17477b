"""Trajectory files: whole or absent, readable, bounded, and true to what was recorded."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bat_env.errors import BatError, ConfigError
from bat_env.tools import execute_call
from bat_env.trajectory import (
    Recorder,
    TokenRecord,
    check_directory,
    plain,
    read_trajectory,
    write_json,
)

INFO = {"task": "seg/kidney_tumor", "split": "train", "size": "mini", "index": 3, "stage": "E2E"}


def _record(folder: Path) -> Recorder:
    recorder = Recorder(folder, agent="tester")
    recorder.start({"stage": np.int64(5), "text": "do it"}, INFO)
    recorder.annotate(
        TokenRecord([1, 2], [3, 4], [-0.1, -0.2], [1, 1], message="I will list the data.")
    )
    step_info = {"valid": True, "error": None, "score": 0.25, "items": {"S1.x": ["pass", 1.0]}}
    recorder.step(execute_call("bash", "ls"), {"text": "exit code: 0"}, 0.25, step_info, 0.5)
    recorder.step("no call", {"text": "Invalid action"}, 0.0, {"valid": False}, 0.0)
    return recorder


def test_round_trip(tmp_path: Path) -> None:
    recorder = _record(tmp_path / "new")
    path = recorder.finish("submitted", result={"score": 0.25})
    assert path is not None and path.parent == tmp_path / "new"
    assert path.name.startswith("seg_kidney_tumor-train-mini-3-E2E-")
    assert list(path.parent.iterdir()) == [path]
    read = read_trajectory(path)
    assert read.rewards == [0.25, 0.0]
    assert read.result == {"score": 0.25} and read.status == "submitted"
    brief, first, second = read.steps
    assert brief["message"] == "do it" and brief["source"] == "user"
    assert first["metrics"]["completion_token_ids"] == [3, 4]
    assert first["metrics"]["logprobs"] == [-0.1, -0.2]
    assert first["extra"]["mask"] == [1, 1]
    assert first["message"] == "I will list the data."
    assert first["tool_calls"][0]["arguments"] == {"language": "bash", "code": "ls"}
    assert first["observation"]["results"][0]["content"] == "exit code: 0"
    assert first["extra"]["items"] == {"S1.x": ["pass", 1.0]}
    assert second["message"] == "no call" and "metrics" not in second
    assert read.document["extra"]["return"] == 0.25
    assert recorder.finish("again") is None


def test_an_episode_left_in_the_middle_is_written_as_abandoned(tmp_path: Path) -> None:
    recorder = _record(tmp_path)
    recorder.start({"text": "next"}, INFO)
    assert [read_trajectory(p).status for p in tmp_path.iterdir()] == ["abandoned"]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"schema_version": "ATIF-v0.1"}', '{"schema_version": null}']
)
def test_a_corrupt_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(BatError, match=r"broken\.json"):
        read_trajectory(path)
    with pytest.raises(BatError, match="absent"):
        read_trajectory(tmp_path / "absent.json")


def test_a_disk_that_refuses_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BatError, match="Cannot write"):
        write_json(tmp_path / "file" / "x.json", {})
    with pytest.raises(ConfigError, match="is a file"):
        check_directory(tmp_path / "file")
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "nan.json", float("nan"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


class _Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)
def test_plain_always_gives_json(value: Any) -> None:
    seen = plain(value)
    assert seen == _expected(value)
    assert json.loads(json.dumps(seen, allow_nan=False)) == seen
    assert plain(seen) == seen


def _expected(value: Any, depth: int = 0) -> Any:
    """What JSON can hold of a value, by the documented rules."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value  # hypothesis draws no lone surrogates
    if isinstance(value, int):
        return value if -(2**63) < value < 2**63 else str(value)[:80]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes) or depth == 8:
        return f"<{type(value).__name__}>"
    if isinstance(value, list):
        return [_expected(item, depth + 1) for item in value]
    return {str(key): _expected(item, depth + 1) for key, item in value.items()}


def test_plain_survives_hostile_values() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert plain({_Hostile(): 1}) == "<dict>"
    assert plain(_Hostile()) == "<_Hostile>"
    json.dumps(plain(loop))
    assert plain("\ud800") == "\N{REPLACEMENT CHARACTER}" * 3
    assert plain(np.arange(3)) == [0, 1, 2]
    assert plain(10**400) == str(10**400)[:80]
