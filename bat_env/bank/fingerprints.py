"""What held-out material looks like: strings and hashes that training material must not hold."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from bat_env.bank.inflating import inflate
from bat_env.bank.needles import MIN_NEEDLE
from bat_env.bank.overlap import Documents, answer_keys, brief_keys, fact_keys, prose_keys
from bat_env.bank.pictures import Gallery
from bat_env.bank.state import canonical
from bat_env.errors import BatError, LeakageError
from bat_env.stages import Stage
from bat_env.tasks import Suite, Task, load_suite, load_task, render_brief
from bat_env.tasks.instance import Instance, Size

_USUAL: Final = 6
_NIFTI_HEADER: Final = 352


@dataclass(frozen=True)
class Fingerprint:
    """Traces of held-out (or private) material.

    Attributes:
        strings: Text that must not occur, each with what it is.
        hashes: sha256 of a file, of its inflated content or of its voxels -> what it is.
        documents: Briefs, answers and facts, recognised by how much of them is repeated.
        gallery: Pictures, recognised also when re-encoded, shifted, cropped a little or rescaled.
    """

    strings: Mapping[str, str] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)
    documents: Documents = field(default_factory=Documents)
    gallery: Gallery = field(default_factory=Gallery)

    @functools.cached_property
    def digest(self) -> str:
        """Names this set of traces."""
        h = hashlib.sha256(canonical(self._texts()))
        h.update(self.gallery.middles.tobytes())
        h.update(self.gallery.names.tobytes())
        return h.hexdigest()

    def merge(self, other: Fingerprint) -> Fingerprint:
        """Both sets of traces."""
        return Fingerprint(
            {**self.strings, **other.strings},
            {**self.hashes, **other.hashes},
            self.documents.merge(other.documents),
            self.gallery.merge(other.gallery),
        )

    def _texts(self) -> list[Any]:
        keys = {name: list(found) for name, found in self.documents.keys.items()}
        return [dict(self.strings), dict(self.hashes), keys, list(self.gallery.labels)]


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
    shown: list[tuple[str, bytes]] = []
    documents: dict[str, tuple[str, ...]] = {}
    for entry in suite.entries:
        instance = entry.instance()
        what = f"held-out instance {entry.index} of {entry.task} ({entry.size})"
        strings[str(instance.seed)] = f"seed of {what}"
        strings[f"{instance.seed:x}"] = f"seed of {what}"
        strings[instance.digest] = f"digest of {what}"
        for canary in instance.canaries:
            strings[canary] = f"canary of {what}"
        for case in (*instance.cases, instance.probe_case):
            strings[case] = f"case id of {what}"
        for data in instance.public.values():
            hashes |= dict.fromkeys(content_hashes(data), f"input of {what}")
        hashes |= _private_hashes(instance, f"truth of {what}")
        # Sizes of one index share a drawing, so they must not compete for a picture.
        place = f"held-out instance {entry.index} of {entry.task}"
        pictures = (instance.public, instance.probe_public, instance.private)
        shown += [(f"picture of {place}", data) for tree in pictures for data in tree.values()]
        documents |= _documents(load_task(entry.task), instance, what)
    strings = {text: what for text, what in strings.items() if len(text) >= MIN_NEEDLE}
    return Fingerprint(strings, hashes, Documents(documents), Gallery.of(shown))


def _documents(task: Task, instance: Instance, what: str) -> dict[str, tuple[str, ...]]:
    usual = _usual(task.id, task.digest)
    facts = {key: value for key, value in instance.facts.items() if key != "model_card"}
    names = (*instance.cases, instance.probe_case)
    answers = [instance.private[path] for path in sorted(instance.private)]
    found = {
        f"answers: answers of {what}": answer_keys(answers, names),
        f"prose: answers of {what}": prose_keys(answers),
        f"facts: facts of {what}": fact_keys(facts),
    }
    for tier in task.spec.tiers:
        brief = render_brief(task, instance, tier=tier, focus=Stage.E2E)
        found[f"brief: {tier} brief of {what}"] = brief_keys(brief)
    return {name: tuple(sorted(keys - usual)) for name, keys in found.items()}


@functools.lru_cache(maxsize=32)
def _usual(task_id: str, digest: str) -> frozenset[str]:
    """Phrases and numbers that training instances of the task hold as well."""
    task = load_task(task_id)
    found: set[str] = set()
    for index in range(_USUAL):
        instance = task.instance("train", index, "mini" if "mini" in task.spec.sizes else "full")
        facts = {key: value for key, value in instance.facts.items() if key != "model_card"}
        found |= fact_keys(facts)
        for tier in task.spec.tiers:
            found |= brief_keys(render_brief(task, instance, tier=tier, focus=Stage.E2E))
    return frozenset(found)


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


def _cached(name: str, make: Callable[[], Fingerprint]) -> Fingerprint:
    path = cache_home() / "fingerprints" / f"{name}.v6.npz"
    try:
        with np.load(path, allow_pickle=False) as kept:
            value = json.loads(bytes(kept["texts"]))
            strings, hashes, keys, labels = value["texts"]
            found = Fingerprint(
                strings,
                hashes,
                Documents({name: tuple(inner) for name, inner in keys.items()}),
                Gallery(kept["middles"], kept["names"], tuple(labels)),
            )
        if value["digest"] == found.digest:
            return found
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, zlib.error):
        pass
    except zipfile.BadZipFile:
        pass
    made = make()
    texts = canonical({"schema_version": 6, "texts": made._texts(), "digest": made.digest})
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        np.savez_compressed(
            file,
            texts=np.frombuffer(texts, np.uint8),
            middles=made.gallery.middles,
            names=made.gallery.names,
        )
    Path(file.name).replace(path)
    return made


def cache_home() -> Path:
    """``$BAT_HOME``, else ``~/.cache/automed-bat``."""
    return Path(os.environ.get("BAT_HOME") or Path.home() / ".cache" / "automed-bat")
