"""The TRL door with the real, stock GRPOTrainer: its tool loop, its loss, its optimiser."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from private_words import leaked, needles

from bat_agent.integrations.trl import BatSpec
from bat_agent.policy.tiny import Sample, TinyModelConfig, build_model, train_tokenizer
from bat_agent.rollout.episodes import GroupMismatchError
from bat_env.bank import Bank, StageState
from bat_env.errors import BankError, ConfigError
from bat_env.rubric import compile_contract
from bat_env.stages import Stage
from bat_env.tasks import load_task
from bat_env.tools import execute_call, openai_tools, submit_call

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
pytestmark = pytest.mark.train

TASK = "seg/kidney_tumor"
KWARGS = {"sandbox": "local", "size": "mini"}


def script(choices: dict[str, str] | None = None) -> list[dict[str, Any]]:
    cells = load_task(TASK).script(choices)
    return [execute_call(c.language, c.code) for c in cells] + [submit_call()]


@pytest.fixture(scope="module")
def scripts() -> dict[str, list[dict[str, Any]]]:
    oracle = script()
    return {
        "oracle": oracle,
        "naive": script(load_task(TASK).naive_choices),
        "nop": [submit_call()],
        "gives up": oracle[:2],
        "says nothing": [],
        "errs": [{"name": "execute_code", "arguments": {"code": "1"}}, *oracle],
    }


@pytest.fixture(scope="module")
def tokenizer(scripts: dict[str, list[dict[str, Any]]]) -> Any:
    """A tokenizer of the tiny policy that speaks Qwen's chat template; a call is one token."""
    from tokenizers import AddedToken
    from trl.chat_template_utils import qwen3_chat_template

    made = train_tokenizer(
        [Sample("A line.\n")] * 3, TinyModelConfig(vocab_pieces=0, context_tokens=8192)
    )
    made.add_special_tokens({"eos_token": "<|im_end|>"})
    made.add_tokens(["<|im_start|>", "<tool_call>", "</tool_call>", "<think>", "</think>"])
    calls = {spelled(call) for calls in scripts.values() for call in calls}
    made.add_tokens([AddedToken(text, normalized=False) for text in sorted(calls)])
    made.chat_template = qwen3_chat_template
    return made


@pytest.fixture
def spec() -> Iterator[BatSpec]:
    with BatSpec(starts=2, seed=3, env_kwargs=KWARGS) as made:
        yield made


def trainer_of(spec: BatSpec, tokenizer: Any, folder: Path, **changes: Any) -> Any:
    from trl import GRPOConfig, GRPOTrainer

    arguments = spec.trainer_arguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        num_generations=2,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        seed=0,
        **changes,
    )
    config = TinyModelConfig(hidden_size=32, layers=1, context_tokens=8192)
    return GRPOTrainer(
        model=build_model(tokenizer, config, seed=0),
        args=GRPOConfig(**arguments),
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=spec.reward_funcs,
        processing_class=tokenizer,
    )


def spelled(call: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"


def spoken(tokenizer: Any, call: dict[str, Any] | None) -> list[int]:
    text = "" if call is None else spelled(call)
    return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]


def direct(spec: BatSpec, row: dict[str, Any], calls: list[dict[str, Any]]) -> float:
    """The same script on the environment itself."""
    start = json.loads(row["start"])
    env = gym.make(start["env_id"], **start["env_kwargs"])
    try:
        env.reset(seed=start["seed"], options=start["options"])
        info: dict[str, Any] = {}
        for call in calls:
            info = env.step(call)[-1]
        if not calls or info["status"] == "running":
            info = env.unwrapped.truncate("stopped")[-1]
        return float(info["result"]["score"])
    finally:
        env.close()


