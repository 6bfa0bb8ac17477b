"""Train the task's network on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/synth/ct_slice_sr/train.py``. Deterministic on one thread.
Also writes the public probe input and its private answer, and prints the mean SSIM of careful work
on training instances that were not trained on: ``careful_ssim`` of task.yaml.
"""

from __future__ import annotations

import gzip

import nibabel as nib
import numpy as np
import torch
from monai.networks.nets import AutoEncoder

from bat_env.metrics.images import masked_ssim
from bat_env.tasks import Task
from bat_env.tasks.training import FIRST_INDEX, Training, descend, training_instances

INSTANCES = {"mini": 36, "full": 8}
JUDGED = {"mini": 6, "full": 3}
STEPS, BATCH, RATE = 2000, 16, 3e-3
CANVAS = (40, 40)


def read(data: bytes, axis: int, dtype: type = np.float32) -> np.ndarray:
    """The array of a gzip-compressed NIfTI file, slices first."""
    image = nib.Nifti1Image.from_bytes(gzip.decompress(data))
    return np.moveaxis(image.get_fdata(dtype=dtype), axis, 0)


def stacks(hu: np.ndarray, card: dict) -> np.ndarray:
    """Network inputs (slices, 5, rows, columns) of thick slices, as the model card says."""
    low, high = card["window_hu"]
    x = (hu.clip(low, high) - low) / (high - low) * 2 - 1
    half = card["slices"] // 2
    x = np.pad(x, ((half, half), (0, 0), (0, 0)), "edge")
    return np.stack([x[n : n + len(hu)] for n in range(card["slices"])], 1).astype(np.float32)


def interpolated(hu: np.ndarray) -> np.ndarray:
    """Linear interpolation (slices, 4, rows, columns), in the order of the file."""
    wide = np.pad(hu, ((1, 1), (0, 0), (0, 0)), "edge")
    near = [(wide[:-2], 0.375), (wide[:-2], 0.125), (wide[2:], 0.125), (wide[2:], 0.375)]
    return np.stack([hu * (1 - share) + other * share for other, share in near], 1)


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training stacks (n, 5, rows, columns) and what is to be added (n, 4, rows, columns)."""
    low, high = meta["preprocessing"]["window_hu"]
    unit = meta["postprocessing"]["output_unit_hu"]
    inputs, targets = [], []
    for drawn in training_instances(task, INSTANCES, FIRST_INDEX):
        for case in drawn.cases:
            axis = drawn.facts["slice_axis"][case]
            hu = read(drawn.public[f"{case}/ct.nii.gz"], axis)
            thin = read(drawn.private[f"{case}/synth.nii.gz"], axis)
            x = torch.from_numpy(stacks(hu, meta["preprocessing"]))
            y = thin.reshape(len(hu), 4, *hu.shape[1:]).clip(low, high)
            y = (y - interpolated(hu.clip(low, high)))[:, ::-1] / unit
            y = torch.from_numpy(y.astype(np.float32))
            for row in places(hu.shape[1], CANVAS[0]):
                for column in places(hu.shape[2], CANVAS[1]):
                    part = np.s_[..., row : row + CANVAS[0], column : column + CANVAS[1]]
                    inputs.append(x[part].half())
                    targets.append(y[part].half())
    return torch.cat(inputs), torch.cat(targets)


def places(size: int, wanted: int) -> list[int]:
    """Where crops begin, so that they cover an axis without its margins, which are air."""
    margin = size // 8 if size > 64 else 0
    room = size - wanted - 2 * margin
    count = room // wanted + 2 if room > 0 else 1
    return [margin + round(room * n / max(1, count - 1)) for n in range(count)]


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> AutoEncoder:
    """Train with the mean absolute error, with flips of every axis."""
    net = AutoEncoder(**meta["network"])

    def loss_of(step: int) -> torch.Tensor:
        rows = torch.randint(len(inputs), (BATCH,))
        x, y = inputs[rows].float(), targets[rows].float()
        for bit, axis in ((1, 1), (2, 2), (4, 3)):
            if step & bit:  # Turning slices over turns the channels of both over.
                x, y = x.flip(axis), y.flip(axis)
        if step & 8:
            x, y = x.transpose(2, 3), y.transpose(2, 3)
        return torch.nn.functional.smooth_l1_loss(net(x), y, beta=0.05)

    return descend(net, loss_of, steps=STEPS, rate=RATE)


def predict(net: AutoEncoder, hu: np.ndarray, meta: dict) -> np.ndarray:
    """Thin slices in HU of thick ones."""
    with torch.no_grad():
        y = net(torch.from_numpy(stacks(hu, meta["preprocessing"]))).numpy()[:, ::-1]
    thin = interpolated(hu) + y * meta["postprocessing"]["output_unit_hu"]
    return np.rint(thin.reshape(-1, *hu.shape[1:])).astype(np.float64)


def careful(net: AutoEncoder, task: Task, meta: dict) -> dict[str, list[float]]:
    """Masked SSIM of careful work on further training instances."""
    found: dict[str, list[float]] = {}
    params = task.spec.metric.params
    for drawn in training_instances(task, JUDGED, FIRST_INDEX + 5000):
        for case in drawn.cases:
            axis = drawn.facts["slice_axis"][case]
            made = predict(net, read(drawn.public[f"{case}/ct.nii.gz"], axis), meta)
            truth, mask = (
                read(drawn.private[f"{case}/{name}.nii.gz"], axis, np.float64)
                for name in ("synth", "mask")
            )
            pair = (made.clip(*params["clip"]), truth.clip(*params["clip"]))
            score = masked_ssim(*pair, mask > 0.5, params["data_range"])
            found.setdefault(drawn.size, []).append(score)
    return found


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240618)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} stacks")
    net = fit(run.meta, inputs, targets)
    run.save(net, probe=inputs[len(inputs) // 2 :][:2])
    for size, scores in careful(net, run.task, run.meta).items():
        run.say(f"{size} SSIM {np.mean(scores):.4f}, {min(scores):.4f} to {max(scores):.4f}")


if __name__ == "__main__":
    main()
