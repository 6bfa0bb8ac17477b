"""The answer reader: one strict form, and citations that hold; it never raises anything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.errors import JudgeError
from bat_env.judge.answer import MAX_ANSWER_CHARS, Finding, read_answer
from bat_env.judge.fence import frozen
from bat_env.judge.items import Question
from bat_env.stages import Stage

TOKEN = "t0ken"
PLAN = """\
# Plan
The CT has 3 mm slices & a slope <1>; the net wants 2 mm.
short
The risk is a flipped axis,
seen by comparing shapes
and by opening the file.
"""
FILES = {"plan/plan.md": frozen("plan/plan.md", PLAN.encode())}
ASKED = tuple(
    Question(name, Stage.S1, "", "", "plan/plan.md", ("plan/plan.md",)) for name in ("S1.a", "S1.b")
)


def item(name="S1.a", **changes):
    return {
        "id": name,
        "met": True,
        "file": "plan/plan.md",
        "line": 2,
        "quote": "the net wants 2 mm",
        "reason": "It compares them.",
        **changes,
    }


def answer(*items, **changes):
    return json.dumps({"token": TOKEN, "items": list(items), **changes})


def read(text):
    return read_answer(text, TOKEN, ASKED, FILES)


def test_a_good_answer():
    found = read(answer(item(), item("S1.b", met=False)))
    assert found["S1.a"] == Finding(
        "S1.a", "met", "judge", "It compares them.", "plan/plan.md", 2, "the net wants 2 mm"
    )
    assert found["S1.b"].state == "unmet"


@pytest.mark.parametrize(
    "wrap", ["{}", "  {}\n", "```json\n{}\n```", "```\n{}\n```", "<think>a {{</think>\n{}"]
)
def test_wrappings_that_models_use(wrap):
    text = wrap.replace("{{", "\0").replace("{}", answer(item(), item("S1.b"))).replace("\0", "{")
    assert read(text)["S1.a"].state == "met"


NO_ANSWERS = [
    "",
    "yes",
    "null",
    "3",
    "[]",
    "{}",
    '{"items": []}',
    answer(),
    answer(item(), token="other"),
    answer(item(), token=None),
    answer(item(), extra=1),
    answer(item(extra=1)),
    answer(item(met="true")),
    answer(item(met=1)),
    answer(item(line="2")),
    answer(item(line=2.0)),
    answer(item(line=True)),
    answer(item(line=0)),
    answer(item(quote="")),
    answer(item(quote=None)),
    answer(item(quote="q" * 301)),
    answer(item(reason="r" * 601)),
    answer(item("S1.c")),
    answer(item(), item()),
    "Here it is: " + answer(item()),
    answer(item()) + answer(item()),
    answer(item()) + "\nI hope this helps.",
    "```json\n" + answer(item()),
    answer(item())[:-1],
    answer(item()).replace('"met"', '"met": false, "met"'),
    answer(item()).replace('"token"', '"token": "t0ken", "token"'),
    answer(item()).replace(": 2,", ": NaN,"),
    answer(item()).replace(": 2,", ": Infinity,"),
    " " * 10 + "x" * (MAX_ANSWER_CHARS + 1),
    '{"a":' * 20_000,
    "[" * 100_000,
    answer(item()).replace(": 2,", ": 1" + "0" * 5000 + ","),
]


@pytest.mark.parametrize("text", NO_ANSWERS, ids=range(len(NO_ANSWERS)))
def test_anything_else_is_no_answer(text):
    with pytest.raises(JudgeError):
        read(text)


HELD = [
    {},
    {"quote": "  The  CT has 3 mm\tslices "},
    {"quote": "a slope <1>; the net"},
    {"quote": "a slope ‹1›; the net"},
    {"quote": "the net wants\u200b 2\u00a0mm"},
    {"line": 3, "quote": "short"},
    {"line": 1, "quote": "# Plan"},
    {"line": 4, "quote": "flipped axis, seen by comparing shapes and by opening"},
    {"line": 4, "quote": "flipped axis,\nseen by comparing"},
]
NOT_HELD = [
    {"quote": "the net wants 3 mm"},
    {"quote": "THE NET WANTS 2 MM"},
    {"quote": "mm"},
    {"quote": "short"},
    {"quote": "    "},
    {"line": 3, "quote": "the net wants 2 mm"},
    {"line": 1, "quote": "the net wants 2 mm"},
    {"line": 3, "quote": "flipped axis, seen"},
    {"line": 999, "quote": "the net wants 2 mm"},
    {"file": "plan/facts.json"},
    {"file": "record"},
    {"file": "../plan/plan.md"},
    {"line": 3, "quote": "shor"},
]


@pytest.mark.parametrize("changes", HELD)
def test_citations_that_hold(changes):
    assert read(answer(item(**changes), item("S1.b")))["S1.a"].state == "met"


@pytest.mark.parametrize("changes", NOT_HELD)
def test_citations_that_do_not_hold_are_null(changes):
    found = read(answer(item(**changes), item("S1.b")))
    assert found["S1.a"].state == "null" and found["S1.a"].message
    assert found["S1.b"].state == "met"


def test_items_that_are_left_out_are_null():
    found = read(answer(item("S1.b")))
    assert found["S1.a"].state == "null" and found["S1.b"].state == "met"


def test_what_a_judge_says_is_inert_too():
    found = read(answer(item(reason="fine \x1b[2J <|im_start|> \u202e"), item("S1.b")))
    assert found["S1.a"].message == "fine [2J ‹|im_start|› "


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(["S1.a", "S1.b", "S1.c"]) | VALUES,
        "met": st.booleans() | VALUES,
        "file": st.sampled_from(["plan/plan.md", "x"]) | VALUES,
        "line": st.integers(-1, 8) | VALUES,
        "quote": st.sampled_from(["the net wants 2 mm", "short", "a"]) | VALUES,
        "reason": st.text(max_size=20) | VALUES,
        "extra": VALUES,
    },
)


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries(
        {"token": st.just(TOKEN) | VALUES, "items": st.lists(FIELDS, max_size=3) | VALUES}
    )
)
def test_near_answers_never_raise_anything_else(value):
    try:
        found = read(json.dumps(value))
    except JudgeError:
        return
    assert set(found) == {"S1.a", "S1.b"}
    for finding in found.values():
        assert finding.state in ("met", "unmet", "null")
        if finding.state != "null":
            assert finding.file == "plan/plan.md" and finding.line in FILES["plan/plan.md"].lines


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300) | st.text(alphabet='{}[]":,\\tmet0 ', max_size=200))
def test_any_text_never_raises_anything_else(text):
    with pytest.raises(JudgeError):
        read(text)
