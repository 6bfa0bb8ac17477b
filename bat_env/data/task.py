"""A staged folder as a task: its instances are draws from the staged cases."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from bat_env.data.convert import MASK, TRUTH, lessened
from bat_env.data.facts import measure
from bat_env.data.manifest import CaseRow, FileSum, Manifest, read_manifest, sum_of, verify
from bat_env.data.pictures import reduced, write_png
from bat_env.data.splits import LEAST, in_turns
from bat_env.data.volumes import Volume, write_nifti
from bat_env.errors import DataError, TaskError
from bat_env.metrics.nifti import read_image
from bat_env.stages import Stage
from bat_env.tasks.discovery import Task, announce
from bat_env.tasks.instance import Instance, Size, Split
from bat_env.tasks.scripts import Decision, Mistake, ScriptCell

_ALPHABET: Final = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
_CORNERS: Final = ("x1", "y1", "x2", "y2")


class StagedTask(Task):
    """A task whose cases are real data that the user has staged.

    It has a contract, briefs, skills and a model like every task; instead of a generator it draws
    cases of the split, under new random ids. It has one script, the walk-through, and no mistakes.

    Attributes:
        root: The staged folder.
        manifest: What is in it.
    """

    def __init__(self, root: Path, manifest: Manifest) -> None:
        super().__init__(root / "task")
        self.root = root
        self.manifest = manifest

    def __repr__(self) -> str:
        return f"StagedTask({self.spec.id!r}, {len(self.manifest.cases)} cases)"

    @cached_property
    def digest(self) -> str:
        """sha256 over contract and manifest, and so over every staged file, as hex."""
        h = hashlib.sha256(self.manifest.digest.encode())
        for name, total in sorted(self.manifest.task_files.items()):
            h.update(f"{name}\0{total.sha256}\0".encode())
        return h.hexdigest()

    def seed(self, split: Split, index: int) -> int:
        """The 64-bit seed of a draw; another staging draws otherwise."""
        text = f"{self.spec.id}\0{self.manifest.digest}\0{split}\0{index}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

    # -------------------------------------------------------------------------------- instances

    def _generate(self, split: Split, index: int, size: Size) -> Instance:
        seed = self.seed(split, index)
        rng = np.random.default_rng(np.random.PCG64(seed))
        rows = self._draw(rng, split, int(self.spec.sizes[size]["cases"]))
        names = self._aliases(rng, len(rows))
        public: dict[str, dict[str, bytes]] = {}
        private: dict[str, dict[str, bytes]] = {}
        for name, row in zip(names, rows, strict=True):
            given = self._files("public", row, row.public)
            truth = self._files("private", row, row.private)
            public[name], private[name] = shrink(self.spec.sizes[size], self.spec, given, truth)
            _rename(private[name], name)
        cases, probe = tuple(sorted(names[:-1])), names[-1]
        facts = measure(
            self.spec,
            {case: public[case] for case in cases},
            {case: private[case] for case in cases},
        )
        return Instance(
            cases=cases,
            public={f"{c}/{name}": data for c in cases for name, data in public[c].items()},
            private={f"{c}/{name}": data for c in cases for name, data in private[c].items()},
            facts={**facts, "model_card": self.model_card},
            probe_case=probe,
            probe_public=public[probe],
            probe_private=private[probe],
            task=self.spec.id,
            split=split,
            index=index,
            seed=seed,
            size=size,
            fiction=dict(self.spec.fiction[split][0]),
        )

    def _draw(self, rng: np.random.Generator, split: str, wanted: int) -> list[CaseRow]:
        """Cases of the split, kinds taking turns where there are classes; the last is the probe."""
        rows = [row for row in self.manifest.cases if row.split == split]
        if len(rows) < LEAST:
            counts = dict.fromkeys(("train", "dev", "heldout"), 0)
            for row in self.manifest.cases:
                counts[row.split] += 1
            raise DataError(
                f"Expected at least {LEAST} staged cases in the split {split!r} of {self.root}, "
                f"there are {counts}. Stage more cases, or use another split."
            )
        order = [rows[int(n)] for n in rng.permutation(len(rows))]
        probe = order.pop()
        turns = in_turns(order, lambda row: row.summary.get("label", row.summary.get("text", "")))
        return [*turns[:wanted], probe]

    def _aliases(self, rng: np.random.Generator, count: int) -> list[str]:
        names: dict[str, None] = {}
        prefix = self.spec.fiction["train"][0]["prefix"]
        while len(names) < count:
            tail = "".join(_ALPHABET[int(n)] for n in rng.integers(0, len(_ALPHABET), 4))
            names[f"{prefix}-{tail}"] = None
        return list(names)

    def _files(self, tree: str, row: CaseRow, sums: Mapping[str, FileSum]) -> dict[str, bytes]:
        found = {}
        for name, total in sums.items():
            path = self.root / tree / row.key / name
            try:
                data = path.read_bytes()
            except OSError as error:
                raise DataError(f"Expected the staged file {path}: {error}.") from error
            if sum_of(data) != total:
                raise DataError(
                    f"Expected {path} as it was staged, it has changed. Stage the data set again "
                    "into a new folder."
                )
            found[name] = data
        return found

    # ---------------------------------------------------------------------------------- scripts

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """None: real data has no expert that is written down."""
        return ()

    @cached_property
    def naive_choices(self) -> dict[str, str]:
        """None."""
        return {}

    @cached_property
    def mistakes(self) -> tuple[Mistake, ...]:
        """None."""
        return ()

    def script(
        self,
        choices: Mapping[str, str] | None = None,
        *,
        focus: Stage = Stage.E2E,
        tier: str = "lite",
        outcome: str | None = None,
    ) -> tuple[ScriptCell, ...]:
        """The walk-through: honest work in every stage around a prediction without skill.

        Raises:
            TaskError: If choices are given; there is nothing to choose.
        """
        from bat_env.data.walk import walk_through

        if choices:
            raise TaskError(f"{self.spec.id} is staged data: its script has no decisions.")
        return walk_through(self.spec, self.manifest, focus=focus, tier=tier, outcome=outcome)

    def trivial_outputs(self, instance: Instance) -> Mapping[str, Mapping[str, bytes]]:
        """The trivial outputs of the track, with a prior from one other training draw."""
        from bat_env.metrics.base import Case
        from bat_env.metrics.floors import trivial_files

        def cases(drawn: Instance) -> list[Case]:
            return [
                Case(case, _under(drawn.private, case), _under(drawn.public, case))
                for case in drawn.cases
            ]

        prior = self.instance("train", (instance.index + 1) % 2**31, instance.size)
        return trivial_files(self.spec, cases(instance), cases(prior))


def _under(tree: Mapping[str, bytes], case: str) -> dict[str, bytes]:
    return {p.removeprefix(f"{case}/"): d for p, d in tree.items() if p.startswith(f"{case}/")}


def _rename(files: dict[str, bytes], alias: str) -> None:
    """Put the alias into a JSON truth: the data set's own id stays in the manifest."""
    if TRUTH in files:
        files[TRUTH] = json.dumps({**json.loads(files[TRUTH]), "case": alias}).encode()


