"""How an agent says that it is not its fault, or that all work shall stop."""

from __future__ import annotations

from bat_env.errors import BatError


class ServiceError(BatError):
    """Something the agent depends on failed: the episode has no score and is played again."""


class StopEvaluation(BatError):
    """No further episode shall be played, and those that run end without a score.

    The message says why, and how to go on.
    """


class EndEpisode(BatError):
    """The agent is gone without handing in: the host ends the episode and grades what is there.

    The message is the reason, as it is recorded.
    """
