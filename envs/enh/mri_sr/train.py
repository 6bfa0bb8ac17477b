"""Train the task's UNet on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/enh/mri_sr/train.py``. Deterministic on one thread. Also
writes the public probe input and its private answer, and prints what
``metric.params.careful_ssim`` of task.yaml must say.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from monai.networks.nets import BasicUNet
from torch.nn.functional import avg_pool2d, interpolate, pad, pixel_shuffle

from bat_env.metrics.images import masked_ssim
from bat_env.tasks.discovery import Task
from bat_env.tasks.instance import Instance
from bat_env.tasks.training import FIRST_INDEX, Training, descend, training_instances

INSTANCES = {"mini": 50, "full": 20}
UNSEEN = {"mini": 6, "full": 3}
STEPS, BATCH, RATE, PATCH, RIM = 2350, 16, 4e-3, 32, 4

Pair = tuple[np.ndarray, np.ndarray, np.ndarray, float]


def pairs(task: Task, drawn: Instance, percentile: float) -> list[Pair]:
    """(measured, true, mask, unit) of the cases of an instance; images are divided by the unit."""
    made = []
    for case in drawn.cases:
        coarse, fine, mask = (
            np.load(io.BytesIO(data))
            for data in (
                drawn.public[f"{case}/{task.spec.input_file}"],
                drawn.private[f"{case}/{task.spec.output.name}"],
                drawn.private[f"{case}/mask.npy"],
            )
        )
        unit = float(np.percentile(coarse, percentile))
        made.append((np.float32(coarse / unit), np.float32(fine / unit), mask, unit))
    return made


def enlarged(meta: dict, x: torch.Tensor) -> torch.Tensor:
    """The card's interpolation."""
    card = meta["preprocessing"]
    return interpolate(
        x,
        scale_factor=card["factor"],
        mode=card["interpolation"],
        align_corners=card["align_corners"],
    )


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Training patches: measured (n, 1, side, side) and true (n, 1, 2 * side, 2 * side)."""
    random = np.random.default_rng(7)
    inputs, targets = [], []
    for drawn in training_instances(task, INSTANCES):
        for x, y, _, _ in pairs(task, drawn, meta["preprocessing"]["percentile"]):
            for _ in range(x.size // PATCH**2 * 3):
                i, j = (int(random.integers(0, n - PATCH + 1)) for n in x.shape)
                inputs.append(x[i : i + PATCH, j : j + PATCH])
                targets.append(y[2 * i : 2 * (i + PATCH), 2 * j : 2 * (j + PATCH)])
    return torch.from_numpy(np.stack(inputs))[:, None], torch.from_numpy(np.stack(targets))[:, None]


def dissimilarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """1 - SSIM with box windows of seven pixels and the metric's constants."""

    def smooth(v: torch.Tensor) -> torch.Tensor:
        return avg_pool2d(v, 7, 1)

    mean_a, mean_b = smooth(a), smooth(b)
    var = smooth(a * a) - mean_a**2 + smooth(b * b) - mean_b**2
    cov = smooth(a * b) - mean_a * mean_b
    c1, c2 = 1e-4, 9e-4
    luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return 1 - (luminance * (2 * cov + c2) / (var + c2)).mean()


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> BasicUNet:
    """Train with absolute error and SSIM on patches, turned over at random."""
    net = BasicUNet(**meta["network"])

    def loss(step: int) -> torch.Tensor:
        if step == STEPS * 3 // 5:
            net.eval()  # Later steps see the statistics that inference will use.
        rows = torch.randint(len(inputs), (BATCH,))
        x, y = inputs[rows], targets[rows]
        if step % 2:
            x, y = x.transpose(2, 3), y.transpose(2, 3)
        if step % 4 > 1:
            x, y = x.flip(2), y.flip(2)
        fine = enlarged(meta, x) + pixel_shuffle(net(x), 2)
        # A patch's rim lacks its surroundings.
        fine, y = (v[:, :, RIM:-RIM, RIM:-RIM] for v in (fine, y))
        return (fine - y).abs().mean() + 1.0 * dissimilarity(fine, y)

    return descend(net, loss, steps=STEPS, rate=RATE)


@torch.no_grad()
def careful(task: Task, meta: dict, net: BasicUNet) -> float:
    """Mean masked SSIM of the network on training-namespace instances that it was not fitted to."""
    means = []
    for size, count in UNSEEN.items():
        scores = []
        for drawn in training_instances(task, {size: count}, FIRST_INDEX - count):
            for x, y, mask, unit in pairs(task, drawn, meta["preprocessing"]["percentile"]):
                (h, w), coarse = x.shape, torch.from_numpy(x)[None, None]
                gap = net(pad(coarse, (0, -w % 4, 0, -h % 4), mode="replicate"))
                gap = pixel_shuffle(gap, 2)[:, :, : 2 * h, : 2 * w]
                fine = (enlarged(meta, coarse) + gap)[0, 0].numpy()
                a, b = np.float64(fine) * unit, np.float64(y) * unit
                scores.append(masked_ssim(a, b, mask > 0, task.spec.metric.params["data_range"]))
        print(f"{size}: mean SSIM {np.mean(scores):.4f}, lowest {np.min(scores):.4f}")
        means.append(float(np.mean(scores)))
    return sum(means) / len(means)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240617)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} patches")
    net = fit(run.meta, inputs, targets)
    run.say("trained")
    print(f"careful_ssim {careful(run.task, run.meta, net):.3f} (task.yaml must say so)")
    run.save(net, inputs[len(inputs) // 2 :][:1])


if __name__ == "__main__":
    main()
