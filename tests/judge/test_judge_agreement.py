"""Agreement of a judge with the rules: the statistics, and the command that reports them."""

from __future__ import annotations

import dataclasses
import json
import sys

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judge_server import Reply

import bat_env  # noqa: F401
from bat_env.judge.agreement import ALL, Read, cohen_kappa, kappa_interval, reports
from bat_env.tools import execute_call, submit_call

CELL = st.integers(0, 60)


@settings(max_examples=60, deadline=None)
@given(CELL, CELL, CELL, CELL)
def test_kappa_is_that_of_scikit_learn(both, first, second, neither):
    from sklearn.metrics import cohen_kappa_score

    mine = cohen_kappa(both, first, second, neither)
    one = [1] * both + [1] * first + [0] * second + [0] * neither
    two = [1] * both + [0] * first + [1] * second + [0] * neither
    if mine is None:
        assert not one or (len(set(one)) == 1 and set(one) == set(two))
        return
    assert mine == pytest.approx(cohen_kappa_score(one, two), abs=1e-12)
    assert -1 <= mine <= 1
    assert (
        mine
        == cohen_kappa(both, second, first, neither)
        == cohen_kappa(neither, first, second, both)
    )
    low, high = kappa_interval(both, first, second, neither)
    assert -1 <= low < high <= 1


def test_intervals_are_wide_for_few_and_narrow_for_many():
    few, many = kappa_interval(3, 0, 0, 3), kappa_interval(300, 0, 0, 300)
    assert few[0] < 0.6 and many[0] > 0.95
    assert kappa_interval(5, 0, 0, 0)[0] < 0.1, "one verdict alone says little"
    assert kappa_interval(0, 0, 0, 0) is None
    assert kappa_interval(4, 1, 2, 5) == kappa_interval(4, 1, 2, 5)
    assert kappa_interval(4, 1, 2, 5, seed=1) != kappa_interval(4, 1, 2, 5)


def test_intervals_cover_what_they_promise():
    cells = np.array([0.45, 0.1, 0.15, 0.3])
    chance = 0.55 * 0.6 + 0.45 * 0.4
    true = (0.75 - chance) / (1 - chance)
    rng = np.random.default_rng(0)
    hits = 0
    for counts in rng.multinomial(40, cells, size=200):
        low, high = kappa_interval(*map(int, counts))
        hits += low <= true <= high
    assert hits >= 0.9 * 200


def read(judged, ruled, model="m", **prose):
    return Read(model, "p" * 64, judged, ruled, prose)


def test_counts_are_kept_apart_by_item_and_judge():
    made = reports(
        [
            read({"S1.a": "met", "S1.b": "null"}, {"S1.a": True, "S1.b": True}, x="met"),
            read({"S1.a": "unmet"}, {"S1.a": True}, x="null"),
            read({"S1.a": "met", "S1.c": "met"}, {"S1.a": False}),
            read({"S1.a": "unmet"}, {"S1.a": False}),
            read({"S1.a": "met"}, {"S1.a": True}, model="another"),
        ]
    )
    assert [r.model for r in made] == ["another", "m"]
    row, empty, everything = made[1].rows
    assert (row.item, row.both, row.judge_only, row.rules_only, row.neither) == ("S1.a", 1, 1, 1, 1)
    assert row.decided == 4 and row.agreed == 0.5 and row.kappa == 0.0
    assert (empty.item, empty.null, empty.decided, empty.kappa, empty.ci95) == (
        "S1.b",
        1,
        0,
        None,
        None,
    )
    assert (everything.item, everything.decided, everything.null) == (ALL, 4, 1)
    assert made[1].prose == {"x": {"met": 1, "null": 1}}
    assert json.loads(json.dumps(made[1].to_json()))["items"][0]["kappa"] == 0.0


# ---------------------------------------------------------------------------------------- command


@dataclasses.dataclass
class Done:
    """What a command said, and its exit status."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def bat_env_command(monkeypatch, capsys):
    """Runs `bat-env judge` in this process: another interpreter each time would take minutes."""
    from bat_env.cli import main

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["bat-env", "judge", *map(str, args)])
        monkeypatch.setenv("COLUMNS", "160")
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return Done(int(left.value.code or 0), out, err)

    return run


PLANS = {
    "named": ("We use kidney_unet for these CT volumes of the kidney.", "kidney_unet"),
    "unnamed": ("We use some network for these CT volumes of the kidney.", "kidney_unet"),
    "unknown": ("We use a network of our own for these CT volumes.", "my_net"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three real episodes with a judge, and one without."""
    from judge_server import ScriptedServer

    folder = tmp_path_factory.mktemp("runs")
    server = ScriptedServer()
    try:
        for name, judge, plans in (("with", True, 3), ("without", False, 1)):
            wanted = {"base_url": server.url, "model": "scripted", "cache": False}
            env = gym.make(
                "AutoMed-Seg-v0",
                sandbox="local",
                size="mini",
                judge=wanted if judge else None,
                trajectory_dir=folder / name,
            ).unwrapped
            for text, model in list(PLANS.values())[:plans]:
                env.reset(seed=3)
                code = (
                    "import os, json\nos.makedirs('plan', exist_ok=True)\n"
                    f"open('plan/plan.md', 'w').write({text!r})\n"
                    f"open('plan/facts.json', 'w').write(json.dumps(dict(model={model!r})))\n"
                )
                env.step(execute_call("python", code))
                env.step(submit_call())
            env.close()
    finally:
        server.close()
    return folder


