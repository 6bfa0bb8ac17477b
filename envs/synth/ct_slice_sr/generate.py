"""Seeded chest CT phantoms: thick, noisy slices as input, the thin slices behind them as truth.

Shapes are evaluated at the world coordinates (RAS, mm) that the affine gives to each voxel of the
thin grid; a thick slice is the mean of four thin ones. Airways, vessels and ribs run obliquely
through slices: on thick ones they are smeared, and interpolation fades one smear into the next.
Only operations that IEEE 754 rounds exactly are used on arrays (no transcendental functions, no
BLAS), so that the same seed gives the same bytes on every machine.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import math
from collections.abc import Mapping
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
FACTOR = 4

Rng = np.random.Generator
Point = tuple[float, float, float]
Rod = tuple[Point, Point, float]


@functools.cache
def _sizes() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("task.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["sizes"]


def _between(rng: Rng, low: float, high: float) -> float:
    return float(low + (high - low) * rng.random())


@dataclass(frozen=True)
class Grid:
    """A voxel grid in the world; ``axis`` is the one that slices are stacked along."""

    shape: tuple[int, ...]
    affine: np.ndarray
    axcodes: str
    zooms: tuple[float, ...]
    axis: int

    def world(self) -> list[np.ndarray]:
        """World x, y, z of every voxel, float32, by broadcast adds (exact on every machine)."""
        i, j, k = (
            np.arange(n, dtype=np.float32).reshape([-1 if a == b else 1 for b in range(3)])
            for a, n in enumerate(self.shape)
        )
        rows = self.affine.astype(np.float32)
        return [(row[0] * i + row[3]) + row[1] * j + row[2] * k for row in rows[:3]]

    def thin(self) -> Grid:
        """Four slices for each one, in the same field of view."""
        affine = self.affine.copy()
        step = affine[:3, self.axis].copy()
        affine[:3, self.axis] = step / FACTOR
        affine[:3, 3] -= step * ((FACTOR - 1) / (2 * FACTOR))
        shape, zooms = list(self.shape), list(self.zooms)
        shape[self.axis] *= FACTOR
        zooms[self.axis] /= FACTOR
        return Grid(tuple(shape), affine, self.axcodes, tuple(zooms), self.axis)


def _grid(rng: Rng, size: Mapping[str, Any], axcodes: str) -> Grid:
    """A random grid of thick slices in the chest."""
    in_plane = round(_between(rng, *size["in_plane_mm"]), 2)
    by_world = (in_plane, in_plane, round(_between(rng, *size["slice_mm"]), 1))
    extent = [mm * _between(rng, 0.96, 1.04) for mm in size["field_of_view_mm"]]
    shape, zooms, matrix = [], [], np.zeros((3, 3))
    for axis, code in enumerate(axcodes):
        world, sign = {"R": (0, 1), "L": (0, -1), "A": (1, 1), "P": (1, -1), "S": (2, 1)}.get(
            code, (2, -1)
        )
        shape.append(round(extent[world] / by_world[world]))
        zooms.append(by_world[world])
        matrix[world, axis] = sign * by_world[world]
    affine = np.eye(4)
    affine[:3, :3] = matrix
    side = (-1, 1)[int(rng.integers(2))]
    centre = [side * size["aside_mm"] + _between(rng, -6, 6), _between(rng, -6, 6)]
    centre.append(_between(rng, -25, 25))
    for row in range(3):
        middle = sum(matrix[row, a] * (shape[a] - 1) / 2 for a in range(3))
        affine[row, 3] = centre[row] - middle
    # What the header can hold, so that the file and the phantom agree to the last bit.
    affine = affine.astype(np.float32).astype(np.float64)
    axis = next(a for a, code in enumerate(axcodes) if code in "SI")
    return Grid(tuple(shape), affine, axcodes, tuple(zooms), axis)


class Canvas:
    """A CT volume (HU, float32) on the thin grid, painted shape by shape."""

    def __init__(self, grid: Grid) -> None:
        self.x, self.y, self.z = grid.world()
        # LAPACK may round differently elsewhere: for bounds with a margin only.
        self._to_voxel = np.linalg.inv(grid.affine)
        self.hu = np.full(grid.shape, -1000.0, np.float32)

    def ellipsoid(self, centre: Point, radii: Point, hu: float) -> None:
        """Fill an ellipsoid."""
        near, inside = self.inside(centre, radii)
        self.hu[near][inside] = np.float32(hu)

    def inside(self, centre: Point, radii: Point) -> tuple[tuple[slice, ...], np.ndarray]:
        """The box around an ellipsoid, and its mask in there."""
        near = self._box(centre, radii)
        dx, dy, dz = (
            (axis[near] - np.float32(c)) * np.float32(1 / r)
            for axis, c, r in zip((self.x, self.y, self.z), centre, radii, strict=True)
        )
        return near, dx * dx + dy * dy + dz * dz <= 1.0

    def rod(self, start: Point, end: Point, radius: float, hu: float) -> None:
        """Fill everything within ``radius`` of the line from one point to another."""
        middle = tuple((a + b) / 2 for a, b in zip(start, end, strict=True))
        reach = tuple(abs(b - a) / 2 + radius for a, b in zip(start, end, strict=True))
        near = self._box(middle, reach)
        along = [np.float32(b - a) for a, b in zip(start, end, strict=True)]
        to = [
            axis[near] - np.float32(a)
            for axis, a in zip((self.x, self.y, self.z), start, strict=True)
        ]
        squared = sum((b - a) * (b - a) for a, b in zip(start, end, strict=True)) + 1e-6
        part = (to[0] * along[0] + to[1] * along[1]) + to[2] * along[2]
        part = (part * np.float32(1 / squared)).clip(0, 1)
        dx, dy, dz = (to[axis] - part * along[axis] for axis in range(3))
        inside = (dx * dx + dy * dy) + dz * dz <= np.float32(radius * radius)
        self.hu[near][inside] = np.float32(hu)

    def tube(self, centre: Any, radii: Any, hu: float, span: Any = (-1e4, 1e4)) -> None:
        """Fill an elliptic cylinder along z, between two heights."""
        dx = (self.x - np.float32(centre[0])) * np.float32(1 / radii[0])
        dy = (self.y - np.float32(centre[1])) * np.float32(1 / radii[1])
        within = (self.z >= np.float32(span[0])) & (self.z < np.float32(span[1]))
        self.hu[(dx * dx + dy * dy <= 1.0) & within] = np.float32(hu)

    def _box(self, centre: Point, reach: Point) -> tuple[slice, ...]:
        """Voxels within ``reach`` (mm along x, y, z) of a point, and two more on each side."""
        middle = self._to_voxel[:3, :3] @ np.asarray(centre, float) + self._to_voxel[:3, 3]
        half = np.abs(self._to_voxel[:3, :3]) @ np.asarray(reach, float) + 2.0
        low, high = np.floor(middle - half).astype(int), np.ceil(middle + half).astype(int) + 1
        return tuple(slice(max(0, m), max(0, n)) for m, n in zip(low, high, strict=True))


def _chest(canvas: Canvas, rng: Rng) -> np.ndarray:
    """Paint a chest; returns the lungs with a rim about them: where outputs are judged."""
    wide, deep = _between(rng, 152, 166), _between(rng, 104, 114)
    canvas.tube((0, 0), (wide, deep), _between(rng, -115, -95))
    canvas.tube((0, 0), (wide - 13, deep - 12), _between(rng, 40, 60))
    blood = _between(rng, 40, 190)
    region = _lungs(canvas, rng)
    _mediastinum(canvas, rng, blood)
    _skeleton(canvas, rng, (wide - 20, deep - 18))
    walls, lumens, vessels = _trees(rng)
    # Vessels, then walls, then lumens: airways stay open where they cross a vessel.
    for start, end, radius in vessels:
        canvas.rod(start, end, radius, blood)
    for start, end, radius in walls:
        canvas.rod(start, end, radius, -10.0)
    for start, end, radius in lumens:
        canvas.rod(start, end, radius, -1000.0)
    return region


def _lungs(canvas: Canvas, rng: Rng) -> np.ndarray:
    """Both lungs, denser towards the back, with a fissure, bullae, hazy spots and nodules.

    Returns:
        The mask of lungs and 6 mm around them.
    """
    region = np.zeros(canvas.hu.shape, bool)
    hu, slope = _between(rng, -890, -850), _between(rng, 0.2, 0.6)
    for side in (-1, 1):
        centre = (side * 76, 0, _between(rng, -10, 10))
        radii = (_between(rng, 54, 60), _between(rng, 78, 84), _between(rng, 120, 140))
        rim, wider = canvas.inside(centre, (radii[0] + 6, radii[1] + 6, radii[2] + 6))
        region[rim] |= wider
        near, lung = canvas.inside(centre, radii)
        hazy = np.float32(hu) - np.float32(slope) * canvas.y[near]
        canvas.hu[near][lung] = hazy[lung]
        up, out, far = _between(rng, 0.5, 1.1), _between(rng, -0.3, 0.3), _between(rng, -30, 20)
        plane = canvas.z[near] + np.float32(up) * canvas.y[near] + np.float32(out) * canvas.x[near]
        fissure = lung & (plane > np.float32(far)) & (plane < np.float32(far + 2.2))
        canvas.hu[near][fissure] = np.float32(-620)
        for low, high, least, most in ((-985, -960, 5, 11), (-720, -600, 7, 14), (20, 60, 3, 8)):
            for _ in range(int(rng.integers(2, 6))):
                spot = (
                    side * _between(rng, 40, 118),
                    _between(rng, -62, 62),
                    _between(rng, -90, 90),
                )
                size = tuple(_between(rng, least, most) for _ in range(3))
                canvas.ellipsoid(spot, size, _between(rng, low, high))
    return region


def _mediastinum(canvas: Canvas, rng: Rng, blood: float) -> None:
    """Heart, great vessels, fat, the oesophagus and the domes of the diaphragm."""
    for _ in range(8):
        spot = (_between(rng, -22, 22), _between(rng, -40, 60), _between(rng, -70, 70))
        canvas.ellipsoid(spot, (12, 13, _between(rng, 8, 20)), _between(rng, -110, -85))
    heart = (_between(rng, -30, -20), _between(rng, 20, 30), _between(rng, -62, -50))
    canvas.ellipsoid(heart, (56, 52, _between(rng, 44, 56)), -95.0)
    canvas.ellipsoid(heart, (51, 47, _between(rng, 40, 50)), _between(rng, 35, 55))
    for dx, dy in ((14, 8), (-18, -2)):
        spot = (heart[0] + dx, heart[1] + dy, heart[2] + 2)
        canvas.ellipsoid(spot, (17, 16, 25), blood)
    arch = [(10, 18, -35), (12, 24, 5), (6, 18, 38), (-6, -8, 48), (-16, -36, 36), (-17, -44, 0)]
    points = [tuple(c + _between(rng, -3, 3) for c in point) for point in (*arch, (-15, -46, -160))]
    for start, end in itertools.pairwise(points):
        canvas.rod(start, end, 13.5, blood)
    canvas.rod((-6, 20, -25), (-12, 10, 12), 13, blood)
    for side in (-1, 1):
        canvas.rod((-10, 8, 10), (side * 40, -2, _between(rng, -2, 8)), 9.5, blood)
    canvas.rod((20, 20, -60), (20, 16, 120), 9, blood)
    canvas.rod((-5, -40, -160), (-3, -38, 160), 6, 35.0)
    for side, height in ((1, _between(rng, 62, 88)), (-1, _between(rng, 55, 80))):
        canvas.ellipsoid((side * 76, -6, -112), (64, 84, height), _between(rng, 45, 75))


def _skeleton(canvas: Canvas, rng: Rng, size: tuple[float, float]) -> None:
    """Vertebrae with discs between them, sternum, and ribs that run down and forward."""
    spine, first = (_between(rng, -3, 3), _between(rng, -74, -68)), _between(rng, -170, -145)
    bone, height = _between(rng, 230, 330), _between(rng, 19, 24)
    for n in range(12):
        low = first + n * (height + 6)
        canvas.tube(spine, (20, 17), bone, (low, low + height))
        canvas.tube(spine, (18, 15), 80.0, (low + height, low + height + 6))
        canvas.tube((spine[0], spine[1] - 14), (11, 9), 20.0, (low, low + height + 6))
        drop = _between(rng, 52, 80)
        for side in (-1, 1):
            # Points of a circle from the spine around to the front, each lower than the last.
            ring = ((0.2, -0.82), (0.55, -0.84), (0.88, -0.48), (1, 0), (0.87, 0.5), (0.5, 0.87))
            path = [
                (side * size[0] * x, size[1] * y, low + 14 - drop * n / 5)
                for n, (x, y) in enumerate(ring)
            ]
            for start, end in itertools.pairwise(path):
                canvas.rod(start, end, 6.0, bone + 220)
                canvas.rod(start, end, 3.2, bone - 60)
    canvas.rod((0, size[1] + 2, 80), (0, size[1] + 6, -60), 8, bone)


def _trees(rng: Rng) -> tuple[list[Rod], list[Rod], list[Rod]]:
    """Walls and lumens of the airways, and the vessels of both lungs."""
    fork = (_between(rng, -3, 3), -12.0, _between(rng, 22, 34))
    airways: list[Rod] = [((0.0, -14.0, 160.0), fork, _between(rng, 7.5, 9.5))]
    vessels: list[Rod] = []
    for side in (-1, 1):
        hilum = (side * _between(rng, 34, 40), -8.0, _between(rng, 0, 10))
        airways.append((fork, hilum, _between(rng, 5.6, 7)))
        for toward in ((0.6, 0.3, 0.8), (0.6, 0.7, -0.3), (0.5, -0.4, -0.9), (0.8, -0.7, 0.3)):
            aim = (side * toward[0], toward[1], toward[2])
            _grow(airways, rng, hilum, aim, (_between(rng, 3.6, 4.8), 26), 3)
            for _ in range(3):
                root = (hilum[0] + side * 4, hilum[1] + _between(rng, -10, 16), hilum[2])
                _grow(vessels, rng, root, aim, (_between(rng, 3.6, 5.2), 30), 4)
    walls = [(start, end, radius + 1.2 + 0.12 * radius) for start, end, radius in airways]
    return walls, airways, vessels


def _grow(
    rods: list[Rod], rng: Rng, start: Point, aim: Point, size: tuple[float, float], depth: int
) -> None:
    """Add a branch and, ``depth`` times, the two that it divides into."""
    radius, length = size
    turned = [a + _between(rng, -0.55, 0.55) for a in aim]
    norm = math.sqrt(turned[0] * turned[0] + turned[1] * turned[1] + turned[2] * turned[2]) + 1e-3
    way = (turned[0] / norm, turned[1] / norm, turned[2] / norm)
    reach = length * _between(rng, 0.8, 1.2)
    end = (start[0] + reach * way[0], start[1] + reach * way[1], start[2] + reach * way[2])
    rods.append((start, end, radius))
    if depth > 1:
        for _ in range(2):
            _grow(rods, rng, end, way, (radius * 0.8, length * 0.85), depth - 1)


def _noise(rng: Rng, shape: tuple[int, ...], sigma: float) -> np.ndarray:
    """Bell-shaped noise as a sum of four uniform bytes: exact, unlike a logarithm in a tail."""
    total = rng.integers(0, 256, (4, *shape), dtype=np.uint8).astype(np.int16)
    summed = (total[0] + total[1]) + (total[2] + total[3]) - 510
    return summed.astype(np.float32) * np.float32(sigma / 147.8)


def _partial_volume(values: np.ndarray, sharp: int) -> np.ndarray:
    """Each voxel with a quarter of its neighbours' values, in the plane of the slices."""
    for axis in {0, 1, 2} - {sharp}:
        padded = np.pad(values, [(int(a == axis),) * 2 for a in range(3)], "edge")
        before, after = (np.moveaxis(padded, axis, 0)[n : n - 2 or None] for n in (0, 2))
        mixed = np.moveaxis(before + after, 0, axis) * np.float32(0.25)
        values = values * np.float32(0.5) + mixed
    return values


