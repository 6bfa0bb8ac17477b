"""Seeded abdominal CT phantoms with kidneys and tumours.

Shapes are evaluated at the world coordinates (RAS, mm) that the NIfTI affine gives to each voxel,
so orientation, spacing and obliqueness are true without any resampling. Only operations that IEEE
754 rounds exactly are used on arrays (no transcendental functions, no BLAS), so that the same seed
gives the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bat_env.tasks.drawing import bell, between, case_names, generator, sizes_of
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
    turn,
)

KIDNEY, TUMOR = 1, 2


def _grid(rng: np.random.Generator, size: Mapping[str, Any], axcodes: str) -> Grid:
    """A random grid whose centre lies near the kidneys."""
    by_world = slice_spacing(rng, size)
    extent = [mm * between(rng, 0.94, 1.06) for mm in size["field_of_view_mm"]]
    shape, zooms, matrix = axes_along(axcodes, by_world, extent)
    # A slight tilt about the head-foot axis.
    turn(matrix, 0, 1, round(between(rng, -0.04, 0.04), 3))
    centre = [between(rng, -8, 8), between(rng, -8, 8), between(rng, -10, 10)]
    return Grid(shape, centred(matrix, shape, centre), axcodes, zooms)


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
        reach = (p + abs(tilt) * r, q, r)
        near = box_around(self._to_voxel, self.hu.shape, centre, reach)
        x, y, z = self.x[near], self.y[near], self.z[near]
        dx, dy, dz = x - np.float32(a), y - np.float32(b), z - np.float32(c)
        if tilt:
            dx = dx - np.float32(tilt) * dz
        dx, dy, dz = dx * np.float32(1 / p), dy * np.float32(1 / q), dz * np.float32(1 / r)
        mask = np.zeros(self.hu.shape, bool)
        mask[near] = dx * dx + dy * dy + dz * dz <= 1.0
        return mask

    def tube(self, centre: Any, radii: Any) -> np.ndarray:
        """Mask of an elliptic cylinder along z."""
        dx = (self.x - np.float32(centre[0])) * np.float32(1 / radii[0])
        dy = (self.y - np.float32(centre[1])) * np.float32(1 / radii[1])
        return dx * dx + dy * dy <= 1.0


def _body(canvas: Canvas, rng: np.random.Generator, enhanced: float) -> None:
    """Everything but kidneys: fat, muscle, liver, spleen, bowel, vessels and spine."""
    wide, deep = between(rng, 138, 152), between(rng, 96, 108)
    fat, wall = between(rng, 9, 14), between(rng, 20, 26)
    # Muscle, liver and spleen share the kidneys' range, so that no threshold finds kidneys.
    muscle = enhanced + between(rng, -12, 6)
    canvas.hu[canvas.tube((0, 0), (wide, deep))] = between(rng, -115, -90)
    canvas.hu[canvas.tube((0, 0), (wide - fat, deep - fat))] = muscle
    cavity = (wide - fat - wall, deep - fat - wall)
    canvas.hu[canvas.tube((0, 0), cavity)] = between(rng, -105, -75)
    stomach = (between(rng, -60, -45), between(rng, 34, 44), between(rng, 25, 60))
    canvas.hu[canvas.ellipsoid(stomach, (44, 28, 48))] = between(rng, 30, 58)
    for n in range(int(rng.integers(14, 19))):
        spot = (between(rng, -85, 85), between(rng, 5, 58), between(rng, -95, 95))
        loop = [between(rng, 16, 28) for _ in range(3)]
        # Half of the loops hold fluid as dense as a tumour, the others contrast.
        canvas.hu[canvas.ellipsoid(spot, loop)] = between(rng, *((28, 60), (60, 150))[n % 2])
    liver = (between(rng, 58, 66), between(rng, 22, 32), between(rng, 45, 60))
    canvas.hu[canvas.ellipsoid(liver, (62, 50, between(rng, 75, 92)))] = enhanced + between(
        rng, -10, 14
    )
    spleen = (between(rng, -92, -84), between(rng, -4, 8), between(rng, 48, 64))
    canvas.hu[canvas.ellipsoid(spleen, (27, 32, 48))] = enhanced + between(rng, -8, 16)
    spine = (between(rng, -3, 3), between(rng, -62, -56))
    canvas.hu[canvas.tube(spine, (24, 19))] = between(rng, 130, 220)
    canvas.hu[canvas.tube((spine[0], spine[1] - 4), (9, 8))] = 35.0
    plain = between(rng, 36, 60)  # Back muscles, as dense as a tumour.
    for side in (-1, 1):
        canvas.hu[canvas.tube((spine[0] + side * 38, spine[1] + 8), (17, 17))] = plain
        canvas.hu[canvas.tube((spine[0] + side * 36, spine[1] - 20), (25, 14))] = plain
    pancreas = (between(rng, -8, 8), between(rng, 4, 12), between(rng, 5, 25))
    canvas.hu[canvas.ellipsoid(pancreas, (58, 13, 17))] = enhanced + between(rng, -10, 10)
    canvas.hu[canvas.tube((spine[0] - 9, spine[1] + 32), (10, 10))] = enhanced + 45
    canvas.hu[canvas.tube((spine[0] + 15, spine[1] + 31), (11, 9))] = enhanced + 15


def _kidneys(canvas: Canvas, rng: np.random.Generator, enhanced: float, lesion: bool) -> None:
    """Both kidneys with their sinus, and with ``lesion`` one tumour on the surface of one."""
    chosen = (-1, 1)[int(rng.integers(2))]
    for side in (-1, 1):
        centre = (side * between(rng, 66, 76), between(rng, -36, -26), between(rng, -10, 8))
        radii = (between(rng, 25, 29), between(rng, 22, 27), between(rng, 45, 54))
        kidney = canvas.ellipsoid(centre, radii, tilt=-side * between(rng, 0.1, 0.22))
        inner = (centre[0] - side * 17, centre[1] + 4, centre[2])
        kidney &= ~canvas.ellipsoid(inner, (12, 10, 19))
        canvas.hu[kidney] = enhanced + between(rng, -2, 11)
        canvas.labels[kidney] = KIDNEY
        if lesion and side == chosen:
            size = between(rng, 15, 28)
            spot = (
                centre[0] + side * between(rng, 6, 20),
                centre[1] + between(rng, -14, 14),
                centre[2] + between(rng, -22, 22),
            )
            tumor = canvas.ellipsoid(spot, [size * between(rng, 0.9, 1.1) for _ in range(3)])
            canvas.hu[tumor] = between(rng, 32, 62)
            canvas.labels[tumor] = TUMOR


def _case(
    rng: np.random.Generator, size: Mapping[str, Any], axcodes: str, lesion: bool, scaling: int
) -> tuple[bytes, bytes, dict[str, Any]]:
    grid = _grid(rng, size, axcodes)
    canvas = Canvas(grid)
    enhanced = between(rng, 95, 115)
    _body(canvas, rng, enhanced)
    _kidneys(canvas, rng, enhanced, lesion)
    inside = canvas.hu > -900
    hu = canvas.hu + bell(rng, grid.shape, between(rng, 16, 24))
    hu[inside] += np.float32(between(rng, -8, 8))
    slope, inter = CT_SCALINGS[scaling]
    stored = np.rint((hu.clip(-1024, 1500) - inter) / slope).astype(np.int16)
    scaled = stored.astype(np.float64) * slope + inter
    facts = {
        "orientation": grid.axcodes,
        "spacing_mm": list(grid.zooms),
        "shape": list(grid.shape),
        "intensity_hu": [float(scaled.min()), float(scaled.max())],
        "scaled": bool(slope != 1 or inter != 0),
        "volumes_ml": {
            name: round(int((canvas.labels == value).sum()) * grid.voxel_ml, 3)
            for name, value in (("kidney", KIDNEY), ("tumor", TUMOR))
        },
    }
    return (
        pack(stored, grid.affine, slope, inter),
        pack(canvas.labels, grid.affine),
        facts,
    )


def _plan(rng: np.random.Generator, size: Mapping[str, Any]) -> Iterator[tuple[str, bool, int]]:
    """(axis codes, lesion, scaling) of each case, the probe case last.

    Cases start at a random place in the orientations and scalings and walk on, so that every
    instance mixes both and has at least one scaled and one lesion-free case.
    """
    count = int(rng.integers(size["cases"][0], size["cases"][1] + 1))
    free = int(rng.integers(size["lesion_free"][0], size["lesion_free"][1] + 1))
    lesions = rng.permutation([False] * free + [True] * (count - free))
    codes, first = rng.permutation(len(AXCODES)), int(rng.integers(len(CT_SCALINGS)))
    for n, lesion in enumerate([*lesions, True]):
        yield AXCODES[codes[n % len(AXCODES)]], bool(lesion), (first + n) % len(CT_SCALINGS)


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: 3-6 CT cases, one further probe case, and their truth."""
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    plan = list(_plan(rng, wanted))
    names = case_names(rng, fiction["prefix"], len(plan))
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
