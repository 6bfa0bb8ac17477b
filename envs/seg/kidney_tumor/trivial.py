"""Trivial outputs: what a submission reaches without looking for kidneys.

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

BAND_HU = (95.0, 155.0)
TUMOR_BAND_HU = (28.0, 62.0)


def _methods(hu: np.ndarray) -> dict[str, np.ndarray]:
    band = (hu > BAND_HU[0]) & (hu < BAND_HU[1])
    both = band.astype(np.uint8)
    both[(hu > TUMOR_BAND_HU[0]) & (hu < TUMOR_BAND_HU[1])] = 2
    return {
        "body": (hu > -500).astype(np.uint8),
        "positive_input": (hu > 0).astype(np.uint8),
        "kidney_band": band.astype(np.uint8),
        "two_bands": both,
    }


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}: one class everywhere, the input itself, bands of HU."""
    made: dict[str, dict[str, bytes]] = {"copy_of_input": {}}
    for case in instance.cases:
        path, data = f"outputs/{case}/dseg.nii.gz", instance.public[f"{case}/ct.nii.gz"]
        made["copy_of_input"][path] = data
        image = nib.Nifti1Image.from_bytes(gzip.decompress(data))
        for name, labels in _methods(image.get_fdata()).items():
            packed = nib.Nifti1Image(labels, image.affine).to_bytes()
            made.setdefault(name, {})[path] = gzip.compress(packed, 1, mtime=0)
    return {**trivial_outputs(__file__, instance), **made}