def _thick(hu: np.ndarray, axis: int) -> np.ndarray:
    """Mean of every four slices along an axis."""
    moved = np.moveaxis(hu, axis, 0)
    parts = [moved[n::FACTOR] for n in range(FACTOR)]
    mean = ((parts[0] + parts[1]) + (parts[2] + parts[3])) * np.float32(1 / FACTOR)
    return np.moveaxis(mean, 0, axis)


def _pack(data: np.ndarray, affine: np.ndarray, slope: float, inter: float) -> bytes:
    """gzip-compressed NIfTI-1 bytes of raw ``data``, without a time stamp."""
    image = nib.Nifti1Image(data, affine)
    image.header.set_slope_inter(slope, inter)
    image.header.set_xyzt_units("mm")
    image.set_sform(affine, 1)
    for field in ("qform_code", "quatern_b", "quatern_c", "quatern_d"):
        image.header[field] = 0  # A quaternion comes from LAPACK: not the same on every machine.
    return gzip.compress(image.to_bytes(), compresslevel=1, mtime=0)


def _std(values: np.ndarray) -> float:
    """Standard deviation of integers, from exact sums."""
    flat = values.astype(np.int64)
    count, total, squares = flat.size, int(flat.sum()), int((flat * flat).sum())
    return round(math.sqrt(count * squares - total * total) / count, 3)


