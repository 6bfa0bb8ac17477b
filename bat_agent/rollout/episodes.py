"""Episodes, many at once: reset specifications, environments to reuse, and results.

:func:`run_agent` plays any agent in threads; :mod:`bat_agent.rollout.waves` plays a token policy in
batched waves. Both return an :class:`EpisodeResult` per specification, in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from bat_agent.agents.failures import EndEpisode, ServiceError, StopEvaluation
from bat_agent.rollout.stopping import WAITING, Stop
from bat_env.errors import BatError, ConfigError, GraderError, SandboxError
from bat_env.sandbox import end_work

INFRASTRUCTURE: Final = (SandboxError, GraderError, ServiceError)
"""Failures that are nobody's fault: the episode is invalid, its reward ``None``."""

ATTEMPTS: Final = 2
"""An episode that infrastructure killed is played once more, on a fresh environment."""

AGENT_ERROR: Final = "agent_error"
"""Status of an episode that the agent's own code ended with an exception. It has no score."""

_logger = logging.getLogger(__name__)


class AgentError(BatError):
    """The agent's own code raised; the message says what, and the cause is what it raised."""


class GroupMismatchError(BatError):
    """Rollouts of one group did not start from the same state; comparing them would be wrong."""


@dataclass(frozen=True, slots=True)
class ResetSpec:
    """Everything that decides how an episode starts, as JSON-ready values.

    Attributes:
        env_id: Gymnasium id, ``"AutoMed-Seg-v0"``.
        seed: Reset seed.
        options: Reset options (``stage``, ``outcome``, ``state_id``, ``index``, ...).
        env_kwargs: Constructor arguments.
    """

    env_id: str
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Canonical JSON. Equal text = the same group."""
        value = {
            "env_id": self.env_id,
            "seed": self.seed,
            "options": dict(self.options),
            "env_kwargs": dict(self.env_kwargs),
        }
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> ResetSpec:
        """Read :meth:`to_json` back.

        Raises:
            ConfigError: If the text is not a reset specification.
        """
        try:
            value = json.loads(text)
            return cls(
                str(value["env_id"]),
                int(value["seed"]),
                dict(value["options"]),
                dict(value["env_kwargs"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                "Expected a reset specification as JSON with env_id, seed, options and env_kwargs; "
                f"got {text[:200]!r} ({type(error).__name__}: {error})."
            ) from error

    @property
    def state_id(self) -> str | None:
        """The Stage Bank state, if the specification names one."""
        value = self.options.get("state_id")
        return None if value is None else str(value)


@dataclass(slots=True)
class EpisodeResult:
    """One finished episode.

    Attributes:
        spec: What was asked for.
        reward: Sum of the step rewards = final score; ``None`` means invalid, never zero.
        result: ``info["result"]`` of the last step; ``None`` if invalid.
        status: ``submitted``, ``truncated``, ``disqualified``, ``invalid`` or ``agent_error``.
        turns: Environment steps.
        tokens: Tokens that the policy sampled; 0 for scripts.
        seconds: Wall time. For people only.
        cost: Money, in US dollars, where an endpoint reports it.
        trajectory: The ATIF file, if one was written.
        info: Public facts of the reset (task, index, state_id, digests).
        error: What ended an episode without a score.
    """

    spec: ResetSpec
    reward: float | None
    result: dict[str, Any] | None
    status: str
    turns: int = 0
    tokens: int = 0
    seconds: float = 0.0
    cost: float = 0.0
    trajectory: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    error: str = ""


Progress: TypeAlias = Callable[[int, int, EpisodeResult], None]
"""Called as ``progress(done, total, episode)`` whenever an episode ended."""


class AgentLike(Protocol):
    """What :func:`run_agent` needs of an agent; ``act`` may be a coroutine function."""

    def reset(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> Any:
        """A new episode begins."""

    def act(self, observation: Mapping[str, Any]) -> Any:
        """The next call."""


class EnvPool:
    """Environment instances to reuse: construction is paid once per (id, arguments).

    An idle environment holds a sandbox. One of another track is closed when a new one is made, so
    that no more sandboxes are held than episodes run. Thread-safe. An instance whose sandbox
    failed is closed, never reused.

    Args:
        extra_kwargs: Further constructor arguments of every environment.
        agent_name: Who plays, for the trajectories of environments that write some.

    Attributes:
        places: Environments that may be in an episode at once; ``None`` until one was looked at.
    """

    def __init__(
        self, extra_kwargs: Mapping[str, Any] | None = None, agent_name: str | None = None
    ) -> None:
        self._extra = dict(extra_kwargs or {})
        self._agent_name = agent_name
        self._idle: dict[str, list[Any]] = defaultdict(list)
        self._lock = threading.Lock()
        self.places: int | None = None

    def look(self, env: Any) -> None:
        """Learn from an environment that was reset how many may run at once.

        Episodes of one wave wait for each other, so one that finds no sandbox would never get one.
        """
        places = getattr(env.unwrapped, "places", None)
        places = sys.maxsize if places is None else int(places)
        with self._lock:
            self.places = places if self.places is None else min(places, self.places)

    def acquire(self, spec: ResetSpec) -> Any:
        """An environment for ``spec``, not yet reset."""
        with self._lock:
            idle = self._idle[self._key(spec)]
            if idle:
                return idle.pop()
            others = next((envs for envs in self._idle.values() if envs), [])
            spare = others.pop() if others else None
        if spare is not None:
            self.discard(spare)
        import gymnasium as gym

        import bat_env  # noqa: F401  (registers the environments)

        kwargs = {**spec.env_kwargs, **self._extra}
        env = gym.make(spec.env_id, disable_env_checker=True, **kwargs)
        name_agent = getattr(env.unwrapped, "name_agent", None)
        if self._agent_name is not None and name_agent is not None:
            name_agent(self._agent_name)
        return env

    def release(self, spec: ResetSpec, env: Any) -> None:
        """Give a healthy environment back."""
        with self._lock:
            self._idle[self._key(spec)].append(env)

    def discard(self, env: Any) -> None:
        """Close an environment that failed."""
        with contextlib.suppress(*INFRASTRUCTURE):
            env.close()

    def close(self) -> None:
        """Close every idle environment. Idempotent."""
        with self._lock:
            envs = [env for idle in self._idle.values() for env in idle]
            self._idle.clear()
        for env in envs:
            self.discard(env)

    @staticmethod
    def _key(spec: ResetSpec) -> str:
        return ResetSpec(spec.env_id, 0, {}, spec.env_kwargs).to_json()


def reset_facts(info: Mapping[str, Any]) -> dict[str, Any]:
    """What a result keeps of the reset's ``info``: all but scores. The host's own record."""
    private = ("score", "items", "components", "result")
    return {key: value for key, value in info.items() if key not in private}


def finish(
    spec: ResetSpec, reward: float, info: Mapping[str, Any], start: Mapping[str, Any]
) -> EpisodeResult:
    """Build the result of an episode that ended with ``info``."""
    status = str(info.get("status", "truncated"))
    result = info.get("result")
    score = result.get("score", reward) if isinstance(result, Mapping) else reward
    valid = status != "invalid" and score is not None
    return EpisodeResult(
        spec,
        float(reward) if valid else None,
        dict(result) if valid and isinstance(result, Mapping) else None,
        status if valid else "invalid",
        info=dict(start),
        error="" if valid else str(info.get("error") or "the environment declared it invalid"),
    )


def failed(spec: ResetSpec, error: BaseException) -> EpisodeResult:
    """Build the result of an episode that infrastructure killed."""
    return EpisodeResult(spec, None, None, "invalid", error=f"{type(error).__name__}: {error}")


def trajectory_path(env: Any) -> str | None:
    """Where the environment wrote the trajectory of its last episode, if it did."""
    path = getattr(env.unwrapped, "trajectory_path", None)
    return None if path is None else str(path)


def run_agent(
    make_agent: Callable[[], AgentLike],
    specs: Sequence[ResetSpec],
    *,
    workers: int = 2,
    trajectory_dir: str | Path | None = None,
    agent_name: str | None = None,
    progress: Progress | None = None,
) -> list[EpisodeResult]:
    """Play every specification with a fresh agent, several at once.

    Args:
        make_agent: Called once per episode, in the worker thread.
        specs: Episodes to play.
        workers: Threads; environment calls block.
        trajectory_dir: Where environments write their trajectories.
        agent_name: Who plays, for the trajectories.
        progress: Called after each episode, from the worker thread that ended it, one at a time.

    Returns:
        Results in the order of ``specs``. Where the agent's code raised, the episode has no score
        and the status ``agent_error``; the others are played all the same.

    Raises:
        ConfigError: If an agent refuses to start: what it lacks, it lacks in every episode.
        StopEvaluation: If an agent says that no further episode shall be played.
    """
    pool = EnvPool(trajectory_kwargs(trajectory_dir), agent_name)
    lock, stop = threading.Lock(), Stop()
    done = 0

    def play(spec: ResetSpec) -> EpisodeResult:
        nonlocal done
        lost = (0, 0.0)
        for _ in range(ATTEMPTS):
            episode = _play(pool, make_agent, spec, stop)
            episode.tokens, episode.cost = episode.tokens + lost[0], episode.cost + lost[1]
            lost = episode.tokens, episode.cost
            # What the agent did to itself it would do again, perhaps for money.
            if episode.reward is not None or episode.status == AGENT_ERROR:
                break
        with lock:
            done += 1
            if progress is not None:
                progress(done, len(specs), episode)
        return episode

    try:
        with ThreadPoolExecutor(max_workers=max(1, workers)) as threads:
            futures = [threads.submit(play, spec) for spec in specs]
            try:
                return [future.result() for future in futures]
            except KeyboardInterrupt:
                stop.now()  # no further action; else whole episodes would be waited for
                end_work(futures, WAITING)
                raise
            except BaseException:
                for future in futures:
                    future.cancel()
                raise
    finally:
        pool.close()


class _StoppedError(Exception):
    """The user asked to end."""


def _play(
    pool: EnvPool,
    make_agent: Callable[[], AgentLike],
    spec: ResetSpec,
    stop: Stop,
) -> EpisodeResult:
    from bat_env.env import public_info

    began = time.perf_counter()
    if stop.told:
        raise _StoppedError
    env = pool.acquire(spec)
    turns, reward, agent = 0, 0.0, None
    try:
        observation, info = env.reset(seed=spec.seed, options=dict(spec.options))
        start = reset_facts(info)
        agent = _ask(make_agent, starts=True)
        stop.enter(agent)
        _ask(agent.reset, observation, public_info(info), starts=True)
        over = False
        while not over:
            if stop.told:
                raise _StoppedError
            try:
                action = _ask(agent.act, observation)
            except EndEpisode as end:
                observation, gain, _, over, info = env.unwrapped.truncate(str(end))
                reward += float(gain)
                break
            _keep_record(env, agent)
            observation, gain, terminated, truncated, info = env.step(action)
            turns, reward = turns + 1, reward + float(gain)
            over = bool(terminated or truncated)
        _tell_the_end(agent, observation)
        episode = finish(spec, reward, info, start)
        episode.trajectory = trajectory_path(env)
    except INFRASTRUCTURE as error:
        episode = failed(spec, error)
    except AgentError as error:
        _logger.debug("The agent raised in %s", spec.to_json(), exc_info=error.__cause__)
        episode = EpisodeResult(spec, None, None, AGENT_ERROR, info=start, error=str(error))
    except BaseException:
        pool.discard(env)
        raise
    finally:
        if agent is not None:
            stop.leave(agent)
            _release(agent)
    episode.turns, episode.seconds = turns, time.perf_counter() - began
    episode.tokens = int(getattr(agent, "tokens", 0))
    episode.cost = float(getattr(agent, "cost", 0.0))
    if episode.reward is None:
        pool.discard(env)
    else:
        pool.release(spec, env)
    return episode


def _ask(method: Callable[..., Any], *arguments: Any, starts: bool = False) -> Any:
    """Call the agent's code.

    Signals reach the main thread only, so here even a KeyboardInterrupt or a SystemExit is the
    agent's own.

    Raises:
        AgentError: Whatever it raised.
        ConfigError: Its own refusal to start.
        StopEvaluation, EndEpisode: As it was raised.
    """
    try:
        value = method(*arguments)
        return asyncio.run(value) if inspect.iscoroutine(value) else value
    except (*INFRASTRUCTURE, StopEvaluation, EndEpisode):
        raise
    except BaseException as error:
        if starts and isinstance(error, ConfigError):
            raise
        raise AgentError(told(error)) from error


def _keep_record(env: Any, agent: Any) -> None:
    """What the agent says about its last action goes into the trajectory."""
    record = getattr(agent, "record", None)
    annotate = getattr(env.unwrapped, "annotate", None)
    if record is not None and annotate is not None:
        annotate(record)


def _tell_the_end(agent: Any, observation: Mapping[str, Any]) -> None:
    """The last observation, for agents that have somebody waiting for it."""
    ended = getattr(agent, "ended", None)
    if callable(ended):
        _ask(ended, observation)


def _release(agent: Any) -> None:
    """Give back what an agent holds for an episode."""
    close = getattr(agent, "close", None)
    if callable(close):
        try:
            close()
        except Exception as error:
            _logger.warning("The agent's close() raised %s", told(error))


def told(error: BaseException) -> str:
    """An exception of somebody else's code in one short line."""
    try:
        text = " ".join(str(error).split())
    except Exception:  # its own __str__ raised
        text = ""
    if len(text) > 300:
        text = text[:297] + "..."
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def trajectory_kwargs(trajectory_dir: str | Path | None) -> dict[str, Any]:
    """Constructor arguments that make environments write trajectories."""
    return {} if trajectory_dir is None else {"trajectory_dir": str(trajectory_dir)}