# ------------------------------------------------------------------------------------ reduction


def shrink(
    size: Mapping[str, Any], spec: Any, public: dict[str, bytes], private: dict[str, bytes]
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Files of a case within the bounds of an instance size.

    Args:
        size: ``max_voxels`` or ``max_side_px``.
        spec: The staged task.
        public: File name -> bytes.
        private: The same of the truth.
    """
    if "max_voxels" in size:
        return _smaller_volumes(int(size["max_voxels"]), spec.track, public, private)
    most = int(size["max_side_px"])
    small, scale = {}, (1.0, 1.0)
    for name, data in public.items():
        if not name.endswith(".png"):
            small[name] = data
            continue
        pixels = np.asarray(Image.open(io.BytesIO(data)))
        if max(pixels.shape[:2]) > most:
            less = reduced(pixels, most)
            scale = (less.shape[1] / pixels.shape[1], less.shape[0] / pixels.shape[0])
            data = write_png(less)
        small[name] = data
    truth = dict(private)
    if spec.track == "det" and scale != (1.0, 1.0):
        truth[TRUTH] = _scaled_boxes(json.loads(private[TRUTH]), scale)
    return small, truth


def _scaled_boxes(truth: dict[str, Any], scale: tuple[float, float]) -> bytes:
    width, height = round(truth["width"] * scale[0]), round(truth["height"] * scale[1])
    boxes = []
    for box in truth["boxes"]:
        moved = {
            key: min(box[key] * scale[n % 2], (width, height)[n % 2])
            for n, key in enumerate(_CORNERS)
        }
        if moved["x2"] > moved["x1"] and moved["y2"] > moved["y1"]:
            boxes.append({"class": box["class"], **{k: round(v, 3) for k, v in moved.items()}})
    return json.dumps({**truth, "width": width, "height": height, "boxes": boxes}).encode()


def _smaller_volumes(
    most: int, track: str, public: dict[str, bytes], private: dict[str, bytes]
) -> tuple[dict[str, bytes], dict[str, bytes]]:
    mask = read_image(private[MASK]).values if MASK in private else None
    trees: tuple[dict[str, bytes], dict[str, bytes]] = ({}, {})
    for small, tree in zip(trees, (public, private), strict=True):
        for name, data in tree.items():
            image = read_image(data)
            whole = Volume(image.values, image.affine)
            less = lessened(whole, track, most, mask)
            small[name] = data if less is whole else write_nifti(less.values, less.affine)
    return trees


def open_staged(folder: str | Path) -> StagedTask:
    """Open a staged folder, with every file checked.

    Raises:
        DataError: If it is no finished staging, or anything in it was changed.
    """
    root = Path(folder).resolve()
    manifest = read_manifest(root)
    verify(root, manifest)
    task = StagedTask(root, manifest)
    if task.spec.id != manifest.task:
        raise DataError(
            f"{root} holds the task {task.spec.id}, its manifest names {manifest.task}."
        )
    announce(task)
    return task