def test_the_tool_object_shows_the_two_tools_and_nothing_else(spec: BatSpec) -> None:
    from transformers.utils import get_json_schema

    tools = spec.environment_factory()
    public = {
        name: getattr(tools, name)
        for name, _ in inspect.getmembers(type(tools), predicate=inspect.isfunction)
        if not name.startswith("_") and name != "reset"
    }
    assert sorted(public) == ["execute_code", "submit_results"]
    assert [name for name in vars(tools) if not name.startswith("_")] == []
    ours = {tool["function"]["name"]: tool["function"] for tool in openai_tools()}
    for name, method in public.items():
        shown = get_json_schema(method)["function"]
        assert shown["description"] == ours[name]["description"]
        parameters = ours[name]["parameters"]
        assert shown["parameters"]["properties"].keys() == parameters["properties"].keys()
        assert shown["parameters"].get("required", []) == parameters["required"]
    assert get_json_schema(tools.execute_code)["function"]["parameters"]["properties"]["language"][
        "enum"
    ] == ["python", "bash"]


def test_stock_trainer_scores_scripts_as_direct_runs_do(
    spec: BatSpec, scripts: dict[str, list[dict[str, Any]]], tokenizer: Any, tmp_path: Path
) -> None:
    trainer = trainer_of(spec, tokenizer, tmp_path, max_steps=1)
    trainer.num_generations = len(scripts)
    left = [list(calls) for calls in scripts.values()]
    live = list(range(len(left)))

    read: list[str] = []

    def turn(prompt_ids: list[list[int]], *_: Any, **__: Any) -> tuple[list[list[int]], None]:
        read.extend(tokenizer.decode(ids) for ids in prompt_ids)
        calls = {i: left[i].pop(0) if left[i] else None for i in live}
        assert len(prompt_ids) == len(calls)
        live[:] = [i for i, call in calls.items() if call is not None]
        return [spoken(tokenizer, call) for call in calls.values()], None

    scored: list[float | None] = []

    def watched(**kwargs: Any) -> list[float | None]:
        scored.extend(spec.reward_funcs[0](**kwargs))
        return list(scored)

    trainer._generate_single_turn = turn
    trainer.reward_funcs[0] = watched
    row = spec.train_dataset[0]
    made = trainer._generate_and_score_completions([dict(row) for _ in scripts])
    assert made["completion_ids"].shape[0] == len(scripts)
    expected = {name: direct(spec, row, calls) for name, calls in scripts.items()}
    assert dict(zip(scripts, scored, strict=True)) == expected
    assert 0 < expected["naive"] < expected["oracle"] and expected["oracle"] > 0.7
    assert expected["nop"] == expected["says nothing"] == 0
    # Every token that a policy was shown, against what the host alone knows of the episodes.
    start = json.loads(row["start"])
    env = gym.make(start["env_id"], **start["env_kwargs"])
    try:
        _, info = env.reset(seed=start["seed"], options=start["options"])
    finally:
        env.close()
    scores = {"score": expected["oracle"], "stages": {"naive": expected["naive"]}}
    assert len(read) > 10 and leaked(read, needles(info, scores)) == []


def test_stock_trainer_takes_two_real_steps(
    spec: BatSpec, scripts: dict[str, list[dict[str, Any]]], tokenizer: Any, tmp_path: Path
) -> None:
    import torch

    # An untrained policy writes noise: it may only choose among whole calls, one a turn.
    calls = [*scripts["oracle"][:2], submit_call()]
    words = {i for call in calls for i in spoken(tokenizer, call)}
    silent = [i for i in range(len(tokenizer)) if i not in words]
    forced = {"suppress_tokens": silent, "max_new_tokens": 2}
    turns = {"max_steps": 2, "max_tool_calling_iterations": 3}
    trainer = trainer_of(spec, tokenizer, tmp_path, generation_kwargs=forced, **turns)
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(steps) == 2 and all(0 <= step["reward"] <= 1 for step in steps)
    assert max(step["reward"] for step in steps) > 0
    assert max(step["grad_norm"] for step in steps) > 0
    assert any(not torch.equal(v, before[n]) for n, v in trainer.model.named_parameters())


def test_no_sandbox_before_the_first_call_and_none_after_the_last(spec: BatSpec) -> None:
    row = spec.train_dataset[0]
    tools = [spec.environment_factory() for _ in range(3)]
    for tool in tools:
        assert tool.reset(**row) is None
    assert not any(tool._rollout.sandboxed for tool in tools)
    tools[0].execute_code(language="bash", code="true")
    assert tools[0]._rollout.sandboxed and not tools[1]._rollout.sandboxed
    assert "handed in" in tools[0].submit_results()
    assert "over" in tools[0].execute_code(language="bash", code="true")
    assert not tools[0]._rollout.sandboxed
    assert spec.reward_funcs[0](environments=tools) == [0.0, 0.0, 0.0]


