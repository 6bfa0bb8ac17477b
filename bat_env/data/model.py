"""The model that a staged task hands out: the user's MONAI bundle, or that of a phantom task.

No bundle ships for real data. A phantom task's network is small and has seen phantoms only; it is
given so that planning, set-up and the pipeline are the same work, and the brief says what it is.
A user's weights are untrusted: they are loaded in a sandbox, never in this process.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bat_env.errors import DataError, SandboxError
from bat_env.sandbox.base import Cell, Limits
from bat_env.tasks.discovery import Task, load_task, task_ids

MAX_BYTES: Final = 256 << 20
PROBE: Final = "probe.npy"
_METADATA: Final = "configs/metadata.json"
_INFERENCE: Final = "configs/inference.json"
_WEIGHTS: Final = "models/model.pt"
_ALTERNATIVES: Final = ("swin_unetr", "segresnet", "densenet121")
_TIMEOUT_S: Final = 300.0

LOAD: Final = """\
from monai.bundle import ConfigParser
parser = ConfigParser()
parser.read_config(f"{root}/configs/inference.json")
parser["bundle_root"] = root
net = parser.get_parsed_content("network_def")
state = torch.load(f"{root}/models/model.pt", map_location="cpu", weights_only=True)
state = next((state[k] for k in ("model", "state_dict", "network") if k in state), state)
net.load_state_dict(state)
net.eval()
"""
"""Cell lines that load a bundle at ``root`` into ``net``; torch must be imported."""

_PROBE_CELL: Final = (
    """\
import json, torch, numpy as np
root = "/models/NAME"
"""
    + LOAD
    + """\
with torch.no_grad():
    out = net(torch.from_numpy(np.load(f"{root}/probe.npy")))
while isinstance(out, (list, tuple)):
    out = out[0]
found = dict(mean=float(out.mean()), std=float(out.std()))
found["parameters"] = sum(p.numel() for p in net.parameters())
print("PROBE" + json.dumps(found))
"""
)


@dataclass(frozen=True)
class Bundle:
    """A bundle with what its task must know of it.

    Attributes:
        name: Folder under ``/models``.
        files: Path in the bundle -> bytes.
        parameters: Number of weights.
        probe: True mean and standard deviation of the output on the probe.
        preprocessing: Keys of the card -> what to write.
        alternatives: Other names that are valid in a plan.
        origin: Whose it is, a sentence for people and agents.
    """

    name: str
    files: Mapping[str, bytes]
    parameters: int
    probe: Mapping[str, float]
    preprocessing: Mapping[str, Any]
    alternatives: tuple[str, ...]
    origin: str


def sibling_of(track: str, name: str) -> Task:
    """The phantom task of this name, or else the Lite task of the track.

    Raises:
        DataError: If no task of the track is installed.
    """
    if name in task_ids():
        return load_task(name)
    loaded = [load_task(other) for other in task_ids() if other.startswith(f"{track}/")]
    if not loaded:
        raise DataError(
            f"Expected a phantom task of the track {track!r} whose model can be given, none is "
            "installed. Give a MONAI bundle of your own: --model FOLDER."
        )
    return next((task for task in loaded if task.spec.lite), loaded[0])


def sibling_bundle(track: str, name: str) -> Bundle:
    """The bundle of a phantom task.

    Raises:
        DataError: If no task of the track is installed.
    """
    task = sibling_of(track, name)
    model = task.spec.model
    prefix = f"{model.name}/"
    return Bundle(
        name=model.name,
        files={p.removeprefix(prefix): data for p, data in task.model_files().items()},
        parameters=model.parameters,
        probe=task.probe_expected,
        preprocessing=model.preprocessing,
        alternatives=model.alternatives,
        origin=f"It comes from the phantom task {task.id} and was trained on phantoms only.",
    )


def user_digest(folder: Path) -> str:
    """sha256 over the files of a bundle, as hex."""
    h = hashlib.sha256()
    for name, data in sorted(_files(folder).items()):
        h.update(f"{name}\0{len(data)}\0".encode())
        h.update(data)
    return h.hexdigest()


def _files(folder: Path) -> dict[str, bytes]:
    if not folder.is_dir():
        raise DataError(f"Expected the folder of a MONAI bundle, {folder} is none.")
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    kept = [p for p in paths if not any(x.startswith(".") for x in p.relative_to(folder).parts)]
    total = sum(path.stat().st_size for path in kept)
    if total > MAX_BYTES:
        raise DataError(
            f"Expected a bundle of at most {MAX_BYTES >> 20} MiB, {folder} has {total >> 20} MiB. "
            "Keep configs/, models/model.pt and docs/ only."
        )
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in kept}


def user_bundle(folder: Path, sandbox: str = "auto") -> Bundle:
    """A bundle of the user, its network run once in a sandbox.

    Args:
        folder: With ``configs/metadata.json``, ``configs/inference.json`` (whose ``network_def``
            builds the network) and ``models/model.pt`` (a state dict, perhaps under ``model``).
        sandbox: Backend that loads the weights.

    Raises:
        DataError: If a part is missing, or the network cannot be loaded and run.
    """
    files = _files(folder)
    absent = [name for name in (_METADATA, _INFERENCE, _WEIGHTS) if name not in files]
    if absent:
        raise DataError(
            f"Expected a MONAI bundle in {folder}, it lacks {', '.join(absent)}. Export it with "
            "`python -m monai.bundle`, or leave --model out for the phantom task's network."
        )
    try:
        metadata = json.loads(files[_METADATA])
        card = _card(metadata)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"Expected network_data_format.inputs.image with num_channels and spatial_shape in "
            f"{folder / _METADATA}: {error!r}. Complete the file."
        ) from error
    if "preprocessing" not in metadata or "channels" not in metadata:
        files[_METADATA] = json.dumps({**metadata, **card}, indent=1).encode()
    if PROBE not in files:
        files[PROBE] = _probe(metadata)
    name = re.sub(r"[^a-z0-9_]+", "_", folder.resolve().name.lower()).strip("_") or "model"
    found = _run(name, files, sandbox)
    return Bundle(
        name=name,
        files=files,
        parameters=int(found["parameters"]),
        probe={"mean": found["mean"], "std": found["std"]},
        preprocessing=dict.fromkeys(card["preprocessing"], "as metadata.json states it"),
        alternatives=tuple(n for n in _ALTERNATIVES if n != name),
        origin="It was given by whoever staged the data.",
    )


def _card(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The blocks that a plan is compared with: the bundle's own, or made of its data format."""
    formats = metadata["network_data_format"]
    image = formats["inputs"]["image"]
    made = {key: image[key] for key in ("num_channels", "spatial_shape")}
    made |= {key: image[key] for key in ("value_range", "dtype") if key in image}
    outputs: dict[str, Any] = next(iter(formats.get("outputs", {}).values()), {})
    channels = [str(name) for name in dict(outputs.get("channel_def", {})).values()]
    return {
        "preprocessing": metadata.get("preprocessing", made),
        "channels": metadata.get("channels", channels),
    }


