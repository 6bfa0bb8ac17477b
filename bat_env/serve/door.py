"""One episode for an agent outside: what it may ask for, and nothing else."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from bat_env.config import TIERS, one_of
from bat_env.env import AutoMedEnv
from bat_env.errors import BatError, unknown_name
from bat_env.sandbox.base import Sandbox
from bat_env.stages import Stage
from bat_env.tasks import load_task

_logger = logging.getLogger(__name__)

OVER: Final = "The episode is over; no call is taken any more."
FAILED: Final = "The infrastructure failed; this episode is invalid and has no score."


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call gives the agent.

    Attributes:
        text: The observation.
        ok: Whether the call was a valid one and did something.
        over: Whether the episode is over now.
    """

    text: str
    ok: bool = True
    over: bool = False


class Door(Protocol):
    """One episode as a protocol's server sees it. Calls may block; one at a time."""

    def brief(self) -> str:
        """The task in words; the first use of the door starts the episode."""

    def skills(self) -> Mapping[str, str]:
        """File name -> text of the stage skills that are granted; starts nothing."""

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """Do one tool call."""

    def leave(self, reason: str) -> None:
        """The agent is gone: what is there is graded, everything is given back. Idempotent."""

    def introduce(self, name: str) -> None:
        """Who the agent says it is."""


@dataclass(frozen=True)
class EpisodePlan:
    """How the episodes of a server start; checked when it is made.

    Attributes:
        task: Task id or name.
        tier, split, size: As of :class:`~bat_env.env.AutoMedEnv`.
        stage: Focus from the Stage Bank, or ``None``: end to end.
        seed: Reset seed of the first episode; every further one takes the next.
        index: The same instance of the split for every episode, or ``None``: the seed decides.
        sandbox: Backend, or a sandbox of the caller.
        trajectory_dir: Where trajectories are written, or ``None``.
        pool_size: Warm sandboxes, or ``None``: the pool's default.

    Raises:
        ConfigError: If a value cannot work.
    """

    task: str = "kidney_tumor"
    tier: str = "lite"
    split: str = "train"
    size: str | None = None
    stage: str | None = None
    seed: int = 0
    index: int | None = None
    sandbox: str | Sandbox = "auto"
    trajectory_dir: str | Path | None = None
    pool_size: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        spec = load_task(self.task).spec
        one_of("tier", self.tier, TIERS)
        if self.tier not in spec.tiers:
            raise unknown_name(f"tier of {spec.id}", self.tier, spec.tiers)
        self.environment().close()

    def environment(self) -> AutoMedEnv:
        """An environment for one episode."""
        return AutoMedEnv(
            track=None,
            task=self.task,
            tier=self.tier,
            split=self.split,
            size=self.size,
            stage=self.stage,
            sandbox=self.sandbox,
            trajectory_dir=self.trajectory_dir,
            pool_size=self.pool_size,
            on_sandbox_error="truncate",
            **self.extra,
        )

    def skills(self) -> dict[str, str]:
        """The stage skills that the tier grants, by file name."""
        focus = Stage.E2E if self.stage is None else Stage.parse(self.stage)
        files = load_task(self.task).skills(self.tier, focus)
        return {name: data.decode("utf-8", "replace") for name, data in sorted(files.items())}


class EnvDoor:
    """A door to an environment of its own, made at first use.

    Args:
        plan: How the episode starts.
        number: Which episode of the server it is, from 0.
    """

    def __init__(self, plan: EpisodePlan, number: int = 0) -> None:
        self._plan, self._number = plan, number
        self._lock = threading.Lock()
        self._env: AutoMedEnv | None = None
        self._agent = "unknown"
        self._brief = ""
        self._left = False

    def introduce(self, name: str) -> None:
        """Who plays, for the trajectory."""
        self._agent = name[:80]
        if self._env is not None:
            self._env.name_agent(self._agent)

    def brief(self) -> str:
        """The reset observation.

        Raises:
            BatError: If no episode could be started.
        """
        with self._lock:
            self._begun()
            return self._brief

    def skills(self) -> Mapping[str, str]:
        """The stage skills that the tier grants."""
        return self._plan.skills()

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        """One step of the environment, without its reward and its info.

        Raises:
            BatError: If no episode could be started.
        """
        with self._lock:
            env = self._begun()
            if env.episode.status != "running":
                return Answer(OVER, ok=False, over=True)
            action = {"name": name, "arguments": dict(arguments)}
            observation, _, terminated, truncated, info = env.step(action)
            over = bool(terminated or truncated)
            if over:
                self._close(env)
            if info["status"] == "invalid":
                _logger.error("Episode %d: %s", self._number, info.get("error"))
                return Answer(FAILED, ok=False, over=True)
            return Answer(str(observation["text"]), ok=bool(info["valid"]), over=over)

    def leave(self, reason: str) -> None:
        """End what still runs; the host grades what is there."""
        with self._lock:
            self._left = True
            env = self._env
            if env is None:
                return
            try:
                if env.episode.status == "running":
                    env.truncate(reason)
            except BatError:
                _logger.exception("Episode %d ended without a score", self._number)
            finally:
                self._close(env)

    def _begun(self) -> AutoMedEnv:
        if self._env is not None:
            return self._env
        if self._left:
            raise BatError(OVER)
        plan = self._plan
        env = plan.environment()
        try:
            env.name_agent(self._agent)
            options = None if plan.index is None else {"index": plan.index}
            observation, _ = env.reset(seed=plan.seed + self._number, options=options)
        except BaseException:
            env.close()
            raise
        self._env, self._brief = env, str(observation["text"])
        return env

    @staticmethod
    def _close(env: AutoMedEnv) -> None:
        with contextlib.suppress(BatError):
            env.close()
