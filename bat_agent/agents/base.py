"""What an agent is, and how one is found by name.

Agents get tools, only infrastructure gets ``reset`` and ``step``: an agent is told the reset
observation and the public part of ``info``, and afterwards sees observations only.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from bat_agent.agents.plugin import METHODS, checked_class, plugged_class
from bat_env.errors import CheckpointError, ConfigError, unknown_name

ToolCall: TypeAlias = dict[str, Any]
"""``{"name": ..., "arguments": {...}}``."""

GROUP: Final = "bat_agent.agents"
"""Entry-point group: a callable without arguments that gives a new :class:`Agent`."""

BUILT_IN: Final[Mapping[str, str]] = {
    "nop": "bat_agent.agents.scripted:NopAgent",
    "naive": "bat_agent.agents.scripted:NaiveAgent",
    "oracle": "bat_agent.agents.scripted:OracleAgent",
    "chat": "bat_agent.agents.chat:ChatAgent",
}


@runtime_checkable
class Agent(Protocol):
    """Plays one episode at a time."""

    def reset(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Begin an episode.

        Args:
            observation: ``{"stage": int, "text": str}``; the text is the whole brief.
            info: Public keys only: no score, no items, no result; in held-out episodes nothing
                that names the instance either.
        """
        ...

    def act(self, observation: Mapping[str, Any]) -> ToolCall:
        """The next tool call, given the latest observation."""
        ...


@dataclass(frozen=True, slots=True)
class AgentSource:
    """Where agents of one kind come from.

    Attributes:
        name: For tables and files.
        make: Gives a new agent, one per running episode; ``None`` for a policy checkpoint, which
            plays in batched waves instead.
        checkpoint: Folder of the policy, or ``None``.
        settings: What its scores depend on, for the file of an evaluation.
        usage: Gives the sums of what it spent, over all episodes.
        restore: Takes such sums of an earlier start.
        most: Episodes that it can play at once.
    """

    name: str
    make: Callable[[], Agent] | None = None
    checkpoint: Path | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    usage: Callable[[], dict[str, Any]] | None = None
    restore: Callable[[Mapping[str, Any]], None] | None = None
    most: int = 1 << 16


def agent_names() -> tuple[str, ...]:
    """Names that :func:`load_agent` knows, without checkpoint folders."""
    return tuple(sorted({*BUILT_IN, *(point.name for point in entry_points(group=GROUP))}))


def is_foreign(name: str) -> bool:
    """Whether a name stands for code that is not ours: a class, or what another package brings."""
    return ":" in name or (name in agent_names() and name not in BUILT_IN)


def load_agent(name: str | Path) -> AgentSource:
    """Find an agent by name or class, or a policy by its checkpoint folder or run folder.

    A class is ``module:Class`` or ``path/to/file.py:Class``.

    Raises:
        UnknownNameError: If ``name`` is neither; the message suggests the nearest names.
        CheckpointError: If it is a folder without a policy.
        ConfigError: If an agent's package cannot be imported.
    """
    text = str(name)
    points = {point.name: point for point in entry_points(group=GROUP)}
    for built_in, target in BUILT_IN.items():
        # A checkout that is not installed has no entry points of its own.
        points.setdefault(built_in, EntryPoint(built_in, target, GROUP))
    if ":" in text and text not in points:
        return plugged_in(text)
    if text in points:
        try:
            return AgentSource(text, make=points[text].load())
        except (Exception, SystemExit) as error:
            raise ConfigError(
                f"Agent {text!r} ({points[text].value}) cannot be loaded: {error!r}. "
                "Install the package that provides it."
            ) from error
    folder = Path(text)
    if folder.is_dir():
        return AgentSource(folder.name, checkpoint=_checkpoint(folder))
    raise unknown_name(
        "agent",
        text,
        points,
        "A checkpoint folder works too, and a class: module:Class or path/to/file.py:Class.",
    )


def source_of(agent: Agent | type[Agent]) -> AgentSource:
    """The source of an agent that is at hand.

    Args:
        agent: A class, of which every episode gets a new one, or an object, which plays them all,
            one at a time.

    Raises:
        ConfigError: If it is neither, or the class cannot be made without arguments.
    """
    if inspect.isclass(agent):
        return AgentSource(agent.__name__, make=checked_class(agent, agent.__qualname__))
    if not all(callable(getattr(agent, method, None)) for method in METHODS):
        raise ConfigError(
            "Expected an agent's name, a checkpoint folder, or a class or object with the methods "
            f"reset and act, came {agent!r:.80}. See examples/custom_agent.py."
        )
    return AgentSource(type(agent).__name__, make=lambda: _Borrowed(agent), most=1)


class _Borrowed:
    """An agent of the caller: it lives longer than an episode, so it is not closed after one."""

    def __init__(self, agent: Any) -> None:
        self.reset, self.act = agent.reset, agent.act
        self._agent = agent

    @property
    def tokens(self) -> int:
        return int(getattr(self._agent, "tokens", 0))

    @property
    def cost(self) -> float:
        return float(getattr(self._agent, "cost", 0.0))

    @property
    def record(self) -> Any:
        return getattr(self._agent, "record", None)


def plugged_in(text: str) -> AgentSource:
    """An agent class by ``module:Class`` or ``path/to/file.py:Class``.

    Raises:
        UnknownNameError: If the module has no such class; the message suggests the nearest.
        ConfigError: If the module cannot be imported, or the class is no agent.
    """
    made = plugged_class(text)
    return AgentSource(text.rpartition(":")[2], make=made)


def _checkpoint(folder: Path) -> Path:
    """``folder`` if it is a checkpoint, else the best one of the run in it."""
    if (folder / "bat.json").is_file():
        return folder
    state = folder / "state.json"
    if state.is_file():
        try:
            best = json.loads(state.read_text(encoding="utf-8"))["best"]["path"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"Expected the best checkpoint's path in {state}, came {error!r}. The run has not "
                "reached a checkpoint yet, or the file is damaged."
            ) from None
        checkpoint = folder / str(best)
        if (checkpoint / "bat.json").is_file():
            return checkpoint
    raise CheckpointError(
        f"Expected a policy checkpoint (a folder with bat.json) in {folder}, there is none."
    )