def _case(
    rng: Rng, size: Mapping[str, Any], axcodes: str, scaling: int
) -> tuple[bytes, dict[str, bytes], dict[str, Any]]:
    grid = _grid(rng, size, axcodes)
    thin = grid.thin()
    canvas = Canvas(thin)
    region = _chest(canvas, rng)
    hu = _partial_volume(canvas.hu, grid.axis)
    truth = np.rint(hu).astype(np.int16)
    blurred = _thick(hu, grid.axis)
    hu = blurred + _noise(rng, blurred.shape, _between(rng, *size["noise_hu"]))
    slope, inter = SCALINGS[scaling]
    stored = np.rint((hu.clip(-1024, 1500) - inter) / slope).astype(np.int16)
    scaled = stored.astype(np.float64) * slope + inter
    facts = {
        "orientation": grid.axcodes,
        "slice_axis": grid.axis,
        "spacing_mm": list(grid.zooms),
        "intensity_hu": [float(scaled.min()), float(scaled.max())],
        "scaled": bool(slope != 1 or inter != 0),
        "std": _std(truth),
    }
    private = {
        "synth.nii.gz": _pack(truth, thin.affine, 1.0, 0.0),
        "mask.nii.gz": _pack(region.astype(np.uint8), thin.affine, 1.0, 0.0),
    }
    return _pack(stored, grid.affine, slope, inter), private, facts


