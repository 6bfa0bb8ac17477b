"""Train the task's network on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/cls/lung_nodule/train.py``. Deterministic on one thread.
Also writes the public probe input and its private answer.
"""

from __future__ import annotations

import gzip
import json

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor
from monai.networks.nets import ResNet
from monai.transforms import Orientation, ResizeWithPadOrCrop, ScaleIntensityRange, Spacing

from bat_env.tasks.discovery import Task
from bat_env.tasks.training import FIRST_INDEX, Training, descend, training_instances

INSTANCES = {"mini": 44, "full": 16}
STEPS, BATCH, RATE = 560, 32, 5e-3


def prepare(data: bytes, card: dict) -> torch.Tensor:
    """The network input (1, L, P, S) of a file, as the model card says."""
    image = nib.Nifti1Image.from_bytes(gzip.decompress(data))
    x = MetaTensor(image.get_fdata(dtype=np.float32)[None], affine=image.affine)
    x = Orientation(card["orientation"], labels=None)(x)
    x = Spacing(card["spacing_mm"], padding_mode="border")(x)
    x = ScaleIntensityRange(*card["window_hu"], 0, 1, clip=True)(x)
    return ResizeWithPadOrCrop(card["size_vox"], mode="edge")(x).as_tensor().float()


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training patches (n, 1, L, P, S), and their channels (n,)."""
    inputs, targets = [], []
    for drawn in training_instances(task, INSTANCES, FIRST_INDEX):
        for case in drawn.cases:
            label = json.loads(drawn.private[f"{case}/truth.json"])["label"]
            inputs.append(prepare(drawn.public[f"{case}/ct.nii.gz"], meta["preprocessing"]))
            targets.append(meta["channels"].index(label))
    return torch.stack(inputs), torch.tensor(targets)


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> ResNet:
    """Train with cross-entropy; a patch may be mirrored left to right and head to foot."""
    net = ResNet(**meta["network"])

    def loss_of(step: int) -> torch.Tensor:
        rows = torch.randint(len(inputs), (BATCH,))
        x = inputs[rows]
        mirrored = [axis for bit, axis in enumerate((2, 4)) if step >> bit & 1]
        x = x.flip(mirrored) if mirrored else x
        x = x.transpose(2, 4) if step >> 2 & 1 else x
        x = x + 0.02 * torch.randn(BATCH, 1, 1, 1, 1)
        return torch.nn.functional.cross_entropy(net(x), targets[rows], label_smoothing=0.03)

    return descend(net, loss_of, steps=STEPS, rate=RATE, weight_decay=1e-3, every=40)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    run = Training(__file__, seed=20240613)
    inputs, targets = dataset(run.task, run.meta)
    run.say(f"{len(inputs)} patches")
    net = fit(run.meta, inputs, targets)
    run.save(net, probe=inputs[len(inputs) // 2 :][:2])
    run.say("done")


if __name__ == "__main__":
    main()
