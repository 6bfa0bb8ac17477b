"""Starts and episodes as other projects' trainers see them: a brief, two tools, a score.

A start is a row: the brief, and everything that begins the same episode again. An episode takes no
sandbox before its first call and gives it back after its last.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, Final

from bat_agent.rollout.episodes import (
    ATTEMPTS,
    INFRASTRUCTURE,
    EnvPool,
    GroupMismatchError,
    ResetSpec,
)
from bat_env.errors import BankError, ConfigError

SYSTEM: Final = (
    "You are a careful medical-imaging engineer. You work in a sandbox by calling tools, one call "
    "per turn."
)
OVER: Final = "The episode is over; this call was not done."
BROKEN: Final = "The infrastructure failed; this episode has no score."
_DRAWS: Final = 8
"""Draws for each wanted start before the bank counts as too small."""

_logger = logging.getLogger(__name__)


class Starts:
    """Different starts of one environment, drawn by a seed.

    Args:
        env_id: Gymnasium id.
        count: How many, all different.
        seed: Decides which.
        options: Reset options of every start.
        env_kwargs: Constructor arguments of the environments.
        pool: Lends the environments; ``None`` for one of its own.

    Raises:
        ConfigError: If held-out instances are asked for, or ``count`` is below 1.
    """

    def __init__(
        self,
        env_id: str,
        count: int,
        seed: int,
        options: Mapping[str, Any] | None,
        env_kwargs: Mapping[str, Any] | None,
        pool: EnvPool | None = None,
    ) -> None:
        self.env_id, self.count, self.seed = env_id, count, seed
        self.options, self.env_kwargs = dict(options or {}), dict(env_kwargs or {})
        if self.env_kwargs.get("split") == "heldout":
            raise ConfigError("Held-out instances are for evaluation; train on split='train'.")
        if count < 1:
            raise ConfigError(f"starts must be at least 1, got {count}.")
        self.pool = pool or EnvPool()
        self.turns = self.tokens = 0

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """``brief``, ``start`` (a reset specification), ``state_id``, ``task`` and ``digest``.

        Made on first use: each start is reset once for its brief. ``turns`` and ``tokens`` are then
        the largest budgets of their tasks.

        Raises:
            BankError: If the bank has fewer different states than ``count``.
        """
        rows: dict[Any, dict[str, Any]] = {}
        asked = ResetSpec(self.env_id, self.seed, self.options, self.env_kwargs)
        env = self.pool.acquire(asked)
        try:
            for draw in range(self.count * _DRAWS):
                seed = self.seed * 1_000_003 + draw
                observation, info = env.reset(seed=seed, options=dict(self.options))
                budgets = env.unwrapped.budgets
                self.turns = max(self.turns, budgets.turns)
                self.tokens = max(self.tokens, budgets.response_tokens)
                key = info["state_id"] or (info["task"], info["index"], info["size"])
                rows.setdefault(key, self._row(seed, observation, info))
                if len(rows) == self.count:
                    break
        except BaseException:
            self.pool.discard(env)
            raise
        self.pool.release(asked, env)
        if len(rows) < self.count:
            raise BankError(
                f"Expected {self.count} different starts, the bank gave {len(rows)} in "
                f"{self.count * _DRAWS} draws. Ask for fewer, or run `bat-env bank build`."
            )
        return list(rows.values())

    def _row(
        self, seed: int, observation: Mapping[str, Any], info: Mapping[str, Any]
    ) -> dict[str, Any]:
        # Pinned, so that a bank that grows meanwhile changes no group.
        if info["state_id"]:
            options = {"state_id": info["state_id"]}
        else:
            options = {"task": info["task"], "index": info["index"], "size": info["size"]}
        return {
            "brief": str(observation["text"]),
            "start": ResetSpec(self.env_id, seed, options, self.env_kwargs).to_json(),
            "state_id": info["state_id"] or "",
            "task": info["task"],
            "digest": digest_of_start(info),
        }


def digest_of_start(info: Mapping[str, Any]) -> str:
    """What must be equal for all rollouts of a group."""
    return f"{info['instance_digest']}:{info['workspace_digest']}"


class Rollout:
    """One episode behind two tools; reusable for the next.

    Args:
        pool: Lends the environments.
        budget: Most tokens of calls and answers together, or ``None``.
        count: Counts the tokens of a text; needed for a budget.
    """

    def __init__(
        self,
        pool: EnvPool,
        budget: int | None = None,
        count: Callable[[str], int] = len,
    ) -> None:
        self._pool, self._budget, self._count = pool, budget, count
        self._env: Any = None
        self._start: ResetSpec | None = None
        self._forget()

    def _forget(self) -> None:
        self._digest, self._brief = "", ""
        self._tokens = 0
        self._score: float | None = 0.0
        self._over = False
        self._error: Exception | None = None

    def begin(self, row: Mapping[str, Any]) -> None:
        """Take the start of a new episode; nothing is set up yet."""
        self._end(healthy=True)
        self._forget()
        self._start = ResetSpec.from_json(row["start"])
        self._digest, self._brief = row["digest"], row["brief"]

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Do one tool call; its answer, whatever came."""
        if self._over:
            return OVER if self._score is not None else BROKEN
        try:
            if self._env is None:
                self._reset()
            if self._spend(json.dumps(arguments, ensure_ascii=False, default=str)):
                return self._take(self._env.unwrapped.truncate("tokens"))
            text = self._take(self._env.step({"name": name, "arguments": dict(arguments)}))
            if self._spend(text) and not self._over:
                self._take(self._env.unwrapped.truncate("tokens"))
            return text
        except INFRASTRUCTURE as error:
            return self._broken(error)
        except GroupMismatchError as error:
            # Harnesses turn what a tool raises into a tool's answer: raised with the score.
            self._error = error
            return self._broken(error)

    @property
    def sandboxed(self) -> bool:
        """Whether an environment is in use now."""
        return self._env is not None

    def score(self) -> float | None:
        """The final score in [0, 1]; an episode that runs is ended and graded.

        Without a call nothing was done, and nothing was earned.

        Raises:
            GroupMismatchError: If the episode did not start as its group did.
        """
        if self._error is not None:
            raise self._error
        if self._env is not None and not self._over:
            try:
                self._take(self._env.unwrapped.truncate("the agent made no further call"))
            except INFRASTRUCTURE as error:
                self._broken(error)
        self._over = True
        return self._score

    def abandon(self) -> None:
        """Give the episode up without a score."""
        self._over = True
        self._end(healthy=True)

    def _spend(self, text: str) -> bool:
        if self._budget is None:
            return False
        self._tokens += self._count(text)
        return self._tokens > self._budget

    def _reset(self) -> None:
        start = self._start
        if start is None:
            raise ConfigError("Expected reset(start=..., ...) before the first call.")
        for attempt in range(ATTEMPTS):
            self._env = self._pool.acquire(start)
            try:
                observation, info = self._env.reset(seed=start.seed, options=dict(start.options))
                break
            except INFRASTRUCTURE:
                self._end(healthy=False)
                if attempt + 1 == ATTEMPTS:
                    raise
        if (digest_of_start(info), observation["text"]) != (self._digest, self._brief):
            raise GroupMismatchError(
                f"A rollout of {start.to_json()} began in another state than its prompt says. "
                "Was the bank or a task changed since the dataset was made? Draw the starts anew."
            )

    def _take(self, step: Any) -> str:
        observation, _, terminated, truncated, info = step
        if terminated or truncated:
            result = info.get("result")
            self._score = None if result is None else float(result["score"])
            self._over = True
            self._end(healthy=self._score is not None)
        return str(observation["text"])

    def _broken(self, error: Exception) -> str:
        _logger.warning("A rollout has no score: %s", error)
        self._score, self._over = None, True
        self._end(healthy=False)
        return BROKEN

    def _end(self, *, healthy: bool) -> None:
        """Give the environment up; its sandbox serves the next rollout that needs one."""
        env, self._env = self._env, None
        if env is None or self._start is None:
            return
        if healthy:
            self._pool.release(self._start, env)
        else:
            self._pool.discard(env)
