"""Seeded abdominal CT phantoms with kidneys and tumours.

Shapes are evaluated at the world coordinates (RAS, mm) that the NIfTI affine gives to each voxel,
so orientation, spacing and obliqueness are true without any resampling. Only operations that IEEE
754 rounds exactly are used on arrays (no transcendental functions, no BLAS), so that the same seed
gives the same bytes on every machine.
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

from bat_env.tasks.instance import Generated

AXCODES = ("RAS", "LPS", "LAS", "RPI", "PIR", "SRA", "ASL", "IPL")
SCALINGS = ((1.0, 0.0), (1.0, -1024.0), (0.5, -512.0), (2.0, -1000.0))
ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
KIDNEY, TUMOR = 1, 2


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


def _between(rng: np.random.Generator, low: float, high: float) -> float:
    return float(low + (high - low) * rng.random())


def _grid(rng: np.random.Generator, size: Mapping[str, Any], axcodes: str) -> Grid:
    """A random grid whose centre lies near the kidneys."""
    in_plane = round(_between(rng, *size["in_plane_mm"]), 2)
    by_world = (in_plane, in_plane, round(_between(rng, *size["slice_mm"]), 1))
    extent = [mm * _between(rng, 0.94, 1.06) for mm in size["field_of_view_mm"]]
    shape, zooms, matrix = [], [], np.zeros((3, 3))
    for axis, code in enumerate(axcodes):
        world, sign = {"R": (0, 1), "L": (0, -1), "A": (1, 1), "P": (1, -1), "S": (2, 1)}.get(
            code, (2, -1)
        )
        shape.append(round(extent[world] / by_world[world]))
        zooms.append(by_world[world])
        matrix[world, axis] = sign * by_world[world]
    # A slight tilt about the head-foot axis; a rational rotation needs no sine.
    t = round(_between(rng, -0.04, 0.04), 3)
    cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
    x, y = matrix[0].copy(), matrix[1].copy()
    matrix[0], matrix[1] = cos * x - sin * y, sin * x + cos * y
    affine = np.eye(4)
    affine[:3, :3] = matrix
    centre = [_between(rng, -8, 8), _between(rng, -8, 8), _between(rng, -10, 10)]
    for row in range(3):
        middle = sum(matrix[row, a] * (shape[a] - 1) / 2 for a in range(3))
        affine[row, 3] = centre[row] - middle
    # What the header can hold, so that the file and the phantom agree to the last bit.
    affine = affine.astype(np.float32).astype(np.float64)
    return Grid((shape[0], shape[1], shape[2]), affine, axcodes, (zooms[0], zooms[1], zooms[2]))


class Canvas:
    """A CT volume (HU, float32) and its label map, painted shape by shape."""

    def __init__(self, grid: Grid) -> None:
        self.x, self.y, self.z = grid.world()
        # LAPACK may round differently elsewhere: for bounds with a margin only.
        self._to_voxel = np.linalg.inv(grid.affine)
        self.hu = np.full(grid.shape, -1000.0, np.float32)
        self.labels = np.zeros(grid.shape, np.uint8)

    def ellipsoid(self, centre: Any, radii: Any, tilt: float = 0.0) -> np.ndarray:
        """Mask of an ellipsoid; ``tilt`` shears it along z in x (mm per mm)."""
        (a, b, c), (p, q, r) = centre, radii
        # Only voxels near it are looked at: most shapes fill a small part of the grid.
        near = self._box(centre, (p + abs(tilt) * r, q, r))
        x, y, z = self.x[near], self.y[near], self.z[near]
        dx, dy, dz = x - np.float32(a), y - np.float32(b), z - np.float32(c)
        if tilt:
            dx = dx - np.float32(tilt) * dz
        dx, dy, dz = dx * np.float32(1 / p), dy * np.float32(1 / q), dz * np.float32(1 / r)
        mask = np.zeros(self.hu.shape, bool)
        mask[near] = dx * dx + dy * dy + dz * dz <= 1.0
        return mask

    def _box(self, centre: Any, reach: Any) -> tuple[slice, ...]:
        """Voxels within ``reach`` (mm along x, y, z) of a point, and two more on each side."""
        middle = self._to_voxel[:3, :3] @ np.asarray(centre, float) + self._to_voxel[:3, 3]
        half = np.abs(self._to_voxel[:3, :3]) @ np.asarray(reach, float) + 2.0
        low, high = np.floor(middle - half).astype(int), np.ceil(middle + half).astype(int) + 1
        return tuple(slice(max(0, m), max(0, n)) for m, n in zip(low, high, strict=True))

    def tube(self, centre: Any, radii: Any) -> np.ndarray:
        """Mask of an elliptic cylinder along z."""
        dx = (self.x - np.float32(centre[0])) * np.float32(1 / radii[0])
        dy = (self.y - np.float32(centre[1])) * np.float32(1 / radii[1])
        return dx * dx + dy * dy <= 1.0


def _body(canvas: Canvas, rng: np.random.Generator, enhanced: float) -> None:
    """Everything but kidneys: fat, muscle, liver, spleen, bowel, vessels and spine."""
    wide, deep = _between(rng, 138, 152), _between(rng, 96, 108)
    fat, wall = _between(rng, 9, 14), _between(rng, 20, 26)
    # Muscle, liver and spleen share the kidneys' range, so that no threshold finds kidneys.
    muscle = enhanced + _between(rng, -12, 6)
    canvas.hu[canvas.tube((0, 0), (wide, deep))] = _between(rng, -115, -90)
    canvas.hu[canvas.tube((0, 0), (wide - fat, deep - fat))] = muscle
    cavity = (wide - fat - wall, deep - fat - wall)
    canvas.hu[canvas.tube((0, 0), cavity)] = _between(rng, -105, -75)
    stomach = (_between(rng, -60, -45), _between(rng, 34, 44), _between(rng, 25, 60))
    canvas.hu[canvas.ellipsoid(stomach, (44, 28, 48))] = _between(rng, 30, 58)
    for n in range(int(rng.integers(14, 19))):
        spot = (_between(rng, -85, 85), _between(rng, 5, 58), _between(rng, -95, 95))
        loop = [_between(rng, 16, 28) for _ in range(3)]
        # Half of the loops hold fluid as dense as a tumour, the others contrast.
        canvas.hu[canvas.ellipsoid(spot, loop)] = _between(rng, *((28, 60), (60, 150))[n % 2])
    liver = (_between(rng, 58, 66), _between(rng, 22, 32), _between(rng, 45, 60))
    canvas.hu[canvas.ellipsoid(liver, (62, 50, _between(rng, 75, 92)))] = enhanced + _between(
        rng, -10, 14
    )
    spleen = (_between(rng, -92, -84), _between(rng, -4, 8), _between(rng, 48, 64))
    canvas.hu[canvas.ellipsoid(spleen, (27, 32, 48))] = enhanced + _between(rng, -8, 16)
    spine = (_between(rng, -3, 3), _between(rng, -62, -56))
    canvas.hu[canvas.tube(spine, (24, 19))] = _between(rng, 130, 220)
    canvas.hu[canvas.tube((spine[0], spine[1] - 4), (9, 8))] = 35.0
    plain = _between(rng, 36, 60)  # Back muscles, as dense as a tumour.
    for side in (-1, 1):
        canvas.hu[canvas.tube((spine[0] + side * 38, spine[1] + 8), (17, 17))] = plain
        canvas.hu[canvas.tube((spine[0] + side * 36, spine[1] - 20), (25, 14))] = plain
    pancreas = (_between(rng, -8, 8), _between(rng, 4, 12), _between(rng, 5, 25))
    canvas.hu[canvas.ellipsoid(pancreas, (58, 13, 17))] = enhanced + _between(rng, -10, 10)
    canvas.hu[canvas.tube((spine[0] - 9, spine[1] + 32), (10, 10))] = enhanced + 45
    canvas.hu[canvas.tube((spine[0] + 15, spine[1] + 31), (11, 9))] = enhanced + 15


def _kidneys(canvas: Canvas, rng: np.random.Generator, enhanced: float, lesion: bool) -> None:
    """Both kidneys with their sinus, and with ``lesion`` one tumour on the surface of one."""
    chosen = (-1, 1)[int(rng.integers(2))]
    for side in (-1, 1):
        centre = (side * _between(rng, 66, 76), _between(rng, -36, -26), _between(rng, -10, 8))
        radii = (_between(rng, 25, 29), _between(rng, 22, 27), _between(rng, 45, 54))
        kidney = canvas.ellipsoid(centre, radii, tilt=-side * _between(rng, 0.1, 0.22))
        inner = (centre[0] - side * 17, centre[1] + 4, centre[2])
        kidney &= ~canvas.ellipsoid(inner, (12, 10, 19))
        canvas.hu[kidney] = enhanced + _between(rng, -2, 11)
        canvas.labels[kidney] = KIDNEY
        if lesion and side == chosen:
            size = _between(rng, 15, 28)
            spot = (
                centre[0] + side * _between(rng, 6, 20),
                centre[1] + _between(rng, -14, 14),
                centre[2] + _between(rng, -22, 22),
            )
            tumor = canvas.ellipsoid(spot, [size * _between(rng, 0.9, 1.1) for _ in range(3)])
            canvas.hu[tumor] = _between(rng, 32, 62)
            canvas.labels[tumor] = TUMOR


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
    rng: np.random.Generator, size: Mapping[str, Any], axcodes: str, lesion: bool, scaling: int
) -> tuple[bytes, bytes, dict[str, Any]]:
    grid = _grid(rng, size, axcodes)
    canvas = Canvas(grid)
    enhanced = _between(rng, 95, 115)
    _body(canvas, rng, enhanced)
    _kidneys(canvas, rng, enhanced, lesion)
    inside = canvas.hu > -900
    hu = canvas.hu + _noise(rng, grid.shape, _between(rng, 16, 24))
    hu[inside] += np.float32(_between(rng, -8, 8))
    slope, inter = SCALINGS[scaling]
    stored = np.rint((hu.clip(-1024, 1500) - inter) / slope).astype(np.int16)
    scaled = stored.astype(np.float64) * slope + inter
    voxel_ml = grid.zooms[0] * grid.zooms[1] * grid.zooms[2] / 1000
    facts = {
        "orientation": grid.axcodes,
        "spacing_mm": list(grid.zooms),
        "shape": list(grid.shape),
        "intensity_hu": [float(scaled.min()), float(scaled.max())],
        "scaled": bool(slope != 1 or inter != 0),
        "volumes_ml": {
            name: round(int((canvas.labels == value).sum()) * voxel_ml, 3)
            for name, value in (("kidney", KIDNEY), ("tumor", TUMOR))
        },
    }
    return (
        _pack(stored, grid.affine, slope, inter),
        _pack(canvas.labels, grid.affine, 1.0, 0.0),
        facts,
    )


def _names(rng: np.random.Generator, prefix: str, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        tail = "".join(ALPHABET[int(n)] for n in rng.integers(0, len(ALPHABET), 4))
        names[f"{prefix}-{tail}"] = None
    return list(names)


def _plan(rng: np.random.Generator, size: Mapping[str, Any]) -> Iterator[tuple[str, bool, int]]:
    """(axis codes, lesion, scaling) of each case, the probe case last.

    Cases start at a random place in the orientations and scalings and walk on, so that every
    instance mixes both and has at least one scaled and one lesion-free case.
    """
    count = int(rng.integers(size["cases"][0], size["cases"][1] + 1))
    free = int(rng.integers(size["lesion_free"][0], size["lesion_free"][1] + 1))
    lesions = rng.permutation([False] * free + [True] * (count - free))
    codes, first = rng.permutation(len(AXCODES)), int(rng.integers(len(SCALINGS)))
    for n, lesion in enumerate([*lesions, True]):
        yield AXCODES[codes[n % len(AXCODES)]], bool(lesion), (first + n) % len(SCALINGS)


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: 3-6 CT cases, one further probe case, and their truth."""
    rng = np.random.default_rng(np.random.PCG64(seed))
    wanted = _sizes()[size]
    plan = list(_plan(rng, wanted))
    names = _names(rng, fiction["prefix"], len(plan))
    made = {name: _case(rng, wanted, *row) for name, row in zip(names, plan, strict=True)}
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    facts = {case: made[case][2] for case in cases}
    hu = [value for fact in facts.values() for value in fact["intensity_hu"]]
    return Generated(
        cases=cases,
        public={f"{case}/ct.nii.gz": made[case][0] for case in cases},
        private={f"{case}/dseg.nii.gz": made[case][1] for case in cases},
        facts={
            "case_count": len(cases),
            "orientations": {case: fact["orientation"] for case, fact in facts.items()},
            "spacing_mm": {case: fact["spacing_mm"] for case, fact in facts.items()},
            "shape": {case: fact["shape"] for case, fact in facts.items()},
            "intensity_hu": [min(hu), max(hu)],
            "inputs": {
                "dtype": "int16",
                "ndim": 3,
                "scaled": any(fact["scaled"] for fact in facts.values()),
            },
            "volumes_ml": {case: fact["volumes_ml"] for case, fact in facts.items()},
            "pilot_truth": {case: fact["volumes_ml"]["kidney"] for case, fact in facts.items()},
        },
        probe_case=probe,
        probe_public={"ct.nii.gz": made[probe][0]},
        probe_private={"dseg.nii.gz": made[probe][1]},
    )
