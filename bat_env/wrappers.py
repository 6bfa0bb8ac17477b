"""Wrappers: plain-text policies, fewer turns, and trajectories of any environment of this shape."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Final, SupportsFloat

import gymnasium as gym

from bat_env.bank.distribution import Distribution
from bat_env.config import is_int
from bat_env.errors import ConfigError, shown
from bat_env.spaces import Unicode
from bat_env.tools import execute_call, submit_call
from bat_env.trajectory import EndOfEpisode, Recorder, check_directory

Observation = dict[str, Any]
StepResult = tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]

_FENCE: Final = re.compile(
    r"^[ \t]*(?P<tick>`{3,}|~{3,})[ \t]*(?P<language>[\w+-]*)[^\n]*\n"
    r"(?P<code>.*?)^[ \t]*(?P=tick)[ \t]*$",
    re.DOTALL | re.MULTILINE,
)
_LANGUAGES: Final[dict[str, str]] = {
    "": "python",
    "python": "python",
    "py": "python",
    "python3": "python",
    "bash": "bash",
    "sh": "bash",
    "shell": "bash",
}
_SUBMIT: Final = "SUBMIT"


def parse_text(text: str) -> dict[str, Any] | str:
    """Read a plain-text answer as a tool call.

    The first fenced block is the code; its language defaults to Python. Without a block, a line
    that is just ``SUBMIT`` hands in.

        >>> parse_text("SUBMIT")
        {'name': 'submit_results', 'arguments': {}}

    Returns:
        The call, or ``text`` itself: the environment answers that it is none.
    """
    block = _FENCE.search(text)
    if block is not None:
        name = block["language"].lower()
        return execute_call(_LANGUAGES.get(name, name), block["code"])
    if any(line.strip() == _SUBMIT for line in text.splitlines()):
        return submit_call()
    return text


class TextAction(gym.Wrapper[Observation, Any, Observation, Any], gym.utils.RecordConstructorArgs):
    """Takes plain text as action: a fenced block runs, ``SUBMIT`` on a line of its own hands in.

    Anything else costs the turn and is answered by an observation, like every bad action.
    """

    def __init__(self, env: gym.Env[Observation, Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self)
        gym.Wrapper.__init__(self, env)
        self.action_space = Unicode()

    def step(self, action: Any) -> StepResult:
        """Do what the text says."""
        return self.env.step(parse_text(action) if isinstance(action, str) else action)


class TimeLimit(gym.Wrapper[Observation, Any, Observation, Any], gym.utils.RecordConstructorArgs):
    """Ends an episode after fewer turns than the task allows, and grades what is there.

    Gymnasium's own wrapper of this name only raises the flag: the episode would go without a score.
    Rewards still sum to the final score.

    Args:
        env: The environment.
        max_turns: Steps of an episode, at least 1.
    """

    def __init__(self, env: gym.Env[Observation, Any], max_turns: int) -> None:
        if not is_int(max_turns) or max_turns < 1:
            raise ConfigError(f"max_turns must be a whole number >= 1, got {shown(max_turns)}.")
        gym.utils.RecordConstructorArgs.__init__(self, max_turns=int(max_turns))
        gym.Wrapper.__init__(self, env)
        self._most, self._turns = int(max_turns), 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode, with all its turns."""
        self._turns = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> StepResult:
        """Pass the step on; the last one also ends the episode."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._turns += 1
        if terminated or truncated or self._turns < self._most:
            return observation, reward, terminated, truncated, info
        if not self.env.has_wrapper_attr("truncate"):
            return observation, reward, terminated, True, info
        last, gain, terminated, truncated, info = self.env.get_wrapper_attr("truncate")("turns")
        text = f"{observation['text']}\n{last['text']}"
        return {**last, "text": text}, float(reward) + gain, terminated, truncated, info


class RecordTrajectory(
    gym.Wrapper[Observation, Any, Observation, Any], gym.utils.RecordConstructorArgs
):
    """Writes one trajectory file an episode, of what passes through this wrapper.

    Use it where the actions before other wrappers matter, or around an environment of a third
    party; :class:`~bat_env.env.AutoMedEnv` itself writes files with ``trajectory_dir=``.

    Args:
        env: The environment.
        directory: Folder of the files.
        agent: Name of the agent, for the files.
    """

    def __init__(
        self, env: gym.Env[Observation, Any], directory: str | Path, agent: str = "unknown"
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, directory=str(directory), agent=agent)
        gym.Wrapper.__init__(self, env)
        self.recorder = Recorder(check_directory(directory), agent)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; one left in the middle is written as abandoned."""
        observation, info = self.env.reset(seed=seed, options=options)
        self.recorder.start(observation, info)
        return observation, info

    def step(self, action: Any) -> StepResult:
        """Pass the step on and record it."""
        began = time.perf_counter()
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._recorded(action, (observation, reward, terminated, truncated, info), began)

    def truncate(self, reason: str) -> StepResult:
        """End the episode from outside, as :meth:`~bat_env.env.AutoMedEnv.truncate` does."""
        began = time.perf_counter()
        step = self.env.get_wrapper_attr("truncate")(reason)
        return self._recorded(EndOfEpisode(reason), step, began)

    def _recorded(self, action: Any, step: StepResult, began: float) -> StepResult:
        observation, reward, terminated, truncated, info = step
        wall_s = time.perf_counter() - began
        self.recorder.step(action, observation, float(reward), info, wall_s)
        if terminated or truncated:
            frozen = getattr(self.unwrapped, "frozen_evidence", lambda: None)
            self.recorder.finish(
                str(info.get("status", "over")), result=info.get("result"), evidence=frozen()
            )
        return step

    def close(self) -> None:
        """Write an open episode as abandoned, then close the environment."""
        try:
            self.recorder.finish("abandoned")
        finally:
            self.env.close()


class ResetDistribution(
    gym.Wrapper[Observation, Any, Observation, Any], gym.utils.RecordConstructorArgs
):
    """Decides from which cells of the Stage Bank an environment starts, and can change its mind.

    A curriculum sets it between rounds: ``env.set_distribution({"S3": 2, "recovery": 1})``, or for
    a vector environment ``envs.call("set_distribution", {"S3": 1})``.

    Args:
        env: An environment of the suite, under any wrappers.
        distribution: As of :class:`~bat_env.env.AutoMedEnv`.

    Raises:
        ConfigError: If ``distribution`` is none.
    """

    def __init__(
        self, env: gym.Env[Observation, Any], distribution: Distribution = "uniform"
    ) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, distribution=distribution)
        gym.Wrapper.__init__(self, env)
        self.set_distribution(distribution)

    @property
    def distribution(self) -> Distribution | None:
        """What is set; assigning it is :meth:`set_distribution`."""
        inner: Any = self.unwrapped
        value: Distribution | None = inner.distribution
        return value

    @distribution.setter
    def distribution(self, value: Distribution | None) -> None:
        self.set_distribution(value)

    def set_distribution(self, distribution: Distribution | None) -> None:
        """Draw starts like this from the next reset on; the spec of this wrapper follows."""
        inner: Any = self.unwrapped
        inner.set_distribution(distribution)
        self._saved_kwargs = {"distribution": inner.distribution}
        self._cached_spec = None