def test_recorded_answers_are_compared_without_asking(runs, bat_env_command):
    done = bat_env_command("agree", runs / "with", "--json")
    assert done.returncode == 0, done.stderr
    (judge,) = json.loads(done.stdout)["judges"]
    rows = {row["item"]: row for row in judge["items"]}
    # The scripted judge finds everything met; the rules find the model named in one of three plans.
    assert (rows["S1.model_named"]["both"], rows["S1.model_named"]["judge_only"]) == (1, 2)
    assert rows["S1.model_named"]["kappa"] == 0.0 and judge["episodes"] == 3
    assert judge["model"] == "scripted" and len(judge["prompt_digest"]) == 64
    assert judge["prose"]["S1.fit_explained"] == {"met": 3}
    table = bat_env_command("agree", runs / "with")
    assert "S1.model_named" in table.stdout and "kappa" in table.stdout


def test_another_judge_is_asked_about_any_trajectory(runs, server, bat_env_command):
    names = "kidney_unet"

    def careful(asked):
        def met(name):
            plan = "".join(asked.files.get("plan/plan.md", {}).values())
            return name == "S1.model_named" and names in plan

        return asked.answer(met)

    server.play(careful)
    done = bat_env_command("agree", runs, "--base-url", server.url, "--model", "careful", "--json")
    assert done.returncode == 0, done.stderr
    (judge,) = json.loads(done.stdout)["judges"]
    rows = {row["item"]: row for row in judge["items"]}
    assert rows["S1.model_named"]["kappa"] == 1.0 and rows["S1.model_named"]["both"] == 2
    assert judge["model"] == "careful" and judge["prose"] == {}
    assert all("fit_explained" not in asked.user for asked in server.asked)


def test_a_judge_that_is_down_leaves_nulls(runs, server, bat_env_command):
    server.play(lambda asked: Reply(status=403))
    done = bat_env_command(
        "agree", runs / "without", "--base-url", server.url, "--model", "m", "--json"
    )
    told = json.loads(done.stdout)
    (judge,) = told["judges"]
    assert all(row["decided"] == 0 and row["null"] for row in judge["items"])
    assert done.returncode == 1 and len(told["unanswered"]) == judge["episodes"]


def test_a_judge_that_cannot_be_reached_is_a_failure(runs, bat_env_command):
    where = ("--base-url", "http://127.0.0.1:9/v1", "--model", "m")
    done = bat_env_command("agree", runs / "without", *where)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "no answer about" in done.stderr and "127.0.0.1:9" in done.stderr


def test_mistakes_are_one_line(runs, tmp_path, bat_env_command):
    for args, said in (
        (["agree", runs / "without"], "played without a judge"),
        (["agree", tmp_path], "no trajectory file"),
        (["agree", tmp_path / "none.json"], "Cannot read"),
        (["agree", runs / "with", "--model", "m"], "--base-url"),
        (["agree", runs / "with", "--model", "m", "--base-url", "x"], "must be an address"),
        (["check"], "--base-url"),
        (["agree", runs, "--jsn"], "--jsn"),
    ):
        done = bat_env_command(*args)
        assert done.returncode == 2 and done.stdout == "", done.stdout
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
        assert said in done.stderr


def test_check_tells_a_judge_from_a_server(server, bat_env_command):
    server.play(lambda asked: asked.answer("resampled" in asked.user))
    done = bat_env_command("check", "--base-url", server.url, "--model", "m", "--json")
    assert done.returncode == 0, done.stderr
    plans = json.loads(done.stdout)["plans"]
    states = [{f["state"] for f in found.values()} for found in plans.values()]
    assert states == [{"met"}, {"unmet"}]
    server.play(lambda asked: Reply(status=401))
    done = bat_env_command("check", "--base-url", server.url, "--model", "m")
    assert done.returncode == 1 and "refused the API key" in done.stdout
