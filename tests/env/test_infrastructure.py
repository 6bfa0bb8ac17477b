"""Deaths: who is to blame, that nothing is half-scored, and that nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import bat_env.workbench
from bat_env.env import AutoMedEnv
from bat_env.errors import ConfigError, SandboxError
from bat_env.sandbox import shared_pool
from bat_env.sandbox.base import Cell, CellResult, Limits, Sandbox
from bat_env.tools import execute_call, submit_call
from bat_env.trajectory import read_trajectory
from bat_env.workbench import Workbench, apply_delta, cell_seed, manifest_digest

MakeEnv = Callable[..., AutoMedEnv]
WRITE = execute_call("python", "open('note.txt', 'w').write('x')")


class Frail:
    """A real sandbox that dies when a cell says so: on every run, or only on the first one."""

    deaths: int = 0

    def __init__(self, inner: Sandbox) -> None:
        self.inner = inner
        self.backend, self.limits = inner.backend, inner.limits

    def run(self, cell: Cell, timeout_s: float | None = None) -> CellResult:
        if "KILL-ALWAYS" in cell.code or ("KILL-ONCE" in cell.code and Frail.deaths == 0):
            Frail.deaths += 1
            self.inner.close()
            raise SandboxError("The worker closed its stream.")
        return self.inner.run(cell, timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class FrailPool:
    """The real pool, its sandboxes made frail."""

    def __init__(self, *args: Any) -> None:
        self.pool = shared_pool(*args)
        self.out = 0
        self.beside = self.pool.beside

    def acquire(self) -> Any:
        self.out += 1
        return Frail(self.pool.acquire())

    def release(self, sandbox: Any) -> None:
        self.out -= 1
        self.pool.release(sandbox.inner)

    @contextlib.contextmanager
    def lease(self, fresh: bool = False) -> Iterator[Any]:
        with self.pool.lease(fresh=fresh) as sandbox:
            yield sandbox


@pytest.fixture
def frail(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FrailPool]]:
    pools: list[FrailPool] = []

    def make(*args: Any) -> FrailPool:
        pools.append(FrailPool(*args))
        return pools[-1]

    Frail.deaths = 0
    monkeypatch.setattr(bat_env.workbench, "shared_pool", make)
    yield pools


def test_a_cell_that_always_kills_is_the_agents(make_env: MakeEnv, frail: list[FrailPool]) -> None:
    env = make_env()
    env.reset(seed=0)
    env.step(WRITE)
    observation, _, terminated, truncated, info = env.step(execute_call("bash", ": KILL-ALWAYS"))
    assert Frail.deaths == 2 and not terminated and not truncated
    assert "limit: memory" in observation["text"]
    assert "violation (worker_killed)" in observation["text"]
    assert "note.txt" in env.workspace(), "the episode goes on in the state before the cell"
    assert env.episode.status == "running"
    *_, terminated, truncated, info = env.step(execute_call("bash", ": KILL-ALWAYS"))
    assert terminated and not truncated and info["status"] == "disqualified"
    assert info["result"]["score"] == 0.0
    assert info["result"]["errors"]["violations"] == {"worker_killed": 2}
    env.close()
    assert frail[0].out == 0, "every sandbox went back or was closed"


def test_disqualification_takes_back_what_was_earned(
    make_env: MakeEnv, frail: list[FrailPool], oracle_actions: list[Any]
) -> None:
    env = make_env()
    env.reset(seed=0)
    rewards = [env.step(action)[1] for action in oracle_actions[:3]]
    rewards += [env.step(execute_call("bash", ": KILL-ALWAYS"))[1] for _ in range(2)]
    assert sum(rewards) == 0.0 and min(rewards) < 0.0 and env.episode.status == "disqualified"


def test_a_death_that_does_not_repeat_is_infrastructure(
    make_env: MakeEnv, frail: list[FrailPool], tmp_path: Path
) -> None:
    env = make_env(trajectory_dir=tmp_path)
    env.reset(seed=0)
    env.step(WRITE)
    with pytest.raises(SandboxError, match="infrastructure"):
        env.step(execute_call("bash", ": KILL-ONCE"))
    assert env.episode.status == "invalid"
    assert read_trajectory(env.trajectory_path or "").status == "invalid"
    assert frail[0].out == 0
    env.reset(seed=0)
    assert env.step(submit_call())[4]["status"] == "submitted"


def test_vector_mode_truncates_instead(make_env: MakeEnv, frail: list[FrailPool]) -> None:
    env = make_env(on_sandbox_error="truncate")
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(execute_call("bash", ": KILL-ONCE"))
    assert (reward, terminated, truncated) == (0.0, False, True)
    assert info["status"] == "invalid" and not info["valid"]
    assert info["score"] is None and info["result"] is None
    assert info["error"].startswith("The episode has no score: ") and "KILL" not in info["error"]
    assert "infrastructure" in info["error"]
    assert observation in env.observation_space


def test_a_disk_that_refuses_makes_the_episode_invalid(make_env: MakeEnv, tmp_path: Path) -> None:
    folder = tmp_path / "trajectories"
    env = make_env(trajectory_dir=folder)
    env.reset(seed=0)
    folder.rmdir()
    folder.write_text("in the way")
    with pytest.raises(SandboxError, match="Cannot write"):
        env.step(submit_call())
    assert env.episode.status == "invalid"


def test_a_refused_first_reset_leaves_no_episode(make_env: MakeEnv) -> None:
    env = make_env()
    with pytest.raises(ConfigError):
        env.reset(options={"task": "seg/none"})
    with pytest.raises(gym.error.ResetNeeded):
        env.step(WRITE)


def test_special_files_warn_then_disqualify(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=0)
    observation, *_, info = env.step(execute_call("bash", "mkfifo pipe"))
    assert "violation (special_file)" in observation["text"]
    *_, terminated, _, info = env.step(execute_call("bash", "mkfifo pipe2"))
    assert terminated and info["result"]["score"] == 0.0


def test_a_sandbox_of_the_caller_is_used_and_not_closed(make_env: MakeEnv) -> None:
    with shared_pool("local", Limits()).lease() as sandbox:
        env = make_env(sandbox=sandbox)
        env.reset(seed=0)
        assert env.step(WRITE)[4]["valid"]
        env.close()
        assert sandbox.manifest()


def test_cell_seeds_and_digests_are_stable() -> None:
    assert cell_seed(1, 0) == cell_seed(1, 0) != cell_seed(1, 1)
    assert 0 <= cell_seed(2**63, 10**6) < 2**32
    assert manifest_digest({}) == manifest_digest({})
    bench = Workbench("local")
    with pytest.raises(SandboxError, match="reset"):
        _ = bench.current
    bench.release()
    bench.drop()


def test_deltas_give_the_manifest(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=0)
    code = "mkdir -p a/b && echo 1 > a/b/c && ln -s c a/b/d"
    for text in (code, "echo 2 > a/b/c; echo x > e", "rm -r a/b; mkdir a/q"):
        env.step(execute_call("bash", text))
        assert dict(env.episode.current) == dict(env._bench.current.manifest())
    assert apply_delta({}, env.episode.cells[-1].result.delta)


SCRIPT = """
import gymnasium as gym, bat_env, os, signal, sys
env = gym.make("AutoMed-Seg-v0", sandbox=sys.argv[1], size="mini")
env.reset(seed=0)
run = lambda code: env.step(
    {"name": "execute_code", "arguments": {"language": "bash", "code": code}}
)
run("(sleep 1000 &) ; echo x > f")
env.unwrapped.truncate("test")
env.reset(seed=1)
run("(setsid sleep 1000 &) ; echo x > f")
print("ready", flush=True)
sys.stdin.readline()
"""


def _descendants(pid: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, todo = set(), [pid]
    while todo:
        for child in children.get(todo.pop(), []):
            found.add(child)
            todo.append(child)
    return found


def _alive(pid: int, started: str) -> bool:
    return _start_time(pid) == started


def _start_time(pid: int) -> str:
    """Tells a process from a later one with the same id; empty for one that is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _mounts() -> set[str]:
    """Mounts of this machine, without those of containers that may come and go meanwhile."""
    return {m for m in Path("/proc/mounts").read_text().splitlines() if "docker" not in m}


@pytest.mark.parametrize("way", ["sigkill", pytest.param("exit", marks=pytest.mark.slow)])
def test_nothing_outlives_the_interpreter(way: str, tmp_path: Path) -> None:
    mounts = _mounts()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "local"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == "ready\n"
    family = {pid: _start_time(pid) for pid in _descendants(process.pid)}
    assert family
    if way == "sigkill":
        process.send_signal(signal.SIGKILL)
    else:
        process.stdin.close()
    process.wait(60)
    deadline = time.monotonic() + 20
    left = set(family)
    while left and time.monotonic() < deadline:
        left = {pid for pid in left if family[pid] and _alive(pid, family[pid])}
        time.sleep(0.2)
    assert not left, [Path(f"/proc/{p}/cmdline").read_text().replace("\0", " ") for p in left]
    assert not _mounts() - mounts
    assert not list(tmp_path.iterdir())
