"""Seeded slabs of abdominal CT at a low dose, and what a noise-free scan of them would show.

Noise arises where it does in a scanner: the slab's middle slice is projected along a fan of
parallel rays, each ray gets noise whose variance grows exponentially with the tissue that it
crosses, and the projections are filtered and backprojected (dose.py). Wide bodies, spine and ribs
therefore show streaks. Filtered backprojection is linear, so that noise alone is reconstructed and
added to the phantom (phantom.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bat_env.tasks.discovery import load_sibling
from bat_env.tasks.drawing import Rng, between, case_names, generator, sizes_of
from bat_env.tasks.instance import Generated
from bat_env.tasks.volumes import CT_SCALINGS, WORLD, axes_along, centred, pack

phantom, dose = load_sibling(__file__, "phantom"), load_sibling(__file__, "dose")

AXCODES = ("RAS", "LPS", "PIR", "ASL", "SRA", "IPL", "RSA", "AIR")


def _to_file(array: np.ndarray, axcodes: str) -> np.ndarray:
    """An array with axes x (to the right), y (to the front), z (up) in the axis order of a file."""
    order = [WORLD[code][0] for code in axcodes]
    flips = tuple(slice(None, None, WORLD[code][1]) for code in axcodes)
    return np.ascontiguousarray(array.transpose(order)[flips])


def _case(rng: Rng, size: Mapping[str, Any], axcodes: str, scaling: int) -> dict[str, Any]:
    pixel = round(between(rng, *size["pixel_mm"]), 2)
    thick = round(between(rng, 2.0, 5.0), 1)
    body = (between(rng, *size["half_width_mm"]), between(rng, *size["half_depth_mm"]))
    # The couch needs room, and a scan is not always centred.
    wide, deep = (2 * body[0] * between(rng, 1.1, 1.2), 2 * body[1] + between(rng, 60, 80))
    shape = (round(wide / pixel), round(deep / pixel), int(size["slices"]))
    canvas = phantom.abdomen(rng, shape, (pixel, pixel, thick), body)
    sigma = between(rng, *size["noise_hu"])
    noisy = canvas.hu + dose.noise(rng, canvas, int(size["views"]), sigma)
    slope, inter = CT_SCALINGS[scaling]
    stored = np.rint((noisy.clip(-1024, 1500) - inter) / slope).astype(np.int16)
    scaled = stored.astype(np.float64) * slope + inter
    truth = np.rint(canvas.hu).astype(np.int16)
    inside = canvas.share((0, 0), (body[0] * 0.97, body[1] * 0.97)) >= 0.5
    inside = np.broadcast_to(inside, canvas.hu.shape)
    zooms = (pixel, pixel, thick)
    centre = [between(rng, -20, 20), between(rng, -20, 20), between(rng, -300, 300)]
    shape, spacing, matrix = axes_along(
        axcodes, zooms, [n * mm for n, mm in zip(shape, zooms, strict=True)]
    )
    affine = centred(matrix, shape, centre)
    removed = np.rint((truth - scaled) * 4).astype(np.int64)  # Whole numbers add up exactly.
    mean = int(removed.sum()) / removed.size
    spread = math.sqrt(int((removed * removed).sum()) / removed.size - mean * mean) / 4
    return {
        "ct": pack(_to_file(stored, axcodes), affine, slope, inter),
        "truth": pack(_to_file(truth, axcodes), affine),
        "mask": pack(_to_file(inside.astype(np.uint8), axcodes), affine),
        "orientation": axcodes,
        "spacing_mm": list(spacing),
        "intensity_hu": [float(scaled.min()), float(scaled.max())],
        "scaled": bool(slope != 1 or inter != 0),
        "removed_std": round(spread, 3),
    }


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: low-dose slices, one further probe slice, and noise-free truth.

    Cases start at a random place in the orientations and scalings and walk on, so that every
    instance mixes both.
    """
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    count = int(rng.integers(wanted["cases"][0], wanted["cases"][1] + 1)) + 1
    names = case_names(rng, fiction["prefix"], count)
    codes, first = rng.permutation(len(AXCODES)), int(rng.integers(len(CT_SCALINGS)))
    made = {}
    for n, name in enumerate(names):
        scaling = (first + n) % len(CT_SCALINGS)
        made[name] = _case(rng, wanted, AXCODES[codes[n % len(AXCODES)]], scaling)
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    hu = [value for case in cases for value in made[case]["intensity_hu"]]
    return Generated(
        cases=cases,
        public={f"{case}/ct.nii.gz": made[case]["ct"] for case in cases},
        private={
            f"{case}/{name}.nii.gz": made[case][key]
            for case in cases
            for name, key in (("enhanced", "truth"), ("mask", "mask"))
        },
        facts={
            "case_count": len(cases),
            "orientations": {case: made[case]["orientation"] for case in cases},
            "spacing_mm": {case: made[case]["spacing_mm"] for case in cases},
            "intensity_hu": [min(hu), max(hu)],
            "inputs": {
                "dtype": "int16",
                "ndim": 3,
                "scaled": any(made[case]["scaled"] for case in cases),
            },
            "pilot_truth": {case: made[case]["removed_std"] for case in cases},
        },
        probe_case=probe,
        probe_public={"ct.nii.gz": made[probe]["ct"]},
        probe_private={"enhanced.nii.gz": made[probe]["truth"], "mask.nii.gz": made[probe]["mask"]},
    )
