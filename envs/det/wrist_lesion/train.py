"""Train the task's network on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/det/wrist_lesion/train.py``. Deterministic on one thread.
Also writes the public probe input and its private answer.
"""

from __future__ import annotations

import io
import json

import numpy as np
import torch
from monai.networks.nets import UNet
from PIL import Image

from bat_env.tasks.discovery import Task
from bat_env.tasks.training import FIRST_INDEX, Training, descend, training_instances

INSTANCES = {"mini": 60, "full": 24}
STEPS, BATCH, RATE = 1200, 24, 8e-3


def prepare(data: bytes, card: dict) -> np.ndarray:
    """The network input (1, rows, columns) of a file, as the model card says."""
    film = Image.open(io.BytesIO(data))
    x = np.asarray(film, np.float32)
    if film.info["PhotometricInterpretation"] != card["photometric"]:
        x = -x
    low, high = np.percentile(x, card["percentiles"])
    x = np.clip((x - low) / (high - low), 0, 1)
    low, high = card["value_range"]
    x = np.asarray(Image.fromarray(low + x * (high - low)).resize(card["size_px"], 2))
    return np.ascontiguousarray(x[None], np.float32)


def target(data: bytes, meta: dict) -> np.ndarray:
    """Interiors of the true boxes, a channel a class, on the network's grid."""
    truth = json.loads(data)
    width, height = meta["preprocessing"]["size_px"]
    sx, sy = width / truth["width"], height / truth["height"]
    maps = np.zeros((len(meta["channels"]), height, width), np.float32)
    for box in truth["boxes"]:
        rows = slice(round(box["y1"] * sy), round(box["y2"] * sy))
        columns = slice(round(box["x1"] * sx), round(box["x2"] * sx))
        maps[meta["channels"].index(box["class"]), rows, columns] = 1
    return maps


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training pictures (n, 1, rows, columns), and their maps (n, classes, rows, columns)."""
    inputs, targets = [], []
    for drawn in training_instances(task, INSTANCES, FIRST_INDEX):
        for case in drawn.cases:
            inputs.append(prepare(drawn.public[f"{case}/wrist.png"], meta["preprocessing"]))
            targets.append(target(drawn.private[f"{case}/truth.json"], meta))
    return torch.from_numpy(np.stack(inputs)), torch.from_numpy(np.stack(targets))


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> UNet:
    """Train with cross-entropy and Dice, and flips to the other hand."""
    net = UNet(**meta["network"])

    def loss_of(step: int) -> torch.Tensor:
        rows = torch.randint(len(inputs), (BATCH,))
        x, y = inputs[rows], targets[rows]
        if step % 2:
            x, y = x.flip(3), y.flip(3)
        z = net(x)
        p = z.sigmoid()
        overlap = 2 * (p * y).sum((0, 2, 3)) / (p.sum((0, 2, 3)) + y.sum((0, 2, 3)) + 1)
        return torch.nn.functional.binary_cross_entropy_with_logits(z, y) + 1 - overlap.mean()

    return descend(net, loss_of, steps=STEPS, rate=RATE, weight_decay=1e-3)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240612)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} pictures")
    net = fit(run.meta, inputs, targets)
    run.save(net, probe=inputs[len(inputs) // 2 :][:4])


if __name__ == "__main__":
    main()
