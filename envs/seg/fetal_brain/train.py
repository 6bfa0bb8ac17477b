"""Train the task's UNet on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/seg/fetal_brain/train.py``. Deterministic on one thread;
under three CPU-minutes. Also writes the public probe input and its private answer.
"""

from __future__ import annotations

import gzip

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import DivisiblePad, Orientation, Spacing
from scipy.ndimage import gaussian_filter

from bat_env.tasks.discovery import Task
from bat_env.tasks.training import Training, descend, training_instances

INSTANCES = {"mini": 60, "full": 18}
STEPS, BATCH, RATE = 1200, 20, 5e-3
CANVAS = (64, 64)


def read(data: bytes) -> nib.Nifti1Image:
    """A NIfTI image from gzip-compressed bytes."""
    return nib.Nifti1Image.from_bytes(gzip.decompress(data))


def normalised(signal: np.ndarray, card: dict) -> np.ndarray:
    """The signal over its local mean, in the card's range, as the network wants it."""
    mask = np.float32(signal > 0)
    sigma = card["smooth_mm"] / np.array(card["spacing_mm"])
    low = gaussian_filter(signal, sigma) / np.maximum(gaussian_filter(mask, sigma), 1e-6)
    ratio = np.where(mask > 0, signal / np.maximum(low, 1e-6), 0)
    a, b = card["signal_range"]
    return np.float32(((ratio - a) / (b - a)).clip(0, 1))


def slices(task: Task, meta: dict, truth: bytes, data: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    """Network inputs (n, 1, h, w) and channel targets (n, h, w) of one case."""
    card = meta["preprocessing"]
    names = {name: value for value, name in task.spec.output.labels.items()}
    channel_of = np.zeros(len(names), np.int64)
    for channel, name in enumerate(meta["channels"]):
        channel_of[names[name]] = channel
    image, label = read(data), read(truth)
    x = MetaTensor(image.get_fdata(dtype=np.float32)[None], affine=image.affine)
    y = MetaTensor(np.asarray(label.dataobj, np.float32)[None], affine=label.affine)
    orient, pad = Orientation(card["orientation"], labels=None), DivisiblePad((8, 8, 1))
    x = Spacing(card["spacing_mm"])(orient(x))
    y = Spacing(card["spacing_mm"], mode="nearest")(orient(y))
    x, y = pad(x), pad(y)
    signal = torch.from_numpy(normalised(x[0].numpy(), card))
    inputs = signal[None].permute(3, 0, 1, 2)
    targets = torch.from_numpy(channel_of[y.as_tensor()[0].numpy().astype(int)]).permute(2, 0, 1)
    return inputs, targets


def to_canvas(image: torch.Tensor, fill: float) -> torch.Tensor:
    """Pad or crop the last two axes to CANVAS about their middle."""
    shape = (*image.shape[:-2], *CANVAS)
    out = torch.full(shape, fill, dtype=image.dtype)
    take, put = [], []
    for have, want in zip(image.shape[-2:], CANVAS, strict=True):
        n, a, b = (
            min(have, want),
            max(0, (have - want) // 2),
            max(0, (want - have) // 2),
        )
        take.append(slice(a, a + n))
        put.append(slice(b, b + n))
    out[..., put[0], put[1]] = image[..., take[0], take[1]]
    return out


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training slices as two tensors."""
    inputs, targets = [], []
    for drawn in training_instances(task, INSTANCES):
        for case in drawn.cases:
            truth = drawn.private[f"{case}/{task.spec.truth_name}"]
            x, y = slices(task, meta, truth, drawn.public[f"{case}/{task.spec.input_file}"])
            inputs.append(to_canvas(x.half(), 0.0))
            targets.append(to_canvas(y.to(torch.uint8), 0))
    return torch.cat(inputs), torch.cat(targets)


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> UNet:
    """Train with Dice + cross-entropy and a little noise."""
    net = UNet(**meta["network"])
    loss_of = DiceCELoss(to_onehot_y=True, softmax=True, include_background=False, batch=True)

    def step(_: int) -> torch.Tensor:
        rows = torch.randint(len(inputs), (BATCH,))
        x = inputs[rows].float()
        x = x + 0.02 * torch.randn(BATCH, 1, 1, 1) + 0.02 * torch.randn_like(x)
        return loss_of(net(x.clamp(0, 1)), targets[rows, None].long())

    return descend(net, step, steps=STEPS, rate=RATE)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240715)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} slices of {tuple(inputs.shape[1:])}")
    net = fit(run.meta, inputs, targets)
    run.save(net, inputs[len(inputs) // 2 :][:2])


if __name__ == "__main__":
    main()
