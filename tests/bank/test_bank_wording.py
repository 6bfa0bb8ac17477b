"""Briefs in other words: every fact stays, nothing is added, and the teacher is held to it too."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bat_env.bank.build import build
from bat_env.bank.teacher import KEY_VARIABLE, Teacher
from bat_env.bank.wording import problems, sections, worded
from bat_env.errors import ConfigError
from bat_env.stages import OUTCOMES, Stage
from bat_env.tasks import load_task, render_brief, task_ids

INDEX = 2**30 + 5


def plain(task_id: str, focus: Stage = Stage.S3, outcome: str | None = "recovery") -> str:
    task = load_task(task_id)
    return render_brief(
        task,
        task.instance("train", INDEX, "mini"),
        tier="lite",
        focus=focus,
        outcome=outcome,
        exposed="check of pipeline/predict.py\nshape (3, 4)" if outcome == "recovery" else "",
        files=("plan/facts.json", "plan/plan.md"),
    )


@pytest.mark.parametrize("task_id", task_ids())
def test_words_change_and_facts_stay(task_id: str) -> None:
    task = load_task(task_id)
    instance = task.instance("train", INDEX, "mini")
    seen = set()
    for focus in Stage:
        for outcome in (*OUTCOMES, None):
            brief = plain(task_id, focus, outcome)
            assert "\n".join(map(str, sections(brief))) == brief
            assert problems(brief, brief, task.spec, instance) == []
            for seed in (1, 2):
                other = worded(brief, np.random.default_rng(seed))
                assert other == worded(brief, np.random.default_rng(seed))
                assert problems(brief, other, task.spec, instance) == []
                seen.add(other)
                # The schema is data: to the letter.
                assert brief.partition("## Files to write")[2].partition("\n## ")[0] in other
    assert len(seen) == 46  # E2E says nothing of a success


SPOILT: dict[str, Callable[[str], str]] = {
    "lost the name": lambda text: text.replace("Outline both kidneys", "Outline the kidneys"),
    "lost '/models/kidney_unet'": lambda text: text.replace("/models/kidney_unet", "the models"),
    "lost '24'": lambda text: text.replace("24 turns", "Some turns"),
    "made up '25'": lambda text: text.replace("24 turns", "24 turns or 25"),
    "made up 'outputs/all.json'": lambda text: text + "Write outputs/all.json too.\n",
    "changed the section '## Files to write": lambda text: text.replace(
        "case_count: integer", "case_count: whole number"
    ),
    "says something else about earlier work (inconsistency)": lambda text: text.replace(
        "A check has exposed an inconsistency. Correct it first.", "All is well."
    ),
    "says something else about earlier work (unverified)": lambda text: text.replace(
        "A check has", "Nothing was verified. A check has"
    ),
    "changed the section '## Output of the check'": lambda text: text.replace(
        "shape (3, 4)", "shape (4, 3)"
    ),
    "is too long": lambda text: text + "It is so.\n" * 300,
}


@pytest.mark.parametrize("why", SPOILT)
def test_a_brief_that_lost_or_gained_a_fact_is_refused(why: str) -> None:
    task = load_task("seg/kidney_tumor")
    instance = task.instance("train", INDEX, "mini")
    brief = plain(task.id)
    spoilt = SPOILT[why](brief)
    assert spoilt != brief
    found = problems(brief, spoilt, task.spec, instance)
    assert any(why in problem for problem in found), found


# ---------------------------------------------------------------------------------- the LLM teacher


class Endpoint:
    """An OpenAI-compatible server that answers what a test says."""

    def __init__(self) -> None:
        self.answers: list[Callable[[list[dict[str, str]]], str | int]] = []
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(body)
                outer.keys.append(self.headers.get("Authorization"))
                said = outer.answers.pop(0)(body["messages"])
                status = said if isinstance(said, int) else 200
                message = {"message": {"content": said}, "finish_reason": "stop"}
                data = json.dumps({"choices": [message]}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def teacher(self) -> Teacher:
        url = f"http://127.0.0.1:{self.server.server_port}/v1"
        return Teacher({"base_url": url, "model": "scripted", "timeout_s": 10})


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()


def good(messages: list[dict[str, str]]) -> str:
    """What a willing model says: the same facts, some other words."""
    return messages[1]["content"].replace("What you record is compared", "Your record is compared")


def ask(teacher: Teacher, leaks: Callable[[bytes], list[str]] = lambda text: []) -> Any:
    task = load_task("seg/kidney_tumor")
    instance = task.instance("train", INDEX, "mini")
    return teacher.word(plain(task.id), task.spec, instance, leaks)


def test_the_teachers_words_are_used_when_every_fact_is_there(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "a-key-of-this-test")
    endpoint.answers = [good]
    found = ask(endpoint.teacher)
    assert "Your record is compared" in found.text and found.refused == ()
    # Schema and check never pass through the model.
    assert "case_count" not in str(endpoint.asked) and "shape (3, 4)" not in str(endpoint.asked)
    assert "  case_count: integer" in found.text and "shape (3, 4)" in found.text
    assert endpoint.keys == ["Bearer a-key-of-this-test"]


def test_a_teacher_that_drops_a_fact_is_told_and_asked_again(endpoint: Endpoint) -> None:
    endpoint.answers = [lambda m: good(m).replace("/models/kidney_unet", "the model"), good]
    found = ask(endpoint.teacher)
    assert found.text and "lost '/models/kidney_unet'" in found.refused[0]
    assert "lost '/models/kidney_unet'" in endpoint.asked[1]["messages"][-1]["content"]


def test_held_out_words_of_a_teacher_are_never_used_or_repeated(endpoint: Endpoint) -> None:
    def planted(messages: list[dict[str, str]]) -> str:
        return good(messages).replace("Aim:", "Aim, as at Quarry Lane Hospital:")

    endpoint.answers = [planted, planted]
    found = ask(endpoint.teacher, lambda text: ["x"] if b"Quarry Lane" in text else [])
    assert found.text == "" and found.refused == ("held-out material",) * 2


def test_a_teacher_that_does_not_answer_is_no_failure(endpoint: Endpoint) -> None:
    endpoint.answers = [lambda m: 401]
    found = ask(endpoint.teacher)
    assert found.text == "" and len(found.refused) == 1


def test_a_teacher_is_asked_for_with_its_address_or_not_at_all(tmp_path: Path) -> None:
    for changes in (
        {"briefs": "teacher"},
        {"teacher": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}},
        {"briefs": "poetic"},
        {"styles": ["usual", "usual"]},
        {"styles": ["fancy"]},
    ):
        with pytest.raises(ConfigError):
            build(tmp_path / "bank", tasks=["seg/kidney_tumor"], backend="local", **changes)
    assert not (tmp_path / "bank").exists()


@pytest.mark.slow
def test_a_bank_is_worded_by_a_teacher_and_by_rule_where_it_fails(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    endpoint.answers = [good, lambda m: "no", lambda m: "no", good]
    report = build(
        tmp_path / "bank",
        tasks=["cls/skin_lesion"],
        stages=["S1"],
        per_cell=1,
        demos=0,
        briefs="teacher",
        teacher=endpoint.teacher,
        suites=["lite-mini"],
        backend="local",
        workers=1,
    )
    assert report.failed == [] and report.short == {}, str(report)
    writers = sorted(state.provenance["writer"] for state in report.states)
    assert writers == ["teacher", "teacher", "varied"]
    assert report.teacher_refused == {"lost the name": 2}
    for state in report.states:
        if state.provenance["writer"] == "teacher":
            assert state.provenance["model"] == "scripted"
