"""What a judge's server can do wrong: each failure is null for its items, never 0 or raised."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from judge_server import Reply, good

PROSE = ("S1.fit_explained", "S1.risks_named")


def states(found):
    return {item: found[item].state for item in PROSE}


NULL = dict.fromkeys(PROSE, "null")
MET = dict.fromkeys(PROSE, "met")


def test_a_good_answer_is_taken_with_its_citation(server, make_judge_of, make_plan):
    found = make_plan().ask(make_judge_of())
    assert states(found) == MET
    one = found["S1.fit_explained"]
    assert (one.file, one.by) == ("plan/plan.md", "judge") and one.line == 2
    assert one.quote in server.asked[0].user and one.message == "It says so."
    assert len(server.asked) == 1


def test_items_are_decided_one_by_one(server, make_judge_of, make_plan):
    server.play(lambda asked: asked.answer(lambda name: name == "S1.fit_explained"))
    found = make_plan().ask(make_judge_of())
    assert states(found) == {"S1.fit_explained": "met", "S1.risks_named": "unmet"}


TRANSIENT = {
    "too many requests": Reply(status=429),
    "asked to wait": Reply(status=429, headers={"Retry-After": "0.05"}),
    "server error": Reply(status=500, raw=b"oops"),
    "gateway": Reply(status=503),
    "dropped": Reply(drop=True),
    "cut off on the way": Reply("{}", short=100),
    "cut by length": Reply('{"token": "', finish="length"),
    "no text": Reply(""),
    "no completion": Reply(raw=b'{"choices": []}'),
    "no JSON at all": Reply(raw=b"<html>"),
    "prose": Reply("I think the plan is very good."),
    "malformed JSON": Reply('{"token": "x", "items": ['),
    "wrong schema": Reply('{"token": "x", "items": [{"id": "S1.fit_explained", "met": "yes"}]}'),
    "nested too deep": Reply("[" * 5000 + "]" * 5000),
    "not an object": Reply("[]"),
    "NaN": Reply('{"token": NaN, "items": []}'),
    "binary": Reply(raw=bytes(range(256))),
}


@pytest.mark.parametrize("reply", TRANSIENT.values(), ids=TRANSIENT.keys())
def test_a_failure_is_tried_again(reply, server, make_judge_of, make_plan):
    server.play(lambda asked: reply, good)
    assert states(make_plan().ask(make_judge_of())) == MET
    assert len(server.asked) == 2


@pytest.mark.parametrize("reply", TRANSIENT.values(), ids=TRANSIENT.keys())
def test_a_failure_that_stays_is_null(reply, server, make_judge_of, make_plan):
    server.play(lambda asked: reply)
    found = make_plan().ask(make_judge_of(tries=2))
    assert states(found) == NULL and all(f.message for f in found.values())
    assert len(server.asked) == 2


@pytest.mark.parametrize("status", [301, 302, 401, 403, 410])
def test_a_refusal_is_null_at_once(status, server, make_judge_of, make_plan):
    server.play(lambda asked: Reply(status=status, headers={"Location": server.url}))
    assert states(make_plan().ask(make_judge_of())) == NULL
    assert len(server.asked) == 1


def test_a_server_without_schemas_is_asked_without(server, make_judge_of, make_plan):
    def picky(asked):
        return Reply(status=400) if "response_format" in asked.body else asked.answer()

    server.play(picky)
    judge = make_judge_of(tries=1, cache=False)
    assert states(make_plan().ask(judge)) == MET
    assert states(make_plan().ask(judge)) == MET
    assert ["response_format" in a.body for a in server.asked] == [True, False, False]


def test_a_request_that_stays_wrong_is_null(server, make_judge_of, make_plan):
    server.play(lambda asked: Reply(status=404, raw=b"no such model"))
    found = make_plan().ask(make_judge_of())
    assert states(found) == NULL and "no such model" in found["S1.fit_explained"].message
    assert len(server.asked) == 2


@pytest.mark.parametrize("reply", [Reply("{}", wait_s=5), Reply("{}", drip_s=0.05)])
def test_a_slow_answer_is_not_waited_for(reply, server, make_judge_of, make_plan):
    server.play(lambda asked: reply)
    began = time.monotonic()
    assert states(make_plan().ask(make_judge_of(timeout_s=0.4, tries=2))) == NULL
    assert time.monotonic() - began < 4


def test_all_tries_together_keep_to_the_deadline(server, make_judge_of, make_plan):
    server.play(lambda asked: Reply("{}", wait_s=0.2))
    began = time.monotonic()
    judge = make_judge_of(timeout_s=0.3, tries=10, deadline_s=0.8, backoff_s=0.2)
    assert states(make_plan().ask(judge)) == NULL
    assert time.monotonic() - began < 3


def test_a_server_that_asks_for_too_long_a_wait_is_left(server, make_judge_of, make_plan):
    server.play(lambda asked: Reply(status=429, headers={"Retry-After": "9999"}))
    assert states(make_plan().ask(make_judge_of())) == NULL
    assert len(server.asked) == 1


def test_nobody_answers(make_judge_of, make_plan):
    found = make_plan().ask(make_judge_of(base_url="http://127.0.0.1:9/v1", tries=2))
    assert states(found) == NULL and "cannot be reached" in found["S1.fit_explained"].message


def test_a_cut_answer_gets_more_room(server, make_judge_of, make_plan):
    server.play(lambda asked: Reply("{", finish="length"), good)
    make_plan().ask(make_judge_of(max_tokens=100))
    assert [asked.body["max_tokens"] for asked in server.asked] == [100, 200]


def test_a_huge_response_is_not_read(server, make_judge_of, make_plan):
    server.play(lambda asked: Reply(raw=b" " * (3 << 20)))
    found = make_plan().ask(make_judge_of(tries=1))
    assert states(found) == NULL and "larger" in found["S1.fit_explained"].message


def test_false_citations_are_null_for_their_item_only(server, make_judge_of, make_plan):
    def half_true(asked):
        answer = json.loads(asked.answer())
        answer["items"][1]["quote"] = "words that stand nowhere in the plan"
        return json.dumps(answer)

    server.play(half_true)
    found = make_plan().ask(make_judge_of(tries=2))
    assert states(found) == {"S1.fit_explained": "met", "S1.risks_named": "null"}
    assert "do not stand in line" in found["S1.risks_named"].message
    assert len(server.asked) == 2


def test_what_was_found_before_a_failure_is_kept(server, make_judge_of, make_plan):
    def first_only(asked):
        answer = json.loads(asked.answer())
        return json.dumps({**answer, "items": answer["items"][:1]})

    server.play(first_only, lambda asked: Reply(status=500))
    found = make_plan().ask(make_judge_of(tries=2))
    assert states(found) == {"S1.fit_explained": "met", "S1.risks_named": "null"}


def test_the_key_goes_into_one_header_and_nowhere_else(
    server, make_judge_of, make_plan, monkeypatch, tmp_path
):
    monkeypatch.setenv("MY_KEY", "sk-secret-123")
    server.play(lambda asked: Reply(status=500, raw=b"bad key sk-secret-123"), good)
    judge = make_judge_of(api_key_env="MY_KEY")
    found = make_plan().ask(judge)
    assert states(found) == MET
    assert server.asked[0].headers["Authorization"] == "Bearer sk-secret-123"
    assert "sk-secret-123" not in json.dumps(server.asked[0].body)
    server.play(lambda asked: Reply(status=418, raw=b"bad key sk-secret-123"))
    failed = make_plan("A plan about something else entirely.").ask(judge)
    text = repr(judge) + repr(judge.config) + repr(found) + repr(failed)
    text += "".join(path.read_text() for path in tmp_path.rglob("*.json"))
    assert "sk-secret-123" not in text and "(key)" in text


def test_no_key_no_header(server, make_judge_of, make_plan, monkeypatch):
    monkeypatch.delenv("BAT_JUDGE_API_KEY", raising=False)
    make_plan().ask(make_judge_of())
    assert "Authorization" not in server.asked[0].headers
    monkeypatch.setenv("BAT_JUDGE_API_KEY", "k1")
    make_plan().ask(make_judge_of(cache=False))
    assert server.asked[1].headers["Authorization"] == "Bearer k1"


def test_a_judge_here_is_not_asked_through_a_proxy(server, make_judge_of, make_plan, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert states(make_plan().ask(make_judge_of())) == MET


def test_more_keys_of_a_request(server, make_judge_of, make_plan):
    body = {"max_completion_tokens": 99, "max_tokens": None, "temperature": None, "seed": 1}
    make_plan().ask(make_judge_of(body=body))
    sent = server.asked[0].body
    assert sent["max_completion_tokens"] == 99 and sent["seed"] == 1
    assert "max_tokens" not in sent and "temperature" not in sent


def test_models_without_a_system_message(server, make_judge_of, make_plan):
    make_plan().ask(make_judge_of(tries=1))
    make_plan().ask(make_judge_of(tries=1, system=False))
    both, one = (asked.body["messages"] for asked in server.asked)
    assert [m["role"] for m in both] == ["system", "user"] and [m["role"] for m in one] == ["user"]
    assert server.asked[1].token in one[0]["content"]


def test_one_judge_serves_many_threads(server, make_judge_of, make_plan):
    judge = make_judge_of()
    plans = [make_plan(f"Plan {n} says how {{model}} meets these volumes.") for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda plan: plan.ask(judge), plans))
    assert all(states(one) == MET for one in found) and len(server.asked) == 8
    for number, one in enumerate(found):
        assert f"Plan {number} " in one["S1.fit_explained"].quote


# ------------------------------------------------------------------------------------------- cache


def test_an_answer_is_asked_for_once(server, make_judge_of, make_plan):
    first = make_plan().ask(make_judge_of())
    again = make_plan().ask(make_judge_of())
    assert first == again and len(server.asked) == 1


@pytest.mark.parametrize(
    "change", [{"model": "other"}, {"temperature": 0.5}, {"body": {"seed": 2}}]
)
def test_another_judge_is_asked_anew(change, server, make_judge_of, make_plan):
    make_plan().ask(make_judge_of())
    make_plan().ask(make_judge_of(**change))
    assert len(server.asked) == 2


def test_another_text_is_asked_anew(server, make_judge_of, make_plan):
    make_plan("One plan of more than twenty signs.").ask(make_judge_of())
    make_plan("One plan of more than twenty signs!").ask(make_judge_of())
    assert len(server.asked) == 2


def test_no_failure_is_kept(server, make_judge_of, make_plan, tmp_path):
    server.play(lambda asked: Reply(status=500), good)
    assert states(make_plan().ask(make_judge_of(tries=1))) == NULL
    assert not list((tmp_path / "answers").rglob("*.json"))
    assert states(make_plan().ask(make_judge_of(tries=1))) == MET


def test_entries_say_what_they_rest_on(server, make_judge_of, make_plan, tmp_path):
    make_plan().ask(make_judge_of())
    (entry,) = (tmp_path / "answers").rglob("*.json")
    kept = json.loads(entry.read_text())
    assert kept["schema_version"] == 1 and kept["model"] == "scripted"
    assert len(kept["prompt_digest"]) == len(kept["contract_digest"]) == len(kept["files"]) == 64


@pytest.mark.parametrize("damage", ["truncated", "other version", "other key", "false citation"])
def test_a_damaged_entry_is_asked_again(damage, server, make_judge_of, make_plan, tmp_path):
    before = make_plan().ask(make_judge_of())
    (entry,) = (tmp_path / "answers").rglob("*.json")
    kept = json.loads(entry.read_text())
    if damage == "other version":
        kept["schema_version"] = 99
    elif damage == "other key":
        kept["key"] = "0" * 64
    elif damage == "false citation":
        kept["items"][0]["quote"] = "a quote that was planted"
    text = json.dumps(kept)
    entry.write_text(text[:-40] if damage == "truncated" else text)
    assert make_plan().ask(make_judge_of()) == before
    assert len(server.asked) == 2


def test_a_cache_that_cannot_be_written_costs_only_requests(
    server, make_judge_of, make_plan, tmp_path
):
    (tmp_path / "file").write_text("")
    for _ in range(2):
        found = make_plan().ask(make_judge_of(cache_dir=str(tmp_path / "file" / "x")))
        assert states(found) == MET
    assert len(server.asked) == 2
