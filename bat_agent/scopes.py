"""What a run practises and is scored on: one task, or the Lite tasks of all seven tracks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from bat_agent.config import BankSettings, RunConfig, SuiteSettings
from bat_agent.curriculum.router import Rule
from bat_agent.curriculum.teacher import Spread
from bat_agent.presets import PRESETS, Preset, load_preset
from bat_env.errors import ConfigError, unknown_name
from bat_env.extras import require

DOCKER_LIVE: Final = 6
"""Containers at once on a small machine."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Suites, and the settings that go with their size.

    Attributes:
        final: Suite of the final evaluation. The bank holds its tasks, so that neither time nor
            scores follow tasks that are added to the project.
        controller: Suite that steers the rounds.
        rounds, steps: Rounds, and updates a round, of a laptop's run.
        router: How a round's target stage is chosen.
        tracks: How a round's groups are spread over the tracks.
        gate_doubt: Standard errors that the gate forgives a track.
        bank: Contents of the Stage Bank, of each task.
        tiny_cpu: Changes of the preset ``tiny-cpu``; a recipe of one's own stays as it is.
    """

    final: str
    controller: str
    rounds: int
    steps: int
    router: Rule = "lowest"
    tracks: Spread = "equal"
    gate_doubt: float = 0.0
    bank: BankSettings = field(default_factory=BankSettings)
    tiny_cpu: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def tasks(self) -> tuple[str, ...]:
        """Task ids of the final suite, in its order."""
        from bat_env.tasks import load_suite

        return tuple(dict.fromkeys(entry.task for entry in load_suite(self.final).entries))


SCOPES: Final[Mapping[str, Scope]] = MappingProxyType(
    {
        "seg": Scope("seg-mini", "seg-mini-controller", rounds=2, steps=18),
        "lite": Scope(
            "lite-mini",
            "lite-mini-controller",
            rounds=5,
            steps=40,
            router="bottleneck",
            tracks="needed",
            gate_doubt=1.0,
            bank=BankSettings(per_cell=3, demos=80, p_good=0.7),
            # Observations of seven tracks are less usual, so they take more tokens.
            tiny_cpu={
                "sft": {"steps": 300},
                "rollout": {"max_completion_tokens": 1536},
                # Rollouts are what costs here, and a second update learns as much from them again.
                # Such updates are noisy: the first of a round, while the optimiser knows little of
                # its gradients, and the last, of which a mean is taken.
                "grpo": {
                    "iterations": 2,
                    "warmup_steps": 8,
                    "keep_checkpoints": 4,
                    "average_checkpoints": 4,
                },
            },
        ),
    }
)
"""Name -> scope: the kidney task of the demo, and one task of each of the seven tracks."""


def run_config(
    scope: str = "lite",
    *,
    title: str,
    seed: int = 0,
    rounds: int | None = None,
    steps: int | None = None,
    backend: str = "auto",
    preset: str | Path | Preset = "tiny-cpu",
    bank: BankSettings | None = None,
) -> RunConfig:
    """Settings of a run.

    Args:
        scope: ``"seg"`` or ``"lite"``.
        title: Of the report.
        seed: Of everything.
        rounds: BiCuRL rounds; the scope's if ``None``.
        steps: Updates of a round; those of the preset if ``None``.
        backend: Sandbox backend; ``"auto"`` is resolved now and recorded.
        preset: Recipe.
        bank: Contents of the Stage Bank; the scope's if ``None``. If it names no task, it gets
            the scope's.

    Raises:
        UnknownNameError: If scope, preset or backend does not exist.
        SandboxUnavailableError: If no sandbox can run here.
        ConfigError: If ``seed`` or ``rounds`` is negative, or what training needs is missing.
    """
    from bat_env.sandbox import resolve_backend

    require("train", "Training")
    if scope not in SCOPES:
        raise unknown_name("suite to train for", scope, SCOPES)
    of = SCOPES[scope]
    number = of.rounds if rounds is None else rounds
    if seed < 0 or number < 0:
        raise ConfigError(f"Expected seed and rounds >= 0, came {seed} and {number}.")
    recipe, resolved = load_preset(preset), resolve_backend(backend)
    if recipe == PRESETS["tiny-cpu"]:
        recipe = recipe.updated(**of.tiny_cpu)
    if resolved == "docker" and recipe.system.use_cpu:
        # Every container holds its own warm interpreter, about a quarter of a gigabyte.
        live = min(recipe.rollout.max_live, DOCKER_LIVE)
        recipe = recipe.updated(rollout={"max_live": live})
    if steps is not None:
        recipe = recipe.updated(grpo={"steps_per_round": steps})
    bank = bank or of.bank
    if bank.tasks is None:
        bank = bank.model_copy(update={"tasks": of.tasks()})
    return RunConfig(
        title=title,
        seed=seed,
        backend=resolved,
        preset=recipe,
        rounds=number,
        bank=bank,
        router=of.router,
        tracks=of.tracks,
        gate_doubt=of.gate_doubt,
        controller=SuiteSettings(suite=of.controller),
        final=SuiteSettings(suite=of.final),
    )
