"""Briefs fit the small policy's prompt, however many tasks share its tokenizer."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

from bat_agent.policy import make_codec
from bat_agent.policy.tiny import Sample, train_tokenizer
from bat_agent.presets import load_preset
from bat_agent.scopes import SCOPES, run_config
from bat_agent.sft import PROMPT_SHARE, check_prompts, tokenizer_samples
from bat_env.errors import ConfigError
from bat_env.stages import Stage
from bat_env.tasks import load_suite, load_task, render_brief, task_ids

PROMPT = load_preset("tiny-cpu").rollout.max_prompt_tokens


@functools.cache
def states(task_id: str) -> tuple[Any, ...]:
    """What a bank of a task would hold of its briefs: every focus, with outputs of every case."""
    task = load_task(task_id)
    found = []
    for index in range(4):
        instance = task.instance("train", index, "mini")
        name = task.spec.output.name
        files = [
            "plan/plan.md",
            "plan/facts.json",
            "pipeline/predict.py",
            *(
                f"{folder}/{case}/{name}"
                for folder in ("outputs", "rows")
                for case in instance.cases
            ),
        ]
        for focus in Stage:
            brief = render_brief(
                task, instance, tier="lite", focus=focus, outcome="recovery", files=files
            )
            found.append(
                SimpleNamespace(
                    task=task_id, size="mini", index=index, focus=int(focus), brief=brief
                )
            )
    return tuple(found)


@functools.cache
def codec(tasks: tuple[str, ...]) -> Any:
    rows = [state for name in tasks for state in states(name)]
    return make_codec("line", train_tokenizer(tokenizer_samples([], rows)))


def longest(policy: Any, task_id: str) -> int:
    return max(
        len(policy.prompt_ids({"stage": s.focus, "text": s.brief}, {})) for s in states(task_id)
    )


@pytest.mark.parametrize("task_id", task_ids())
def test_lite_briefs_fit_with_room_for_names_never_seen(task_id: str) -> None:
    together, alone = codec(task_ids()), codec((task_id,))
    check_prompts([], states(task_id), together, PROMPT)
    # Other tasks beside it change how names are spelled, a little; never the constant lines.
    assert longest(together, task_id) <= 1.1 * longest(alone, task_id)
    task = load_task(task_id)
    for index in range(2):
        instance = task.instance("heldout", index, "mini")
        for focus in Stage:
            text = render_brief(task, instance, tier="lite", focus=focus)
            assert len(together.prompt_ids({"stage": int(focus), "text": text}, {})) < PROMPT


def test_the_kidney_brief_stays_as_short_as_it_was() -> None:
    assert longest(codec(("seg/kidney_tumor",)), "seg/kidney_tumor") < 450


def test_a_line_of_one_task_is_one_token_beside_any_number_of_others() -> None:
    samples = [
        Sample(f"Task {task}: do it.\nCase {n}{task}\n", f"{task}/{n}", False, task)
        for task in "abcdefg"
        for n in range(10)
        for _ in range(3)
    ]
    tokenizer = train_tokenizer(samples)
    for task in "abcdefg":
        assert len(tokenizer.encode(f"Task {task}: do it.\n", add_special_tokens=False)) == 1


def test_a_brief_that_cannot_fit_is_refused_before_training() -> None:
    rows, policy = states("seg/kidney_tumor"), codec(("seg/kidney_tumor",))
    most = longest(policy, "seg/kidney_tumor")
    check_prompts([], rows, policy, int(most / PROMPT_SHARE) + 2)
    said = rf"got {most} for seg/kidney_tumor with focus (S\d|E2E).*max_prompt_tokens"
    with pytest.raises(ConfigError, match=said):
        check_prompts([], rows, policy, most)


@pytest.mark.parametrize("scope", SCOPES)
def test_a_run_practises_the_tasks_that_it_is_scored_on(scope: str) -> None:
    config = run_config(scope, title="t", backend="local")
    assert len(config.bank.tasks or ()) == {"seg": 1, "lite": 7}[scope]
    for settings in (config.controller, config.final):
        tasks = {entry.task for entry in load_suite(settings.suite).entries}
        assert tasks == set(config.bank.tasks or ())


def test_a_recipe_of_ones_own_stays_as_it_is() -> None:
    own = load_preset("tiny-cpu").updated(sft={"steps": 7})
    assert run_config("lite", title="t", backend="local", preset=own).preset == own
    usual = run_config("lite", title="t", backend="local").preset
    assert usual.sft.steps == SCOPES["lite"].tiny_cpu["sft"]["steps"]
    changed = load_preset("tiny-cpu").updated(grpo=SCOPES["lite"].tiny_cpu["grpo"])
    assert usual.grpo == changed.grpo and usual.grpo.iterations == 2
