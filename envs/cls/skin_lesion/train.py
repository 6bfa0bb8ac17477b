"""Train the task's network on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/cls/skin_lesion/train.py``. Deterministic on one thread.
Also writes the public probe input and its private answer.
"""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from monai.networks.nets import ResNet
from PIL import Image

from bat_env.tasks.discovery import Task, load_task

FIRST_INDEX = 1_000_000  # Far from the indices that episodes draw.
INSTANCES = {"mini": 60, "full": 30}
STEPS, BATCH, RATE = 360, 40, 4e-3


def prepare(data: bytes, card: dict) -> np.ndarray:
    """The network input (3, rows, columns) of a picture, as the model card says."""
    photo = Image.open(io.BytesIO(data)).convert("RGB").resize(card["size_px"], 2)
    x = (np.asarray(photo, np.float32) / 255)[..., ::-1]
    x = (x - card["mean"]) / card["std"]
    return np.ascontiguousarray(x.transpose(2, 0, 1), np.float32)


def dataset(task: Task, meta: dict) -> tuple[torch.Tensor, torch.Tensor]:
    """All training pictures (n, 3, rows, columns), and their channels (n,)."""
    inputs, targets = [], []
    for size, count in INSTANCES.items():
        for index in range(FIRST_INDEX, FIRST_INDEX + count):
            drawn = task.instance("train", index, size)
            for case in drawn.cases:
                label = json.loads(drawn.private[f"{case}/truth.json"])["label"]
                inputs.append(prepare(drawn.public[f"{case}/photo.png"], meta["preprocessing"]))
                targets.append(meta["channels"].index(label))
    return torch.from_numpy(np.stack(inputs)), torch.tensor(targets)


def fit(meta: dict, inputs: torch.Tensor, targets: torch.Tensor) -> ResNet:
    """Train with cross-entropy and flips."""
    net = ResNet(**meta["network"])
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for step in range(STEPS):
        rows = torch.randint(len(inputs), (BATCH,))
        x = inputs[rows]
        if step % 2:
            x = x.flip(3)
        x = x + 0.1 * torch.randn(BATCH, 3, 1, 1)
        loss = torch.nn.functional.cross_entropy(net(x), targets[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    return net.eval()


def write(path: Path, data: bytes) -> None:
    """Replace a file in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def main() -> None:
    """Train and write weights, probe input and probe answer."""
    torch.manual_seed(20240611)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    started = time.process_time()
    task = load_task("cls/skin_lesion")
    bundle = task.folder / "model" / task.spec.model.name
    meta = json.loads((bundle / "configs" / "metadata.json").read_text())
    inputs, targets = dataset(task, meta)
    print(f"{len(inputs)} pictures after {time.process_time() - started:.0f} CPU-s", flush=True)
    print("mean", inputs.mean((0, 2, 3)).tolist(), "std", inputs.std((0, 2, 3)).tolist())
    net = fit(meta, inputs, targets)
    buffer = io.BytesIO()
    torch.save({meta["checkpoint_key"]: net.state_dict()}, buffer)
    write(bundle / "models" / "model.pt", buffer.getvalue())
    probe = inputs[len(inputs) // 2 :][:4].contiguous().numpy()
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
