"""Train the task's network on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/synth/mr_to_ct/train.py``. Deterministic on one thread.
Also writes the public probe input and its private answer, and prints the mean SSIM of careful work
on training instances that were not trained on: ``careful_ssim`` of task.yaml.
"""

from __future__ import annotations

import gzip

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor
from monai.networks.nets import UNet
from monai.transforms import DivisiblePad, Orientation, Spacing
from nibabel.processing import resample_from_to

from bat_env.metrics.images import masked_ssim
from bat_env.tasks import Task
from bat_env.tasks.training import FIRST_INDEX, Training, descend, training_instances

INSTANCES = {"mini": 40, "full": 28}
JUDGED = {"mini": 8, "full": 4}
STEPS, BATCH, RATE = 2000, 16, 4e-3
CANVAS = (64, 80)


def read(data: bytes) -> nib.Nifti1Image:
    """A NIfTI image from gzip-compressed bytes."""
    return nib.Nifti1Image.from_bytes(gzip.decompress(data))


def on_model_grid(values: np.ndarray, affine: np.ndarray, card: dict, mode: str) -> MetaTensor:
    """An array (1, x, y, z) in the card's orientation and spacing, edges padded for the network."""
    x = Orientation(card["orientation"], labels=None)(MetaTensor(values[None], affine=affine))
    return DivisiblePad((4, 4, 1), mode="edge")(Spacing(card["spacing_mm"], mode=mode)(x))


def stacks(mr: nib.Nifti1Image, region: np.ndarray, card: dict) -> tuple[torch.Tensor, np.ndarray]:
    """Network inputs (n, slices, x, y) of a case as the card says, and the affine of their grid."""
    values = mr.get_fdata(dtype=np.float32)
    inside = values[region]
    values = (values - inside.mean()) / inside.std()
    x = on_model_grid(values, mr.affine, card, "bilinear")
    half = card["slices"] // 2
    planes = x.as_tensor()[0].permute(2, 0, 1)
    at = torch.arange(len(planes))[:, None] + torch.arange(-half, half + 1)
    return planes[at.clamp(0, len(planes) - 1)], x.affine.numpy()


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training stacks (n, slices, x, y), and CT over its unit with the mask (n, 2, x, y)."""
    card, unit = meta["preprocessing"], meta["postprocessing"]["output_unit_hu"]
    inputs, targets = [], []
    for drawn in training_instances(task, INSTANCES, FIRST_INDEX):
        for case in drawn.cases:
            mr, mask = (read(drawn.public[f"{case}/{n}.nii.gz"]) for n in ("mr", "mask"))
            region = mask.get_fdata(dtype=np.float32)
            x, _ = stacks(mr, region > 0, card)
            ct = read(drawn.private[f"{case}/synth.nii.gz"]).get_fdata(dtype=np.float32)
            pair = [
                on_model_grid(v, mr.affine, card, "bilinear").as_tensor()[0].permute(2, 0, 1)
                for v in (ct.clip(-1000, 2000) / unit, region)
            ]
            inputs.append(to_canvas(x).half())
            targets.append(to_canvas(torch.stack(pair, 1)).half())
    return torch.cat(inputs), torch.cat(targets)


def to_canvas(image: torch.Tensor) -> torch.Tensor:
    """Crop, or repeat the edges of, the last two axes to CANVAS."""
    image = image[..., : CANVAS[0], : CANVAS[1]]
    missing = (0, CANVAS[1] - image.shape[-1], 0, CANVAS[0] - image.shape[-2])
    return torch.nn.functional.pad(image, missing, mode="replicate")


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> UNet:
    """Train with the mean absolute error within the mask; contrast varies a little."""
    net = UNet(**meta["network"])

    def loss_of(step: int) -> torch.Tensor:
        rows = torch.randint(len(inputs), (BATCH,))
        x, y = inputs[rows].float(), targets[rows].float()
        x = x * (1 + 0.05 * torch.randn(BATCH, 1, 1, 1)) + 0.05 * torch.randn(BATCH, 1, 1, 1)
        if step % 2:  # Heads are much the same from left to right.
            x, y = x.flip(2), y.flip(2)
        return ((net(x)[:, 0] - y[:, 0]).abs() * y[:, 1]).sum() / y[:, 1].sum()

    return descend(net, loss_of, steps=STEPS, rate=RATE, weight_decay=1e-3)


def predict(net: UNet, mr: nib.Nifti1Image, region: np.ndarray, meta: dict) -> np.ndarray:
    """CT in HU on the grid of the MR."""
    x, affine = stacks(mr, region, meta["preprocessing"])
    with torch.no_grad():
        y = net(x)[:, 0].permute(1, 2, 0).numpy() * meta["postprocessing"]["output_unit_hu"]
    out = resample_from_to(nib.Nifti1Image(y, affine), mr, order=1, mode="nearest").get_fdata()
    return np.rint(np.where(region, out, meta["postprocessing"]["outside_mask_hu"]))


def careful(net: UNet, task: Task, meta: dict) -> dict[str, list[float]]:
    """Masked SSIM of careful work on further training instances."""
    found: dict[str, list[float]] = {}
    params = task.spec.metric.params
    for drawn in training_instances(task, JUDGED, FIRST_INDEX + 5000):
        for case in drawn.cases:
            region = read(drawn.public[f"{case}/mask.nii.gz"]).get_fdata() > 0
            made = predict(net, read(drawn.public[f"{case}/mr.nii.gz"]), region, meta)
            truth, mask = (
                read(drawn.private[f"{case}/{n}.nii.gz"]).get_fdata() for n in ("synth", "mask")
            )
            pair = (made.clip(*params["clip"]), truth.clip(*params["clip"]))
            score = masked_ssim(*pair, mask > 0.5, params["data_range"])
            found.setdefault(drawn.size, []).append(score)
    return found


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240701)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} stacks")
    net = fit(run.meta, inputs, targets)
    run.save(net, probe=inputs[len(inputs) // 2 :][:2])
    for size, scores in careful(net, run.task, run.meta).items():
        run.say(f"{size} SSIM {np.mean(scores):.4f}, {min(scores):.4f} to {max(scores):.4f}")


if __name__ == "__main__":
    main()
