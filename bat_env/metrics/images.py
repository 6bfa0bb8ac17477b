"""Enhanced and synthesised images: masked SSIM between a trivial and a careful method's.

A case's SSIM ``s`` scores ``(s - b) / (r - b)``, clipped: ``b`` is what the best listed trivial
method reaches on that case, ``r = (1 + c) / 2`` lies half-way between the careful reference's mean
``c`` and a perfect image. PSNR and MAE are beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import ndimage

from bat_env.errors import TaskError
from bat_env.metrics.arrays import Floats, Picture, geometry_fault, read_picture
from bat_env.metrics.base import (
    Case,
    MetricParams,
    UnreadableError,
    output_name,
    parse_params,
    unreadable_facts,
    with_quantity,
)
from bat_env.metrics.rule import (
    CaseScore,
    TaskScore,
    aggregate,
    clip,
    missing_case,
    rescale,
)
from bat_env.metrics.trivial import TrivialMethods, trivial_output
from bat_env.tasks.spec import TaskSpec

MAX_PSNR_DB: Final = 99.0
_SIGMA: Final = 1.5
_RADIUS: Final = 5
_MASK_NAMES: Final = ("mask.npy", "mask.nii.gz")

Mask = NDArray[np.bool_]


_SAME: Final = 1e-3
"""Part of the data range by which an image may differ from a trivial method's and be the same."""
_NEAR: Final = 2e-3
"""Two images that are the same differ in SSIM to the truth by less than this."""


class ImageParams(MetricParams):
    """Constants of the image score."""

    data_range: float = Field(gt=0, description="Width of the value range, for SSIM and PSNR.")
    careful_ssim: float = Field(
        gt=0, lt=1, description="Mean masked SSIM of the careful reference on training instances."
    )
    trivial: tuple[str, ...] = Field(min_length=1, description="Listed trivial methods.")
    clip: tuple[float, float] | None = Field(
        None, description="Values beyond these are cut on both sides before SSIM and PSNR."
    )
    unit: str = Field("", description="Unit of the values, for the name of the MAE: hu.")


# ------------------------------------------------------------------------------------- formulas


def _smooth(values: Floats) -> Floats:
    return np.asarray(ndimage.gaussian_filter(values, _SIGMA, radius=_RADIUS), np.float64)


def _box(mask: Mask) -> tuple[slice, ...]:
    """The mask's bounding box and the filter's radius around it, within the image."""
    box = []
    for axis in range(mask.ndim):
        others = tuple(a for a in range(mask.ndim) if a != axis)
        hit = np.flatnonzero(mask.any(axis=others))
        low = max(0, int(hit[0]) - _RADIUS)
        box.append(slice(low, min(mask.shape[axis], int(hit[-1]) + 1 + _RADIUS)))
    return tuple(box)


@dataclass(frozen=True)
class _Local:
    """An image with the local means and variances that SSIM takes of it alone."""

    values: Floats
    mean: Floats
    variance: Floats


def _local(values: Floats) -> _Local:
    mean = _smooth(values)
    return _Local(values, mean, _smooth(values * values) - mean**2)


def _similarity(a: _Local, b: _Local, data_range: float) -> Floats:
    cov = _smooth(a.values * b.values) - a.mean * b.mean
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    return ((2 * a.mean * b.mean + c1) * (2 * cov + c2)) / (
        (a.mean**2 + b.mean**2 + c1) * (a.variance + b.variance + c2)
    )


def ssim_map(a: Floats, b: Floats, data_range: float) -> Floats:
    """Structural similarity of every voxel: Gaussian weights of sigma 1.5, radius 5.

    Args:
        a: Image of any dimension.
        b: Image of the same shape.
        data_range: Width of the range of values.
    """
    return _similarity(_local(a), _local(b), data_range)


class SsimTo:
    """:func:`masked_ssim` to one image; what is taken of that image alone is taken once.

    Args:
        image: The image that others are compared with.
        mask: Where they are compared.
        data_range: Width of the range of values.
    """

    def __init__(self, image: Floats, mask: Mask, data_range: float) -> None:
        self._box = _box(mask)
        self._mask = mask[self._box]
        self._image = _local(image[self._box])
        self._range = data_range

    def of(self, other: Floats) -> float:
        """Mean of the :func:`ssim_map` over the voxels of the mask, in [-1, 1]."""
        similarity = _similarity(_local(other[self._box]), self._image, self._range)
        return float(similarity[self._mask].mean())