def _names(rng: Rng, prefix: str, count: int) -> list[str]:
    names: dict[str, None] = {}
    while len(names) < count:
        tail = "".join(ALPHABET[int(n)] for n in rng.integers(0, len(ALPHABET), 4))
        names[f"{prefix}-{tail}"] = None
    return list(names)


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: CT cases of thick slices, one further probe case, and their truth.

    Cases start at a random place in the orientations and scalings and walk on, so that every
    instance mixes both.
    """
    rng = np.random.default_rng(np.random.PCG64(seed))
    wanted = _sizes()[size]
    count = int(rng.integers(wanted["cases"][0], wanted["cases"][1] + 1)) + 1
    codes, first = rng.permutation(len(AXCODES)), int(rng.integers(len(SCALINGS)))
    names = _names(rng, fiction["prefix"], count)
    made = {
        name: _case(rng, wanted, AXCODES[codes[n % len(AXCODES)]], (first + n) % len(SCALINGS))
        for n, name in enumerate(names)
    }
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    facts = {case: made[case][2] for case in cases}
    hu = [value for fact in facts.values() for value in fact["intensity_hu"]]
    return Generated(
        cases=cases,
        public={f"{case}/ct.nii.gz": made[case][0] for case in cases},
        private={f"{case}/{name}": data for case in cases for name, data in made[case][1].items()},
        facts={
            "case_count": len(cases),
            "orientations": {case: fact["orientation"] for case, fact in facts.items()},
            "slice_axis": {case: fact["slice_axis"] for case, fact in facts.items()},
            "spacing_mm": {case: fact["spacing_mm"] for case, fact in facts.items()},
            "intensity_hu": [min(hu), max(hu)],
            "inputs": {
                "dtype": "int16",
                "ndim": 3,
                "scaled": any(fact["scaled"] for fact in facts.values()),
            },
            "pilot_truth": {case: fact["std"] for case, fact in facts.items()},
        },
        probe_case=probe,
        probe_public={"ct.nii.gz": made[probe][0]},
        probe_private=made[probe][1],
    )
