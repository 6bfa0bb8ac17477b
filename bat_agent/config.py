"""The settings of a whole run: everything that its scores depend on, in one digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bat_agent.curriculum.rounds import COMPOSITION, Pool
from bat_agent.curriculum.router import Rule
from bat_agent.curriculum.teacher import Spread
from bat_agent.files import check_folder, digest_of, read_json, write_json
from bat_agent.presets import Preset
from bat_env.errors import ConfigError

SCHEMA_VERSION: Final = 1
CONFIG_NAME: Final = "config.json"
_FREE: Final = ("rounds", "workers", "title", "log_to")
"""Settings that no score depends on: a run may be continued with others."""


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BankSettings(_Config):
    """What the run's own Stage Bank holds."""

    tasks: tuple[str, ...] | None = Field(None, description="Task ids; every task found if None.")
    size: Literal["mini", "full"] = "mini"
    tier: str = "lite"
    per_cell: int = Field(10, ge=1, description="States of each focus and outcome.")
    demos: int = Field(240, ge=1, description="Demonstrations of each task.")
    p_good: float = Field(0.5, ge=0, le=1, description="Share of good options in demonstrations.")
    e2e_share: float = Field(0.25, ge=0, le=1, description="Demonstrations of the whole workflow.")
    instances: int = Field(24, ge=1, description="Training instances that starts are spread over.")


class SuiteSettings(_Config):
    """An evaluation that the run makes."""

    suite: str
    repeats: int | None = Field(None, ge=1, description="Instances of each task; all if None.")


class RunConfig(_Config):
    """A run: bank, supervised start, rounds, final evaluation.

    ``rounds`` is not part of the digest: a finished run may be continued by more of them.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    title: str
    seed: int = Field(0, ge=0)
    backend: str = Field(description="Sandbox backend, resolved when the run was started.")
    preset: Preset
    rounds: int = Field(1, ge=0)
    bank: BankSettings = BankSettings()
    pools: dict[Pool, int] = Field(
        default_factory=lambda: dict(COMPOSITION),
        description="Groups of a batch from each pool; eight together.",
    )
    router: Rule = Field("lowest", description="How a round's target stage is chosen.")
    tracks: Spread = Field("equal", description="How groups are spread over the tracks.")
    gate_doubt: float = Field(
        0.0, ge=0, description="Standard errors that a track may drop beyond the gate's limit."
    )
    controller: SuiteSettings = SuiteSettings(suite="lite-mini-controller")
    final: SuiteSettings = SuiteSettings(suite="lite-mini")
    log_to: tuple[str, ...] = Field((), description="Trackers that are told of every update.")
    workers: int = Field(2, ge=1, description="Threads; scores do not depend on them.")

    @property
    def digest(self) -> str:
        """sha256 over all settings that scores depend on, as hex."""
        value = self.model_dump(mode="json", exclude=set(_FREE))
        if self.pools == COMPOSITION:
            del value["pools"]  # As in runs from before there was a choice.
        if self.router == "lowest":
            del value["router"]
        if self.tracks == "equal":
            del value["tracks"]
        if not self.gate_doubt:
            del value["gate_doubt"]
        return digest_of(value)

    def claim(self, run: Path) -> RunConfig:
        """Make ``run`` the folder of this run, or continue it if it is that already.

        Returns:
            The settings to go on with.

        Raises:
            ConfigError: If the folder belongs to a run with other settings, or holds other files.
        """
        file = run / CONFIG_NAME
        if not file.is_file():
            if run.exists() and (not run.is_dir() or _holds_files(run)):
                raise ConfigError(
                    f"Expected {run} to be empty or a run of this project, it is neither. Give "
                    "another folder with --out."
                )
            check_folder(run, "a run folder")
            write_json(file, self.model_dump(mode="json"))
            return self
        there = load_config(run)
        if there.digest != self.digest:
            raise ConfigError(
                f"{run} belongs to a run with other settings ({_difference(there, self)}). Give "
                "another folder with --out, or continue that run with `bat-agent resume`."
            )
        check_folder(run, "a run folder")
        write_json(file, self.model_dump(mode="json"))
        return self


def load_config(run: Path) -> RunConfig:
    """Settings of an existing run.

    Raises:
        ConfigError: If ``run`` is no run folder or its settings are damaged.
    """
    file = run / CONFIG_NAME
    if not file.is_file():
        raise ConfigError(
            f"Expected a run folder with {CONFIG_NAME}, {run} has none. Start a run with "
            "`bat-agent demo` or `bat-agent train`."
        )
    try:
        return RunConfig.model_validate(read_json(file, schema_version=SCHEMA_VERSION))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{file} is damaged at {where}: {first['msg']}.") from None


def _holds_files(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError as error:
        raise ConfigError(
            f"Cannot look into {folder}: {error.strerror or error}. Give another folder with --out."
        ) from None


def _difference(there: RunConfig, here: RunConfig) -> str:
    found: list[str] = []

    def walk(path: str, a: Any, b: Any) -> None:
        if isinstance(a, dict) and isinstance(b, dict):
            for key in sorted({*a, *b}):
                walk(f"{path}.{key}" if path else key, a.get(key), b.get(key))
        elif a != b and path not in _FREE:
            found.append(f"{path} {a!r} instead of {b!r}")

    walk("", there.model_dump(mode="json"), here.model_dump(mode="json"))
    return ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
