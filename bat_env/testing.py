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
from bat_env.stages import SCORE_QUANTUM, Stage
from bat_env.task_rules import Depth, run_rules
from bat_env.tasks import Task, load_task, render_brief, stage_files
from bat_env.tasks.instance import SPLITS
from bat_env.tasks.lines import shared_lines
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
    _check_basics(loaded)
    for rule, wrong in run_rules(loaded, depth=depth, sandbox=sandbox):
        assert not wrong, f"{rule}: {wrong}"


def task_findings(
    task: Task, *, depth: Depth = "all", sandbox: str = "auto"
) -> Iterator[tuple[str, str]]:
    """The same rules as :func:`check_task`, all of them: ``(rule, what is wrong or "")``."""
    try:
        _check_basics(task)
    except AssertionError as error:
        yield "basics", str(error)
    else:
        yield "basics", ""
    yield from run_rules(task, depth=depth, sandbox=sandbox)


def _check_basics(task: Task) -> None:
    """What needs no metric and no sandbox."""
    spec = task.spec
    values = [{json.dumps(f, sort_keys=True) for f in spec.fiction[s]} for s in spec.fiction]
    assert len(set().union(*values)) == sum(map(len, values)), (
        "Fictional parameters of train, dev and heldout must be disjoint."
    )
    for name, score in spec.floors.items():
        assert score <= 0.10, f"Trivial output {name} scores {score}, more than .10."
    _check_scripts(task)
    for size in sorted(spec.sizes, reverse=True):  # mini first: it says the same, sooner
        for split in SPLITS:
            one = task.instance(split, 0, size)  # type: ignore[arg-type]
            other = task.instance(split, 1, size)  # type: ignore[arg-type]
            assert one.public != other.public, f"{split} {size}: two indices, one instance."
            assert one.seed != other.seed, f"{split}: two indices, one seed."
            _check_staging(task, one)


def _check_scripts(task: Task) -> None:
    """Decisions, mistakes and the scripts that are made of them."""
    decisions = {decision.id: decision for decision in task.decisions}
    assert len(decisions) == len(task.decisions), "Decision ids must be unique."
    for decision in task.decisions:
        assert len(set(decision.options)) == len(decision.options) >= 2, (
            f"Decision {decision.id} must have two different options or more."
        )
    assert len({m.id for m in task.mistakes}) == len(task.mistakes), "Mistake ids must be unique."
    variants = {f"Mistake {m.id}": m.choices for m in task.mistakes}
    for name, choices in {**variants, "The naive script": task.naive_choices}.items():
        for decision_id, option in choices.items():
            assert decision_id in decisions, f"{name} takes a decision {decision_id!r}: none such."
            known = decisions[decision_id].options
            assert option in known, f"{name} takes {decision_id}={option!r}: none such."
            assert option != known[0], f"{name} takes {decision_id}={option!r}, the good option."
    for stage in Stage:
        assert task.script(focus=stage), f"The script has no cell for {stage.name}."
    for mistake in task.mistakes:
        assert any(
            task.script(mistake.choices, focus=focus, tier=mistake.tier)
            != task.script(focus=focus, tier=mistake.tier)
            for focus in Stage
        ), f"Mistake {mistake.id} changes no cell: nothing would show it."
    shared = shared_lines(task)
    assert not shared, f"One line must not mean two things: {shared[0]}."


def _check_staging(task: Task, instance: Any) -> None:
    private = [
        data for tree in (instance.private, instance.probe_private) for data in tree.values()
    ]
    for tier in task.spec.tiers:
        for focus in Stage:
            files = stage_files(task, instance, tier, focus)
            leaked = [path for path, data in files.items() if data in private]
            assert not leaked, f"{leaked[0]} holds private truth."
            brief = render_brief(task, instance, tier=tier, focus=focus)
            assert brief.strip(), f"The brief of {tier} {focus.name} is empty."
            assert str(instance.seed) not in brief, "The brief names the seed."


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
