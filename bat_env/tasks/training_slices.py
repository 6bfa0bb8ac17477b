"""Training of 2D networks that label volumes slice by slice: resampled slices, and one loop.

PyTorch and MONAI are loaded when a training starts, never with this module.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, TypeAlias, cast

import nibabel as nib
import numpy as np

from bat_env.tasks.discovery import Task
from bat_env.tasks.training import descend, training_instances

Intensities: TypeAlias = Callable[[Any, Callable[[Any], Any], Mapping[str, Any]], Any]
"""(volume (1, a, b, c) on the card's grid, padding, card) -> padded tensor of network inputs."""

_DIVISIBLE: Final = (8, 8, 1)


def labelled_slices(
    task: Task,
    meta: Mapping[str, Any],
    counts: Mapping[str, int],
    canvas: tuple[int, int],
    intensities: Intensities,
) -> tuple[Any, Any]:
    """Every slice of the training instances, as the model card wants it.

    Args:
        task: A task whose truth is a label map.
        meta: Its bundle's metadata; ``channels`` gives the order of the classes.
        counts: Size -> how many instances.
        canvas: Height and width that slices are cut or padded to.
        intensities: Makes network inputs of a resampled volume.

    Returns:
        Half-precision inputs (n, 1, h, w) and channels (n, h, w), uint8.
    """
    torch = import_module("torch")
    inputs, targets = [], []
    for drawn in training_instances(task, counts):
        for case in drawn.cases:
            truth = drawn.private[f"{case}/{task.spec.truth_name}"]
            data = drawn.public[f"{case}/{task.spec.input_file}"]
            x, y = _slices(task, meta, truth, data, intensities)
            inputs.append(on_canvas(x.half(), canvas, 0.0))
            targets.append(on_canvas(y.to(torch.uint8), canvas, 0))
    return torch.cat(inputs), torch.cat(targets)


def _slices(
    task: Task, meta: Mapping[str, Any], truth: bytes, data: bytes, intensities: Intensities
) -> tuple[Any, Any]:
    """Network inputs (n, 1, h, w) and channels (n, h, w) of one case."""
    torch, transforms = import_module("torch"), import_module("monai.transforms")
    card, names = meta["preprocessing"], {v: k for k, v in task.spec.output.labels.items()}
    channel_of = np.zeros(len(names), np.int64)
    for channel, name in enumerate(meta["channels"]):
        channel_of[names[name]] = channel
    orient = transforms.Orientation(card["orientation"], labels=None)
    pad = transforms.DivisiblePad(_DIVISIBLE)
    x = transforms.Spacing(card["spacing_mm"])(orient(_volume(data)))
    y = transforms.Spacing(card["spacing_mm"], mode="nearest")(orient(_volume(truth)))
    labels = pad(y).as_tensor()[0].numpy().astype(int)
    targets = torch.from_numpy(channel_of[labels]).permute(2, 0, 1)
    return intensities(x, pad, card).permute(3, 0, 1, 2), targets


def _volume(data: bytes) -> Any:
    """A (1, a, b, c) MetaTensor of a gzip-compressed NIfTI image."""
    image = cast(Any, nib).Nifti1Image.from_bytes(gzip.decompress(data))
    values = image.get_fdata(dtype=np.float32)[None]
    return import_module("monai.data").MetaTensor(values, affine=image.affine)


def on_canvas(image: Any, canvas: tuple[int, int], fill: float) -> Any:
    """Pad or cut the last two axes of a tensor to a size, about their middle."""
    shape = (*image.shape[:-2], *canvas)
    out = import_module("torch").full(shape, fill, dtype=image.dtype)
    take, put = [], []
    for have, want in zip(image.shape[-2:], canvas, strict=True):
        n, a, b = min(have, want), max(0, (have - want) // 2), max(0, (want - have) // 2)
        take.append(slice(a, a + n))
        put.append(slice(b, b + n))
    out[..., put[0], put[1]] = image[..., take[0], take[1]]
    return out


def fit_labels(
    net: Any,
    inputs: Any,
    targets: Any,
    *,
    steps: int,
    batch: int,
    rate: float,
    shift: float,
    noise: float,
) -> Any:
    """Train with Dice + cross-entropy; inputs in [0, 1] vary a little.

    Args:
        net: Gives one channel a class.
        inputs: (n, 1, h, w).
        targets: Channels, (n, h, w).
        steps: How many batches.
        batch: Slices of each.
        rate: Highest learning rate.
        shift: Deviation of a slice's offset.
        noise: Deviation of a pixel's noise.

    Returns:
        The network, in evaluation mode.
    """
    torch, losses = import_module("torch"), import_module("monai.losses")
    loss = losses.DiceCELoss(to_onehot_y=True, softmax=True, include_background=False, batch=True)

    def loss_of(_: int) -> Any:
        rows = torch.randint(len(inputs), (batch,))
        x = inputs[rows].float()
        x = x + shift * torch.randn(batch, 1, 1, 1) + noise * torch.randn_like(x)
        return loss(net(x.clamp(0, 1)), targets[rows, None].long())

    return descend(net, loss_of, steps=steps, rate=rate)
