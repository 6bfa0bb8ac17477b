from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from bat_agent.config import BankSettings, RunConfig, load_config
from bat_agent.demo import demo_config
from bat_agent.evaluation import Evaluation
from bat_agent.presets import load_preset
from bat_env.errors import ConfigError


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bat_agent.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env=environment(),
    )


def environment() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    # An empty cache and no network: a base model is never there.
    hub = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(root / "no-such-cache")}
    return {**os.environ, "PYTHONPATH": str(root), **hub}


def test_eval_prints_exactly_one_json_object() -> None:
    command = "eval --agent nop --suite seg-mini --repeats 1 --sandbox local --json"
    done = run(*command.split())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    value = json.loads(done.stdout)
    assert value["overall"] == 0.0 and value["episodes"] == 1 and value["invalid"] == 0
    assert list(value["stages"]) == ["S1", "S2", "S3", "S4", "S5"]
    assert value["tracks"] == {"seg": 0.0} and value["seconds"] > 0
    assert set(value["ci95"]) == {"overall", "agentic", "task", *value["stages"]}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("eval --agent orcale --suite lite", "Did you mean 'oracle'"),
        ("eval --agent nop --suite lite-minni", "Did you mean 'lite-mini'"),
        ("eval --agent nop --task kidney_tumour", "kidney_tumor"),
        ("eval --agent nop", "exactly one"),
        ("eval --agent nop --suite lite --sandbox dockre", "docker"),
        ("train --out x --preset tiny-cpo", "Did you mean 'tiny-cpu'"),
        ("resume nowhere", "no run folder|has none"),
        ("status nowhere", "has none"),
        ("report nowhere", "is no run"),
        ("demo --out x --rounds -1", ">= 0"),
        ("eval --agent nop --suite seg-mini --workers 0", "workers >= 1"),
        ("eval --agent nop --suite seg-mini --temperature -1", "temperature >= 0"),
        ("eval --agent nop --suite seg-mini --repeats 0", "at least 1"),
        ("eval --agent nop --suite seg-mini --tier lit", "Did you mean 'lite'"),
        ("eval --agent nop --suite seg-mini --trajectories /proc/x", "/proc/x"),
        ("eval --agent nop --suite seg-mini --out /proc/x/y", "/proc/x"),
        ("eval --agent nop --suite seg-mini --out .", "Name a file"),
        ("eval --agent nop --repeats x", "expected an integer for --repeats, got 'x'; give"),
        ("eval --agnt nop", "got '--agnt'; did you mean '--agent'"),
        ("eval", "expected --agent, got none; give --agent"),
        ("eval --agent= --suite seg-mini", "expected --agent, got an empty one"),
        ("eval --harness= --suite seg-mini", "came an empty one"),
        ("eval --agent", "expected a value for --agent, got none"),
        ("eval --agent nop --json=1", "expected no value for --json"),
        ("status a b", "expected no further argument, got 'b'"),
        ("evl", "expected a command of `bat-agent`, got 'evl'; did you mean 'eval'"),
        ("demo --out /proc/x", "/proc/x"),
        ("learn --runs x --out /proc/x/y.json", "/proc/x"),
        ("train --out x --preset qwen3.5-4b-1gpu", "Qwen/Qwen3.5-4B"),
        ("train --out x --log-to tensorbord", "Did you mean 'tensorboard'"),
        ("learn --runs x --out x/y.json --arms bicurll", "Did you mean 'bicurl'"),
        ("export nowhere --out x", "has none"),
        ("verify nowhere", "no folder nowhere"),
    ],
)
def test_bad_requests_are_one_line_and_exit_2(
    arguments: str, expected: str, tmp_path: Path
) -> None:
    done = run(*arguments.split(), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert any(e in lines[0] for e in expected.split("|")), done.stderr
    assert not (tmp_path / "x").exists()


def test_episodes_without_a_score_are_told(tmp_path: Path) -> None:
    (tmp_path / "dead.py").write_text(
        "from bat_env.errors import SandboxError\n"
        "class Dead:\n"
        "    def reset(self, observation, info):\n"
        "        raise SandboxError('the container is gone')\n"
        "    def act(self, observation):\n"
        "        return {}\n"
    )
    command = "eval --agent dead:Dead --suite seg-mini --repeats 1 --sandbox local --json"
    done = run(*command.split(), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["invalid"] == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("bat-agent: 1 of 1 episodes have no score") and "is gone" in last


BROKEN = """
RAISED = {2: SystemExit, 3: KeyboardInterrupt, 4: KeyError('some key')}
class Second:
    made = 0
    def __init__(self):
        Second.made += 1
        self.number = Second.made
    def reset(self, observation, info):
        pass
    def act(self, observation):
        if self.number in RAISED:
            raise RAISED[self.number]
        return {"name": "submit_results", "arguments": {}}
"""


def test_an_agent_that_raises_is_one_line_and_loses_no_other_episode(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(BROKEN)
    command = (
        "eval --agent agents.py:Second --suite seg-mini --repeats 5 --workers 1 --sandbox local "
        "--json --trajectories t --out all.json"
    )
    done = run(*command.split(), cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    value = json.loads(done.stdout)
    assert (value["episodes"], value["invalid"], value["overall"]) == (5, 3, 0.0)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("bat-agent: agent Second raised in instance ")
    assert ": SystemExit" in last and "3 of 5 episodes" in last
    assert "Traceback" not in done.stderr
    cells = json.loads((tmp_path / "all.json").read_text())["cells"]
    told = ["", "SystemExit", "KeyboardInterrupt", "KeyError: 'some key'", ""]
    assert [cell["error"] for cell in cells] == told
    kept = [json.loads(p.read_text()) for p in (tmp_path / "t").iterdir()]
    status = sorted(k["extra"]["status"] for k in kept)
    assert status == ["abandoned"] * 3 + ["submitted"] * 2
    assert {k["agent"]["name"] for k in kept} == {"Second"}


def test_debug_shows_where_an_agent_raised(tmp_path: Path) -> None:
    (tmp_path / "agents.py").write_text(BROKEN)
    command = "eval --agent agents.py:Second --suite seg-mini --repeats 2 --sandbox local --debug"
    done = run(*command.split(), cwd=tmp_path)
    assert done.returncode == 1
    assert "agents.py" in done.stderr and "in act" in done.stderr


def test_a_module_that_ends_the_process_is_refused(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("raise SystemExit\n")
    command = "eval --agent leaves.py:X --suite seg-mini --json"
    done = run(*command.split(), cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "leaves.py" in done.stderr and "SystemExit" in done.stderr


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os._exit(0)", "exit status 0"),
        ("os.execv('/bin/true', ['true'])", "exit status 0"),
        ("os.kill(os.getpid(), 9)", "signal SIGKILL"),
    ],
)
def test_an_agent_that_ends_the_process_is_noticed(end: str, how: str, tmp_path: Path) -> None:
    (tmp_path / "gone.py").write_text(
        "import os\n"
        "class Gone:\n"
        "    def reset(self, observation, info):\n"
        f"        {end}\n"
        "    def act(self, observation):\n"
        "        return {}\n"
    )
    command = "eval --agent gone:Gone --suite seg-mini --repeats 1 --sandbox local --json"
    done = run(*command.split(), cwd=tmp_path)
    assert done.returncode == 1 and done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last == (
        f"bat-agent: code of agent gone:Gone ended the process ({how}): no scores. "
        "Nothing was kept."
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_in_one_line(number: int, code: int, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "class Slow:\n"
        "    def reset(self, observation, info):\n"
        "        open('started', 'w').close()\n"
        "        time.sleep(1)\n"
        "    def act(self, observation):\n"
        "        with open('acts', 'a') as file: file.write('a')\n"
        "        code = {'language': 'bash', 'code': 'sleep 100'}\n"
        "        return {'name': 'execute_code', 'arguments': code}\n"
    )
    command = "eval --agent slow:Slow --suite seg-mini --workers 1 --sandbox local"
    process = subprocess.Popen(
        [sys.executable, "-m", "bat_agent.cli", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=environment(),
        # Whoever runs the tests in the background ignores SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until = time.monotonic() + 120
    while not (tmp_path / "started").exists() and time.monotonic() < until:
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    acts = tmp_path / "acts"
    while not acts.exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    pressed = time.monotonic()
    process.send_signal(number)
    before = len(acts.read_text())
    out, err = process.communicate(timeout=120)
    # Neither the cell that runs comes to its end, nor the episode: it would take 23.
    assert len(acts.read_text()) <= before + 1
    assert time.monotonic() - pressed < 60
    assert process.returncode == code, err
    assert out == "" and err.splitlines()[-1].startswith("bat-agent: interrupted"), err
    assert "Traceback" not in err


def test_two_evaluations_into_one_file_are_refused(tmp_path: Path) -> None:
    from bat_agent.files import locked

    command = "eval --agent nop --suite seg-mini --repeats 1 --sandbox local --out all.json"
    with locked(tmp_path / ".all.json.lock"):
        done = run(*command.split(), cwd=tmp_path)
    assert done.returncode == 2 and "Another process is working on" in done.stderr
    assert "all.json" in done.stderr and not (tmp_path / "all.json").exists()


def test_what_is_no_evaluation_of_the_same_is_not_written_over(tmp_path: Path) -> None:
    command = "eval --suite seg-mini --repeats 1 --sandbox local --out all.json --json"
    file = tmp_path / "all.json"
    file.touch()  # as mktemp leaves it
    assert run(*command.split(), "--agent", "nop", cwd=tmp_path).returncode == 0
    first = file.read_bytes()
    for other in ("--agent oracle", "--agent nop --seed 1", "--agent nop --suite lite-mini"):
        done = run(*command.split(), *other.split(), cwd=tmp_path)
        assert done.returncode == 2 and "another" in done.stderr, done.stderr
        assert "give another --out" in done.stderr and done.stdout == ""
        assert file.read_bytes() == first
    assert run(*command.split(), "--agent", "nop", cwd=tmp_path).returncode == 0
    file.write_text("# My notes\n")
    done = run(*command.split(), "--agent", "nop", cwd=tmp_path)
    assert done.returncode == 2 and "holds no whole evaluation" in done.stderr
    assert file.read_text() == "# My notes\n"


def test_scores_are_verified_against_their_evidence(tmp_path: Path) -> None:
    command = "eval --agent oracle --suite seg-mini --repeats 1 --sandbox local"
    done = run(*command.split(), "--out", "r/all.json", "--trajectories", "r/t", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run("verify", "r", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "1 same, 0 different, 0 unknown, 0 unscored\n")
    # A score that was written by hand, with its digest made to fit.
    file = tmp_path / "r" / "all.json"
    evaluation = Evaluation.load(file)
    [cell] = evaluation.cells
    replace(evaluation, cells=(replace(cell, overall=1.0),)).save(file)
    done = run("verify", "r", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["different"] == 1
    assert found["cells"][0]["found"] == cell.overall and found["cells"][0]["recorded"] == 1.0
    [trajectory] = (tmp_path / "r" / "t").iterdir()
    trajectory.unlink()
    done = run("verify", "r", cwd=tmp_path)
    assert done.returncode == 1 and "unknown: its trajectory is not there" in done.stdout


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("bat-agent ")
    text = run("--help").stdout
    for command in (
        "eval",
        "train",
        "resume",
        "status",
        "report",
        "demo",
        "learn",
        "export",
        "verify",
    ):
        assert command in text


def config(**changes: object) -> RunConfig:
    base = demo_config(backend="local", rounds=1)
    return base.model_copy(update=changes)


def test_a_run_folder_is_claimed_once(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    assert config().claim(run_dir) == load_config(run_dir) == config()
    assert config(rounds=5).claim(run_dir).rounds == 5  # more rounds continue a run
    with pytest.raises(ConfigError, match="seed 0 instead of 1"):
        config(seed=1).claim(run_dir)
    changed = config(preset=load_preset("tiny-cpu").updated(sft={"steps": 7}))
    with pytest.raises(ConfigError, match=r"preset\.sft\.steps"):
        changed.claim(run_dir)
    with pytest.raises(ConfigError, match=r"bank\.demos"):
        config(bank=BankSettings(demos=1)).claim(run_dir)
    (run_dir / "config.json").write_text('{"schema_version": 1, "seed": "x"}')
    with pytest.raises(ConfigError, match="damaged"):
        load_config(run_dir)


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="neither"):
        config().claim(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_status_before_the_first_round_is_one_line(tmp_path: Path) -> None:
    config(rounds=3).claim(tmp_path / "run")
    done = run("status", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert " ".join(done.stdout.split()) == "run · bank · no round of 3 is over yet"
    assert done.stdout.endswith("\n")
