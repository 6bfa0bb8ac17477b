"""Seeded chest CT phantoms: thick, noisy slices as input, the thin slices behind them as truth.

Shapes are evaluated at the world coordinates (RAS, mm) that the affine gives to each voxel of the
thin grid; a thick slice is the mean of four thin ones. Airways, vessels and ribs run obliquely
through slices: on thick ones they are smeared, and interpolation fades one smear into the next.
Only operations that IEEE 754 rounds exactly are used on arrays (no transcendental functions, no
BLAS), so that the same seed gives the same bytes on every machine.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bat_env.tasks.drawing import Rng, bell, between, case_names, generator, sizes_of
from bat_env.tasks.instance import Generated
from bat_env.tasks.volumes import (
    AXCODES,
    CT_SCALINGS,
    Grid,
    axes_along,
    box_around,
    centred,
    pack,
    slice_spacing,
)

FACTOR = 4

Point = tuple[float, float, float]
Rod = tuple[Point, Point, float]


class Stack(Grid):
    """A stack of slices."""

    @property
    def axis(self) -> int:
        """The file's axis that slices are stacked along."""
        return next(a for a, code in enumerate(self.axcodes) if code in "SI")

    def thin(self) -> Stack:
        """Four slices for each one, in the same field of view."""
        affine = self.affine.copy()
        step = affine[:3, self.axis].copy()
        affine[:3, self.axis] = step / FACTOR
        affine[:3, 3] -= step * ((FACTOR - 1) / (2 * FACTOR))
        shape, zooms = list(self.shape), list(self.zooms)
        shape[self.axis] *= FACTOR
        zooms[self.axis] /= FACTOR
        return Stack(tuple(shape), affine, self.axcodes, tuple(zooms))


def _grid(rng: Rng, size: Mapping[str, Any], axcodes: str) -> Stack:
    """A random grid of thick slices in the chest."""
    by_world = slice_spacing(rng, size)
    extent = [mm * between(rng, 0.96, 1.04) for mm in size["field_of_view_mm"]]
    shape, zooms, matrix = axes_along(axcodes, by_world, extent)
    side = (-1, 1)[int(rng.integers(2))]
    centre = [side * size["aside_mm"] + between(rng, -6, 6), between(rng, -6, 6)]
    centre.append(between(rng, -25, 25))
    return Stack(shape, centred(matrix, shape, centre), axcodes, zooms)


class Canvas:
    """A CT volume (HU, float32) on the thin grid, painted shape by shape."""

    def __init__(self, grid: Stack) -> None:
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
        near = box_around(self._to_voxel, self.hu.shape, centre, radii)
        dx, dy, dz = (
            (axis[near] - np.float32(c)) * np.float32(1 / r)
            for axis, c, r in zip((self.x, self.y, self.z), centre, radii, strict=True)
        )
        return near, dx * dx + dy * dy + dz * dz <= 1.0

    def rod(self, start: Point, end: Point, radius: float, hu: float) -> None:
        """Fill everything within ``radius`` of the line from one point to another."""
        middle = tuple((a + b) / 2 for a, b in zip(start, end, strict=True))
        reach = tuple(abs(b - a) / 2 + radius for a, b in zip(start, end, strict=True))
        near = box_around(self._to_voxel, self.hu.shape, middle, reach)
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


def _chest(canvas: Canvas, rng: Rng) -> np.ndarray:
    """Paint a chest; returns the lungs with a rim about them: where outputs are judged."""
    wide, deep = between(rng, 152, 166), between(rng, 104, 114)
    canvas.tube((0, 0), (wide, deep), between(rng, -115, -95))
    canvas.tube((0, 0), (wide - 13, deep - 12), between(rng, 40, 60))
    blood = between(rng, 40, 190)
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
    hu, slope = between(rng, -890, -850), between(rng, 0.2, 0.6)
    for side in (-1, 1):
        centre = (side * 76, 0, between(rng, -10, 10))
        radii = (between(rng, 54, 60), between(rng, 78, 84), between(rng, 120, 140))
        rim, wider = canvas.inside(centre, (radii[0] + 6, radii[1] + 6, radii[2] + 6))
        region[rim] |= wider
        near, lung = canvas.inside(centre, radii)
        hazy = np.float32(hu) - np.float32(slope) * canvas.y[near]
        canvas.hu[near][lung] = hazy[lung]
        up, out, far = between(rng, 0.5, 1.1), between(rng, -0.3, 0.3), between(rng, -30, 20)
        plane = canvas.z[near] + np.float32(up) * canvas.y[near] + np.float32(out) * canvas.x[near]
        fissure = lung & (plane > np.float32(far)) & (plane < np.float32(far + 2.2))
        canvas.hu[near][fissure] = np.float32(-620)
        for low, high, least, most in ((-985, -960, 5, 11), (-720, -600, 7, 14), (20, 60, 3, 8)):
            for _ in range(int(rng.integers(2, 6))):
                spot = (
                    side * between(rng, 40, 118),
                    between(rng, -62, 62),
                    between(rng, -90, 90),
                )
                size = tuple(between(rng, least, most) for _ in range(3))
                canvas.ellipsoid(spot, size, between(rng, low, high))
    return region


