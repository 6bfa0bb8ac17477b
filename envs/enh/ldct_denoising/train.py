"""Train the task's UNet on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/enh/ldct_denoising/train.py``. Deterministic on one
thread. Also writes the public probe input and its private answer, and prints what
``metric.params.careful_ssim`` of task.yaml must say.
"""

from __future__ import annotations

import gzip

import nibabel as nib
import numpy as np
import torch
from monai.networks.nets import UNet
from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform
from torch.nn.functional import avg_pool2d, pad

from bat_env.metrics.images import masked_ssim
from bat_env.tasks.discovery import Task
from bat_env.tasks.instance import Instance
from bat_env.tasks.training import FIRST_INDEX, Training, descend, training_instances

INSTANCES = {"mini": 30, "full": 10}
UNSEEN = {"mini": 6, "full": 3}
STEPS, BATCH, RATE, PATCH = 1800, 12, 4e-3, 56


def read(data: bytes, orientation: str) -> np.ndarray:
    """A NIfTI file's array, float32, its axes in the card's order and direction."""
    image = nib.Nifti1Image.from_bytes(gzip.decompress(data))
    wanted = axcodes2ornt(tuple(orientation))
    there = ornt_transform(io_orientation(image.affine), wanted)
    return np.asarray(image.as_reoriented(there).get_fdata(), np.float32)


def volumes(task: Task, meta: dict, drawn: Instance) -> list[tuple[np.ndarray, ...]]:
    """(input, truth, mask) of the cases of an instance, in network units but for the mask."""
    card = meta["preprocessing"]
    made = []
    for case in drawn.cases:
        files = (
            drawn.public[f"{case}/{task.spec.input_file}"],
            drawn.private[f"{case}/{task.spec.output.name}"],
            drawn.private[f"{case}/mask.nii.gz"],
        )
        x, y, mask = (read(data, card["orientation"]) for data in files)
        x, y = ((v - card["centre_hu"]) / card["scale_hu"] for v in (x, y))
        made.append((x, y, mask))
    return made


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """Training patches (n, 1, side, side) of axial slices, noisy and noise-free."""
    random = np.random.default_rng(7)
    inputs, targets = [], []
    for drawn in training_instances(task, INSTANCES):
        for x, y, _ in volumes(task, meta, drawn):
            for _ in range(x.size // PATCH**2):
                i, j = (int(random.integers(0, n - PATCH + 1)) for n in x.shape[:2])
                k = int(random.integers(x.shape[2]))
                inputs.append(x[i : i + PATCH, j : j + PATCH, k])
                targets.append(y[i : i + PATCH, j : j + PATCH, k])
    return torch.from_numpy(np.stack(inputs))[:, None], torch.from_numpy(np.stack(targets))[:, None]


def dissimilarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """1 - SSIM within the window of the metric, with box windows of seven pixels."""

    def smooth(v: torch.Tensor) -> torch.Tensor:
        return avg_pool2d(v, 7, 1)

    mean_a, mean_b = smooth(a), smooth(b)
    var = smooth(a * a) - mean_a**2 + smooth(b * b) - mean_b**2
    cov = smooth(a * b) - mean_a * mean_b
    c1, c2 = 1e-4, 9e-4
    # The metric's values are HU over 400: where the mean is 0 HU, not the card's centre.
    luminance = (2 * (mean_a + 0.1) * (mean_b + 0.1) + c1) / (
        (mean_a + 0.1) ** 2 + (mean_b + 0.1) ** 2 + c1
    )
    return 1 - (luminance * (2 * cov + c2) / (var + c2)).mean()


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> UNet:
    """Train with absolute error and SSIM on patches, turned over at random."""
    net = UNet(**meta["network"])

    def loss(step: int) -> torch.Tensor:
        rows = torch.randint(len(inputs), (BATCH,))
        x, y = inputs[rows], targets[rows]
        if step % 2:
            x, y = x.transpose(2, 3), y.transpose(2, 3)
        if step % 4 > 1:
            x, y = x.flip(2), y.flip(2)
        clean = x - net(x)
        error = (clean.clamp(-0.6, 0.6) - y.clamp(-0.6, 0.6)).abs().mean()
        error = error + 0.2 * (clean - y).abs().mean()  # Air and bone, which the window hides.
        return error + 0.3 * dissimilarity(clean.clamp(-0.5, 0.5), y.clamp(-0.5, 0.5))

    return descend(net, loss, steps=STEPS, rate=RATE)


@torch.no_grad()
def careful(task: Task, meta: dict, net: UNet) -> float:
    """Mean masked SSIM of the network on training-namespace instances that it was not fitted to."""
    card, params = meta["preprocessing"], task.spec.metric.params
    means = []
    for size, count in UNSEEN.items():
        scores = []
        for drawn in training_instances(task, {size: count}, FIRST_INDEX - count):
            for x, y, mask in volumes(task, meta, drawn):
                slices = torch.from_numpy(np.ascontiguousarray(x.transpose(2, 0, 1)))[:, None]
                padded = pad(slices, (0, -x.shape[1] % 4, 0, -x.shape[0] % 4), mode="replicate")
                noise = net(padded)[:, 0, : x.shape[0], : x.shape[1]].numpy().transpose(1, 2, 0)
                hu = [v * card["scale_hu"] + card["centre_hu"] for v in (x - noise, y)]
                a, b = (np.clip(v.astype(np.float64), *params["clip"]) for v in hu)
                scores.append(masked_ssim(a, b, mask > 0, params["data_range"]))
        print(f"{size}: mean SSIM {np.mean(scores):.4f}, lowest {np.min(scores):.4f}")
        means.append(float(np.mean(scores)))
    return sum(means) / len(means)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240613)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} patches")
    net = fit(run.meta, inputs, targets)
    run.say("trained")
    print(f"careful_ssim {careful(run.task, run.meta, net):.3f} (task.yaml must say so)")
    run.save(net, inputs[len(inputs) // 2 :][:4])


if __name__ == "__main__":
    main()
