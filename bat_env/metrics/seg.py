"""Segmentation score of label maps in NIfTI: Dice, with NSD and HD95 beside it.

Numpy and scipy only. Every byte of an output may be hostile: parse it in the grader process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import ndimage

from bat_env.errors import TaskError
from bat_env.metrics.base import (
    Case,
    MetricParams,
    UnreadableError,
    output_name,
    parse_params,
    unreadable_facts,
)
from bat_env.metrics.nifti import AFFINE_TOLERANCE, read_image
from bat_env.metrics.rule import CaseScore, TaskScore, aggregate, clip, missing_case
from bat_env.tasks.spec import TaskSpec

Mask = NDArray[np.bool_]


class SegParams(MetricParams):
    """Constants of the segmentation score."""

    organ: str = Field("", description="Class whose Dice stands in for an absent lesion.")
    lesion: str = Field("", description="Class that lesion-free cases lack; empty: no such rule.")
    lesion_free_ml: float = Field(
        0.1, ge=0, description="Lesion volume that may be claimed in a lesion-free case, ml."
    )
    absent_ml: float | None = Field(
        None,
        ge=0,
        description="Volume that may be claimed of a class that a case lacks, ml; a larger one "
        "adds a term of 0. Not set: such classes do not count.",
    )
    nsd_tolerance_mm: float = Field(3.0, gt=0, description="Tolerance of the surface Dice, mm.")


@dataclass(frozen=True)
class LabelMap:
    """A parsed label map.

    Attributes:
        labels: Integer labels in file order, int64; the nearest integers of the stored values.
        affine: 4x4 voxel-to-world (RAS, mm).
        dtype: Name of the on-disk dtype.
        integral: Whether every stored value is an integer within 1e-3.
    """

    labels: NDArray[np.int64]
    affine: NDArray[np.float64]
    dtype: str
    integral: bool

    @property
    def voxel_ml(self) -> float:
        """Volume of one voxel, from the affine."""
        return abs(float(np.linalg.det(self.affine[:3, :3]))) / 1000.0

    @property
    def spacing_mm(self) -> tuple[float, float, float]:
        """Voxel sizes in file order."""
        sizes = np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0))
        return float(sizes[0]), float(sizes[1]), float(sizes[2])


# ------------------------------------------------------------------------------------- reading


def read_labels(data: bytes, voxels: int | None = None) -> LabelMap:
    """Parse a label map from (gzip-compressed) NIfTI-1 bytes.

    Args:
        data: File content.
        voxels: Number of voxels that is expected; bounds what is unpacked. ``None``: 2**27.

    Raises:
        UnreadableError: If it cannot be read as a 3D image of finite values.
    """
    image = read_image(data, voxels)
    values, affine, dtype = image.values, image.affine, image.dtype
    if values.dtype.kind == "f":
        if not np.isfinite(values).all() or float(np.abs(values).max()) > 2**31:
            raise UnreadableError("holds values that are no labels")
        nearest = np.rint(values)
        integral = bool((np.abs(values - nearest) <= 1e-3).all())
        return LabelMap(nearest.astype(np.int64), affine, dtype, integral)
    return LabelMap(values.astype(np.int64), affine, dtype, True)


# ------------------------------------------------------------------------------------- metrics


def dice(a: Mask, b: Mask) -> float | None:
    """Overlap ``2 |a & b| / (|a| + |b|)``; ``None`` when both masks are empty."""
    total = int(np.count_nonzero(a)) + int(np.count_nonzero(b))
    return 2.0 * int(np.count_nonzero(a & b)) / total if total else None


def _crop(*masks: Mask) -> tuple[Mask, ...]:
    """The masks cut to the box of their union and a border of one voxel (padded if need be)."""
    union = np.logical_or.reduce(masks)
    box = []
    for axis in range(union.ndim):
        others = tuple(a for a in range(union.ndim) if a != axis)
        hit = np.flatnonzero(union.any(axis=others))
        box.append(slice(int(hit[0]), int(hit[-1]) + 1))
    return tuple(np.pad(mask[tuple(box)], 1) for mask in masks)


def _surface(mask: Mask) -> Mask:
    """Voxels of the mask with a face neighbour outside it."""
    return np.asarray(mask & ~ndimage.binary_erosion(mask), dtype=bool)


def surface_distances(
    a: Mask, b: Mask, spacing_mm: tuple[float, float, float]
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Distances (mm) of a's surface voxels to b's surface, and the reverse.

    ``None`` when either mask is empty.
    """
    if not a.any() or not b.any():
        return None
    edge_a, edge_b = (_surface(mask) for mask in _crop(a, b))
    to_b = ndimage.distance_transform_edt(~edge_b, sampling=spacing_mm)[edge_a]
    to_a = ndimage.distance_transform_edt(~edge_a, sampling=spacing_mm)[edge_b]
    return to_b, to_a


def hd95(distances: tuple[NDArray[np.float64], NDArray[np.float64]]) -> float:
    """Larger of the two directed 95th percentiles, mm."""
    return float(max(np.percentile(distances[0], 95), np.percentile(distances[1], 95)))


