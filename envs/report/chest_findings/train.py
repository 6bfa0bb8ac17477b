"""Train the task's network on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/report/chest_findings/train.py``. Deterministic on one
thread. Also writes the public probe input and its private answer.
"""

from __future__ import annotations

import io
import json

import numpy as np
import torch
from monai.networks.nets import Classifier
from PIL import Image

from bat_env.tasks import Task
from bat_env.tasks.training import FIRST_INDEX, Training, descend, training_instances

INSTANCES = {"mini": 110, "full": 24}
STEPS, BATCH, RATE = 800, 48, 4e-3


def prepare(data: bytes, card: dict) -> np.ndarray:
    """The network input (1, rows, columns) of a file, as the model card says."""
    film = Image.open(io.BytesIO(data))
    x = np.asarray(film, np.float32)
    if film.info["PhotometricInterpretation"] != card["photometric"]:
        x = -x
    if film.info["PatientOrientation"] != card["orientation"]:
        x = x[:, ::-1]
    low, high = np.percentile(x, card["percentiles"])
    x = np.clip((x - low) / (high - low), 0, 1)
    low, high = card["value_range"]
    x = np.asarray(Image.fromarray(low + x * (high - low)).resize(card["size_px"], 2))
    return np.ascontiguousarray(x[None], np.float32)


def target(data: bytes, meta: dict) -> list[float]:
    """One number a channel: whether the finding is there, on that side."""
    there = set()
    for entry in json.loads(data)["findings"]:
        side = entry.get("side", "")
        sides = ("left", "right") if side == "bilateral" else (side,)
        there |= {f"{one}/{entry['finding']}".strip("/") for one in sides}
    return [float(name in there) for name in meta["channels"]]


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training pictures (n, 1, rows, columns), and their findings (n, channels)."""
    inputs, targets = [], []
    for drawn in training_instances(task, INSTANCES, FIRST_INDEX):
        for case in drawn.cases:
            inputs.append(prepare(drawn.public[f"{case}/chest.png"], meta["preprocessing"]))
            targets.append(target(drawn.private[f"{case}/truth.json"], meta))
    return torch.from_numpy(np.stack(inputs)), torch.tensor(targets)


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> Classifier:
    """Train with cross-entropy, small shifts and changes of grey scale."""
    net = Classifier(**meta["network"])

    def loss_of(step: int) -> torch.Tensor:
        rows = torch.randint(len(inputs), (BATCH,))
        shift = torch.randint(-2, 3, (2,)).tolist()
        x = inputs[rows].roll(shift, (2, 3)) * (0.95 + 0.1 * torch.rand(BATCH, 1, 1, 1))
        x = x + 0.05 * torch.randn(BATCH, 1, 1, 1)
        return torch.nn.functional.binary_cross_entropy_with_logits(net(x), targets[rows])

    return descend(net, loss_of, steps=STEPS, rate=RATE, weight_decay=2e-2)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240613)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} pictures")
    net = fit(run.meta, inputs, targets)
    run.save(net, probe=inputs[len(inputs) // 2 :][:4])


if __name__ == "__main__":
    main()
