"""A judge in the environment: what it adds, what it cannot move, and what is written down."""

from __future__ import annotations

import copy
import json
import pickle

import gymnasium as gym
import pytest
from judge_server import Reply

import bat_env  # noqa: F401
from bat_env.env import AutoMedEnv, public_info
from bat_env.errors import ConfigError
from bat_env.evidence import rescore
from bat_env.judge import Judge, JudgeConfig, make_judge
from bat_env.tasks import load_task
from bat_env.tools import execute_call, submit_call
from bat_env.trajectory import read_trajectory

PLAN = """\
# Plan
Model kidney_unet: the CT volumes differ in voxel spacing, and the net was trained on one spacing.
Risk: the mask may stay on the resampled grid. Check: its shape equals that of the input.
"""
NOTES = {
    "setup/notes.md": "The files are int16 with a slope, the card wants HU: values are scaled.\n",
    "validation/notes.md": "The kidneys measure 210 ml on the pilot, inside 60 to 900 ml.\n",
}
PROSE = [
    "S1.fit_explained",
    "S1.risks_named",
    "S2.inputs_explained",
    "S2.run_explained",
    "S3.value_interpreted",
    "S3.decision_reasoned",
]


def actions(notes=NOTES):
    """A short episode: a plan, notes, one pilot. Most rule items fail; that is not what matters."""
    files = {"plan/plan.md": PLAN, "plan/facts.json": '{"model": "kidney_unet"}', **notes}
    code = (
        "import pathlib\n"
        f"for path, text in {files!r}.items():\n"
        "    path = pathlib.Path(path)\n"
        "    path.parent.mkdir(parents=True, exist_ok=True)\n"
        "    path.write_text(text)\n"
    )
    return [execute_call("python", code), submit_call()]


def play(env, moves, seed=3):
    env.reset(seed=seed)
    rewards = []
    for move in moves:
        _, reward, terminated, truncated, info = env.step(move)
        rewards.append(reward)
        if terminated or truncated:
            break
    return rewards, info


def check_weights(info):
    """What a judge moves: two items of weight one half beside the rule items of each stage."""
    for stage, rule_items in (("S1", 7), ("S2", 5), ("S3", 5)):
        alone = info["components"]["rules"]["stage_score"][stage]
        with_it = info["components"]["stage_score"][stage]
        read = [v for k, (_, v) in info["items"].items() if k in PROSE and k.startswith(stage)]
        assert with_it == pytest.approx((rule_items * alone + sum(read) / 2) / (rule_items + 1))


@pytest.fixture
def open_env(server, tmp_path):
    made = []

    def make(judge=True, **kwargs):
        if judge is True:
            judge = {
                "base_url": server.url,
                "model": "scripted",
                "tries": 2,
                "backoff_s": 0.01,
                "cache_dir": str(tmp_path / "answers"),
            }
        env = gym.make(
            "AutoMed-Seg-v0", sandbox="local", size="mini", judge=judge, **kwargs
        ).unwrapped
        made.append(env)
        return env

    yield make
    for env in made:
        env.close()


def test_scores_with_and_without(open_env, server, tmp_path):
    plain = open_env(judge=None)
    rewards, rules = play(plain, actions())
    assert "judge" not in rules and "judge" not in rules["result"]
    judged = open_env(trajectory_dir=tmp_path / "runs")
    more, info = play(judged, actions())
    result = info["result"]
    assert info["rubric_digest"] != rules["rubric_digest"]
    assert more[:-1] == rewards[:-1], "before the hand-in, rewards are those of the rules"
    assert sum(more) == result["score"] > rules["result"]["score"]
    assert result["judge"]["rules_score"] == rules["result"]["score"]
    assert {k: v for k, v in info["items"].items() if k in rules["items"]} == rules["items"]
    assert [item for item in info["items"] if item not in rules["items"]] == PROSE
    # Only in S1 did the rules find something true: prose counts nowhere else.
    for item in PROSE:
        assert info["items"][item] == (["pass", 1.0] if item[:2] == "S1" else ["fail", 0.0])
    assert all(f["state"] == "met" for f in result["judge"]["findings"].values())
    assert len(server.asked) == 3
    check_weights(info)

    written = read_trajectory(judged.trajectory_path)
    for carried in (info["judge"], result["judge"], written.evidence["evidence"]["judge"]):
        assert carried["model"] == "scripted"
        assert carried["contract_digest"] == info["rubric_digest"]
        assert len(carried["prompt_digest"]) == 64
    assert written.document["extra"]["reset"]["judge"] == info["judge"]
    again = rescore(written.evidence)
    assert list(again.rewards) == written.rewards and again.same_rubric
    assert len(server.asked) == 3, "nobody is asked when an episode is scored again"


@pytest.mark.parametrize(
    "script", [lambda asked: Reply(status=500), lambda asked: "{}"], ids=["down", "nonsense"]
)
def test_a_judge_that_fails_moves_nothing(script, open_env, server):
    rewards, rules = play(open_env(judge=None), actions())
    server.play(script)
    more, info = play(open_env(), actions())
    assert more == rewards and info["result"]["score"] == rules["result"]["score"]
    assert all(info["items"][item] == ["null", 0.0] for item in PROSE)
    assert info["components"]["stage_score"] == rules["components"]["stage_score"]
    assert info["components"]["eta"] == rules["components"]["eta"]


def test_unwritten_prose_is_not_met_and_nobody_is_asked(open_env, server):
    _, info = play(open_env(), actions(notes={}))
    assert info["items"]["S2.inputs_explained"] == ["fail", 0.0]
    assert info["items"]["S3.decision_reasoned"] == ["fail", 0.0]
    assert info["result"]["judge"]["findings"]["S2.run_explained"]["by"] == "host"
    assert len(server.asked) == 1, "only the plan was there to read"


