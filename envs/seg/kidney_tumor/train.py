"""Train the task's UNet on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/seg/kidney_tumor/train.py``. Deterministic on one
thread; about two CPU-minutes. Also writes the public probe input and its private answer.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import time
from pathlib import Path

import nibabel as nib
import numpy as np
import torch
from monai.data import MetaTensor
from monai.losses import DiceCELoss
from monai.networks.nets import UNet
from monai.transforms import DivisiblePad, Orientation, ScaleIntensityRange, Spacing

from bat_env.tasks.discovery import Task, load_task

FIRST_INDEX = 1_000_000  # Far from the indices that episodes draw.
INSTANCES = {"mini": 70, "full": 30}
STEPS, BATCH, RATE = 1300, 24, 4e-3
CANVAS = (96, 96)


def read(data: bytes) -> nib.Nifti1Image:
    """A NIfTI image from gzip-compressed bytes."""
    return nib.Nifti1Image.from_bytes(gzip.decompress(data))


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
    x, y = pad(ScaleIntensityRange(*card["window_hu"], 0, 1, clip=True)(x)), pad(y)
    inputs = x.as_tensor().permute(3, 0, 1, 2)
    targets = torch.from_numpy(channel_of[y.as_tensor()[0].numpy().astype(int)]).permute(2, 0, 1)
    return inputs, targets


def to_canvas(image: torch.Tensor, fill: float) -> torch.Tensor:
    """Pad or crop the last two axes to CANVAS about their middle."""
    shape = (*image.shape[:-2], *CANVAS)
    out = torch.full(shape, fill, dtype=image.dtype)
    take, put = [], []
    for have, want in zip(image.shape[-2:], CANVAS, strict=True):
        n, a, b = min(have, want), max(0, (have - want) // 2), max(0, (want - have) // 2)
        take.append(slice(a, a + n))
        put.append(slice(b, b + n))
    out[..., put[0], put[1]] = image[..., take[0], take[1]]
    return out


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training slices as two tensors."""
    inputs, targets = [], []
    for size, count in INSTANCES.items():
        for index in range(FIRST_INDEX, FIRST_INDEX + count):
            drawn = task.instance("train", index, size)
            for case in drawn.cases:
                x, y = slices(
                    task,
                    meta,
                    drawn.private[f"{case}/dseg.nii.gz"],
                    drawn.public[f"{case}/{task.spec.input_file}"],
                )
                inputs.append(to_canvas(x.half(), 0.0))
                targets.append(to_canvas(y.to(torch.uint8), 0))
    return torch.cat(inputs), torch.cat(targets)


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> UNet:
    """Train with Dice + cross-entropy; gain and offset of the input vary a little."""
    net = UNet(**meta["network"])
    loss_of = DiceCELoss(to_onehot_y=True, softmax=True, include_background=False, batch=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for step in range(STEPS):
        rows = torch.randint(len(inputs), (BATCH,))
        x = inputs[rows].float()
        x = x + 0.03 * torch.randn(BATCH, 1, 1, 1) + 0.02 * torch.randn_like(x)
        loss = loss_of(net(x.clamp(0, 1)), targets[rows, None].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    return net.eval()


def write(path: Path, data: bytes) -> None:
    """Replace a file in one step."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    torch.manual_seed(20240607)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    started = time.process_time()
    task = load_task("seg/kidney_tumor")
    bundle = task.folder / "model" / task.spec.model.name
    meta = json.loads((bundle / "configs" / "metadata.json").read_text())
    inputs, targets = dataset(task, meta)
    print(f"{len(inputs)} slices after {time.process_time() - started:.0f} CPU-s", flush=True)
    net = fit(meta, inputs, targets)
    buffer = io.BytesIO()
    torch.save({meta["checkpoint_key"]: net.state_dict()}, buffer)
    write(bundle / "models" / "model.pt", buffer.getvalue())
    probe = inputs[len(inputs) // 2 :][:2].float().contiguous().numpy()
    buffer = io.BytesIO()
    np.save(buffer, probe)
    write(bundle / task.spec.model.probe_input, buffer.getvalue())
    with torch.no_grad():
        logits = net(torch.from_numpy(probe))
    parameters = sum(p.numel() for p in net.parameters())
    answer = {"schema_version": 1, "mean": float(logits.mean()), "std": float(logits.std())}
    write(task.folder / "private" / "probe.json", json.dumps(answer, indent=1).encode())
    print(f"{parameters} parameters (task.yaml must say so); probe answer {answer}")
    print(f"{time.process_time() - started:.0f} CPU-s")


if __name__ == "__main__":
    main()
