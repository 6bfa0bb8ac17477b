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


def _methods(mr: np.ndarray, region: np.ndarray) -> dict[str, np.ndarray]:
    share = (mr - mr[region].mean()) / mr[region].std()
    return {
        "median": ndimage.median_filter(mr, 3),
        "air": np.full(mr.shape, -1000.0),
        "soft_tissue_in_mask": np.where(region, 40.0, -1000.0),
        "stretched": np.where(region, 300 * share - 200, -1000.0),
        "inverted": np.where(region, 300 - 300 * share, -1000.0),
    }


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}: those of the metric, and the MR dressed up as CT."""
    own: dict[str, dict[str, bytes]] = {}
    for case in instance.cases:
        image, mask = (
            nib.Nifti1Image.from_bytes(gzip.decompress(instance.public[f"{case}/{name}.nii.gz"]))
            for name in ("mr", "mask")
        )
        for name, values in _methods(image.get_fdata(), mask.get_fdata() > 0).items():
            packed = nib.Nifti1Image(values.astype(np.float32), image.affine).to_bytes()
            path = f"outputs/{case}/synth.nii.gz"
            own.setdefault(name, {})[path] = gzip.compress(packed, 1, mtime=0)
    return {**trivial_outputs(__file__, instance), **own}