def masked_ssim(a: Floats, b: Floats, mask: Mask, data_range: float) -> float:
    """Mean of the :func:`ssim_map` over the voxels of the mask, in [-1, 1].

    Only the mask's surroundings are filtered; borders of the image are mirrored.
    """
    return SsimTo(b, mask, data_range).of(a)


def psnr(a: Floats, b: Floats, mask: Mask, data_range: float) -> float:
    """Peak signal-to-noise ratio over the mask in dB, at most 99 (equal images have no noise)."""
    error = float(np.mean((a[mask] - b[mask]) ** 2))
    if error <= data_range**2 * 10 ** (-MAX_PSNR_DB / 10):
        return MAX_PSNR_DB
    return 10.0 * math.log10(data_range**2 / error)


# --------------------------------------------------------------------------------------- metric


def _truth(spec: TaskSpec, case: Case) -> tuple[Picture, Mask]:
    """The true image and the mask that it is judged in (everywhere if the task gives none)."""
    name = output_name(spec)
    try:
        truth = read_picture(name, case.truth[name])
        found = [other for other in _MASK_NAMES if other in case.truth]
        if not found:
            return truth, np.ones(truth.values.shape, bool)
        mask = read_picture(found[0], case.truth[found[0]])
        fault = geometry_fault(mask, truth)
        chosen = mask.values > 0.5
        if fault or not chosen.any():
            raise UnreadableError(fault or "is empty")
    except (KeyError, UnreadableError) as error:
        raise TaskError(
            f"Expected the private image {case.id}/{name}, and a mask on its grid if there is "
            f"one: {error}. Correct the task's generate.py."
        ) from error
    return truth, chosen


def _input(spec: TaskSpec, case: Case) -> Picture | None:
    data = case.inputs.get(spec.input_file)
    try:
        return None if data is None else read_picture(spec.input_file, data)
    except UnreadableError as error:
        raise TaskError(f"The input {spec.input_file} of the case {case.id} {error}.") from error


def _cut(params: ImageParams, values: Floats) -> Floats:
    return values if params.clip is None else np.clip(values, *params.clip)


def _properties(spec: TaskSpec, output: Picture, source: Picture | None) -> dict[str, Any]:
    values: dict[str, float] = {
        "mean": float(output.values.mean()),
        "std": float(output.values.std()),
        "minimum": float(output.values.min()),
        "maximum": float(output.values.max()),
    }
    if source is not None and source.values.shape == output.values.shape:
        values["removed_std"] = float((output.values - source.values).std())
    facts = {"shape": list(output.values.shape), "dtype": output.dtype, "labels": []}
    rounded = {name: round(value, 6) for name, value in values.items()}
    return with_quantity(spec, {"readable": True, **facts, "values": rounded})


