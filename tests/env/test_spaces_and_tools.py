"""Spaces and tool calls: membership, JSON, batching, and answers to bad input."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import given
from hypothesis import strategies as st

from bat_env.spaces import ToolCall, Unicode, clean_text
from bat_env.tools import (
    TOOLS,
    ValidCall,
    execute_call,
    hermes_tools,
    mcp_tools,
    openai_tools,
    submit_call,
    validate_call,
)


@pytest.mark.parametrize("space", [Unicode(), Unicode(max_length=5), ToolCall(), ToolCall(100)])
def test_samples_are_members_and_seeded(space: Any) -> None:
    space.seed(3)
    first = [space.sample() for _ in range(40)]
    space.seed(3)
    assert first == [space.sample() for _ in range(40)]
    assert all(sample in space for sample in first)
    assert space.from_jsonable(json.loads(json.dumps(space.to_jsonable(first)))) == first


@pytest.mark.parametrize("space", [Unicode(), ToolCall()])
def test_batching_round_trip(space: Any) -> None:
    batched = batch_space(space, 3)
    space.seed(0)
    samples = [space.sample() for _ in range(3)]
    out = concatenate(space, samples, create_empty_array(space, 3))
    assert list(out) == samples
    assert out in batched
    assert next(iter(iterate(batched, batched.sample()))) in space


def test_unicode_membership_is_fast_and_strict() -> None:
    text = "é" * 1_000_000
    began = time.perf_counter()
    assert text in Unicode()
    assert time.perf_counter() - began < 0.1
    assert "a\nb\x00" in Unicode()
    assert "\ud800" not in Unicode()
    assert "abc" not in Unicode(max_length=2)
    assert 3 not in Unicode()
    with pytest.raises(ValueError, match="max_length"):
        Unicode(-1)


def test_equality_decides_by_parameters() -> None:
    assert Unicode() == Unicode() != Unicode(3)
    assert ToolCall() == ToolCall() != ToolCall(3)
    assert eval(repr(Unicode(3))) == Unicode(3)
    assert eval(repr(ToolCall(7))) == ToolCall(7)


def test_samples_never_submit_and_never_write() -> None:
    space = ToolCall(seed=0)
    for _ in range(100):
        call = space.sample()
        assert call["name"] == "execute_code"
        assert ">" not in call["arguments"]["code"]
    with pytest.raises(ValueError, match="mask"):
        space.sample(mask=np.ones(2))


class _Hostile(dict):  # type: ignore[type-arg]
    def __contains__(self, key: object) -> bool:
        raise RuntimeError("no")


class _BadStr:
    def __repr__(self) -> str:
        raise RuntimeError("no")


BAD: list[tuple[Any, str]] = [
    (None, "must be an object"),
    ("print(1)", "got a string"),
    (["execute_code"], "got a list"),
    (True, "got a boolean"),
    (np.zeros(3), "ndarray"),
    ({}, 'lacks the key "name"'),
    ({"name": "submit_results"}, 'lacks the key "arguments"'),
    ({"name": "submit_results", "arguments": {}, "id": 1}, 'Unknown key "id"'),
    ({"name": 3, "arguments": {}}, '"name" must be a string, got a number'),
    ({"name": "execute_cod", "arguments": {}}, 'Did you mean "execute_code"?'),
    ({"name": "x" * 10_000, "arguments": {}}, "Unknown tool"),
    ({"name": "submit_results", "arguments": None}, "must be an object, got null"),
    ({"name": "submit_results", "arguments": {"a": 1}}, 'Unknown argument "a"'),
    ({"name": "execute_code", "arguments": {"language": "python"}}, 'lacks the argument "code"'),
    (execute_call("pyton", "1"), "must be one of python, bash"),
    (execute_call("python", 5), '"code" of execute_code must be a string'),  # type: ignore[arg-type]
    (execute_call("python", "x" * 101), "has 101 characters; at most 100"),
    (execute_call("python", "a\0b"), "NUL byte at character 1"),
    (execute_call("python", "a\udfffb"), "lone surrogate at character 1"),
    (
        {"name": "execute_code", "arguments": {"lang": "python", "code": "1"}},
        'Did you mean "language"?',
    ),
    (_Hostile(), "could not be read"),
    (_BadStr(), "got a _BadStr"),
    ({_BadStr(): 1, "name": "submit_results", "arguments": {}}, "Unknown key a _BadStr"),
]


@pytest.mark.parametrize(("action", "expected"), BAD)
def test_bad_actions_get_a_precise_answer(action: Any, expected: str) -> None:
    answer = validate_call(action, 100)
    assert isinstance(answer, str)
    assert expected in answer
    assert len(answer) < 400
    assert action not in ToolCall(100)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@given(
    json_values
    | st.fixed_dictionaries({"name": st.sampled_from([*TOOLS, ""]), "arguments": json_values})
)
def test_any_value_is_a_call_or_an_answer(action: Any) -> None:
    answer = validate_call(action)
    assert isinstance(answer, ValidCall | str)
    if isinstance(answer, ValidCall):
        assert answer.to_action() == action
    else:
        assert answer in Unicode()


def test_good_calls_pass() -> None:
    call = validate_call(execute_call("bash", "echo ß\n"))
    assert isinstance(call, ValidCall)
    assert (call.language, call.code) == ("bash", "echo ß\n")
    assert validate_call(submit_call()) == ValidCall("submit_results")


def test_renderings_come_from_one_schema() -> None:
    assert [t["function"]["name"] for t in openai_tools()] == list(TOOLS)
    assert [t["inputSchema"] for t in mcp_tools()] == [t["parameters"] for t in TOOLS.values()]
    assert hermes_tools() == openai_tools()
    openai_tools()[0]["function"]["parameters"].clear()
    assert TOOLS["execute_code"]["parameters"]["required"] == ["language", "code"]


@given(st.text())
def test_clean_text_is_a_member(text: str) -> None:
    cleaned = clean_text(text + "\ud800\x1b[2J\r\n")
    assert cleaned in Unicode()
    assert "\x1b" not in cleaned and "\r" not in cleaned
