"""TRL: the environments as dataset, tools and reward of a stock ``trl.GRPOTrainer``.

    spec = BatSpec("AutoMed-Seg-v0", starts=16, env_kwargs={"size": "mini"})
    GRPOTrainer(
        model="Qwen/Qwen3-4B",
        args=GRPOConfig(**spec.trainer_arguments()),
        train_dataset=spec.train_dataset,
        environment_factory=spec.environment_factory,
        reward_funcs=spec.reward_funcs,
    )

Our own recipe (:mod:`bat_agent.grpo`) samples turn by turn and ends an episode where it ends. Here
TRL owns the loop: it has no signal that an episode is over, so that one more action is sampled
after the hand-in, and a reply without a readable call ends the episode as it stands.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from bat_agent.integrations.episodes import SYSTEM, Rollout, Starts
from bat_env.errors import ConfigError
from bat_env.extras import require
from bat_env.tools import EXECUTE, LANGUAGES, SUBMIT, TOOLS


class BatSpec:
    """What a stock GRPOTrainer needs to train on the environments.

    A row of :attr:`train_dataset` is one start: a bank state or a fresh instance, with its brief as
    the prompt. All generations of a prompt start from it, which is checked by digest.

    Args:
        env_id: Gymnasium id, for example ``"AutoMed-Seg-v0"`` or ``"AutoMed-Bank-v0"``.
        starts: Rows of the dataset, all different.
        seed: Decides which.
        options: Reset options of every start: ``stage``, ``outcome``, ``size``, ...
        env_kwargs: Constructor arguments of the environments: ``size``, ``sandbox``, ``bank``, ...
        token_budget: Most tokens of calls and observations together in an episode; with the one
            that passes it, the episode ends and what is there is graded. ``None``: TRL's own limit,
            ``max_completion_length``, alone.
        tokenizer: Counts the tokens of the budget.
        system: System message; empty for none.

    Raises:
        ConfigError: If the extra is missing, held-out instances are asked for, or a budget comes
            without a tokenizer.
    """

    def __init__(
        self,
        env_id: str = "AutoMed-Seg-v0",
        *,
        starts: int = 16,
        seed: int = 0,
        options: Mapping[str, Any] | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
        token_budget: int | None = None,
        tokenizer: Any = None,
        system: str = SYSTEM,
    ) -> None:
        require("train", "The TRL door")
        self._starts = Starts(env_id, starts, seed, options, env_kwargs)
        if token_budget is not None and (token_budget < 1 or tokenizer is None):
            raise ConfigError(
                f"token_budget={token_budget} needs to be at least 1, and a tokenizer that counts "
                "it: give tokenizer=, or leave token_budget out."
            )
        self.system, self.token_budget = system, token_budget
        self._tokenizer = tokenizer

    # ----------------------------------------------------------------------- what a trainer takes

    @cached_property
    def train_dataset(self) -> Any:
        """A :class:`datasets.Dataset` with ``prompt``, ``start``, ``state_id`` and ``digest``.

        Made on first use: each start is reset once for its brief.

        Raises:
            BankError: If the bank has fewer different states than ``starts``.
        """
        from datasets import Dataset

        system = [{"role": "system", "content": self.system}] if self.system else []
        rows = [
            {
                "prompt": [*system, {"role": "user", "content": row["brief"]}],
                "start": row["start"],
                "state_id": row["state_id"],
                "digest": row["digest"],
            }
            for row in self._starts.rows
        ]
        return Dataset.from_list(rows)

    @property
    def environment_factory(self) -> Callable[[], Any]:
        """Makes the tool object of one rollout; no sandbox is taken before its first call."""
        return functools.partial(_Tools, self)

    @property
    def reward_funcs(self) -> list[Callable[..., list[float | None]]]:
        """The score of each episode; ``None`` where the infrastructure failed."""
        return [bat_score]

    def trainer_arguments(self, **changes: Any) -> dict[str, Any]:
        """Arguments for ``GRPOConfig`` that fit the tasks; ``changes`` come on top.

        One tool iteration more than turns, so that the hand-in of the last turn is done, and the
        method's advantage (centred, not divided by the deviation).
        """
        starts = self._starts
        starts.rows  # noqa: B018  (the tasks are known once their starts are)
        return {
            "max_tool_calling_iterations": starts.turns + 1,
            "max_completion_length": self.token_budget or starts.tokens,
            "scale_rewards": "none",
            "loss_type": "grpo",
            **changes,
        }

    def close(self) -> None:
        """Give the sandboxes back. Idempotent; a later rollout takes new ones."""
        self._starts.pool.close()

    def __enter__(self) -> BatSpec:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rollout(self) -> Rollout:
        return Rollout(self._starts.pool, self.token_budget, self._tokens_of)

    def _tokens_of(self, text: str) -> int:
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])


def _as_tool(shape: Callable[..., str]) -> Callable[..., str]:
    """A method that TRL shows as a tool and that takes any arguments.

    A call with wrong arguments reaches the environment, which answers it and counts the turn.
    """

    @functools.wraps(shape)
    def method(self: _Tools, **arguments: Any) -> str:
        return self._rollout.call(shape.__name__, arguments)

    return method


class _Tools:
    """The tool object: every public method of it but ``reset`` is a tool of the agent."""

    def __init__(self, spec: BatSpec) -> None:
        self._rollout = spec._rollout()

    def reset(self, **row: Any) -> None:
        self._rollout.begin({**row, "brief": row["prompt"][-1]["content"]})

    def execute_code(self, language: str, code: str) -> str:
        raise NotImplementedError

    def submit_results(self) -> str:
        raise NotImplementedError

    execute_code.__doc__ = f"""{TOOLS[EXECUTE]["description"]}

        Args:
            language: Interpreter of the code. (choices: {json.dumps(LANGUAGES)})
            code: Source text to run.
        """
    submit_results.__doc__ = TOOLS[SUBMIT]["description"]
    execute_code = _as_tool(execute_code)
    submit_results = _as_tool(submit_results)


def bat_score(environments: list[Any], **_: Any) -> list[float | None]:
    """Reward function: the environment's score of each rollout, ``None`` for an invalid one."""
    return [environment._rollout.score() for environment in environments]
