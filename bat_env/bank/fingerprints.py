"""What held-out material looks like: strings and hashes that training material must not hold."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bat_env.bank.state import canonical
from bat_env.errors import BatError, LeakageError
from bat_env.tasks import Suite, load_suite, load_task
from bat_env.tasks.instance import Instance, Size

_MAX_INFLATED: Final = 256 << 20
_NIFTI_HEADER: Final = 352
MIN_NEEDLE: Final = 5
"""Shorter strings occur by chance in any text; ids of that length are not searched for."""


@dataclass(frozen=True)
class Fingerprint:
    """Traces of held-out (or private) material.

    Attributes:
        strings: Text that must not occur, each with what it is.
        hashes: sha256 of a file, of its inflated content or of its voxels -> what it is.
    """

    strings: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def digest(self) -> str:
        """Names this set of traces."""
        return hashlib.sha256(canonical([dict(self.strings), dict(self.hashes)])).hexdigest()

    def merge(self, other: Fingerprint) -> Fingerprint:
        """Both sets of traces."""
        return Fingerprint({**self.strings, **other.strings}, {**self.hashes, **other.hashes})


def inflate(data: bytes) -> bytes | None:
    """Content of a gzip file (at most 256 MiB of it), or ``None`` if it is none."""
    if data[:2] != b"\x1f\x8b":
        return None
    try:
        return zlib.decompressobj(wbits=31).decompress(data, _MAX_INFLATED)
    except zlib.error:
        return None


def content_hashes(data: bytes) -> tuple[str, ...]:
    """Hashes under which a file can be recognised: as it is, inflated, and only its voxels.

    Voxels that are all equal carry no information and give no hash.
    """
    found = [hashlib.sha256(data).hexdigest()]
    plain = inflate(data)
    if plain is not None:
        found.append(hashlib.sha256(plain).hexdigest())
    volume = data if plain is None else plain
    if len(volume) > _NIFTI_HEADER and volume[344:347] in (b"n+1", b"ni1"):
        (offset,) = struct.unpack("<f", volume[108:112])
        voxels = volume[int(offset) if _NIFTI_HEADER <= offset < len(volume) else _NIFTI_HEADER :]
        if voxels.strip(voxels[:1]):
            found.append(hashlib.sha256(voxels).hexdigest())
    return tuple(found)


def of_suites(suites: Iterable[str | Suite], tasks: Collection[str] | None = None) -> Fingerprint:
    """Traces of every instance of the suites, and of the non-training fiction of their tasks.

    Args:
        suites: Held-out suites, by name or loaded; at least one.
        tasks: Tasks whose material is looked at; of others only the fiction can have got there,
            and only that is taken. ``None``: all.

    Kept on disk under ``$BAT_HOME`` by suite digest, so that a full-size suite is made only once.

    Raises:
        LeakageError: If no suite is given, or one cannot be made: then nothing can be proven clean.
    """
    total: Fingerprint | None = None
    for suite in suites:
        try:
            loaded = load_suite(suite) if isinstance(suite, str) else suite
            part = loaded if tasks is None else loaded.of_tasks(tasks)
            found = _of_fiction(loaded)
            if part.entries:
                make = functools.partial(_of_suite, part)
                found = _cached(f"suite-{part.digest}", make).merge(found)
        except BatError as error:
            raise LeakageError(
                f"The held-out suite {suite!r} cannot be fingerprinted, so nothing can be proven "
                f"clean: {error}"
            ) from error
        total = found if total is None else total.merge(found)
    if total is None:
        raise LeakageError("Expected at least one held-out suite to compare with, got none.")
    return total


@functools.lru_cache(maxsize=256)
def of_truth(task_id: str, digest: str, index: int, size: Size) -> Fingerprint:
    """Hashes of the private side of one training instance: truth, probe case, probe truth.

    Args:
        task_id: Task, for example ``"seg/kidney_tumor"``.
        digest: Task digest that the state was built with.
        index: Training index.
        size: ``"full"`` or ``"mini"``.

    Raises:
        LeakageError: If the task has changed since, so that its truth cannot be made again.
    """
    task = load_task(task_id)
    if task.digest != digest:
        raise LeakageError(
            f"The state was built for task {task_id} with digest {digest[:12]}, which is now "
            f"{task.digest[:12]}: its truth cannot be compared. Build the bank again."
        )

    def make() -> Fingerprint:
        instance = task.instance("train", index, size)
        return Fingerprint(hashes=_private_hashes(instance, f"truth of train/{index}"))

    return _cached(f"truth-{digest}-{index}-{size}", make)


def _private_hashes(instance: Instance, what: str) -> dict[str, str]:
    return {
        digest: what
        for tree in (instance.private, instance.probe_public, instance.probe_private)
        for data in tree.values()
        for digest in content_hashes(data)
    }


def _of_suite(suite: Suite) -> Fingerprint:
    strings: dict[str, str] = {}
    hashes: dict[str, str] = {}
    for entry in suite.entries:
        instance = entry.instance()
        what = f"held-out instance {entry.index} of {entry.task} ({entry.size})"
        strings[str(instance.seed)] = f"seed of {what}"
        strings[f"{instance.seed:x}"] = f"seed of {what}"
        strings[instance.digest] = f"digest of {what}"
        for case in (*instance.cases, instance.probe_case):
            strings[case] = f"case id of {what}"
        for data in instance.public.values():
            hashes |= dict.fromkeys(content_hashes(data), f"input of {what}")
        hashes |= _private_hashes(instance, f"truth of {what}")
    strings = {text: what for text, what in strings.items() if len(text) >= MIN_NEEDLE}
    return Fingerprint(strings, hashes)


def _of_fiction(suite: Suite) -> Fingerprint:
    """Names of the worlds in which dev and held-out instances play."""
    strings: dict[str, str] = {}
    for task_id in sorted({entry.task for entry in suite.entries}):
        fiction = load_task(task_id).spec.fiction
        known = {value for row in fiction.get("train", []) for value in row.values()}
        for split, rows in sorted(fiction.items()):
            for key, value in ((k, v) for row in rows for k, v in row.items()):
                if split != "train" and value not in known and len(value) >= MIN_NEEDLE:
                    strings[value] = f"{split} fiction ({key}) of {task_id}"
    return Fingerprint(strings)


def _cached(name: str, make: Any) -> Fingerprint:
    home = Path(os.environ.get("BAT_HOME") or Path.home() / ".cache" / "automed-bat")
    path = home / "fingerprints" / f"{name}.v1.json.gz"
    try:
        value = json.loads(gzip.decompress(path.read_bytes()))
        body = [value["strings"], value["hashes"]]
        if value["digest"] == hashlib.sha256(canonical(body)).hexdigest():
            return Fingerprint(*body)
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error):
        pass
    made: Fingerprint = make()
    value = {
        "schema_version": 1,
        "strings": dict(made.strings),
        "hashes": dict(made.hashes),
        "digest": made.digest,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(gzip.compress(canonical(value), mtime=0))
    Path(file.name).replace(path)
    return made
