"""Train the task's network on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/vqa/multiframe_mc/train.py``. Deterministic on one
thread. Frames and their outlines are painted by the task's own generator. Also writes the public
probe input and its private answer.
"""

from __future__ import annotations

import numpy as np
import torch
from monai.networks.nets import UNet
from PIL import Image

from bat_env.tasks import Task, load_sibling
from bat_env.tasks.training import FIRST_INDEX, Training, descend

INSTANCES = {"mini": 24, "full": 4}
STEPS, BATCH, RATE = 600, 24, 8e-3

generator = load_sibling(__file__, "generate")


def prepare(pixels: np.ndarray, card: dict) -> np.ndarray:
    """The network input (1, rows, columns) of a frame with the ventricle on the right."""
    x = np.asarray(Image.fromarray(pixels.astype(np.float32)).resize(card["size_px"], 2))
    return ((x / card["full_scale"] - card["mean"]) / card["std"])[None].astype(np.float32)


def wanted(labels: np.ndarray, meta: dict) -> np.ndarray:
    """The channel of every pixel (rows, columns) of the network's grid."""
    order = [0, *(meta["channels"].index(name) for name in generator.STRUCTURES)]
    small = Image.fromarray(labels).resize(meta["preprocessing"]["size_px"], 0)
    return np.asarray(order, np.int64)[np.asarray(small)]


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training frames (n, 1, rows, columns), and their channels (n, rows, columns)."""
    inputs, targets = [], []
    for size, count in INSTANCES.items():
        for index in range(FIRST_INDEX, FIRST_INDEX + count):
            rng = np.random.default_rng(np.random.PCG64(task.seed("train", index)))
            for question in generator._questions(rng, task.spec.sizes[size]):
                frames = generator._frames(rng, task.spec.sizes[size], question.beat)
                for pixels, labels in frames:
                    inputs.append(prepare(pixels, meta["preprocessing"]))
                    targets.append(wanted(labels, meta))
    return torch.from_numpy(np.stack(inputs)), torch.from_numpy(np.stack(targets))


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> UNet:
    """Train with cross-entropy of every pixel; gain and offset vary a little."""
    net = UNet(**meta["network"])

    def loss_of(step: int) -> torch.Tensor:
        rows = torch.randint(len(inputs), (BATCH,))
        x = inputs[rows] * (0.9 + 0.2 * torch.rand(BATCH, 1, 1, 1))
        x = x + 0.1 * torch.randn(BATCH, 1, 1, 1)
        return torch.nn.functional.cross_entropy(net(x), targets[rows])

    return descend(net, loss_of, steps=STEPS, rate=RATE, weight_decay=1e-3)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240702)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} frames, mean {inputs.mean().item()} std {inputs.std().item()}")
    held = len(inputs) // 12
    net = fit(run.meta, inputs[held:], targets[held:])
    run.save(net, probe=inputs[len(inputs) // 2 :][:4])
    with torch.no_grad():
        said = net(inputs[:held]).argmax(1)
    for number, name in enumerate(run.meta["channels"]):
        one, two = said == number, targets[:held] == number
        run.say(
            f"Dice of {name} {2 * (one & two).sum().item() / (one.sum() + two.sum()).item():.3f}"
        )


if __name__ == "__main__":
    main()
