"""`make demo`: the smallest run that shows an agent getting better, and the same over seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from bat_agent.config import BankSettings, RunConfig, SuiteSettings
from bat_agent.files import check_file, check_folder, write_json
from bat_agent.pipeline import LABELS, Pipeline, Results
from bat_agent.presets import Preset, load_preset
from bat_env.errors import ConfigError
from bat_env.extras import require

LEARN_SCHEMA: Final = 1
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


def learn(
    runs: Path, out: Path, *, seeds: int, rounds: int, backend: str, quiet: bool = False
) -> dict[str, Any]:
    """Run the demo's recipe with several seeds and write the scores to one JSON file.

    The file is written after every seed; a second call continues.

    Args:
        runs: Folder that gets one run folder a seed.
        out: JSON file.
        seeds: Number of seeds, 0 .. seeds - 1.
        rounds: BiCuRL rounds.
        backend: Sandbox backend.
        quiet: No progress on stderr.

    Returns:
        What was written.
    """
    if seeds < 1:
        raise ConfigError(f"Expected at least 1 seed, came {seeds}.")
    check_file(out, "the scores' file")
    check_folder(runs, "a folder of runs")
    rows: list[dict[str, Any]] = []
    document: dict[str, Any] = {}
    for seed in range(seeds):
        config = demo_config(seed=seed, rounds=rounds, backend=backend)
        results = Pipeline(
            runs / f"seed-{seed}", config, command=f"bat-agent learn --seeds {seeds}", quiet=quiet
        ).run()
        rows.append(learn_row(seed, config, results))
        document = {
            "schema_version": LEARN_SCHEMA,
            "command": f"bat-agent learn --seeds {seeds} --rounds {rounds}",
            "backend": config.backend,
            "rounds": rounds,
            "preset": config.preset.name,
            "seeds": rows,
            "seeds_above_zero": sum(r["difference"]["sampled"]["low"] > 0 for r in rows),
            "seeds_at_1_5x": sum(r["ratio"] is not None and r["ratio"] >= 1.5 for r in rows),
        }
        write_json(out, document)
    return document


def learn_row(seed: int, config: RunConfig, results: Results) -> dict[str, Any]:
    """The scores of one seed, as plain values."""
    sft = results.evaluations["sft", "sampled"].overall
    bat = results.evaluations["bat", "sampled"].overall
    return {
        "seed": seed,
        "settings": config.digest,
        "overall": {
            key: {
                which: results.evaluations[key, which].overall
                for which in ("sampled", "greedy")
                if (key, which) in results.evaluations
            }
            for key in LABELS
        },
        "ratio": bat / sft if bat is not None and sft else None,
        "difference": {
            which: interval.to_json() if interval is not None else None
            for which, interval in results.differences.items()
        },
        "promoted": list(results.state.promoted),
        "weights": {
            key: results.evaluations[key, "sampled"].checkpoint for key in ("base", "sft", "bat")
        },
    }
