"""Train the task's network on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/cls/skin_lesion/train.py``. Deterministic on one thread.
Also writes the public probe input and its private answer.
"""

from __future__ import annotations

import io
import json

import numpy as np
import torch
from monai.networks.nets import ResNet
from PIL import Image

from bat_env.tasks import Task
from bat_env.tasks.training import FIRST_INDEX, Training, descend, training_instances

INSTANCES = {"mini": 60, "full": 30}
STEPS, BATCH, RATE = 520, 40, 4e-3


def prepare(data: bytes, card: dict) -> np.ndarray:
    """The network input (3, rows, columns) of a picture, as the model card says."""
    photo = Image.open(io.BytesIO(data)).convert("RGB").resize(card["size_px"], 2)
    x = (np.asarray(photo, np.float32) / 255)[..., ::-1]
    x = (x - card["mean"]) / card["std"]
    return np.ascontiguousarray(x.transpose(2, 0, 1), np.float32)


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training pictures (n, 3, rows, columns), and their channels (n,)."""
    inputs, targets = [], []
    for drawn in training_instances(task, INSTANCES, FIRST_INDEX):
        for case in drawn.cases:
            label = json.loads(drawn.private[f"{case}/truth.json"])["label"]
            inputs.append(prepare(drawn.public[f"{case}/photo.png"], meta["preprocessing"]))
            targets.append(meta["channels"].index(label))
    return torch.from_numpy(np.stack(inputs)), torch.tensor(targets)


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> ResNet:
    """Train with cross-entropy and flips."""
    net = ResNet(**meta["network"])

    def loss_of(step: int) -> torch.Tensor:
        rows = torch.randint(len(inputs), (BATCH,))
        x = inputs[rows]
        if step % 2:
            x = x.flip(3)
        x = x + 0.1 * torch.randn(BATCH, 3, 1, 1)
        return torch.nn.functional.cross_entropy(net(x), targets[rows], label_smoothing=0.05)

    return descend(net, loss_of, steps=STEPS, rate=RATE, weight_decay=1e-3)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240611)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} pictures")
    run.say(f"mean {inputs.mean((0, 2, 3)).tolist()} std {inputs.std((0, 2, 3)).tolist()}")
    net = fit(run.meta, inputs, targets)
    run.save(net, probe=inputs[len(inputs) // 2 :][:4])


if __name__ == "__main__":
    main()