def nsd(distances: tuple[NDArray[np.float64], NDArray[np.float64]], tolerance_mm: float) -> float:
    """Share of both surfaces that lies within the tolerance of the other one."""
    near = sum(int((d <= tolerance_mm).sum()) for d in distances)
    return near / (distances[0].size + distances[1].size)


# ------------------------------------------------------------------------------------- contract


def _by_name(spec: TaskSpec) -> dict[str, int]:
    return {name: value for value, name in spec.output.labels.items()}


def properties(spec: TaskSpec, output: LabelMap) -> dict[str, Any]:
    """Host-measured facts of a label map: what a pilot record must say of it."""
    present, counts = np.unique(output.labels, return_counts=True)
    count_of = dict(zip(present.tolist(), counts.tolist(), strict=True))
    volumes = {
        name: round(count_of.get(value, 0) * output.voxel_ml, 6)
        for name, value in _by_name(spec).items()
        if value != 0
    }
    return {
        "shape": list(output.labels.shape),
        "dtype": output.dtype,
        "labels": [int(v) for v in present.tolist()[:64]],
        "volumes_ml": volumes,
        "quantity": volumes.get(spec.pilot.quantity.removesuffix("_volume_ml")),
        "values": {f"{name}_volume_ml": volume for name, volume in volumes.items()},
    }


def contract_fault(spec: TaskSpec, output: LabelMap, reference: LabelMap) -> tuple[str, bool]:
    """Why a label map breaks the contract (``""`` if it does not), and whether its grid is right.

    Args:
        spec: The task.
        output: The agent's label map.
        reference: An image on the grid of the input.
    """
    if output.labels.shape != reference.labels.shape:
        return (
            f"the shape is {output.labels.shape}, the input has {reference.labels.shape}",
            False,
        )
    if not np.allclose(output.affine, reference.affine, rtol=0.0, atol=AFFINE_TOLERANCE):
        return "the affine is not that of the input", False
    if output.dtype not in spec.output.dtype:
        return f"the dtype is {output.dtype}, expected {' or '.join(spec.output.dtype)}", True
    present = set(np.unique(output.labels).tolist())
    if not output.integral or not present <= set(spec.output.labels):
        return f"labels must be among {sorted(spec.output.labels)}", True
    return "", True


def inspect_output(spec: TaskSpec, reference_bytes: bytes, output_bytes: bytes) -> dict[str, Any]:
    """Facts of one output file, without any truth.

    Returns:
        ``readable``, ``affine_ok`` (shape and affine), ``valid``, ``message``, and of a readable
        file the :func:`properties`.
    """
    reference = read_labels(reference_bytes)
    try:
        output = read_labels(output_bytes, reference.labels.size)
    except UnreadableError as error:
        return {"readable": False, "affine_ok": False, "valid": False, "message": str(error)}
    message, on_grid = contract_fault(spec, output, reference)
    return {
        "readable": True,
        "affine_ok": on_grid,
        "valid": not message,
        "message": message,
        **properties(spec, output),
    }


def score_labels(spec: TaskSpec, truth: LabelMap, output: LabelMap) -> CaseScore:
    """Score a label map that lies on the grid of the truth."""
    params = parse_params(SegParams, spec)
    by_name = _by_name(spec)
    spacing = truth.spacing_mm
    overlaps: dict[str, float] = {}
    secondary: dict[str, float | None] = {}
    for name, value in by_name.items():
        if value == 0:
            continue
        real, said = truth.labels == value, output.labels == value
        overlap = dice(real, said) if real.any() else None
        if overlap is not None:
            overlaps[name] = overlap
        secondary[f"dice_{name}"] = overlap
        found = surface_distances(real, said, spacing)
        secondary[f"hd95_{name}_mm"] = hd95(found) if found else None
        unmatched = real.any() != said.any()
        secondary[f"nsd_{name}"] = (
            nsd(found, params.nsd_tolerance_mm) if found else 0.0 if unmatched else None
        )
    absent = [name for name, value in by_name.items() if value and name not in overlaps]
    for name in absent:
        claimed_ml = int((output.labels == by_name[name]).sum()) * truth.voxel_ml
        if name == params.lesion:
            organ = overlaps.get(params.organ, 0.0)
            overlaps[name] = organ if claimed_ml <= params.lesion_free_ml else 0.0
        elif params.absent_ml is not None and claimed_ml > params.absent_ml:
            overlaps[name] = 0.0
    if not overlaps:
        # Nothing to find: only an output without any foreground is right.
        overlaps[""] = float(not output.labels.any())
    message, _ = contract_fault(spec, output, truth)
    return CaseScore(
        score=clip(sum(overlaps.values()) / len(overlaps)),
        valid=not message,
        message=message,
        secondary=secondary,
        properties={"readable": True, "affine_ok": True, **properties(spec, output)},
        trivial=_trivial(spec, output),
    )


