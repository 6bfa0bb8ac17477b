"""BaT environment suite: Gymnasium environments for agents that do medical-imaging work.

Importing this package registers the environments and nothing else: no torch, no task file and no
sandbox is touched before :func:`gymnasium.make`.

    >>> import gymnasium as gym
    >>> import bat_env
    >>> bat_env.__version__
    '0.1.0'
    >>> gym.spec("AutoMed-Seg-v0").entry_point
    'bat_env.env:AutoMedEnv'
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from gymnasium.envs.registration import register, registry

__version__: Final = "0.1.0"

TRACK_IDS: Final[dict[str, str]] = {
    "seg": "AutoMed-Seg-v0",
    "enh": "AutoMed-Enh-v0",
    "det": "AutoMed-Det-v0",
    "cls": "AutoMed-Cls-v0",
    "vqa": "AutoMed-VQA-v0",
    "report": "AutoMed-Report-v0",
    "synth": "AutoMed-Synth-v0",
}
"""Track -> environment id. An id is registered where the track has a task folder."""

BANK_ID: Final = "AutoMed-Bank-v0"
"""The environment that draws every start from the Stage Bank, over all tracks."""


def _tracks() -> set[str]:
    """Tracks that have a task folder: directory look-ups only, no file is read.

    Looks beside the package, in a wheel, on BAT_TASKS_PATH, and at the names of third-party entry
    points (``<track>/<task>``), which are not loaded.
    """
    here = Path(__file__).resolve().parent
    extra = [Path(p) for p in os.environ.get("BAT_TASKS_PATH", "").split(os.pathsep) if p]
    found = {
        p.parent.parent.name for r in (here / "_envs", *extra) for p in r.glob("*/*/task.yaml")
    }
    found |= {p.parent.parent.name for p in (here.parent / "envs").glob("*/*/task.yaml")}
    found |= {p.resolve().parent.parent.name for r in extra for p in r.glob("*/task.yaml")}
    found |= {r.resolve().parent.name for r in extra if (r / "task.yaml").is_file()}
    return found | {point.name.split("/")[0] for point in entry_points(group="bat_env.tasks")}


def _register() -> None:
    tracks = _tracks()
    for track, env_id in TRACK_IDS.items():
        if track in tracks and env_id not in registry:
            _add(env_id, {"track": track})
    if BANK_ID not in registry:
        _add(BANK_ID, {"track": None, "distribution": "uniform"})


def _add(env_id: str, kwargs: dict[str, str | None]) -> None:
    # Gymnasium's passive checker cannot go on after a first reset that was refused: every later
    # step fails in it. bat_env.testing holds the conformance checks instead.
    register(
        id=env_id,
        entry_point="bat_env.env:AutoMedEnv",
        kwargs=kwargs,
        disable_env_checker=True,
    )


_register()
