"""The environment: an agent does medical-imaging work in a sandbox and is scored on evidence."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from bat_env.bank.distribution import Distribution
from bat_env.config import (
    RENDER_MODES,
    EnvConfig,
    distribution_of,
    make_config,
    make_options,
    no_bank,
    one_of,
)
from bat_env.episode import Status, Turn
from bat_env.errors import BatError, ConfigError, GraderError, SandboxError
from bat_env.grader import shared_grader
from bat_env.host_side import HostSide
from bat_env.info import judge_info, public_info, score_info, start_info
from bat_env.judge import Judge, JudgeConfig
from bat_env.montage import montage
from bat_env.render import outputs_of, scoreboard
from bat_env.sandbox.base import Limits, Sandbox
from bat_env.scoring import Scoring, contract_of
from bat_env.spaces import ToolCall, Unicode
from bat_env.start import Starter, StateSource
from bat_env.tools import MAX_CODE_CHARS, SUBMIT, ValidCall, validate_call
from bat_env.trajectory import EndOfEpisode, Recorder, plain
from bat_env.turns import WARNINGS, notice, run_cell
from bat_env.workbench import Workbench, manifest_digest

__all__ = ["AutoMedEnv", "public_info"]

Observation = dict[str, Any]
StepResult = tuple[Observation, float, bool, bool, dict[str, Any]]


class AutoMedEnv(HostSide, gym.Env[Observation, dict[str, Any]]):
    """One track, or any track from the Stage Bank, as a Gymnasium environment.

    The observation is ``{"stage": 0..5, "text": str}``, the action a tool call ``{"name",
    "arguments"}``. The reward of a step is the change of the episode's score in it; scores are
    multiples of 2**-20, so the rewards of an episode sum to its final score exactly. A bad action
    is an observation; a dead sandbox is a :class:`~bat_env.errors.SandboxError`.

    Args:
        track: ``"seg"``, ...; ``None`` for any track from the bank.
        task: Task id; ``None`` for the track's Lite task.
        data: Folder of a staged real data set (``bat-env data stage``): its task is played, and
            every file is checked first. ``None`` for phantoms.
        tier: ``"lite"``, ``"standard"`` or ``"pro"``.
        split: ``"train"``, ``"dev"`` or ``"heldout"``; trainers refuse the last.
        size: ``"full"`` or ``"mini"``; ``None`` is full, and from the bank whatever it holds.
        stage: Focus ``"S1"`` .. ``"S5"``; draws starts from the Stage Bank.
        sandbox: ``"auto"``, ``"docker"``, ``"local"``, ``"process"``, a registered name, or a
            :class:`~bat_env.sandbox.base.Sandbox` of the caller.
        bank: Folder of the Stage Bank (must exist) or an open one; ``None`` for the default folder.
        distribution: Draw every start from the bank: ``"uniform"``, weights by stage, track,
            outcome or cell (``"seg/S3/recovery"``), or a list of cells. See
            :meth:`set_distribution`.
        limits: Changes to the task's sandbox limits, for example ``{"memory_mb": 1024}``.
        judge: ``None``, or an OpenAI-compatible LLM that reads prose of S1-S3 at hand-in: a
            :class:`~bat_env.judge.Judge`, or its configuration, for example ``{"base_url":
            "http://127.0.0.1:8000/v1", "model": "my-model"}``. It changes the rubric digest.
        render_mode: ``"ansi"``, ``"rgb_array"`` or ``None``.
        on_sandbox_error: ``"raise"``, or ``"truncate"`` for vector environments: the step returns
            truncated, ``info["status"]`` is ``"invalid"``, ``info["error"]`` says why, and
            ``info["score"]`` and ``info["result"]`` are ``None``.
        pool_size: Warm sandboxes kept by this process; ``None`` for the pool's default.
        trajectory_dir: Folder that gets one trajectory file an episode; made and tried at once.

    Raises:
        ConfigError: On any argument that cannot work, before any work starts.
        DataError: If ``data`` is no finished staging, or a file of it was changed.
    """

    metadata: dict[str, Any] = {"render_modes": list(RENDER_MODES), "render_fps": 1}  # noqa: RUF012

    def __init__(
        self,
        track: str | None = "seg",
        task: str | None = None,
        data: str | Path | None = None,
        tier: str = "lite",
        split: str = "train",
        size: str | None = None,
        stage: str | None = None,
        sandbox: str | Sandbox = "auto",
        bank: str | Path | StateSource | None = None,
        distribution: Distribution | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        judge: Judge | JudgeConfig | Mapping[str, Any] | None = None,
        render_mode: str | None = None,
        on_sandbox_error: str = "raise",
        pool_size: int | None = None,
        trajectory_dir: str | Path | None = None,
    ) -> None:
        if render_mode is not None:
            one_of("render mode", render_mode, RENDER_MODES)
        self.render_mode = render_mode
        self._config: EnvConfig = make_config(
            track=track,
            task=task,
            data=data,
            tier=tier,
            split=split,
            size=size,
            stage=stage,
            sandbox=sandbox,
            bank=bank,
            distribution=distribution,
            limits=limits,
            judge=judge,
            on_sandbox_error=on_sandbox_error,
            pool_size=pool_size,
            trajectory_dir=trajectory_dir,
        )
        task_spec = self._config.task.spec if self._config.task is not None else None
        self.observation_space = spaces.Dict({"stage": spaces.Discrete(6), "text": Unicode()})
        self.action_space = ToolCall(task_spec.budgets.code_chars if task_spec else MAX_CODE_CHARS)
        self._starter = Starter(self._config)
        self._bench = Workbench(self._config.sandbox, self._config.pool_size)
        directory = self._config.trajectory_dir
        self._recorder = None if directory is None else Recorder(directory)
        self._digests: dict[str, str] = {}

    # ------------------------------------------------------------------------------ distribution

    @property
    def distribution(self) -> Distribution | None:
        """How starts are drawn from the bank; assigning it is :meth:`set_distribution`."""
        return self._config.distribution

    @distribution.setter
    def distribution(self, value: Distribution | None) -> None:
        self.set_distribution(value)

    def set_distribution(self, distribution: Distribution | None) -> None:
        """From the next reset on, draw starts like this; ``spec`` says so too.

        Works through ``call("set_distribution", value)`` of vector environments.

        Args:
            distribution: As the constructor's; ``None`` for fresh instances, and where the
                environment has no task of its own for all cells evenly.

        Raises:
            ConfigError: If it is no distribution, or the environment plays staged data. What the
                bank does not hold is said at the reset that would draw it.
        """
        config = self._config
        if distribution is not None and config.staged is not None:
            raise ConfigError(no_bank(config.staged))
        checked = distribution_of(distribution, config.track)
        self._config = dataclasses.replace(config, distribution=checked)
        self._starter.config = self._config
        if self.spec is not None:
            self.spec = copy.deepcopy(self.spec)
            self.spec.kwargs["distribution"] = checked

    # ------------------------------------------------------------------------------------- reset

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Decides the instance or bank state, and the seeds of the cells.
            options: ``task``, ``stage``, ``outcome``, ``state_id``, ``index`` (the instance of the
                split directly) and ``size``.

        Returns:
            The brief as observation, and ``info``.

        Raises:
            ConfigError: On an unknown option or value. Like a BankError it leaves a running
                episode, and the environment's generator, as they were.
            BankError: If the bank has no such state.
            SandboxError: If no sandbox could be made ready.
        """
        chosen = make_options(options)
        before = copy.deepcopy(self._np_random), self._np_random_seed
        try:
            super().reset(seed=seed)
            episode_seed = int(self.np_random.integers(2**63))
            start = self._starter.draw(chosen, self.np_random)
            contract = contract_of(start, self._config.judge)
            files = start.files()
        except BaseException:
            self._np_random, self._np_random_seed = before
            raise
        self._abandon()
        self._episode = self._start = self._scoring = None
        manifest = self._bench.begin(self._config.limits_of(start.task), files)
        self._start = start
        self._episode = start.episode(episode_seed, manifest)
        self._digests = {
            "instance_digest": start.instance.digest,
            "workspace_digest": manifest_digest(manifest),
            "rubric_digest": contract.digest,
        }
        judge = self._config.judge
        self._scoring = Scoring(start, contract, self._episode, judge)
        prose = "" if judge is None else judge.brief(start.task.spec, contract)
        observation = self._observe(start.brief() + prose)
        info = self._info()
        if self._recorder is not None:
            self._recorder.start(observation, info)
        return observation, info

    # -------------------------------------------------------------------------------------- step

    def step(self, action: Any) -> StepResult:
        """Do one tool call.

        Args:
            action: ``{"name": "execute_code", "arguments": {"language", "code"}}`` or
                ``{"name": "submit_results", "arguments": {}}``. Anything else costs the turn and
                is answered by an observation.

        Returns:
            Observation, reward, terminated, truncated, info.

        Raises:
            SandboxError: If the infrastructure failed: the episode is invalid.
        """
        self._must_run()
        began = time.perf_counter()
        try:
            outcome = self._act(action)
        except (SandboxError, GraderError) as error:
            outcome = self._invalid(error)
        return self._record(action, outcome, time.perf_counter() - began)

    def truncate(self, reason: str) -> StepResult:
        """End the episode from outside, for example for ``"tokens"``; grades what is there.

        Returns:
            What a last step would have returned, ``truncated`` being true. It takes no turn.

        Raises:
            SandboxError: If the infrastructure failed: the episode is invalid.
        """
        self._must_run()
        began = time.perf_counter()
        text = self._notice(f"The episode was ended: {reason}. What is there is graded.")
        try:
            reward = self._scores.finish("truncated", reason, self._bench)
            outcome = (self._observe(text), reward, False, True, self._info(valid=True))
        except (SandboxError, GraderError) as error:
            outcome = self._invalid(error)
        return self._record(EndOfEpisode(reason), outcome, time.perf_counter() - began)

    def _act(self, action: Any) -> StepResult:
        episode, budgets = self.episode, self.budgets
        call = validate_call(action, budgets.code_chars)
        valid, number = isinstance(call, ValidCall), len(episode.turns)
        episode.turns.append(Turn(number, plain(action), valid, ""))
        end: tuple[Status, str] | None = None
        if not isinstance(call, ValidCall):
            text = self._notice(f"Invalid action: {call}")
        elif call.name == SUBMIT:
            text, end = self._notice("The results were handed in."), ("submitted", "submit")
        elif len(episode.cells) >= budgets.calls:
            text = self._notice("No calls are left; what is there is graded.")
            end = ("truncated", "calls")
        else:
            limits = self._config.limits_of(self.task_object)
            text = run_cell(
                call, number, episode=episode, bench=self._bench, limits=limits, budgets=budgets
            )
        if len(episode.violations) > WARNINGS:
            end = ("disqualified", "violation")
        elif end is None and len(episode.turns) >= budgets.turns:
            end = ("truncated", "turns")
        scores = self._scores
        reward = scores.step() if end is None else scores.finish(*end, self._bench)
        episode.turns[number] = Turn(number, plain(action), valid, text, reward)
        info = self._info(valid=valid, error=None if isinstance(call, ValidCall) else call)
        truncated = episode.status == "truncated"
        return self._observe(text), reward, end is not None and not truncated, truncated, info

    # --------------------------------------------------------------------------------- endings

    def _must_run(self) -> None:
        if self.episode.status != "running":
            raise gym.error.ResetNeeded(
                f"The episode is over ({self.episode.status}); call reset() before the next step."
            )

    def _invalid(self, error: BatError) -> StepResult:
        """The infrastructure failed: no score, no sandbox; raises unless told to truncate."""
        self.episode.status, self.episode.end_reason = "invalid", "infrastructure"
        self._bench.drop()
        if self._config.on_sandbox_error == "raise":
            with contextlib.suppress(BatError):
                if self._recorder is not None:
                    self._recorder.finish("invalid")
            if isinstance(error, SandboxError):
                raise error
            raise SandboxError(f"The episode has no score: {error}") from error
        text = self._notice("The infrastructure failed; this episode is invalid and has no score.")
        info = self._info(valid=False, error=f"The episode has no score: {error}")
        return self._observe(text), 0.0, False, True, info

    def _record(self, action: Any, outcome: StepResult, wall_s: float) -> StepResult:
        """Add the step to the trajectory, and write it when the episode is over."""
        self._host_ended = isinstance(action, EndOfEpisode)
        observation, reward, terminated, truncated, info = outcome
        turns = self.episode.turns
        if not isinstance(action, EndOfEpisode):
            turns[-1] = dataclasses.replace(turns[-1], wall_s=wall_s)
        if self._recorder is not None:
            self._recorder.step(action, observation, reward, info, wall_s)
            if terminated or truncated:
                try:
                    self._recorder.finish(
                        self.episode.status,
                        result=info.get("result"),
                        evidence=self.frozen_evidence(),
                    )
                except BatError as error:
                    return self._invalid(error)
        return outcome

    def _abandon(self) -> None:
        """Close the books of an episode that was left in the middle."""
        if self._recorder is not None:
            self._recorder.finish("abandoned")

    def close(self) -> None:
        """Give the sandbox back and write an open trajectory. Idempotent."""
        try:
            self._abandon()
        finally:
            self._bench.release()
            self._starter.close()
            if self._episode is not None and self._episode.status == "running":
                self._episode.status, self._episode.end_reason = "truncated", "closed"

    # ---------------------------------------------------------------------------------- outputs

    def _notice(self, message: str) -> str:
        return notice(message, episode=self.episode, budgets=self.budgets)

    def _observe(self, text: str) -> Observation:
        return {"stage": np.int64(self.episode.focus), "text": text}

    def _info(self, *, valid: bool | None = None, error: str | None = None) -> dict[str, Any]:
        info = {
            **start_info(self.episode, self.instance.index, self._digests),
            "turns_left": self.budgets.turns - len(self.episode.turns),
            "calls_left": self.budgets.calls - len(self.episode.cells),
            "status": self.episode.status,
            **judge_info(self.episode),
        }
        if valid is not None:
            info |= {"valid": valid, "error": error}
            info |= score_info(
                self.episode, self._scores.rubric, self._scores.score, self.task_object.spec
            )
        return info

    def render(self) -> str | NDArray[np.uint8] | None:
        """Draw the scoreboard (``"ansi"``) or slices with the outputs (``"rgb_array"``).

        Returns:
            A string, or ``[height, width, 3]`` uint8, or ``None`` without a render mode.
        """
        if self.render_mode == "ansi":
            scores = self._scores
            return scoreboard(self.episode, scores.rubric, scores.score, self.task_object.spec)
        if self.render_mode == "rgb_array":
            outputs = outputs_of(self.episode, self.task_object.spec, self._bench.read)
            return montage(self.task_object, self.instance, outputs, shared_grader())
        return None
