"""verifiers (Prime Intellect): the environments as a taskset, for its evaluations and trainers.

The taskset's id is ``automed_bat``, the name of a module that verifiers can import::

    environment = load_environment(starts=16, env_kwargs={"size": "mini"})

A task is one start with its brief as the prompt; every harness that speaks MCP plays it with the
two tools. The reward is the score of the episode. One that the infrastructure broke is an error of
the rollout, never a zero.
"""

from __future__ import annotations

import asyncio
import atexit
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import verifiers.v1 as vf

from bat_agent.integrations.episodes import BROKEN, SYSTEM, Rollout, Starts
from bat_agent.integrations.host import EpisodeHost
from bat_agent.integrations.verifiers_tools import BatState, BatTools
from bat_agent.rollout.episodes import EnvPool

TASKSET: str = "automed_bat"
"""Id of the taskset: ``eval automed_bat`` in the words of verifiers' own command."""

_HOST = EpisodeHost()
_POOL = EnvPool()
atexit.register(_POOL.close)


class BatData(vf.TaskData):  # type: ignore[misc]
    """One start. It may be shown: only training instances are drawn.

    Attributes:
        start: Reset specification, as JSON.
        digest: What the start must look like.
    """

    start: str
    digest: str


class BatTask(vf.Task[BatData, BatState, vf.TaskConfig]):  # type: ignore[misc]
    """An episode: begun with the rollout, graded with it."""

    async def setup(self, trace: Any, runtime: Any) -> None:
        """Open the episode; no sandbox is taken before the first call."""
        rollout = Rollout(_POOL)
        data = self.data
        rollout.begin({"brief": data.prompt, "start": data.start, "digest": data.digest})
        trace.state.door = address = _HOST.open(rollout)
        # A rollout that fails is not finalized; its sandbox is given back all the same.
        weakref.finalize(trace, _abandon, address)

    async def finalize(self, trace: Any, runtime: Any) -> None:
        """End the episode if it runs, and grade what is there.

        Raises:
            SandboxError: Of verifiers, if the infrastructure failed.
        """
        address, trace.state.door = trace.state.door, ""
        rollout = _HOST.close(address)
        score = None if rollout is None else await asyncio.to_thread(rollout.score)
        if score is None:
            raise vf.SandboxError(BROKEN)
        trace.state.score = score

    @vf.reward  # type: ignore[untyped-decorator]
    async def bat_score(self, trace: Any) -> float:
        """The score of the episode, in [0, 1]."""
        return float(trace.state.score)

    @classmethod
    def toolsets(cls, config: Any) -> list[Any]:
        """One server of our tools for each rollout."""
        return [BatTools(vf.ToolsetConfig())]


class BatTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Which starts are drawn; see :class:`~bat_agent.integrations.episodes.Starts`."""

    id: str = TASKSET
    env_id: str = "AutoMed-Seg-v0"
    starts: int = 16
    seed: int = 0
    options: dict[str, Any] = {}  # noqa: RUF012  (pydantic copies it)
    env_kwargs: dict[str, Any] = {}  # noqa: RUF012
    system: str = SYSTEM


class BatTaskset(vf.Taskset[BatTask, BatTasksetConfig]):  # type: ignore[misc]
    """Different starts of one environment."""

    def load(self) -> Iterable[BatTask]:
        """Draw the starts; each is reset once for its brief.

        Raises:
            ConfigError: If held-out instances are asked for.
            BankError: If the bank has too few different states.
        """
        config = self.config
        starts = Starts(
            config.env_id, config.starts, config.seed, config.options, config.env_kwargs, _POOL
        )
        for row in starts.rows:
            data = BatData(
                name=row["task"],
                prompt=row["brief"],
                system_prompt=config.system or None,
                start=row["start"],
                digest=row["digest"],
            )
            yield BatTask(data, config.task)


def load_environment(
    env_id: str = "AutoMed-Seg-v0",
    *,
    starts: int = 16,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
    system: str = SYSTEM,
    agent: Mapping[str, Any] | None = None,
) -> Any:
    """A verifiers environment over the taskset, with one agent.

    Args:
        env_id: Gymnasium id.
        starts: Tasks, all different.
        seed: Decides which.
        options: Reset options of every start.
        env_kwargs: Constructor arguments of the environments.
        system: System prompt; empty for none.
        agent: Settings of verifiers' ``AgentConfig``: ``harness``, ``runtime``, ``max_turns``, ...

    Returns:
        A ``verifiers.v1.SingleAgentEnv``.
    """
    taskset = BatTasksetConfig(
        env_id=env_id,
        starts=starts,
        seed=seed,
        options=dict(options or {}),
        env_kwargs=dict(env_kwargs or {}),
        system=system,
    )
    seat = {"runtime": {"type": "subprocess"}, "harness": {"id": "null"}, **dict(agent or {})}
    return vf.load_environment(vf.SingleAgentEnvConfig(taskset=taskset, agent=seat))


def _abandon(address: str) -> None:
    rollout = _HOST.close(address)
    if rollout is not None:
        rollout.abandon()
