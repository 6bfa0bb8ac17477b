"""Constants of a staged task that must be measured: value range, careful reference, floors."""

from __future__ import annotations

import gzip
import math
from collections.abc import Sequence
from typing import Any, Final, cast

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from skimage.restoration import denoise_nl_means

from bat_env.data.contract import SYNTH_CAREFUL
from bat_env.data.task import StagedTask
from bat_env.metrics import load_metric
from bat_env.metrics.base import Case
from bat_env.metrics.images import masked_ssim
from bat_env.tasks.instance import Instance

_DENOISED: Final = ("identity", "gaussian:0.8", "gaussian:1.5", "median:3")
_HIGHEST: Final = 0.98


def image_params(track: str, pairs: Sequence[tuple[bytes, bytes, bytes | None]]) -> dict[str, Any]:
    """``metric.params`` of paired volumes, measured on training cases.

    Args:
        track: ``enh`` or ``synth``.
        pairs: Input, truth and mask (or ``None``) of some cases, as NIfTI files.

    Returns:
        The value range of the truths (their 0.1 to 99.9 percentiles), what a careful reference
        reaches (non-local means for ``enh``), and the trivial methods to beat.
    """
    truths = [_values(truth) for _, truth, _ in pairs]
    low = min(float(np.percentile(values, 0.1)) for values in truths)
    high = max(float(np.percentile(values, 99.9)) for values in truths)
    width = round(max(high - low, 1e-3), 3)
    if track == "synth":
        typical = round(float(np.median([np.median(values) for values in truths])), 3)
        trivial = ["identity", f"constant:{low:.1f}", f"constant:{typical:.1f}"]
        careful = SYNTH_CAREFUL
    else:
        trivial = list(_DENOISED)
        found = [
            masked_ssim(_nl_means(_values(given)), truth, _mask(mask, truth), width)
            for (given, _, mask), truth in zip(pairs, truths, strict=True)
        ]
        careful = float(np.mean(found))
    return {
        "data_range": width,
        "careful_ssim": round(min(_HIGHEST, max(0.02, careful)), 4),
        "trivial": list(dict.fromkeys(trivial)),
    }


def _values(data: bytes) -> NDArray[np.float64]:
    image: Any = cast(Any, nib).Nifti1Image.from_bytes(gzip.decompress(data))
    return np.asarray(image.dataobj, np.float64)


def _mask(data: bytes | None, like: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.ones(like.shape, bool) if data is None else _values(data) > 0.5


def _nl_means(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Non-local means, slice by slice along the last axis, at the noise that it estimates."""
    planes = []
    for n in range(values.shape[2]):
        plane = values[..., n]
        sigma = _noise(plane)
        planes.append(
            denoise_nl_means(
                plane, patch_size=3, patch_distance=4, h=0.8 * sigma + 1e-6, sigma=sigma
            )
        )
    return np.stack(planes, axis=-1)


def _noise(plane: NDArray[np.float64]) -> float:
    """Standard deviation of the noise: the typical step between neighbours, edges being rare."""
    steps = np.abs(np.diff(plane, axis=0))
    return float(np.median(steps)) / (0.6745 * math.sqrt(2.0))


def floors(task: StagedTask) -> dict[str, float]:
    """Task score of every trivial output on one reduced training instance."""
    drawn = task.instance("train", 0, "mini")
    metric = load_metric(task.spec.metric.name)
    cases = [_case(drawn, case) for case in drawn.cases]
    known = metric.prepare(task.spec, cases)
    found = {}
    for method, files in task.trivial_outputs(drawn).items():
        filled = [
            Case(c.id, c.truth, c.inputs, files.get(task.spec.output.path.format(case=c.id)))
            for c in cases
        ]
        rows = metric.score(task.spec, filled, known)
        found[method] = round(metric.total(task.spec, rows, known).score, 3)
    return found


def _case(drawn: Instance, case: str) -> Case:
    def under(tree: Any) -> dict[str, bytes]:
        return {p.removeprefix(f"{case}/"): d for p, d in tree.items() if p.startswith(f"{case}/")}

    return Case(case, under(drawn.private), under(drawn.public))
