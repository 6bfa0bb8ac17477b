"""Train the task's network on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/vqa/radiograph_mc/train.py``. Deterministic on one
thread. Pictures are painted by the task's own generator, which tells what each of them shows. Also
writes the public probe input and its private answer.
"""

from __future__ import annotations

import numpy as np
import torch
from monai.networks.nets import Classifier
from PIL import Image

from bat_env.tasks import Task, load_sibling
from bat_env.tasks.training import FIRST_INDEX, Training, descend

INSTANCES = {"mini": 150, "full": 16}
STEPS, BATCH, RATE = 700, 48, 4e-3

generator = load_sibling(__file__, "generate")


def prepare(pixels: np.ndarray, card: dict) -> np.ndarray:
    """The network input (1, rows, columns) of stored pixels, dense being bright."""
    x = np.asarray(Image.fromarray(pixels.astype(np.float32)).resize(card["size_px"], 2))
    return ((x / card["full_scale"] - card["mean"]) / card["std"])[None].astype(np.float32)


def wanted(shown: dict[str, tuple[int, ...]], channels: list[str]) -> list[float]:
    """What each channel should say of a picture."""
    halves = {"": (-1, 1), "picture left": (-1,), "picture right": (1,)}
    target = []
    for channel in channels:
        name, _, where = channel.partition(", ")
        target.append(float(any(half in shown.get(name, ()) for half in halves[where])))
    return target


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training pictures (n, 1, rows, columns), and their channels (n, 10)."""
    inputs, targets = [], []
    for size, count in INSTANCES.items():
        for index in range(FIRST_INDEX, FIRST_INDEX + count):
            rng = np.random.default_rng(np.random.PCG64(task.seed("train", index)))
            for question in generator._questions(rng, task.spec.sizes[size]):
                pixels = generator._picture(rng, task.spec.sizes[size], question.shown)
                inputs.append(prepare(pixels, meta["preprocessing"]))
                targets.append(wanted(question.shown, meta["channels"]))
    return torch.from_numpy(np.stack(inputs)), torch.tensor(targets)


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> Classifier:
    """Train with cross-entropy of every channel; gain and offset vary a little."""
    net = Classifier(**meta["network"])

    def loss_of(step: int) -> torch.Tensor:
        rows = torch.randint(len(inputs), (BATCH,))
        x = inputs[rows] + 0.1 * torch.randn(BATCH, 1, 1, 1)
        x = x.roll((int(torch.randint(-3, 4, ())), int(torch.randint(-2, 3, ()))), (2, 3))
        y = targets[rows] * 0.96 + 0.02
        return torch.nn.functional.binary_cross_entropy_with_logits(net(x), y)

    return descend(net, loss_of, steps=STEPS, rate=RATE, weight_decay=1e-2)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240619)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} pictures, mean {inputs.mean().item()} std {inputs.std().item()}")
    held = len(inputs) // 12
    net = fit(run.meta, inputs[held:], targets[held:])
    run.save(net, probe=inputs[len(inputs) // 2 :][:4])
    with torch.no_grad():
        said = net(inputs[:held]) > 0
    right = (said == (targets[:held] > 0.5)).float().mean(0)
    run.say(f"right on pictures kept aside {[round(float(share), 3) for share in right]}")


if __name__ == "__main__":
    main()
