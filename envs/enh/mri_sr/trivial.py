"""Trivial outputs: what a submission reaches without super-resolution.

Their scores are measured on dev instances, stored as ``floors`` in task.yaml, and must stay at or
below 0.10. The first are the listed methods that the score itself subtracts; the others are not
listed, so that their floor says something.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np
from scipy import ndimage

from bat_env.metrics.floors import trivial_outputs
from bat_env.tasks.discovery import task_of
from bat_env.tasks.instance import Instance


def _methods(coarse: np.ndarray) -> dict[str, np.ndarray]:
    blocks = np.kron(coarse, np.ones((2, 2)))
    spline = ndimage.zoom(coarse, 2, order=3, mode="nearest", grid_mode=True)
    return {
        "spline": spline,
        "spline_then_blur": ndimage.gaussian_filter(spline, 0.85),
        "spline_then_median_and_blur": ndimage.gaussian_filter(
            ndimage.median_filter(spline, 5), 0.5
        ),
        "median_then_spline": ndimage.zoom(
            ndimage.median_filter(coarse, 3), 2, order=3, mode="nearest", grid_mode=True
        ),
        "blocks_blurred": ndimage.uniform_filter(blocks, 3),
        "sharpened": 1.5 * spline - 0.5 * ndimage.gaussian_filter(spline, 1.5),
    }


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}, for every case of an instance."""
    path = task_of(__file__).spec.output.path
    made = trivial_outputs(__file__, instance)
    for case in instance.cases:
        coarse = np.load(io.BytesIO(instance.public[f"{case}/coarse.npy"])).astype(float)
        for name, fine in _methods(coarse).items():
            buffer = io.BytesIO()
            np.save(buffer, np.rint(fine.clip(0, 65535)).astype(np.uint16))
            made.setdefault(name, {})[path.format(case=case)] = buffer.getvalue()
    return made