def _trivial(spec: TaskSpec, output: LabelMap) -> str:
    """One label everywhere is an answer without a look."""
    first = int(output.labels.flat[0])
    if (output.labels != first).any():
        return ""
    return f"all {spec.output.labels.get(first, 'background') if first else 'background'}"


def score_case(
    spec: TaskSpec,
    truth_bytes: bytes,
    reference_bytes: bytes | None,
    output_bytes: bytes | None,
) -> CaseScore:
    """Score one case.

    Args:
        spec: The task; its ``metric.params`` name organ, lesion and constants.
        truth_bytes: True label map, on the grid of the input.
        reference_bytes: The input image. Not needed here: the truth lies on its grid.
        output_bytes: The agent's file, or ``None`` if there is none.

    Returns:
        Mean Dice over the classes that the truth holds. Where it holds no lesion, the lesion's
        term is the organ Dice if at most ``lesion_free_ml`` of lesion was predicted, else 0. With
        ``absent_ml``, each other class that the truth lacks and of which more was predicted adds
        a term of 0.
    """
    if output_bytes is None:
        return missing_case()
    truth = read_labels(truth_bytes)
    try:
        output = read_labels(output_bytes, truth.labels.size)
    except UnreadableError as error:
        return CaseScore(0.0, False, f"the file {error}", properties={"readable": False})
    message, on_grid = contract_fault(spec, output, truth)
    if not on_grid:
        facts = {"readable": True, "affine_ok": False, **properties(spec, output)}
        return CaseScore(0.0, False, message, properties=facts)
    return score_labels(spec, truth, output)


def agreement(spec: TaskSpec, a_bytes: bytes, b_bytes: bytes) -> float:
    """Agreement in [0, 1] of two outputs of one case: mean Dice over classes in either of them.

    Two outputs without any foreground agree fully; one that cannot be read, or lies on another
    grid, agrees with nothing.
    """
    try:
        a = read_labels(a_bytes)
        b = read_labels(b_bytes, a.labels.size)
    except UnreadableError:
        return 0.0
    if a.labels.shape != b.labels.shape or not np.allclose(
        a.affine, b.affine, rtol=0.0, atol=AFFINE_TOLERANCE
    ):
        return 0.0
    values = [value for value in spec.output.labels if value != 0]
    overlaps = [dice(a.labels == v, b.labels == v) for v in values]
    known = [overlap for overlap in overlaps if overlap is not None]
    return clip(sum(known) / len(known)) if known else 1.0


class SegDice:
    """The segmentation metric behind the protocol of all tracks."""

    name: Final = "seg_dice"
    shared_output: Final = False
    needs_input: Final = False

    def truth_names(self, spec: TaskSpec) -> tuple[str, ...]:
        """The true label map, named like the output."""
        return (output_name(spec),)

    def check(self, spec: TaskSpec) -> None:
        """Raise if the parameters do not fit, or name no class of the output."""
        params = parse_params(SegParams, spec)
        names = [name for value, name in spec.output.labels.items() if value != 0]
        for key, name in (("organ", params.organ), ("lesion", params.lesion)):
            if bool(params.organ) != bool(params.lesion) or (name and name not in names):
                raise TaskError(
                    f"Expected metric.params.{key} of {spec.id} to be among {names}, or neither "
                    f"organ nor lesion, got {name!r}."
                )

    def prepare(self, spec: TaskSpec, cases: Sequence[Case]) -> dict[str, Any]:
        """The cases; the truth is read in :meth:`score`."""
        return {"cases": [case.id for case in cases]}

    def score(
        self, spec: TaskSpec, cases: Sequence[Case], known: Mapping[str, Any]
    ) -> dict[str, CaseScore]:
        """See :func:`score_case`."""
        name = output_name(spec)
        return {c.id: score_case(spec, c.truth[name], None, c.output) for c in cases}

    def total(
        self,
        spec: TaskSpec,
        rows: Mapping[str, CaseScore],
        known: Mapping[str, Any],
        *,
        seed: int = 0,
    ) -> TaskScore:
        """The mean over cases."""
        return aggregate(known["cases"], rows, seed=seed)

    def inspect(self, spec: TaskSpec, case: Case) -> dict[str, Any]:
        """See :func:`inspect_output`; the grid is that of the input, or else of the truth."""
        if case.output is None:
            return unreadable_facts(missing_case().message)
        grid = case.inputs.get(spec.input_file) or case.truth[output_name(spec)]
        return inspect_output(spec, grid, case.output)

    def agreement(self, spec: TaskSpec, case: str, a: bytes, b: bytes) -> float:
        """See :func:`agreement`."""
        return agreement(spec, a, b)


__all__ = [
    "LabelMap",
    "SegDice",
    "SegParams",
    "UnreadableError",
    "agreement",
    "contract_fault",
    "dice",
    "hd95",
    "inspect_output",
    "nsd",
    "properties",
    "read_labels",
    "score_case",
    "score_labels",
    "surface_distances",
]