class ImageSsim:
    """See the module."""

    name: Final = "image_ssim"
    shared_output: Final = False
    needs_input: Final = True

    def truth_names(self, spec: TaskSpec) -> tuple[str, ...]:
        """The true image, named like the output, and ``mask.npy`` or ``mask.nii.gz``."""
        return (output_name(spec), *_MASK_NAMES)

    def check(self, spec: TaskSpec) -> None:
        """Raise if the parameters do not fit, or a trivial method is unknown."""
        params = parse_params(ImageParams, spec)
        probe = Picture(np.zeros((2, 2)), None, "float64")
        for method in params.trivial:
            trivial_output(method, probe, probe)
        if params.clip is not None and params.clip[0] >= params.clip[1]:
            raise TaskError(f"Expected metric.params.clip as [low, high], got {params.clip}.")

    def prepare(self, spec: TaskSpec, cases: Sequence[Case]) -> dict[str, Any]:
        """SSIM of every listed trivial method on every case."""
        params = parse_params(ImageParams, spec)
        trivial: dict[str, dict[str, float]] = {}
        for case in cases:
            truth, mask = _truth(spec, case)
            source = _input(spec, case)
            if source is None:
                raise TaskError(f"Expected the input {spec.input_file} of the case {case.id}.")
            to_truth = SsimTo(_cut(params, truth.values), mask, params.data_range)
            made = TrivialMethods(source, truth)
            trivial[case.id] = {
                method: to_truth.of(_cut(params, made.output(method))) for method in params.trivial
            }
        return {"trivial": trivial}

    def score(
        self, spec: TaskSpec, cases: Sequence[Case], known: Mapping[str, Any]
    ) -> dict[str, CaseScore]:
        """Score every case's image."""
        return {case.id: self._score(spec, case, known["trivial"][case.id]) for case in cases}

    def _score(self, spec: TaskSpec, case: Case, trivial: Mapping[str, float]) -> CaseScore:
        if case.output is None:
            return missing_case()
        params = parse_params(ImageParams, spec)
        truth, mask = _truth(spec, case)
        try:
            output = read_picture(output_name(spec), case.output, truth.values.size)
        except UnreadableError as error:
            return CaseScore(0.0, False, f"the file {error}", properties={"readable": False})
        fault = geometry_fault(output, truth)
        facts = {**_properties(spec, output, _input(spec, case)), "affine_ok": not fault}
        if fault:
            return CaseScore(0.0, False, fault, properties=facts)
        said, real = _cut(params, output.values), _cut(params, truth.values)
        similarity = masked_ssim(said, real, mask, params.data_range)
        baseline = max(trivial.values())
        mae = float(np.abs(output.values[mask] - truth.values[mask]).mean())
        message = _dtype_fault(spec, output)
        return CaseScore(
            score=rescale(similarity, baseline, (1.0 + params.careful_ssim) / 2.0),
            valid=not message,
            message=message,
            secondary={
                "ssim": similarity,
                "trivial_ssim": baseline,
                "psnr_db": psnr(said, real, mask, params.data_range),
                f"mae_{params.unit.lower()}" if params.unit else "mae": mae,
            },
            properties=facts,
            trivial=_trivial(params, output, truth, _input(spec, case), similarity, trivial),
        )

    def total(
        self,
        spec: TaskSpec,
        rows: Mapping[str, CaseScore],
        known: Mapping[str, Any],
        *,
        seed: int = 0,
    ) -> TaskScore:
        """The mean over cases."""
        return aggregate(known["trivial"], rows, seed=seed)

    def inspect(self, spec: TaskSpec, case: Case) -> dict[str, Any]:
        """Facts of an image. Its grid is compared with the truth's, else with the input's."""
        name = output_name(spec)
        if case.output is None:
            return unreadable_facts(missing_case().message)
        source = _input(spec, case)
        grid = _truth(spec, case)[0] if name in case.truth else source
        try:
            output = read_picture(name, case.output, grid.values.size if grid else None)
        except UnreadableError as error:
            return unreadable_facts(f"the file {error}")
        fault = geometry_fault(output, grid) if grid else ""
        message = fault or _dtype_fault(spec, output)
        return {
            **_properties(spec, output, source),
            "affine_ok": not fault,
            "valid": not message,
            "message": message,
        }

    def agreement(self, spec: TaskSpec, case: str, a: bytes, b: bytes) -> float:
        """SSIM of the two whole images."""
        params = parse_params(ImageParams, spec)
        name = output_name(spec)
        try:
            one = read_picture(name, a)
            two = read_picture(name, b, one.values.size)
        except UnreadableError:
            return 0.0
        if geometry_fault(two, one):
            return 0.0
        everywhere = np.ones(one.values.shape, bool)
        return clip(masked_ssim(one.values, two.values, everywhere, params.data_range))


def _trivial(
    params: ImageParams,
    output: Picture,
    truth: Picture,
    source: Picture | None,
    similarity: float,
    known: Mapping[str, float],
) -> str:
    """The trivial method that gives this very image; only those as similar are tried."""
    allowed = _SAME * params.data_range
    if float(np.ptp(output.values)) <= allowed:
        return "constant"
    said = _cut(params, output.values)
    for method, reached in known.items():
        if source is None or abs(reached - similarity) > _NEAR:
            continue
        made = _cut(params, trivial_output(method, source, truth))
        if float(np.sqrt(np.mean((said - made) ** 2))) <= allowed:
            return method
    return ""


def _dtype_fault(spec: TaskSpec, output: Picture) -> str:
    if output.dtype in spec.output.dtype:
        return ""
    return f"the dtype is {output.dtype}, expected {' or '.join(spec.output.dtype)}"
