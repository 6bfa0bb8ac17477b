"""Trivial outputs: what a submission reaches without looking for tissues.

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

CSF, GREY, WHITE = 1, 2, 3


def _methods(signal: np.ndarray) -> dict[str, np.ndarray]:
    seen = signal > 0
    bright = signal > np.percentile(signal[seen], 75)
    return {
        "region_is_white_matter": np.where(seen, WHITE, 0).astype(np.uint8),
        "region_is_grey_matter": np.where(seen, GREY, 0).astype(np.uint8),
        "bright_is_fluid": np.where(bright, CSF, 0).astype(np.uint8),
    }


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}: one class everywhere, the input itself, bands of signal."""
    made: dict[str, dict[str, bytes]] = {"copy_of_input": {}}
    for case in instance.cases:
        path, data = (
            f"outputs/{case}/dseg.nii.gz",
            instance.public[f"{case}/t2w.nii.gz"],
        )
        made["copy_of_input"][path] = data
        image = nib.Nifti1Image.from_bytes(gzip.decompress(data))
        for name, labels in _methods(image.get_fdata()).items():
            packed = nib.Nifti1Image(labels, image.affine).to_bytes()
            made.setdefault(name, {})[path] = gzip.compress(packed, 1, mtime=0)
    return {**trivial_outputs(__file__, instance), **made}
