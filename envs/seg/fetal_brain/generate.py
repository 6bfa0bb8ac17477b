"""Seeded fetal brain volumes as super-resolution reconstruction of T2-weighted MRI gives them.

Surfaces are evaluated at the world coordinates (RAS, mm) that the NIfTI affine gives to each voxel,
so orientation, spacing and the turn of the head are true without any resampling. Only operations
that IEEE 754 rounds exactly are used on arrays (no transcendental functions, no BLAS), so that the
same seed gives the same bytes on every machine.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import yaml

from bat_env.tasks.discovery import load_sibling
from bat_env.tasks.instance import Generated

anatomy = load_sibling(__file__, "anatomy")
between = anatomy.between

AXCODES = ("RAS", "LPS", "LAS", "RSP", "PIR", "SRA", "ASL", "IPL")
ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ23456789"


@dataclass(frozen=True)
class Storage:
    """How a scanner stores signal: fluid is ``level``, stored = (signal - inter) / slope."""

    level: float
    slope: float
    inter: float


STORAGES = (
    Storage(1350.0, 1.0, 0.0),
    Storage(5200.0, 4.0, -8192.0),
    Storage(96.0, 0.125, 0.0),
    Storage(420.0, 0.5, 300.0),
)


@functools.cache
def _sizes() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("task.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["sizes"]


@dataclass(frozen=True)
class Grid:
    """A voxel grid in the world: shape, 4x4 affine, axis codes and voxel sizes in file order."""

    shape: tuple[int, int, int]
    affine: np.ndarray
    axcodes: str
    zooms: tuple[float, float, float]

    def world(self) -> list[np.ndarray]:
        """World x, y, z of every voxel, float32, by broadcast adds (exact on every machine)."""
        i, j, k = (
            np.arange(n, dtype=np.float32).reshape([-1 if a == b else 1 for b in range(3)])
            for a, n in enumerate(self.shape)
        )
        rows = self.affine.astype(np.float32)
        return [(row[0] * i + row[3]) + row[1] * j + row[2] * k for row in rows[:3]]


def _grid(
    rng: np.random.Generator,
    size: Mapping[str, Any],
    axcodes: str,
    reach: tuple[float, ...],
) -> Grid:
    """A random isotropic grid with a head of these half sizes (mm) near its middle."""
    zoom = round(between(rng, *size["voxel_mm"]), 2)
    extent = [2 * mm * between(rng, 0.98, 1.1) for mm in reach]
    shape, matrix = [], np.zeros((3, 3))
    for axis, code in enumerate(axcodes):
        world, sign = {
            "R": (0, 1),
            "L": (0, -1),
            "A": (1, 1),
            "P": (1, -1),
            "S": (2, 1),
        }.get(code, (2, -1))
        shape.append(round(extent[world] / zoom))
        matrix[world, axis] = sign * zoom
    affine = np.eye(4)
    affine[:3, :3] = matrix
    centre = [between(rng, -3, 3) for _ in range(3)]
    for row in range(3):
        middle = sum(matrix[row, a] * (shape[a] - 1) / 2 for a in range(3))
        affine[row, 3] = centre[row] - middle
    # What the header can hold, so that the file and the phantom agree to the last bit.
    affine = affine.astype(np.float32).astype(np.float64)
    return Grid((shape[0], shape[1], shape[2]), affine, axcodes, (zoom, zoom, zoom))


def _noise(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> np.ndarray:
    """Bell-shaped noise as a sum of four uniform bytes: exact, unlike a logarithm in a tail."""
    total = rng.integers(0, 256, (4, *shape), dtype=np.uint8).astype(np.int16)
    summed = (total[0] + total[1]) + (total[2] + total[3]) - 510
    return summed.astype(np.float32) * np.float32(sigma / 147.8)


def _pack(data: np.ndarray, affine: np.ndarray, slope: float, inter: float) -> bytes:
    """gzip-compressed NIfTI-1 bytes of raw ``data``, without a time stamp."""
    image = nib.Nifti1Image(data, affine)
    image.header.set_slope_inter(slope, inter)
    image.header.set_xyzt_units("mm")
    image.set_sform(affine, 1)
    for field in ("qform_code", "quatern_b", "quatern_c", "quatern_d"):
        image.header[field] = 0  # A quaternion comes from LAPACK: not the same on every machine.
    return gzip.compress(image.to_bytes(), compresslevel=1, mtime=0)


def _case(
    rng: np.random.Generator,
    size: Mapping[str, Any],
    axcodes: str,
    enlarged: bool,
    storage: Storage,
) -> tuple[bytes, bytes, dict[str, Any]]:
    head = anatomy.draw_head(rng, enlarged)
    grid = _grid(rng, size, axcodes, head.reach_mm)
    canvas = anatomy.Canvas(head, grid.world())
    image = anatomy.smoothed(anatomy.signal(rng, canvas, head)) * anatomy.bias(rng, canvas)
    image = image + _noise(rng, grid.shape, between(rng, 0.03, 0.05))
    # The reconstruction ends at a mask around the head; outside it is exactly 0.
    kept = canvas.radius <= 1 + head.space + between(rng, 0.16, 0.24)
    value = image.clip(0.02, 3.0) * np.float32(storage.level)
    value[~kept] = 0
    stored = np.rint((value - np.float32(storage.inter)) / np.float32(storage.slope))
    stored = stored.astype(np.int16)
    scaled = stored.astype(np.float64) * storage.slope + storage.inter
    voxel_ml = grid.zooms[0] ** 3 / 1000
    volumes = {
        name: round(int((canvas.labels == value).sum()) * voxel_ml, 3)
        for value, name in enumerate(anatomy.TISSUES, 1)
    }
    facts = {
        "orientation": grid.axcodes,
        "spacing_mm": list(grid.zooms),
        "shape": list(grid.shape),
        "signal_p99": round(float(np.percentile(scaled[kept], 99)), 3),
        "scaled": bool(storage.slope != 1 or storage.inter != 0),
        "volumes_ml": volumes,
    }
    return (
        _pack(stored, grid.affine, storage.slope, storage.inter),
        _pack(canvas.labels, grid.affine, 1.0, 0.0),
        facts,
    )


def _names(rng: np.random.Generator, prefix: str, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        tail = "".join(ALPHABET[int(n)] for n in rng.integers(0, len(ALPHABET), 4))
        names[f"{prefix}-{tail}"] = None
    return list(names)


def _plan(rng: np.random.Generator, size: Mapping[str, Any]) -> Iterator[tuple[str, bool, Storage]]:
    """(axis codes, enlarged ventricles, storage) of each case, the probe case last.

    Cases start at a random place in orientations and storages and walk on, so that every instance
    mixes both, and has at least one file with an intercept and one with enlarged ventricles.
    """
    count = int(rng.integers(size["cases"][0], size["cases"][1] + 1))
    codes, first = rng.permutation(len(AXCODES)), int(rng.integers(len(STORAGES)))
    enlarged = rng.permutation([True] + [n % 3 == 2 for n in range(count - 1)])
    for n, large in enumerate([*enlarged, False]):
        yield (
            AXCODES[codes[n % len(AXCODES)]],
            bool(large),
            STORAGES[(first + n) % len(STORAGES)],
        )


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: 3-6 fetal brains, one further probe case, and their truth."""
    rng = np.random.default_rng(np.random.PCG64(seed))
    wanted = _sizes()[size]
    plan = list(_plan(rng, wanted))
    names = _names(rng, fiction["prefix"], len(plan))
    made = {name: _case(rng, wanted, *row) for name, row in zip(names, plan, strict=True)}
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    facts = {case: made[case][2] for case in cases}
    return Generated(
        cases=cases,
        public={f"{case}/t2w.nii.gz": made[case][0] for case in cases},
        private={f"{case}/dseg.nii.gz": made[case][1] for case in cases},
        facts={
            "case_count": len(cases),
            "orientations": {case: fact["orientation"] for case, fact in facts.items()},
            "spacing_mm": {case: fact["spacing_mm"] for case, fact in facts.items()},
            "shape": {case: fact["shape"] for case, fact in facts.items()},
            "signal_p99": {case: fact["signal_p99"] for case, fact in facts.items()},
            "inputs": {
                "dtype": "int16",
                "ndim": 3,
                "scaled": any(fact["scaled"] for fact in facts.values()),
                "zero_background": True,
            },
            "volumes_ml": {case: fact["volumes_ml"] for case, fact in facts.items()},
            "pilot_truth": {
                case: fact["volumes_ml"]["white_matter"] for case, fact in facts.items()
            },
        },
        probe_case=probe,
        probe_public={"t2w.nii.gz": made[probe][0]},
        probe_private={"dseg.nii.gz": made[probe][1]},
    )
