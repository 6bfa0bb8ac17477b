"""`make demo`: the smallest run that shows an agent getting better."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bat_agent.config import BankSettings, RunConfig
from bat_agent.presets import Preset
from bat_agent.scopes import SCOPES, run_config

TITLE: Final = "Kidney tumour segmentation: did the agent get better?"


def demo_config(
    *,
    seed: int = 0,
    rounds: int | None = None,
    backend: str = "auto",
    preset: str | Path | Preset = "tiny-cpu",
    steps: int | None = SCOPES["seg"].steps,
    bank: BankSettings | None = None,
) -> RunConfig:
    """Settings of a run on the kidney task that fits in 20 minutes on two cores.

    Args and errors are those of :func:`bat_agent.scopes.run_config`.
    """
    return run_config(
        "seg",
        title=TITLE,
        seed=seed,
        rounds=rounds,
        steps=steps,
        backend=backend,
        preset=preset,
        bank=bank,
    )
