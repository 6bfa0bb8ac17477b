"""Where BiCuRL's outer loop stands: ``state.json`` of a run, and the checkpoints that it names."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bat_agent.files import read_json
from bat_env.errors import ConfigError

STATE_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint: its folder relative to the run, and the digest of its weights."""

    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class LoopState:
    """Where the loop stands.

    Attributes:
        config_digest: Of the run's settings; another one is refused.
        round: Round in progress, 1-based; ``rounds + 1`` when done.
        phase: Phase in progress, for people.
        rounds: Rounds to run.
        current: Policy that the next round starts from.
        best: Policy with the highest controller Overall so far, and that score.
        changes: Overall of each candidate minus its start, since the last fallback.
        held: Round whose gate held, if that was the last one.
        promoted: Rounds promoted so far.
    """

    config_digest: str
    rounds: int
    current: Checkpoint
    best: Checkpoint
    best_overall: float | None = None
    round: int = 1
    phase: str = "evaluate"
    changes: tuple[float, ...] = ()
    held: int | None = None
    promoted: tuple[int, ...] = field(default=())

    @property
    def done(self) -> bool:
        """Whether all rounds are complete."""
        return self.round > self.rounds

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the schema version."""
        return {
            "schema_version": STATE_SCHEMA,
            "config_digest": self.config_digest,
            "rounds": self.rounds,
            "round": self.round,
            "phase": self.phase,
            "current": {"path": self.current.path, "digest": self.current.digest},
            "best": {"path": self.best.path, "digest": self.best.digest},
            "best_overall": self.best_overall,
            "changes": list(self.changes),
            "held": self.held,
            "promoted": list(self.promoted),
        }

    @classmethod
    def load(cls, path: Path) -> LoopState:
        """Read ``state.json``.

        Raises:
            ConfigError: If it is missing or damaged.
        """
        value = read_json(path, schema_version=STATE_SCHEMA)
        try:
            return cls(
                config_digest=str(value["config_digest"]),
                rounds=int(value["rounds"]),
                round=int(value["round"]),
                phase=str(value["phase"]),
                current=Checkpoint(**value["current"]),
                best=Checkpoint(**value["best"]),
                best_overall=value["best_overall"],
                changes=tuple(value["changes"]),
                held=value["held"],
                promoted=tuple(value["promoted"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path} is damaged: {error!r}. Start a new run folder.") from None
