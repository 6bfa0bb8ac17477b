"""Two small plans to try a judge on: one that says something, and one that only says it does."""

from __future__ import annotations

import hashlib
from typing import Final

from bat_env.episode import CellRecord, Episode
from bat_env.errors import ConfigError
from bat_env.judge.answer import Finding
from bat_env.judge.contract import JudgedContract
from bat_env.judge.judge import Judge
from bat_env.rubric import compile_contract
from bat_env.rubric.plan import FACTS, PLAN
from bat_env.sandbox.base import CellResult, Delta, FileEntry
from bat_env.stages import Stage
from bat_env.tasks.spec import TaskSpec

GOOD: Final = """\
# Plan
We use {model}. The volumes are {modality}, stored with different voxel spacings, and the model was
trained on one fixed spacing: every case is resampled to it first, else structures change their size
for the network.
Risk: the output may be left on the model's grid. Check: shape and affine of the pilot output equal
those of its input.
"""
HOLLOW: Final = """\
# Plan
We use {model}. It is an excellent choice and will work very well.
Errors may occur and results will be validated carefully.
"""


def example_episode(spec: TaskSpec, text: str) -> Episode:
    """An episode at focus S1 in which one cell wrote a plan.

    Args:
        spec: A task.
        text: The plan.
    """
    files = {PLAN: text.encode(), FACTS: b'{"model": "' + spec.model.name.encode() + b'"}'}
    tree = {
        path: FileEntry("file", len(data), hashlib.sha256(data).hexdigest())
        for path, data in files.items()
    }
    episode = Episode(
        task=spec.id,
        tier=next(iter(spec.tiers)),
        split="train",
        size="mini",
        instance_seed=0,
        seed=0,
        focus=Stage.S1,
        current=tree,
        cells=[CellRecord(0, 0, "python", "", CellResult(0, delta=Delta(created=tree)))],
        status="submitted",
    )
    episode.evidence.files = files
    return episode


def example_findings(judge: Judge) -> dict[str, dict[str, Finding]]:
    """What a judge says of both plans: plan name -> item -> finding.

    Raises:
        ConfigError: If no task is installed to ask about.
    """
    from bat_env.tasks import load_task, task_ids

    names = task_ids()
    if not names:
        raise ConfigError("There is no task to ask about. Set BAT_TASKS_PATH.")
    spec = load_task("seg/kidney_tumor" if "seg/kidney_tumor" in names else names[0]).spec
    # What is tried is the server, not what it said last time.
    asking = Judge(judge.config.model_copy(update={"cache": False, "agreement": False}))
    found = {}
    for name, text in (("a plan that gives reasons", GOOD), ("a plan that gives none", HOLLOW)):
        episode = example_episode(spec, text.format(model=spec.model.name, modality=spec.modality))
        rules = compile_contract(spec, tier=episode.tier, focus=episode.focus)
        contract = asking.contract(rules, spec)
        assert isinstance(contract, JudgedContract)
        found[name] = asking.findings(episode, spec, contract)
    return found
