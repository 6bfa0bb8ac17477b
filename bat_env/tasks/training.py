"""What the ``train.py`` of every task shares: a fixed start, one loop, and a bundle written whole.

PyTorch is loaded when a training starts, never with this module: the host needs none.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np

from bat_env.errors import TaskError
from bat_env.tasks.discovery import Task, task_of
from bat_env.tasks.instance import Instance

FIRST_INDEX: Final = 1_000_000
"""First training instance of a bundle's data: far from the indices that episodes draw."""

MAX_BUNDLE_BYTES: Final = 1_000_000


class Training:
    """One run of a task's ``train.py``: deterministic, on one thread.

    Args:
        file: ``__file__`` of train.py.
        seed: Seeds PyTorch.

    Attributes:
        task: The task of that folder.
        bundle: Folder of its MONAI bundle.
        meta: The bundle's ``configs/metadata.json``.
    """

    def __init__(self, file: str, seed: int) -> None:
        torch = import_module("torch")
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        self._began = time.process_time()
        self.task = task_of(file)
        self.bundle = self.task.folder / "model" / self.task.spec.model.name
        path = self.bundle / "configs" / "metadata.json"
        self.meta: dict[str, Any] = json.loads(path.read_text("utf-8"))

    def say(self, text: str) -> None:
        """Print a line with the CPU time so far."""
        print(f"{time.process_time() - self._began:4.0f} CPU-s  {text}", flush=True)

    def save(self, net: Any, probe: Any) -> None:
        """Write weights, public probe input and its private answer; say what task.yaml must.

        Args:
            net: The trained network; it is left in evaluation mode.
            probe: A batch of network inputs, as a float tensor.

        Raises:
            TaskError: If the bundle is larger than a bundle may be.
        """
        torch = import_module("torch")
        net.eval()
        probe = probe.float().contiguous()
        with torch.no_grad():
            out = net(probe)
        buffer = io.BytesIO()
        torch.save({self.meta["checkpoint_key"]: net.state_dict()}, buffer)
        write_bytes(self.bundle / "models" / "model.pt", buffer.getvalue())
        buffer = io.BytesIO()
        np.save(buffer, probe.numpy())
        write_bytes(self.bundle / self.task.spec.model.probe_input, buffer.getvalue())
        answer = {"schema_version": 1, "mean": float(out.mean()), "std": float(out.std())}
        private = self.task.folder / "private" / "probe.json"
        write_bytes(private, json.dumps(answer, indent=1).encode())
        count = sum(p.numel() for p in net.parameters())
        stated = self.task.spec.model.parameters
        told = "as task.yaml says" if count == stated else f"task.yaml says {stated}: correct it"
        self.say(f"{count} parameters, {told}; probe answer {answer}")
        size = sum(p.stat().st_size for p in self.bundle.rglob("*") if p.is_file())
        self.say(f"the bundle has {size} bytes, at most {MAX_BUNDLE_BYTES}")
        if size > MAX_BUNDLE_BYTES:
            raise TaskError(
                f"A bundle must have at most {MAX_BUNDLE_BYTES} bytes, {self.bundle} has {size}. "
                "Make the network or the probe input smaller."
            )


def training_instances(
    task: Task, counts: Mapping[str, int], first: int = FIRST_INDEX
) -> Iterator[Instance]:
    """Instances of the training namespace, size by size.

    Args:
        task: The task.
        counts: Size -> how many instances.
        first: Index of the first of each size.
    """
    for size, count in counts.items():
        for index in range(first, first + count):
            yield task.instance("train", index, size)  # type: ignore[arg-type]


def descend(
    net: Any,
    loss_of: Callable[[int], Any],
    *,
    steps: int,
    rate: float,
    weight_decay: float = 1e-4,
    every: int = 100,
) -> Any:
    """Train a network with AdamW and one cycle of the learning rate.

    Args:
        net: The network.
        loss_of: Step -> loss of a freshly drawn batch.
        steps: How many.
        rate: Highest learning rate.
        weight_decay: Of AdamW.
        every: Steps from one printed loss to the next.

    Returns:
        The network, in evaluation mode.
    """
    optim = import_module("torch.optim")
    optimizer = optim.AdamW(net.parameters(), lr=rate, weight_decay=weight_decay)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for step in range(steps):
        loss = loss_of(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % every == every - 1:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
    return net.eval()


def write_bytes(path: Path, data: bytes) -> None:
    """Replace a file in one step, its folder made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    temporary.replace(path)
