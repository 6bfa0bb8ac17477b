"""Train the task's network on phantoms of the training namespace and write the bundle's weights.

Run from a source checkout: ``python envs/vqa/radiograph_mc/train.py``. Deterministic on one
thread. Pictures are painted by the task's own generator, which tells what each of them shows. Also
writes the public probe input and its private answer.
"""

from __future__ import annotations

import io
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from monai.networks.nets import Classifier
from PIL import Image

from bat_env.tasks.discovery import Task, load_sibling, load_task

FIRST_INDEX = 1_000_000  # Far from the indices that episodes draw.
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
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    for step in range(STEPS):
        rows = torch.randint(len(inputs), (BATCH,))
        x = inputs[rows] + 0.1 * torch.randn(BATCH, 1, 1, 1)
        x = x.roll((int(torch.randint(-3, 4, ())), int(torch.randint(-2, 3, ()))), (2, 3))
        y = targets[rows] * 0.96 + 0.02
        loss = torch.nn.functional.binary_cross_entropy_with_logits(net(x), y)
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
    torch.manual_seed(20240619)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    started = time.process_time()
    task = load_task("vqa/radiograph_mc")
    bundle = task.folder / "model" / task.spec.model.name
    meta = json.loads((bundle / "configs" / "metadata.json").read_text())
    inputs, targets = dataset(task, meta)
    print(f"{len(inputs)} pictures after {time.process_time() - started:.0f} CPU-s", flush=True)
    print("mean", inputs.mean().item(), "std", inputs.std().item(), flush=True)
    held = len(inputs) // 12
    net = fit(meta, inputs[held:], targets[held:])
    buffer = io.BytesIO()
    torch.save({meta["checkpoint_key"]: net.state_dict()}, buffer)
    write(bundle / "models" / "model.pt", buffer.getvalue())
    probe = inputs[len(inputs) // 2 :][:4].contiguous().numpy()
    buffer = io.BytesIO()
    np.save(buffer, probe)
    write(bundle / task.spec.model.probe_input, buffer.getvalue())
    with torch.no_grad():
        logits, said = net(torch.from_numpy(probe)), net(inputs[:held]) > 0
    parameters = sum(p.numel() for p in net.parameters())
    answer = {"schema_version": 1, "mean": float(logits.mean()), "std": float(logits.std())}
    write(task.folder / "private" / "probe.json", json.dumps(answer, indent=1).encode())
    right = (said == (targets[:held] > 0.5)).float().mean(0)
    print("right on pictures kept aside", [round(float(share), 3) for share in right])
    print(f"{parameters} parameters (task.yaml must say so); probe answer {answer}")
    print(f"{time.process_time() - started:.0f} CPU-s")


if __name__ == "__main__":
    main()
