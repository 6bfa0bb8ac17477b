"""Train the task's UNet on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/seg/fetal_brain/train.py``. Deterministic on one
thread; under three CPU-minutes. Also writes the public probe input and its private answer.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from monai.networks.nets import UNet
from scipy.ndimage import gaussian_filter

from bat_env.tasks import Task
from bat_env.tasks.training import FIRST_INDEX, Training
from bat_env.tasks.training_slices import fit_labels, labelled_slices

__all__ = ["FIRST_INDEX", "dataset", "fit", "main"]

INSTANCES = {"mini": 60, "full": 18}
STEPS, BATCH, RATE = 1200, 20, 5e-3
CANVAS = (64, 64)


def normalised(signal: np.ndarray, card: dict) -> np.ndarray:
    """The signal over its local mean, in the card's range, as the network wants it."""
    mask = np.float32(signal > 0)
    sigma = card["smooth_mm"] / np.array(card["spacing_mm"])
    low = gaussian_filter(signal, sigma) / np.maximum(gaussian_filter(mask, sigma), 1e-6)
    ratio = np.where(mask > 0, signal / np.maximum(low, 1e-6), 0)
    a, b = card["signal_range"]
    return np.float32(((ratio - a) / (b - a)).clip(0, 1))


def intensities(x: Any, pad: Any, card: Any) -> torch.Tensor:
    """The padded signal over its local mean."""
    return torch.from_numpy(normalised(pad(x)[0].numpy(), card))[None]


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training slices as two tensors."""
    return labelled_slices(task, meta, INSTANCES, CANVAS, intensities)


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> UNet:
    """Train the card's network."""
    net = UNet(**meta["network"])
    how = {"steps": STEPS, "batch": BATCH, "rate": RATE, "shift": 0.02, "noise": 0.02}
    return fit_labels(net, inputs, targets, **how)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240715)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} slices of {tuple(inputs.shape[1:])}")
    net = fit(run.meta, inputs, targets)
    run.save(net, probe=inputs[len(inputs) // 2 :][:2])


if __name__ == "__main__":
    main()
