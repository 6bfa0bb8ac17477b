"""Trivial outputs: what a submission reaches without a denoiser.

Their scores are measured on dev instances, stored as ``floors`` in task.yaml, and must stay at or
below 0.10. The first are the listed methods that the score itself subtracts; the others are not
listed, so that their floor says something.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping

import nibabel as nib
import numpy as np
from scipy import ndimage

from bat_env.metrics.floors import trivial_outputs
from bat_env.tasks.discovery import task_of
from bat_env.tasks.instance import Instance


def _methods(hu: np.ndarray, thin: int) -> dict[str, np.ndarray]:
    """Unlisted filters; ``thin`` is the axis across the slices, which the first two leave alone."""
    flat = [1 if axis == thin else 5 for axis in range(3)]
    soft = ndimage.gaussian_filter(hu, 1.0)
    return {
        "median_in_slice": ndimage.median_filter(hu, size=flat),
        "blur_in_slice": ndimage.gaussian_filter(hu, [0 if n == 1 else 1.5 for n in flat]),
        "box_blur": ndimage.uniform_filter(hu, 3),
        "blur_then_median": ndimage.median_filter(soft, 3),
        "median_then_blur": ndimage.gaussian_filter(ndimage.median_filter(hu, 5), 0.7),
        "window_only": hu.clip(-160, 240),
        "body_or_air": np.where(soft > -500, 50.0, -1000.0),
    }


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}, for every case of an instance."""
    path = task_of(__file__).spec.output.path
    made = trivial_outputs(__file__, instance)
    for case in instance.cases:
        data = gzip.decompress(instance.public[f"{case}/ct.nii.gz"])
        image = nib.Nifti1Image.from_bytes(data)
        hu = image.get_fdata()
        for name, values in _methods(hu, int(np.argmin(hu.shape))).items():
            packed = nib.Nifti1Image(np.rint(values).astype(np.int16), image.affine).to_bytes()
            made.setdefault(name, {})[path.format(case=case)] = gzip.compress(packed, 1, mtime=0)
    return made
