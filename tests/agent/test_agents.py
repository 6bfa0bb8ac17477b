from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import bat_agent.agents.base as base
from bat_agent.agents import Agent, agent_names, load_agent
from bat_agent.files import write_json
from bat_env.errors import CheckpointError, ConfigError, UnknownNameError
from bat_env.tools import ValidCall, validate_call

INFO = {"task": "seg/kidney_tumor", "stage": "E2E", "tier": "lite", "outcome": None}
OBSERVATION = {"stage": 5, "text": "brief"}


def calls(name: str, **info: Any) -> list[ValidCall]:
    make = load_agent(name).make
    assert make is not None
    agent = make()
    assert isinstance(agent, Agent)
    agent.reset(OBSERVATION, {**INFO, **info})
    played = []
    for _ in range(40):
        call = validate_call(agent.act(OBSERVATION))
        assert isinstance(call, ValidCall), call
        played.append(call)
        if call.name == "submit_results":
            break
    return played


def test_names_and_did_you_mean() -> None:
    assert {"nop", "naive", "oracle"} <= set(agent_names())
    with pytest.raises(UnknownNameError, match="Did you mean 'oracle'"):
        load_agent("orcale")


def test_nop_submits_at_once() -> None:
    assert [c.name for c in calls("nop")] == ["submit_results"]


@pytest.mark.parametrize("name", ["naive", "oracle"])
def test_scripts_are_valid_deterministic_and_hand_in(name: str) -> None:
    first = calls(name)
    assert first == calls(name)
    assert 4 <= len(first) <= 24 and first[-1].name == "submit_results"
    assert [c.name for c in first[:-1]] == ["execute_code"] * (len(first) - 1)


@pytest.mark.parametrize("stage", ["S1", "S2", "S3", "S4", "S5"])
def test_scripts_keep_to_a_focused_stage(stage: str) -> None:
    focused = calls("oracle", stage=stage, outcome="success")
    assert 2 <= len(focused) < len(calls("oracle"))


def test_an_agent_starts_over_at_reset() -> None:
    make = load_agent("oracle").make
    assert make is not None
    agent = make()
    agent.reset(OBSERVATION, INFO)
    first = [agent.act(OBSERVATION) for _ in range(2)]
    agent.reset(OBSERVATION, INFO)
    assert [agent.act(OBSERVATION) for _ in range(2)] == first


def test_checkpoint_and_run_folders(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"bat\.json"):
        load_agent(tmp_path)
    checkpoint = tmp_path / "rounds" / "final"
    write_json(checkpoint / "bat.json", {})
    assert load_agent(checkpoint).checkpoint == checkpoint
    write_json(tmp_path / "state.json", {"best": {"path": "rounds/final"}})
    assert load_agent(str(tmp_path)).checkpoint == checkpoint
    write_json(tmp_path / "state.json", {"best": None})
    with pytest.raises(CheckpointError, match="damaged"):
        load_agent(tmp_path)


def test_a_plug_in_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("extra", "no_such_package:Agent", base.GROUP)
    monkeypatch.setattr(base, "entry_points", lambda group: [point])
    with pytest.raises(ConfigError, match=r"extra.*no_such_package"):
        load_agent("extra")
