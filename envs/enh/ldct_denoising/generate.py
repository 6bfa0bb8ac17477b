"""Seeded slabs of abdominal CT at a low dose, and what a noise-free scan of them would show.

Noise arises where it does in a scanner: the slab's middle slice is projected along a fan of
parallel rays, each ray gets noise whose variance grows exponentially with the tissue that it
crosses, and the projections are filtered and backprojected (dose.py). Wide bodies, spine and ribs
therefore show streaks. Filtered backprojection is linear, so that noise alone is reconstructed and
added to the phantom (phantom.py).
"""

from __future__ import annotations

import functools
import gzip
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import yaml

from bat_env.tasks.discovery import load_sibling
from bat_env.tasks.instance import Generated

phantom, dose = load_sibling(__file__, "phantom"), load_sibling(__file__, "dose")
between = phantom.between

AXCODES = ("RAS", "LPS", "PIR", "ASL", "SRA", "IPL", "RSA", "AIR")
SCALINGS = ((1.0, 0.0), (1.0, -1024.0), (0.5, -512.0), (2.0, -1000.0))
ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
WORLD = {"R": (0, 1), "L": (0, -1), "A": (1, 1), "P": (1, -1), "S": (2, 1), "I": (2, -1)}

Rng = np.random.Generator


@functools.cache
def _sizes() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("task.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["sizes"]


def _to_file(array: np.ndarray, axcodes: str) -> np.ndarray:
    """An array with axes x (to the right), y (to the front), z (up) in the axis order of a file."""
    order = [WORLD[code][0] for code in axcodes]
    flips = tuple(slice(None, None, WORLD[code][1]) for code in axcodes)
    return np.ascontiguousarray(array.transpose(order)[flips])


def _affine(shape: tuple[int, ...], axcodes: str, zooms: Any, centre: Any) -> np.ndarray:
    affine = np.eye(4)
    affine[:3, :3] = 0
    affine[:3, 3] = centre
    for axis, code in enumerate(axcodes):
        world, sign = WORLD[code]
        affine[world, axis] = sign * zooms[world]
        affine[world, 3] -= sign * zooms[world] * (shape[axis] - 1) / 2
    # What the header can hold.
    return affine.astype(np.float32).astype(np.float64)


def _pack(data: np.ndarray, affine: np.ndarray, slope: float = 1.0, inter: float = 0.0) -> bytes:
    """gzip-compressed NIfTI-1 bytes of raw ``data``, without a time stamp."""
    image = nib.Nifti1Image(data, affine)
    image.header.set_slope_inter(slope, inter)
    image.header.set_xyzt_units("mm")
    image.set_sform(affine, 1)
    for field in ("qform_code", "quatern_b", "quatern_c", "quatern_d"):
        image.header[field] = 0  # A quaternion comes from LAPACK: not the same on every machine.
    return gzip.compress(image.to_bytes(), compresslevel=1, mtime=0)


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
    slope, inter = SCALINGS[scaling]
    stored = np.rint((noisy.clip(-1024, 1500) - inter) / slope).astype(np.int16)
    scaled = stored.astype(np.float64) * slope + inter
    truth = np.rint(canvas.hu).astype(np.int16)
    inside = canvas.share((0, 0), (body[0] * 0.97, body[1] * 0.97)) >= 0.5
    inside = np.broadcast_to(inside, canvas.hu.shape)
    zooms = (pixel, pixel, thick)
    centre = [between(rng, -20, 20), between(rng, -20, 20), between(rng, -300, 300)]
    affine = _affine(_to_file(stored, axcodes).shape, axcodes, zooms, centre)
    removed = np.rint((truth - scaled) * 4).astype(np.int64)  # Whole numbers add up exactly.
    mean = int(removed.sum()) / removed.size
    spread = math.sqrt(int((removed * removed).sum()) / removed.size - mean * mean) / 4
    return {
        "ct": _pack(_to_file(stored, axcodes), affine, slope, inter),
        "truth": _pack(_to_file(truth, axcodes), affine),
        "mask": _pack(_to_file(inside.astype(np.uint8), axcodes), affine),
        "orientation": axcodes,
        "spacing_mm": [zooms[WORLD[code][0]] for code in axcodes],
        "intensity_hu": [float(scaled.min()), float(scaled.max())],
        "scaled": bool(slope != 1 or inter != 0),
        "removed_std": round(spread, 3),
    }


def _names(rng: Rng, prefix: str, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        tail = "".join(ALPHABET[int(n)] for n in rng.integers(0, len(ALPHABET), 4))
        names[f"{prefix}-{tail}"] = None
    return list(names)


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: low-dose slices, one further probe slice, and noise-free truth.

    Cases start at a random place in the orientations and scalings and walk on, so that every
    instance mixes both.
    """
    rng = np.random.default_rng(np.random.PCG64(seed))
    wanted = _sizes()[size]
    count = int(rng.integers(wanted["cases"][0], wanted["cases"][1] + 1)) + 1
    names = _names(rng, fiction["prefix"], count)
    codes, first = rng.permutation(len(AXCODES)), int(rng.integers(len(SCALINGS)))
    made = {}
    for n, name in enumerate(names):
        scaling = (first + n) % len(SCALINGS)
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
