"""Trivial outputs: what a submission reaches without a network.

Their scores are measured on dev instances, stored as ``floors`` in task.yaml, and must stay at or
below 0.10.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping

import nibabel as nib
import numpy as np
from scipy import ndimage

from bat_env.metrics.floors import trivial_outputs
from bat_env.tasks.instance import Instance

FACTOR = 4


def _thin(values: np.ndarray, axis: int, order: int) -> np.ndarray:
    """Interpolate four slices for each one, in the same field of view."""
    matrix, offset = np.ones(3), np.zeros(3)
    matrix[axis], offset[axis] = 1 / FACTOR, -(FACTOR - 1) / (2 * FACTOR)
    shape = [n * (FACTOR if a == axis else 1) for a, n in enumerate(values.shape)]
    return ndimage.affine_transform(
        values, matrix, offset, output_shape=tuple(shape), order=order, mode="nearest"
    )


def _methods(hu: np.ndarray, axis: int) -> dict[str, np.ndarray]:
    linear, cubic = _thin(hu, axis, 1), _thin(hu, axis, 3)
    return {
        "blur_along_slices": ndimage.gaussian_filter1d(linear, 1.5, axis=axis),
        "cubic_sharpened": 1.5 * cubic - 0.5 * ndimage.gaussian_filter1d(cubic, 2.0, axis=axis),
        "median": ndimage.median_filter(linear, 3),
        "median_in_slices": ndimage.median_filter(cubic, [1 if a == axis else 3 for a in range(3)]),
        "lung": np.full(linear.shape, -860.0),
    }


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}: those of the metric, filters, a copy of the input."""
    own: dict[str, dict[str, bytes]] = {"copy_of_input": {}}
    for case in instance.cases:
        path, data = f"outputs/{case}/synth.nii.gz", instance.public[f"{case}/ct.nii.gz"]
        own["copy_of_input"][path] = data
        image = nib.Nifti1Image.from_bytes(gzip.decompress(data))
        axis = instance.facts["slice_axis"][case]
        affine = image.affine.copy()
        affine[:3, axis] /= FACTOR
        affine[:3, 3] -= image.affine[:3, axis] * (FACTOR - 1) / (2 * FACTOR)
        for name, values in _methods(image.get_fdata(), axis).items():
            packed = nib.Nifti1Image(values.astype(np.float32), affine).to_bytes()
            own.setdefault(name, {})[path] = gzip.compress(packed, 1, mtime=0)
    return {**trivial_outputs(__file__, instance), **own}
