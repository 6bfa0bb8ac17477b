"""What the host may ask of an environment beside Gymnasium's methods; the agent never does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym

from bat_env.episode import Episode
from bat_env.evidence import freeze
from bat_env.rubric.base import RubricResult
from bat_env.scoring import Scoring
from bat_env.start import Start
from bat_env.tasks import Task
from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import Budgets
from bat_env.trajectory import Recorder, TokenRecord
from bat_env.workbench import Workbench


class HostSide:
    """Records, truth and files of the episode at hand, for trainers, doors and checks."""

    _bench: Workbench
    _recorder: Recorder | None
    _start: Start | None = None
    _episode: Episode | None = None
    _scoring: Scoring | None = None
    _digests: dict[str, str]
    _host_ended: bool = False

    @property
    def episode(self) -> Episode:
        """The record of the current episode, private to the host."""
        if self._episode is None:
            raise gym.error.ResetNeeded("There is no episode yet; call reset().")
        return self._episode

    @property
    def instance(self) -> Instance:
        """The drawn task instance with its private truth."""
        return self._begun.instance

    @property
    def task_object(self) -> Task:
        """The task of the current episode."""
        return self._begun.task

    @property
    def budgets(self) -> Budgets:
        """What the current episode may spend."""
        return self._begun.task.spec.budgets

    @property
    def rubric(self) -> RubricResult | None:
        """The last evaluation, verdict messages included; ``None`` before the first step."""
        return None if self._scoring is None else self._scoring.rubric

    @property
    def places(self) -> int | None:
        """Environments like this one that may be in the middle of an episode at once, for memory.

        ``None`` where its sandbox comes from no pool. See
        :attr:`bat_env.sandbox.SandboxPool.places`.
        """
        return self._bench.places

    @property
    def trajectory_path(self) -> Path | None:
        """The last trajectory file, or ``None``."""
        return None if self._recorder is None else self._recorder.path

    def workspace(self) -> dict[str, bytes]:
        """All regular files of the agent's workspace now.

        Raises:
            SandboxError: If the sandbox is gone.
        """
        return self._bench.current.snapshot()

    def frozen_evidence(self) -> dict[str, Any] | None:
        """What the scores of the finished episode were made of, private truth included.

        Returns:
            A record for :func:`bat_env.evidence.rescore`; ``None`` while the episode runs, and
            where it has no score.
        """
        episode = self._episode
        if episode is None or episode.status in ("running", "invalid"):
            return None
        if episode.end_reason == "closed":  # given up in the middle, never graded
            return None
        return freeze(
            episode,
            self.task_object.spec,
            self.instance,
            self._digests["rubric_digest"],
            host_ended=self._host_ended,
        )

    def name_agent(self, name: str) -> None:
        """Say who plays, for the trajectories to come."""
        if self._recorder is not None:
            self._recorder.agent = name

    def annotate(self, tokens: TokenRecord) -> None:
        """Attach the policy's token record to the next step of the trajectory."""
        if self._recorder is not None:
            self._recorder.annotate(tokens)

    @property
    def _begun(self) -> Start:
        if self._start is None:
            raise gym.error.ResetNeeded("There is no episode yet; call reset().")
        return self._start

    @property
    def _scores(self) -> Scoring:
        if self._scoring is None:
            raise gym.error.ResetNeeded("There is no episode yet; call reset().")
        return self._scoring
