"""`make demo`: the smallest run that shows an agent getting better."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bat_agent.config import BankSettings, RunConfig, SuiteSettings
from bat_agent.presets import Preset, load_preset
from bat_env.errors import ConfigError
from bat_env.extras import require

ROUNDS: Final = 2
STEPS: Final = 18
"""Rounds and updates a round of the demo: what fits in 20 minutes on two cores."""

DOCKER_LIVE: Final = 6
"""Containers at once on a small machine."""

TASKS: Final = ("seg/kidney_tumor",)
"""What the demo practises: the task of its suites. Time and scores must not follow new tasks."""

CONTROLLER: Final = SuiteSettings(suite="seg-mini-controller")
FINAL: Final = SuiteSettings(suite="seg-mini")

TITLE: Final = "Kidney tumour segmentation: did the agent get better?"


def demo_config(
    *,
    seed: int = 0,
    rounds: int = ROUNDS,
    steps: int | None = STEPS,
    backend: str = "auto",
    preset: str | Path | Preset = "tiny-cpu",
    bank: BankSettings | None = None,
    title: str = TITLE,
) -> RunConfig:
    """Settings of a run.

    Args:
        seed: Of everything.
        rounds: BiCuRL rounds.
        steps: Updates of a round; those of the preset if ``None``.
        backend: Sandbox backend; ``"auto"`` is resolved now and recorded.
        preset: Recipe.
        bank: Contents of the Stage Bank; the defaults if ``None``. If it names no task, it gets
            the demo's.
        title: Of the report.

    Raises:
        UnknownNameError: If preset or backend does not exist.
        SandboxUnavailableError: If no sandbox can run here.
        ConfigError: If ``seed`` or ``rounds`` is negative, or what training needs is missing.
    """
    from bat_env.sandbox import resolve_backend

    require("train", "Training")
    if seed < 0 or rounds < 0:
        raise ConfigError(f"Expected seed and rounds >= 0, came {seed} and {rounds}.")
    recipe, resolved = load_preset(preset), resolve_backend(backend)
    if resolved == "docker" and recipe.system.use_cpu:
        # Every container holds its own warm interpreter, about a quarter of a gigabyte.
        live = min(recipe.rollout.max_live, DOCKER_LIVE)
        recipe = recipe.updated(rollout={"max_live": live})
    if steps is not None:
        recipe = recipe.updated(grpo={"steps_per_round": steps})
    bank = bank or BankSettings()
    if bank.tasks is None:
        bank = bank.model_copy(update={"tasks": TASKS})
    return RunConfig(
        title=title,
        seed=seed,
        backend=resolved,
        preset=recipe,
        rounds=rounds,
        bank=bank,
        controller=CONTROLLER,
        final=FINAL,
    )