def _probe(metadata: Mapping[str, Any]) -> bytes:
    """A network input of the smallest fitting size, the same on every machine."""
    image = metadata["network_data_format"]["inputs"]["image"]
    sides = [_side(size) for size in image["spatial_shape"]]
    shape = (1, int(image["num_channels"]), *sides)
    buffer = io.BytesIO()
    np.save(buffer, np.random.default_rng(0).random(shape, dtype=np.float32))
    return buffer.getvalue()


def _side(size: object) -> int:
    """A side of a spatial shape, which may be a number or a pattern such as ``16*n``."""
    if isinstance(size, int):
        return size
    found = re.search(r"\d+", str(size).split("**")[0])
    unit = int(found[0]) if found else 1
    return unit * -(-64 // unit)


def _run(name: str, files: Mapping[str, bytes], backend: str) -> dict[str, Any]:
    from bat_env.sandbox import make_sandbox

    weight_mb = sum(map(len, files.values())) >> 20
    sandbox = make_sandbox(backend, limits=Limits(memory_mb=max(2048, 1024 + 8 * weight_mb)))
    try:
        sandbox.start()
        sandbox.reset({f"models/{name}/{path}": data for path, data in files.items()})
        result = sandbox.run(Cell("python", _PROBE_CELL.replace("NAME", name)), _TIMEOUT_S)
    except SandboxError as error:
        raise DataError(f"The bundle {name} could not be tried: {error}") from error
    finally:
        sandbox.close()
    line = next((x for x in result.stdout.splitlines() if x.startswith("PROBE")), None)
    if line is None:
        why = result.limit or (result.stderr.strip().splitlines() or ["no output"])[-1]
        raise DataError(
            f"Expected a bundle whose network_def loads models/model.pt and runs on {PROBE}, "
            f"{name} does not: {why[:300]}. Try it with MONAI, then stage again."
        )
    found: dict[str, Any] = json.loads(line.removeprefix("PROBE"))
    return found