def test_wrong_arguments_cost_a_turn_and_are_answered(spec: BatSpec) -> None:
    tools = spec.environment_factory()
    tools.reset(**spec.train_dataset[0])
    assert 'lacks the argument "language"' in tools.execute_code(code="1")
    assert "Unknown argument" in tools.submit_results(now=True)
    assert len(tools._rollout._env.unwrapped.episode.turns) == 2


def test_the_token_budget_ends_the_episode_and_grades_it(
    scripts: dict[str, list[dict[str, Any]]], tokenizer: Any
) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        BatSpec(token_budget=5)
    with BatSpec(starts=1, env_kwargs=KWARGS, token_budget=1500, tokenizer=tokenizer) as spec:
        assert spec.trainer_arguments()["max_completion_length"] == 1500
        row = spec.train_dataset[0]
        tools = spec.environment_factory()
        tools.reset(**row)
        first = scripts["oracle"][0]["arguments"]
        tools.execute_code(**first)
        answer = tools.execute_code(language="python", code="#" * 1500)
        assert "tokens" in answer and "over" in tools.submit_results()
        assert spec.reward_funcs[0](environments=[tools]) == [
            direct(spec, row, scripts["oracle"][:1])
        ]


def test_an_infrastructure_failure_has_no_reward(spec: BatSpec) -> None:
    tools = spec.environment_factory()
    tools.reset(**spec.train_dataset[0])
    tools.execute_code(language="bash", code="true")
    tools._rollout._env.unwrapped._bench.current.close()
    assert "no score" in tools.execute_code(language="bash", code="true")
    assert "no score" in tools.submit_results()
    assert spec.reward_funcs[0](environments=[tools]) == [None]
    tools.reset(**spec.train_dataset[1])
    tools.submit_results()
    assert spec.reward_funcs[0](environments=[tools]) == [0.0]


def test_a_rollout_that_starts_elsewhere_stops_the_training(spec: BatSpec) -> None:
    one, other = spec.train_dataset
    assert one["start"] != other["start"] and one["prompt"] != other["prompt"]
    tools = spec.environment_factory()
    tools.reset(**{**one, "start": other["start"]})
    tools.execute_code(language="bash", code="true")
    with pytest.raises(GroupMismatchError, match="another state"):
        spec.reward_funcs[0](environments=[tools])


def test_rows_from_the_bank_are_its_states(tmp_path: Path) -> None:
    task = load_task(TASK)
    with Bank.open(tmp_path / "bank", create=True) as bank:
        for index in (3, 4):
            for outcome in ("success", "failure"):
                contract = compile_contract(task.spec, tier="lite", focus=Stage.S1, outcome=outcome)
                state = StageState(
                    track="seg",
                    task=TASK,
                    task_digest=task.digest,
                    index=index,
                    instance_digest=task.instance("train", index, "mini").digest,
                    focus=Stage.S1,
                    outcome=outcome,
                    rubric_digest=contract.digest,
                )
                bank.add(state, {"note.txt": str(index).encode()})
    asked = {"stage": "S1"}
    kwargs = {**KWARGS, "bank": str(tmp_path / "bank")}
    with BatSpec(starts=4, options=asked, env_kwargs=kwargs) as spec:
        states = spec.train_dataset["state_id"]
        assert len(set(states)) == 4 and all(states)
        tools = [spec.environment_factory() for _ in range(2)]
        for tool in tools:
            tool.reset(**spec.train_dataset[0])
        answers = [t.execute_code(language="bash", code="cat note.txt") for t in tools]
        assert answers[0] == answers[1]
        assert spec.reward_funcs[0](environments=tools) == [0.0, 0.0]
    with (
        BatSpec(starts=5, options=asked, env_kwargs=kwargs) as spec,
        pytest.raises(BankError, match="Expected 5 different starts, the bank gave 4"),
    ):
        spec.train_dataset  # noqa: B018


def test_held_out_instances_are_refused() -> None:
    with pytest.raises(ConfigError, match="Held-out"):
        BatSpec(env_kwargs={"split": "heldout"})
