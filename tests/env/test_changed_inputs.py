"""Read-only places that changed are a violation, found at hand-in by the supervisor's digests."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bat_env.env import AutoMedEnv
from bat_env.sandbox import Cell
from bat_env.sandbox.base import FileEntry
from bat_env.tools import execute_call, submit_call

MakeEnv = Callable[..., AutoMedEnv]
SPOIL = execute_call("bash", "chmod -R u+w /data; for f in /data/*/*; do echo spoilt > $f; done")


def _kinds(env: AutoMedEnv) -> list[str]:
    return [violation.kind for violation in env.episode.violations]


@pytest.mark.parametrize("backend", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_walls_hold_so_nothing_is_found(make_env: MakeEnv, backend: str) -> None:
    env = make_env(sandbox=backend)
    env.reset(seed=0)
    env.step(SPOIL)
    assert env._bench.changed_inputs() == ""
    *_, info = env.step(submit_call())
    assert info["status"] == "submitted" and _kinds(env) == []


def test_without_walls_the_change_is_found_and_warned_of(make_env: MakeEnv) -> None:
    """Nothing but the tests' own temporary folders is touched."""
    env = make_env(sandbox="process")
    env.reset(seed=0)
    assert env._bench.changed_inputs() == ""
    env.step(SPOIL)
    assert env._bench.changed_inputs().startswith("changed read-only files: data/")
    *_, terminated, truncated, info = env.step(submit_call())
    assert terminated and not truncated and info["status"] == "submitted"
    assert _kinds(env) == ["readonly_changed"]


def test_a_second_violation_at_hand_in_disqualifies(make_env: MakeEnv) -> None:
    env = make_env(sandbox="process")
    env.reset(seed=0)
    env.step(execute_call("bash", "mkfifo pipe"))
    env.step(execute_call("bash", "rm -rf /skills/* /skills/.[a-z]*; touch /data/more"))
    *_, terminated, truncated, info = env.step(submit_call())
    assert terminated and not truncated and info["status"] == "disqualified"
    assert info["result"]["score"] == 0.0
    assert _kinds(env) == ["special_file", "readonly_changed"]
    assert "data/more" in env.episode.violations[1].detail


def test_truncation_looks_as_well(make_env: MakeEnv) -> None:
    env = make_env(sandbox="process")
    env.reset(seed=0)
    env.step(SPOIL)
    *_, info = env.truncate("tokens")
    assert info["status"] == "truncated" and _kinds(env) == ["readonly_changed"]


def test_a_backend_that_cannot_tell_is_not_blamed(
    make_env: MakeEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env(sandbox="local")
    env.reset(seed=0)
    sandbox = env._bench.current
    seen = dict(sandbox.inputs())  # type: ignore[attr-defined]
    path = next(path for path, entry in seen.items() if entry.kind == "file")
    for forged in ({**seen, path: FileEntry("symlink")}, {p: seen[p] for p in seen if p != path}):
        monkeypatch.setattr(sandbox, "inputs", lambda forged=forged: forged, raising=False)
        assert env._bench.changed_inputs() == f"changed read-only files: {path}"
    monkeypatch.setattr(sandbox, "inputs", None, raising=False)
    assert env._bench.changed_inputs() == ""
    assert sandbox.run(Cell("python", "print(1)")).ok
