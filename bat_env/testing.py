"""Checks for third parties: does an environment, a task folder or a sandbox keep its contract?

The checks raise ``AssertionError`` with a sentence that says which rule was broken and how;
:func:`sandbox_conformance` returns a report. They run in a plain script or under pytest.
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from gymnasium.utils.env_checker import check_env, data_equivalence

from bat_env.errors import ConfigError
from bat_env.sandbox import Limits, Sandbox, make_sandbox
from bat_env.sandbox.check import CheckReport, CheckRow
from bat_env.stages import SCORE_QUANTUM
from bat_env.task_rules import Depth, OnCost, run_rules
from bat_env.tasks import Task, load_task
from bat_env.testing_sandbox import CASE_LIMITS, Make, SandboxCase, sandbox_cases
from bat_env.tools import execute_call, submit_call

__all__ = [
    "BAD_ACTIONS",
    "SandboxCase",
    "check_environment",
    "check_task",
    "play",
    "sandbox_cases",
    "sandbox_conformance",
    "task_findings",
]

BAD_ACTIONS: tuple[Any, ...] = (
    None,
    "print(1)",
    [],
    {"name": "submit_results"},
    {"name": "execute_kode", "arguments": {}},
    {"name": "execute_code", "arguments": {"language": "perl", "code": "1"}},
    {"name": "execute_code", "arguments": {"language": "python", "code": 1}},
    {"name": "execute_code", "arguments": {"language": "python", "code": "a\0"}},
    {"name": "execute_code", "arguments": {"language": "python", "code": "\ud800"}},
)
"""Actions that must become observations."""


def check_environment(make: Callable[[], gym.Env[Any, Any]]) -> None:
    """Check an environment: Gymnasium's checker without warnings, and the suite's own rules.

    Args:
        make: Makes a fresh environment; called several times, each one is closed.

    Raises:
        AssertionError: Names the broken rule.
    """
    env = make()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            check_env(env.unwrapped, skip_render_check=False)
    finally:
        env.close()
    _check_spec(make)
    _check_bad_actions(make)
    _check_reward_sum(make)
    _check_determinism(make)
    env = make()
    env.close()
    env.close()


def play(
    env: gym.Env[Any, Any], actions: list[Any], *, seed: int = 0
) -> list[tuple[Any, float, bool, bool, dict[str, Any]]]:
    """Reset with ``seed``, then step through ``actions`` until the episode ends."""
    env.reset(seed=seed)
    steps = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append((observation, float(reward), terminated, truncated, info))
        if terminated or truncated:
            break
    return steps


def _check_spec(make: Callable[[], gym.Env[Any, Any]]) -> None:
    env = make()
    spec = env.spec
    env.close()
    if spec is None:
        return
    assert pickle.loads(pickle.dumps(spec)) == spec, "The spec must survive pickle."
    text = spec.to_json()
    assert EnvSpec.from_json(text).to_json() == text, "The spec must survive JSON."


def _check_bad_actions(make: Callable[[], gym.Env[Any, Any]]) -> None:
    env = make()
    try:
        env.reset(seed=0)
        for action in BAD_ACTIONS:
            observation, reward, terminated, truncated, info = env.step(action)
            assert observation in env.observation_space, f"{action!r}: not a valid observation."
            assert info["valid"] is False, f"{action!r} must be marked as not valid."
            assert isinstance(info["error"], str), f"{action!r} must say what is wrong."
            assert reward == 0.0, f"{action!r} must not change the score."
            if terminated or truncated:
                return
    finally:
        env.close()


def _check_reward_sum(make: Callable[[], gym.Env[Any, Any]]) -> None:
    env = make()
    try:
        cell = execute_call("python", "open('note.txt', 'w').write('x')")
        steps = play(env, [cell, BAD_ACTIONS[0], submit_call()])
    finally:
        env.close()
    info = steps[-1][4]
    assert steps[-1][2] and not steps[-1][3], "submit_results must end the episode as terminated."
    total = sum(step[1] for step in steps)
    score = info["result"]["score"]
    assert total == score, f"Rewards sum to {total!r}, the score is {score!r}."
    assert (score / SCORE_QUANTUM).is_integer(), f"{score!r} is no multiple of 2**-20."


def _check_determinism(make: Callable[[], gym.Env[Any, Any]]) -> None:
    code = "import random\nprint(random.random())\nopen('a.txt', 'w').write('a')"
    actions = [execute_call("python", code), execute_call("bash", "ls"), submit_call()]
    runs = []
    for _ in range(2):
        env = make()
        try:
            runs.append(play(env, actions, seed=5))
        finally:
            env.close()
    for one, two in zip(*runs, strict=True):
        assert data_equivalence(one, two, exact=True), (
            f"Equal seed and actions must give equal results; got {one!r} and {two!r}."
        )
        json.dumps(one[4])


def check_task(task: Task | str, *, depth: Depth = "files", sandbox: str = "auto") -> None:
    """Check what every task folder must keep; ``bat-env tasks check`` does the same.

    Args:
        task: The task or its id.
        depth: How many of its scripts to play too: none (``"files"``), some on the reduced size
            (``"quick"``), or ``"all"``: what careful and careless work score from scratch and from
            states, what each listed mistake costs, and how much CPU time an episode takes.
        sandbox: Backend of the episodes.

    Raises:
        AssertionError: Names the broken rule.
    """
    loaded = load_task(task) if isinstance(task, str) else task
    for rule, wrong in run_rules(loaded, depth=depth, sandbox=sandbox):
        assert not wrong, f"{rule}: {wrong}"


def task_findings(
    task: Task, *, depth: Depth = "all", sandbox: str = "auto", on_cost: OnCost | None = None
) -> Iterator[tuple[str, str]]:
    """The same rules as :func:`check_task`, all of them: ``(rule, what is wrong or "")``.

    Args:
        task: The task.
        depth: As in :func:`check_task`.
        sandbox: Backend of the episodes.
        on_cost: Called with each mistake that was played and what it really cost, part by part.
    """
    yield from run_rules(task, depth=depth, sandbox=sandbox, on_cost=on_cost)


def sandbox_conformance(backend: str | Make, **options: Any) -> CheckReport:
    """Run :func:`~bat_env.testing_sandbox.sandbox_cases` against a backend.

    Args:
        backend: A registered name, or a callable ``(limits) -> Sandbox``.
        options: Further keyword arguments of a registered backend.

    Returns:
        One row for each promise to the environment: whether it holds, and what was seen if not.
        What the backend keeps hostile code from is the matter of ``bat-env sandbox check``.

    Raises:
        ConfigError: If the name is ``"auto"``.
        SandboxError: If the backend cannot start here.
    """
    if backend == "auto":
        raise ConfigError("Name the backend to check, for example 'local'; 'auto' may vary.")

    def make(limits: Limits) -> Sandbox:
        if isinstance(backend, str):
            return make_sandbox(backend, limits, **options)
        return backend(limits)

    name = backend if isinstance(backend, str) else getattr(backend, "__name__", "sandbox")
    sandbox = make(CASE_LIMITS)
    rows = []
    try:
        sandbox.start()
        for case in sandbox_cases():
            try:
                case.run(make, sandbox)
                rows.append(CheckRow(case.name, True, ""))
            except Exception as error:
                detail = str(error) if isinstance(error, AssertionError) else repr(error)
                rows.append(CheckRow(case.name, False, detail[:500]))
                sandbox.close()
                sandbox = make(CASE_LIMITS)
                sandbox.start()
    finally:
        sandbox.close()
    return CheckReport(name, tuple(rows))
