"""Trivial outputs: what a submission reaches without looking for organs.

Their scores are measured on dev instances, stored as ``floors`` in task.yaml, and must stay at or
below 0.10.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping

import nibabel as nib
import numpy as np

from bat_env.metrics.floors import trivial_outputs
from bat_env.tasks.instance import Instance

LIVER, AORTA = 5, 7
SOFT_HU, BRIGHT_HU = (60.0, 160.0), (135.0, 230.0)


def _methods(hu: np.ndarray, right: np.ndarray) -> dict[str, np.ndarray]:
    """Label maps; ``right`` marks the patient's right half."""
    soft = (hu > SOFT_HU[0]) & (hu < SOFT_HU[1])
    bright = (hu > BRIGHT_HU[0]) & (hu < BRIGHT_HU[1])
    band = np.where(soft, LIVER, 0).astype(np.uint8)
    return {
        "body": np.where(hu > -500, LIVER, 0).astype(np.uint8),
        "soft_tissue": band,
        "bright_is_aorta": np.where(bright, AORTA, 0).astype(np.uint8),
        "soft_tissue_right": np.where(right, band, 0).astype(np.uint8),
    }


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}: one class everywhere, the input itself, bands of HU."""
    made: dict[str, dict[str, bytes]] = {"copy_of_input": {}}
    for case in instance.cases:
        path, data = f"outputs/{case}/dseg.nii.gz", instance.public[f"{case}/ct.nii.gz"]
        made["copy_of_input"][path] = data
        image = nib.Nifti1Image.from_bytes(gzip.decompress(data))
        row = image.affine[0]
        i, j, k = np.ogrid[tuple(slice(n) for n in image.shape)]
        right = row[0] * i + row[1] * j + row[2] * k + row[3] > 0
        for name, labels in _methods(image.get_fdata(), right).items():
            packed = nib.Nifti1Image(labels, image.affine).to_bytes()
            made.setdefault(name, {})[path] = gzip.compress(packed, 1, mtime=0)
    return {**trivial_outputs(__file__, instance), **made}