def test_the_brief_says_what_is_read(open_env):
    judged, _ = open_env().reset(seed=3)
    plain, _ = open_env(judge=None).reset(seed=3)
    added = judged["text"].removeprefix(plain["text"])
    assert added != judged["text"]
    for path in ("plan/plan.md", "setup/notes.md", "validation/notes.md"):
        assert f"- {path}: " in added


def test_agents_see_neither_judge_nor_findings(open_env, server):
    env = open_env()
    _, info = env.reset(seed=3)
    assert "judge" in info and "judge" not in public_info(info)
    _, info = play(env, actions())
    assert "scripted" not in json.dumps(public_info(info))


def test_an_episode_without_work_asks_nobody(open_env, server):
    _, info = play(open_env(), [submit_call()])
    assert info["result"]["score"] == 0.0 and server.asked == []
    assert info["result"]["judge"]["findings"] == {}


def test_a_truncated_episode_is_read_too(open_env, server):
    env = open_env()
    env.reset(seed=3)
    env.step(actions()[0])
    *_, truncated, info = env.truncate("tokens")
    assert truncated and info["items"]["S1.fit_explained"] == ["pass", 1.0]


def test_the_judge_sees_no_truth_and_no_verdict(open_env, server):
    env = open_env()
    script = load_task("seg/kidney_tumor").script()
    note = actions()[0]
    moves = [execute_call(cell.language, cell.code) for cell in script]
    _, info = play(env, [note, *moves, submit_call()])
    assert all(info["items"][item] == ["pass", 1.0] for item in PROSE)
    assert info["result"]["score"] > info["result"]["judge"]["rules_score"] - 1e-9 > 0.5
    check_weights(info)
    seen = "".join(asked.system + asked.user for asked in server.asked)
    episode, instance = env.episode, env.instance
    grade = episode.evidence.grade
    numbers = [grade.score, *grade.per_case.values(), *episode.evidence.probe_expected.values()]
    numbers += [
        volume for case in instance.facts["volumes_ml"].values() for volume in case.values()
    ]
    own = "".join(
        d.decode("utf-8", "replace")
        for p, d in episode.evidence.files.items()
        if p.endswith((".json", ".md"))
    )
    for number in numbers:
        if number not in (0.0, 1.0) and f"{number:.6g}" not in own:
            assert f"{number:.6g}" not in seen
    for word in ("Dice", "grade", "per_case", "pending", "eta", info["instance_digest"]):
        assert word not in seen
    assert "stdout" not in seen


BAD = [
    ({"base_url": "http://h/v1"}, "judge must name model"),
    ({"base_url": "ftp://h/v1", "model": "m"}, "base_url: must be an address"),
    ({"base_url": "http://user:secret@h/v1", "model": "m"}, "no user name or password"),
    ({"base_url": "http://h/v1?key=secret", "model": "m"}, "no query"),
    ({"base_url": "http://h:99999/v1", "model": "m"}, "base_url"),
    ({"base_url": "http:///v1", "model": "m"}, "base_url"),
    ({"base_url": "http://h/v1\nX: y", "model": "m"}, "base_url"),
    ({"base_url": "http://h/v1", "model": ""}, "model"),
    ({"base_url": "http://h/v1", "model": "a\nb"}, "model"),
    ({"base_url": "http://h/v1", "model": "m", "tries": 0}, "tries"),
    ({"base_url": "http://h/v1", "model": "m", "timeout_s": float("inf")}, "timeout_s"),
    ({"base_url": "http://h/v1", "model": "m", "body": {"messages": []}}, "must not set messages"),
    ({"base_url": "http://h/v1", "model": "m", "api_key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
    ({"base_url": "http://h/v1", "model": "m", "api_key": "sk-1"}, "Unknown key of judge"),
    (7, "judge must be None"),
]


@pytest.mark.parametrize(("judge", "message"), BAD)
def test_a_judge_that_can_never_answer_is_refused(judge, message):
    with pytest.raises(ConfigError, match=message) as caught:
        AutoMedEnv(judge=judge)
    assert "secret" not in str(caught.value) and "sk-1" not in str(caught.value)


def test_real_data_stay_here_unless_allowed():
    from bat_env.config import keep_here

    far = {"base_url": "https://judge.example/v1", "model": "m"}
    with pytest.raises(ConfigError, match="data_may_leave"):
        keep_here(make_judge(far))
    keep_here(make_judge({**far, "data_may_leave": True}))
    keep_here(make_judge({"base_url": "http://127.0.0.1:1/v1", "model": "m"}))
    keep_here(make_judge({"base_url": "http://[::1]:1/v1", "model": "m"}))
    keep_here(None)


def test_all_forms_of_a_judge_are_one():
    given = {"base_url": "http://127.0.0.1:8000/v1/", "model": "m"}
    one = make_judge(given)
    for other in (make_judge(JudgeConfig(**given)), make_judge(one), make_judge(Judge(one.config))):
        assert other.config == one.config
    assert pickle.loads(pickle.dumps(one)).config == copy.deepcopy(one).config == one.config
    assert one.config.base_url == "http://127.0.0.1:8000/v1" and make_judge(None) is None


def test_specs_with_a_judge_go_through_json():
    env = gym.make("AutoMed-Seg-v0", size="mini", judge={"base_url": "http://h/v1", "model": "m"})
    again = gym.envs.registration.EnvSpec.from_json(env.spec.to_json())
    assert again.kwargs["judge"] == {"base_url": "http://h/v1", "model": "m"}
    env.close()
