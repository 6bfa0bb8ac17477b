"""Trivial outputs: what a submission reaches without looking for kidneys.

Their scores are measured on dev instances, stored as ``floors`` in task.yaml, and must stay at or
below 0.10. Run as a script to measure them.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping

import nibabel as nib
import numpy as np

from bat_env.tasks.instance import Instance

BAND_HU = (95.0, 155.0)
TUMOR_BAND_HU = (28.0, 62.0)


def _methods(hu: np.ndarray) -> dict[str, np.ndarray]:
    band = (hu > BAND_HU[0]) & (hu < BAND_HU[1])
    both = band.astype(np.uint8)
    both[(hu > TUMOR_BAND_HU[0]) & (hu < TUMOR_BAND_HU[1])] = 2
    return {
        "all_background": np.zeros(hu.shape, np.uint8),
        "all_kidney": np.ones(hu.shape, np.uint8),
        "all_tumor": np.full(hu.shape, 2, np.uint8),
        "body": (hu > -500).astype(np.uint8),
        "positive_input": (hu > 0).astype(np.uint8),
        "kidney_band": band.astype(np.uint8),
        "two_bands": both,
    }


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}, for every case of an instance."""
    made: dict[str, dict[str, bytes]] = {"copy_of_input": {}}
    for case in instance.cases:
        path, data = f"outputs/{case}/dseg.nii.gz", instance.public[f"{case}/ct.nii.gz"]
        made["copy_of_input"][path] = data
        image = nib.Nifti1Image.from_bytes(gzip.decompress(data))
        for name, labels in _methods(image.get_fdata()).items():
            packed = nib.Nifti1Image(labels, image.affine).to_bytes()
            made.setdefault(name, {})[path] = gzip.compress(packed, 1, mtime=0)
    return made


def main() -> None:
    """Print the floors for task.yaml: the larger of the means over full and mini instances."""
    from bat_env.metrics import aggregate, score_case
    from bat_env.tasks.discovery import load_task

    task = load_task("seg/kidney_tumor")
    floors: dict[str, float] = {}
    for size, count in (("full", 4), ("mini", 12)):
        totals: dict[str, list[float]] = {}
        for index in range(count):
            drawn = task.instance("dev", index, size)
            for name, files in outputs(drawn).items():
                scores = {
                    case: score_case(
                        task.spec,
                        drawn.private[f"{case}/dseg.nii.gz"],
                        None,
                        files[task.spec.output.path.format(case=case)],
                    )
                    for case in drawn.cases
                }
                totals.setdefault(name, []).append(aggregate(drawn.cases, scores).score)
        for name, values in totals.items():
            floors[name] = max(floors.get(name, 0.0), round(float(np.mean(values)), 3))
    print("floors:")
    for name, value in floors.items():
        print(f"  {name}: {value}")


if __name__ == "__main__":
    main()
