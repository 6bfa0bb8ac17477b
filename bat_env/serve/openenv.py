"""OpenEnv: the environment as an OpenEnv server, many sessions at once.

The protocol is a trainer's: its client resets, steps and reads rewards, an agent gets the tools.
Nothing else crosses: no item, no component, no truth, no path of this machine, and of a held-out
episode nothing that names its instance. The reward is ``None`` until the episode is over, then its
score; of an invalid episode it stays ``None``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from pydantic import ConfigDict, Field

from bat_env.config import OPTIONS, one_of
from bat_env.env import AutoMedEnv
from bat_env.errors import BatError, ConfigError
from bat_env.info import public_info
from bat_env.serve.door import EpisodePlan
from bat_env.tasks import load_task

STEP_KEYS: Final = ("valid", "error", "turns_left", "calls_left", "status")
"""What a step tells beside the observation."""

_logger = logging.getLogger(__name__)


class BatAction(Action):  # type: ignore[misc]
    """A tool call. Whatever comes is passed on: the environment answers what is wrong with it."""

    model_config = ConfigDict(extra="allow")

    name: Any = Field(None, description="execute_code or submit_results.")
    arguments: Any = Field(None, description="execute_code: language and code; else empty.")


class BatObservation(Observation):  # type: ignore[misc]
    """What an agent reads, and how the episode stands."""

    stage: int = Field(description="Focus: 0-4 are S1-S5, 5 is end to end.")
    text: str = Field(description="The brief at reset, then the answer to the call.")
    truncated: bool = Field(False, description="Done by a budget or a failure, not by a hand-in.")
    status: str = Field("running", description="How the episode stands or ended.")


class BatState(State):  # type: ignore[misc]
    """Where a session stands."""

    model_config = ConfigDict(extra="forbid")

    task: str = ""
    tier: str = ""
    stage: str = ""


class BatOpenEnv(Environment):  # type: ignore[misc]
    """One session: an environment of its own."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, plan: EpisodePlan) -> None:
        super().__init__()
        self._plan = plan
        self._env: AutoMedEnv | None = None
        self._state = BatState()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **options: Any
    ) -> BatObservation:
        """Start an episode.

        Args:
            seed: As of the environment; without one that of the plan.
            episode_id: A name of the caller.
            options: Reset options: ``task``, ``stage``, ``outcome``, ``state_id``, ``index``,
                ``size``.

        Raises:
            ConfigError: On an option that does not exist or cannot work.
            BatError: If no episode could be started; the server's log says why.
        """
        for name in options:
            one_of("reset option", name, OPTIONS)
        if self._plan.index is not None:
            options.setdefault("index", self._plan.index)
        if self._env is None:
            self._env = self._plan.environment()
        try:
            observation, info = self._env.reset(
                seed=self._plan.seed if seed is None else seed, options=options
            )
        except ConfigError:
            raise
        except BatError:
            _logger.exception("No episode could be started")
            raise BatError("No episode could be started; the server's log says why.") from None
        self._state = BatState(
            episode_id=episode_id, task=info["task"], tier=info["tier"], stage=info["stage"]
        )
        return self._shown(observation, metadata=public_info(info))

    def step(self, action: BatAction, timeout_s: float | None = None, **_: Any) -> BatObservation:
        """Do one tool call; time limits are the task's.

        Raises:
            ConfigError: If no episode runs.
        """
        env = self._env
        if env is None or not self._state.task:
            raise ConfigError("Expected an episode that runs, there is none; reset first.")
        if env.episode.status != "running":
            raise ConfigError(f"The episode is over ({env.episode.status}); reset first.")
        sent = action.model_dump(exclude={"metadata"}, exclude_unset=True)
        observation, _reward, terminated, truncated, info = env.step(sent)
        self._state.step_count += 1
        told: dict[str, Any] = {key: info.get(key) for key in STEP_KEYS}
        result = info.get("result")
        if info["status"] == "invalid":
            _logger.error("An episode has no score: %s", info.get("error"))
            told["error"] = "the infrastructure failed"
        return self._shown(
            observation,
            done=bool(terminated or truncated),
            reward=None if result is None else float(result["score"]),
            truncated=bool(truncated),
            status=info["status"],
            metadata=told,
        )

    @property
    def state(self) -> BatState:
        """Where the session stands."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Name and description of the environment."""
        spec = load_task(self._plan.task).spec
        return EnvironmentMetadata(name=spec.id, description=spec.title, version=str(spec.version))

    def close(self) -> None:
        """Give the sandbox back. Idempotent."""
        env, self._env = self._env, None
        if env is not None:
            env.close()

    @staticmethod
    def _shown(observation: dict[str, Any], **more: Any) -> BatObservation:
        return BatObservation(stage=int(observation["stage"]), text=observation["text"], **more)


def openenv_app(plan: EpisodePlan, max_sessions: int = 4) -> Any:
    """The web application.

    Args:
        plan: How episodes start where the client does not say.
        max_sessions: Episodes at once; one more is refused.
    """

    def make() -> BatOpenEnv:
        return BatOpenEnv(plan)

    return create_fastapi_app(
        make,
        BatAction,
        BatObservation,
        max_concurrent_envs=max_sessions,
        env_name="automed",
        state_cls=BatState,
    )


def serve_openenv(
    plan: EpisodePlan, *, host: str, port: int, max_sessions: int, ready: Callable[[str], Any]
) -> None:
    """Serve until a signal; ``ready`` gets the address once it listens."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                name, bound = self.servers[0].sockets[0].getsockname()[:2]
                ready(f"http://{f'[{name}]' if ':' in name else name}:{bound}")

    app = openenv_app(plan, max_sessions)
    config = uvicorn.Config(
        app, host=host, port=port, log_level="error", timeout_graceful_shutdown=5
    )
    try:
        Server(config).run()
    except SystemExit:  # uvicorn has said why
        raise BatError(
            f"Cannot listen at {host}:{port}; give another --port, or 0 for any free one."
        ) from None