def _mediastinum(canvas: Canvas, rng: Rng, blood: float) -> None:
    """Heart, great vessels, fat, the oesophagus and the domes of the diaphragm."""
    for _ in range(8):
        spot = (between(rng, -22, 22), between(rng, -40, 60), between(rng, -70, 70))
        canvas.ellipsoid(spot, (12, 13, between(rng, 8, 20)), between(rng, -110, -85))
    heart = (between(rng, -30, -20), between(rng, 20, 30), between(rng, -62, -50))
    canvas.ellipsoid(heart, (56, 52, between(rng, 44, 56)), -95.0)
    canvas.ellipsoid(heart, (51, 47, between(rng, 40, 50)), between(rng, 35, 55))
    for dx, dy in ((14, 8), (-18, -2)):
        spot = (heart[0] + dx, heart[1] + dy, heart[2] + 2)
        canvas.ellipsoid(spot, (17, 16, 25), blood)
    arch = [(10, 18, -35), (12, 24, 5), (6, 18, 38), (-6, -8, 48), (-16, -36, 36), (-17, -44, 0)]
    points = [tuple(c + between(rng, -3, 3) for c in point) for point in (*arch, (-15, -46, -160))]
    for start, end in itertools.pairwise(points):
        canvas.rod(start, end, 13.5, blood)
    canvas.rod((-6, 20, -25), (-12, 10, 12), 13, blood)
    for side in (-1, 1):
        canvas.rod((-10, 8, 10), (side * 40, -2, between(rng, -2, 8)), 9.5, blood)
    canvas.rod((20, 20, -60), (20, 16, 120), 9, blood)
    canvas.rod((-5, -40, -160), (-3, -38, 160), 6, 35.0)
    for side, height in ((1, between(rng, 62, 88)), (-1, between(rng, 55, 80))):
        canvas.ellipsoid((side * 76, -6, -112), (64, 84, height), between(rng, 45, 75))


def _skeleton(canvas: Canvas, rng: Rng, size: tuple[float, float]) -> None:
    """Vertebrae with discs between them, sternum, and ribs that run down and forward."""
    spine, first = (between(rng, -3, 3), between(rng, -74, -68)), between(rng, -170, -145)
    bone, height = between(rng, 230, 330), between(rng, 19, 24)
    for n in range(12):
        low = first + n * (height + 6)
        canvas.tube(spine, (20, 17), bone, (low, low + height))
        canvas.tube(spine, (18, 15), 80.0, (low + height, low + height + 6))
        canvas.tube((spine[0], spine[1] - 14), (11, 9), 20.0, (low, low + height + 6))
        drop = between(rng, 52, 80)
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
    fork = (between(rng, -3, 3), -12.0, between(rng, 22, 34))
    airways: list[Rod] = [((0.0, -14.0, 160.0), fork, between(rng, 7.5, 9.5))]
    vessels: list[Rod] = []
    for side in (-1, 1):
        hilum = (side * between(rng, 34, 40), -8.0, between(rng, 0, 10))
        airways.append((fork, hilum, between(rng, 5.6, 7)))
        for toward in ((0.6, 0.3, 0.8), (0.6, 0.7, -0.3), (0.5, -0.4, -0.9), (0.8, -0.7, 0.3)):
            aim = (side * toward[0], toward[1], toward[2])
            _grow(airways, rng, hilum, aim, (between(rng, 3.6, 4.8), 26), 3)
            for _ in range(3):
                root = (hilum[0] + side * 4, hilum[1] + between(rng, -10, 16), hilum[2])
                _grow(vessels, rng, root, aim, (between(rng, 3.8, 5.4), 32), 3)
    walls = [(start, end, radius + 1.2 + 0.12 * radius) for start, end, radius in airways]
    return walls, airways, vessels


def _grow(
    rods: list[Rod], rng: Rng, start: Point, aim: Point, size: tuple[float, float], depth: int
) -> None:
    """Add a branch and, ``depth`` times, the two that it divides into."""
    radius, length = size
    turned = [a + between(rng, -0.55, 0.55) for a in aim]
    norm = math.sqrt(turned[0] * turned[0] + turned[1] * turned[1] + turned[2] * turned[2]) + 1e-3
    way = (turned[0] / norm, turned[1] / norm, turned[2] / norm)
    reach = length * between(rng, 0.8, 1.2)
    end = (start[0] + reach * way[0], start[1] + reach * way[1], start[2] + reach * way[2])
    rods.append((start, end, radius))
    if depth > 1:
        for _ in range(2):
            _grow(rods, rng, end, way, (radius * 0.8, length * 0.85), depth - 1)


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
    hu = blurred + bell(rng, blurred.shape, between(rng, *size["noise_hu"]))
    slope, inter = CT_SCALINGS[scaling]
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
        "synth.nii.gz": pack(truth, thin.affine),
        "mask.nii.gz": pack(region.astype(np.uint8), thin.affine),
    }
    return pack(stored, grid.affine, slope, inter), private, facts


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: CT cases of thick slices, one further probe case, and their truth.

    Cases start at a random place in the orientations and scalings and walk on, so that every
    instance mixes both.
    """
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    count = int(rng.integers(wanted["cases"][0], wanted["cases"][1] + 1)) + 1
    codes, first = rng.permutation(len(AXCODES)), int(rng.integers(len(CT_SCALINGS)))
    names = case_names(rng, fiction["prefix"], count)
    made = {
        name: _case(rng, wanted, AXCODES[codes[n % len(AXCODES)]], (first + n) % len(CT_SCALINGS))
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
