"""ControllerScores: all that evaluation lets through to training.

The firewall is this type. It holds aggregates only - stage scores, track means, counts - and its
constructor refuses any key that is not a stage, a track or a failure class, so that an identifier,
a path or an answer has no field to travel in. The rest of the curriculum imports nothing else of
evaluation; an import contract keeps it so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from bat_env.errors import ConfigError
from bat_env.stages import WORK_STAGES

SCHEMA_VERSION: Final = 1
TRACKS: Final[tuple[str, ...]] = ("seg", "enh", "det", "cls", "vqa", "report", "synth")
STAGE_NAMES: Final[tuple[str, ...]] = tuple(stage.name for stage in WORK_STAGES)
FAILURE_CLASSES: Final[tuple[str, ...]] = (
    "none",
    "nothing_done",
    "disqualified",
    "out_of_budget",
    "weak_S1",
    "weak_S2",
    "weak_S3",
    "weak_S4",
    "weak_S5",
    "weak_task",
)
_HEX: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ControllerScores:
    """Aggregates of one controller evaluation. All scores are in [0, 1].

    Attributes:
        overall, agentic, task: Means over tracks.
        stages: ``S1`` .. ``S5`` -> mean over tracks; a stage that applies nowhere is absent.
        tracks: Track -> mean Overall.
        errors: Track -> standard error of that mean; absent where one episode was played.
        track_stages: Track -> stage -> mean.
        episodes: Track -> number of scored episodes.
        completed: Track -> number of episodes that handed in.
        failures: Failure class -> number of episodes.
        pairing: sha256 over the evaluated cells and the sampling settings. It says whether two
            evaluations may be compared, and nothing about what was in them.
    """

    overall: float
    agentic: float
    task: float
    stages: Mapping[str, float]
    tracks: Mapping[str, float]
    errors: Mapping[str, float] = field(default_factory=dict)
    track_stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    episodes: Mapping[str, int] = field(default_factory=dict)
    completed: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, int] = field(default_factory=dict)
    pairing: str = "0" * 64

    def __post_init__(self) -> None:
        for name in ("overall", "agentic", "task"):
            _score(name, getattr(self, name))
        _keys("stage", self.stages, STAGE_NAMES)
        for by_track in (
            self.tracks, self.errors, self.track_stages, self.episodes, self.completed,
        ):  # fmt: skip
            _keys("track", by_track, TRACKS)
        _keys("failure class", self.failures, FAILURE_CLASSES)
        for stage, value in self.stages.items():
            _score(stage, value)
        for scores in (self.tracks, self.errors):
            for track, value in scores.items():
                _score(track, value)
        for track, by_stage in self.track_stages.items():
            _keys("stage", by_stage, STAGE_NAMES)
            for stage, value in by_stage.items():
                _score(f"{track}.{stage}", value)
        for counts in (self.episodes, self.completed, self.failures):
            for key, count in counts.items():
                if type(count) is not int or count < 0:
                    raise ConfigError(f"Expected a count for {key!r}, came {count!r}.")
        if not isinstance(self.pairing, str) or not _HEX.fullmatch(self.pairing):
            raise ConfigError("Expected a sha256 digest as the pairing of controller scores.")

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the schema version."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ControllerScores:
        """Read what :meth:`to_json` wrote.

        Raises:
            ConfigError: If a key is unknown or missing, or a value is not an aggregate.
        """
        fields = {key: item for key, item in value.items() if key != "schema_version"}
        if value.get("schema_version") != SCHEMA_VERSION:
            raise ConfigError(
                f"Expected controller scores of schema version {SCHEMA_VERSION}, came "
                f"{value.get('schema_version')!r}."
            )
        try:
            return cls(**fields)
        except TypeError as error:
            raise ConfigError(f"Not controller scores: {error}.") from None


def _score(name: str, value: object) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not 0.0 <= value <= 1.0
    ):
        raise ConfigError(
            f"Expected a score in [0, 1] for {name}, came {value!r}. A cell without a score must "
            "be run again; it cannot enter the curriculum."
        )


def _keys(kind: str, value: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    unknown = sorted(set(value) - set(allowed))
    if unknown:
        raise ConfigError(
            f"Expected only {', '.join(allowed)} as {kind}, came {len(unknown)} other key(s). "
            "Only aggregates may cross from evaluation to training."
        )
