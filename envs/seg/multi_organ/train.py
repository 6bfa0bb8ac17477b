"""Train the task's UNet on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/seg/multi_organ/train.py``. Deterministic on one
thread; under three CPU-minutes. Also writes the public probe input and its private answer.
"""

from __future__ import annotations

from typing import Any

import torch
from monai.networks.nets import UNet
from monai.transforms import ScaleIntensityRange

from bat_env.tasks import Task
from bat_env.tasks.training import FIRST_INDEX, Training
from bat_env.tasks.training_slices import fit_labels, labelled_slices

__all__ = ["FIRST_INDEX", "dataset", "fit", "main"]

INSTANCES = {"mini": 80, "full": 24}
STEPS, BATCH, RATE = 1000, 20, 5e-3
CANVAS = (80, 64)


def intensities(x: Any, pad: Any, card: Any) -> torch.Tensor:
    """The card's window, from 0 to 1."""
    return pad(ScaleIntensityRange(*card["window_hu"], 0, 1, clip=True)(x)).as_tensor()


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training slices as two tensors."""
    return labelled_slices(task, meta, INSTANCES, CANVAS, intensities)


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> UNet:
    """Train the card's network."""
    net = UNet(**meta["network"])
    how = {"steps": STEPS, "batch": BATCH, "rate": RATE, "shift": 0.03, "noise": 0.02}
    return fit_labels(net, inputs, targets, **how)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240711)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} slices of {tuple(inputs.shape[1:])}")
    net = fit(run.meta, inputs, targets)
    run.save(net, probe=inputs[len(inputs) // 2 :][:2])


if __name__ == "__main__":
    main()
