"""Seeded head phantoms: an MR image on an arbitrary scale as input, the CT behind it as truth.

Shapes are evaluated at the world coordinates (RAS, mm) that the affine gives to each voxel, so
that orientation, spacing and obliqueness are true without any resampling. Every shape has a CT
number and an MR signal: cortical bone and air are equally dark in MR, which is what makes the task
hard. Only operations that IEEE 754 rounds exactly are used on arrays (no transcendental functions,
no BLAS), so that the same seed gives the same bytes on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bat_env.tasks.drawing import Rng, bell, between, case_names, generator, sizes_of
from bat_env.tasks.instance import Generated
from bat_env.tasks.volumes import (
    AXCODES,
    Grid,
    axes_along,
    box_around,
    centred,
    coordinates,
    pack,
    slice_spacing,
    turn,
)

SLOPES = (1.0, 0.25, 1.75, 0.0625)

# CT number in HU and T1-weighted MR signal, white matter being 1.
AIR, SKIN, FAT, MUSCLE = (-1000.0, 0.02), (30.0, 0.5), (-95.0, 1.3), (55.0, 0.55)
FLUID, GREY, WHITE, MUCOSA = (8.0, 0.25), (38.0, 0.72), (30.0, 1.0), (25.0, 0.42)
EYE, LENS, TOOTH, CALCIUM = (12.0, 0.24), (85.0, 0.2), (1900.0, 0.04), (220.0, 0.3)

Tissue = tuple[float, float]


def _grid(rng: Rng, size: Mapping[str, Any], axcodes: str) -> Grid:
    """A random grid about the head, slightly oblique."""
    by_world = slice_spacing(rng, size)
    extent = [mm * between(rng, 0.97, 1.05) for mm in size["field_of_view_mm"]]
    shape, zooms, matrix = axes_along(axcodes, by_world, extent)
    turn(matrix, 0, 1, round(between(rng, -0.04, 0.04), 3))
    centre = [between(rng, -4, 4), between(rng, -4, 4), between(rng, *size["centre_mm"])]
    return Grid(shape, centred(matrix, shape, centre), axcodes, zooms)


class Canvas:
    """CT (HU) and MR (white matter 1) of a head, float32, painted shape by shape.

    Args:
        grid: The voxel grid.
        nod: Half the tangent of how far the chin is raised.
        scale: Size of the head, 1 for the average adult.
    """

    def __init__(self, grid: Grid, nod: float, scale: float) -> None:
        pose = grid.affine.copy()
        turn(pose, 1, 2, nod)
        pose[:3] *= 1 / scale
        self.x, self.y, self.z = coordinates(grid.shape, pose)
        # LAPACK may round differently elsewhere: for bounds with a margin only.
        self._to_voxel = np.linalg.inv(pose)
        self.ct = np.full(grid.shape, AIR[0], np.float32)
        self.mr = np.full(grid.shape, AIR[1], np.float32)

    def ellipsoid(self, centre: Any, radii: Any, tissue: Tissue, lean: float = 0.0) -> None:
        """Fill an ellipsoid; ``lean`` shears it along z in y (mm per mm)."""
        near, inside = self._inside(centre, radii, lean)
        self.ct[near][inside] = np.float32(tissue[0])
        self.mr[near][inside] = np.float32(tissue[1])

    def tube(self, centre: Any, radii: Any, tissue: Tissue, span: tuple[float, float]) -> None:
        """Fill an elliptic cylinder along z between two heights."""
        dx = (self.x - np.float32(centre[0])) * np.float32(1 / radii[0])
        dy = (self.y - np.float32(centre[1])) * np.float32(1 / radii[1])
        within = (self.z >= np.float32(span[0])) & (self.z < np.float32(span[1]))
        inside = (dx * dx + dy * dy <= 1.0) & within
        self.ct[inside], self.mr[inside] = np.float32(tissue[0]), np.float32(tissue[1])

    def union(self, shapes: Any, grow: float) -> np.ndarray:
        """Mask of all ellipsoids (centre, radii), their radii larger by ``grow`` mm."""
        mask = np.zeros(self.ct.shape, bool)
        for centre, radii in shapes:
            near, inside = self._inside(centre, [r + grow for r in radii], 0.0)
            mask[near] |= inside
        return mask

    def fill(self, mask: np.ndarray, tissue: Tissue) -> None:
        """Fill a mask."""
        self.ct[mask], self.mr[mask] = np.float32(tissue[0]), np.float32(tissue[1])

    def _inside(self, centre: Any, radii: Any, lean: float) -> tuple[tuple[slice, ...], np.ndarray]:
        (a, b, c), (p, q, r) = centre, radii
        reach = (p, q + abs(lean) * r, r)
        near = box_around(self._to_voxel, self.ct.shape, centre, reach)
        dz = self.z[near] - np.float32(c)
        dx, dy = self.x[near] - np.float32(a), self.y[near] - np.float32(b)
        if lean:
            dy = dy - np.float32(lean) * dz
        dx, dy, dz = dx * np.float32(1 / p), dy * np.float32(1 / q), dz * np.float32(1 / r)
        return near, dx * dx + dy * dy + dz * dz <= 1.0


@dataclass(frozen=True)
class Head:
    """Measures of one person, mm and HU."""

    cranium: tuple[float, float, float]
    bone: Tissue
    marrow: Tissue
    thick: float

    @classmethod
    def draw(cls, rng: Rng) -> Head:
        """A random adult."""
        return cls(
            cranium=(between(rng, 69, 76), between(rng, 86, 94), between(rng, 72, 79)),
            bone=(between(rng, 1050, 1400), 0.05),
            marrow=(between(rng, 330, 560), between(rng, 0.6, 0.9)),
            thick=between(rng, 6.5, 9.5),
        )


def _outline(rng: Rng, head: Head) -> list[tuple[Any, Any]]:
    """Ellipsoids whose union is the surface of the head: cranium, face, jaw, nose, neck, ears."""
    scalp = between(rng, 5, 8)
    chin = between(rng, -98, -90)
    shapes: list[tuple[Any, Any]] = [
        ((0, 0, 0), [r + scalp for r in head.cranium]),
        ((0, 40, -45), (between(rng, 60, 66), 56, 55)),
        ((0, 46, chin + 8), (between(rng, 44, 50), 48, 32)),
        ((0, 93, -48), (11, between(rng, 13, 18), 19)),
        ((0, -16, -110), (between(rng, 55, 63), between(rng, 54, 62), 75)),
    ]
    return shapes + [((side * (head.cranium[0] + 1), -6, -24), (9, 15, 21)) for side in (-1, 1)]


def _soft_tissue(canvas: Canvas, rng: Rng, shapes: list[tuple[Any, Any]]) -> None:
    """Skin, the fat below it, and muscle."""
    canvas.fill(canvas.union(shapes, 0.0), SKIN)
    canvas.fill(canvas.union(shapes, -2.5), FAT)
    canvas.fill(canvas.union(shapes[1:5], -between(rng, 6, 11)), MUSCLE)
    for side in (-1, 1):
        spot = (side * 67, between(rng, 14, 22), -18)
        canvas.ellipsoid(spot, (12, 28, between(rng, 26, 34)), MUSCLE)
        for n in range(5):  # Fat between muscles of face and neck.
            spot = (side * between(rng, 18, 50), between(rng, -45, 60), -72 - 9 * n)
            canvas.ellipsoid(spot, (between(rng, 4, 9), between(rng, 8, 18), 6), FAT)


def _skull(canvas: Canvas, rng: Rng, head: Head) -> None:
    """Outer table, marrow, inner table, and the fluid within, uneven in thickness."""
    p, q, r = head.cranium
    shift = (between(rng, -1, 1), between(rng, -2, 2), between(rng, -1, 1))
    layers = ((0.0, head.bone), (2.6, head.marrow), (head.thick - 2.6, head.bone))
    for depth, tissue in (*layers, (head.thick, FLUID)):
        part = depth / head.thick
        spot = tuple(part * s for s in shift)
        canvas.ellipsoid(spot, (p - depth, q - depth * 1.1, r - depth), tissue)


def _brain(canvas: Canvas, rng: Rng, head: Head) -> None:
    """Grey and white matter, gyri, sulci, ventricles, cerebellum and deep nuclei."""
    p, q, r = (radius - head.thick - between(rng, 2, 4) for radius in head.cranium)
    canvas.ellipsoid((0, 0, 0), (p, q, r), GREY)
    canvas.ellipsoid((0, 0, 2), (p - 8, q - 9, r - 8), WHITE)
    for n in range(170):
        u = [between(rng, -1, 1) for _ in range(3)]
        length = math.sqrt(u[0] * u[0] + u[1] * u[1] + u[2] * u[2]) + 1e-3
        depth = between(rng, 0.84, 0.97)
        spot = [depth * a * b / length for a, b in zip(u, (p, q, r), strict=True)]
        # A sheet that points to the middle: thin along the axis that it is nearest to.
        radii = [between(rng, 6, 11) for _ in range(3)]
        radii[min(range(3), key=lambda axis: abs(u[axis]))] = between(rng, 1.4, 2.6)
        canvas.ellipsoid(spot, radii, (WHITE, FLUID, GREY)[n % 3])
    canvas.ellipsoid((0, 2, 12), (1.2, q - 3, r - 14), FLUID)
    for side in (-1, 1):
        spot, tall = (side * between(rng, 11, 14), between(rng, -6, 2), 6), between(rng, 8, 13)
        canvas.ellipsoid((side * 21, 6, 0), (10, 20, 12), GREY)
        canvas.ellipsoid(spot, (between(rng, 4, 9), between(rng, 26, 36), tall), FLUID, 0.3)
        canvas.ellipsoid((side * 13, -24, 2), (2.5, 2.5, 2.5), CALCIUM)
        canvas.ellipsoid((side * 24, -46, -44), (27, 27, 20), GREY)
        canvas.ellipsoid((side * 22, -44, -43), (17, 18, 11), WHITE)
    canvas.ellipsoid((0, -14, -38), (14, 13, 22), WHITE)
    canvas.ellipsoid((0, -32, -36), (7, 5, 9), FLUID)
    canvas.ellipsoid((0, -20, 2), (3, 3, 3), CALCIUM)


def _skull_base(canvas: Canvas, rng: Rng, head: Head) -> None:
    """Petrous and mastoid bone, the sphenoid and its sinus, clivus, first vertebrae and cord."""
    canvas.ellipsoid((0, 8, -50), (22, 22, 8), head.bone)
    canvas.ellipsoid((0, 6, -50), (15, 15, 5), head.marrow)
    for side in (-1, 1):
        canvas.ellipsoid((side * 36, -8, -46), (25, 9, 9), head.bone)
        spot, size = (side * 55, -22, -52), (between(rng, 11, 14), 15, between(rng, 15, 19))
        canvas.ellipsoid(spot, size, head.bone)
        # Cells of air in bone: both are dark in MR.
        for _ in range(int(rng.integers(5, 13))):
            cell = [a + between(rng, -0.62, 0.62) * b for a, b in zip(spot, size, strict=True)]
            canvas.ellipsoid(cell, [between(rng, 2.2, 5) for _ in range(3)], AIR)
        canvas.ellipsoid((side * 60, -6, -40), (15, 3.2, 3.2), AIR)
    canvas.ellipsoid((0, 26, -42), (21, 19, 16), head.bone)
    sinus = (between(rng, 9, 17), between(rng, 9, 15), between(rng, 7, 12))
    canvas.ellipsoid((between(rng, -3, 3), 26, -42), sinus, _cavity(rng, 0.12))
    span = (-200.0, -60.0)
    for low in range(-180, -60, 19):
        canvas.tube((0, -14), (16, 13), head.bone, (low, low + 15))
        canvas.tube((0, -14), (13, 10), head.marrow, (low + 2, low + 13))
        canvas.ellipsoid((0, -58, low + 8), (7, 13, 6), head.bone)
    canvas.tube((0, -34), (17, 15), head.bone, span)
    canvas.tube((0, -33), (11, 10), FLUID, (-200.0, -48.0))
    canvas.tube((0, -33), (6, 5), WHITE, (-200.0, -48.0))


def _cavity(rng: Rng, filled: float) -> Tissue:
    """What is in a sinus: air, or with probability ``filled`` swollen mucosa."""
    return MUCOSA if rng.random() < filled else AIR


def _face(canvas: Canvas, rng: Rng, head: Head) -> None:
    """Orbits, sinuses, nose, airway, jaws and teeth."""
    front = head.cranium[1]
    for side in (-1, 1):
        canvas.ellipsoid((side * 52, 50, -52), (13, 18, 9), head.bone)
        canvas.ellipsoid((side * 52, 50, -52), (8, 13, 5), head.marrow)
        canvas.ellipsoid((side * 31, 60, -30), (22, 28, 20), head.bone)
        canvas.ellipsoid((side * 31, 63, -30), (19, 30, 17), FAT)
        canvas.ellipsoid((side * 28, 52, -30), (3, 20, 3), WHITE)
        for tilt in (-1, 1):
            canvas.ellipsoid((side * 31, 58, -30 + tilt * 11), (5, 18, 2.5), MUSCLE)
        eye = (side * between(rng, 30, 33), front - 14, -30)
        canvas.ellipsoid(eye, (12.5, 12.5, 12.5), SKIN)
        canvas.ellipsoid(eye, (11.5, 11.5, 11.5), EYE)
        canvas.ellipsoid((eye[0], eye[1] + 9, eye[2]), (4.5, 2.5, 4.5), LENS)
        sinus = [between(rng, 11, 17), between(rng, 13, 19), between(rng, 12, 19)]
        canvas.ellipsoid((side * 27, 60, -66), [a + 2.8 for a in sinus], head.bone)
        canvas.ellipsoid((side * 27, 60, -66), sinus, MUCOSA)
        swollen = between(rng, 0.5, 2.5) if rng.random() > 0.15 else 20.0
        canvas.ellipsoid((side * 27, 60, -66), [max(1.0, a - swollen) for a in sinus], AIR)
        canvas.ellipsoid((side * 47, 20, -78), (6, 13, 30), head.bone, 0.25)
        canvas.ellipsoid((side * 47, 20, -78), (3, 9, 24), head.marrow, 0.25)
        if rng.random() > 0.25:
            wide, tall = between(rng, 6, 17), between(rng, 6, 20)
            spot = (side * wide * 0.9, front - 7, -12 + 0.4 * tall)
            canvas.ellipsoid(spot, (wide + 2.5, 9, tall + 2.5), head.bone, -0.2)
            canvas.ellipsoid(spot, (wide, between(rng, 4, 7), tall), _cavity(rng, 0.15), -0.2)
    _nose_and_mouth(canvas, rng, head)


def _nose_and_mouth(canvas: Canvas, rng: Rng, head: Head) -> None:
    canvas.ellipsoid((0, 60, -36), (13, 24, 15), head.bone)
    for _ in range(14):
        cell = (between(rng, -9, 9), between(rng, 44, 78), between(rng, -46, -28))
        canvas.ellipsoid(cell, [between(rng, 3, 5.5) for _ in range(3)], AIR)
    canvas.ellipsoid((0, 66, -62), (12, 30, 18), MUCOSA)
    for side in (-1, 1):
        spot = (side * 6, 64, -62)
        canvas.ellipsoid(spot, (between(rng, 3, 5.5), 30, between(rng, 12, 16)), AIR)
    canvas.ellipsoid((0, 52, -80), (30, 32, 5), head.bone)
    canvas.ellipsoid((0, 42, -114), (42, 46, 12), head.bone)
    canvas.ellipsoid((0, 42, -114), (38, 42, 8), head.marrow)
    canvas.ellipsoid((0, 34, -112), (34, 42, 16), MUSCLE)
    canvas.ellipsoid((0, 40, -96), (24, 32, 13), MUSCLE)
    for n in range(-6, 7):
        x = n * 5.2
        y = 80 - x * x / 28
        for z in (-87, -99):
            tooth = (2.4, 3.0, between(rng, 5, 6.5))
            canvas.ellipsoid((x, y, z), tooth, TOOTH if rng.random() > 0.06 else MUCOSA)
    wide = between(rng, 6, 11)
    canvas.ellipsoid((0, 12, -78), (wide, 8, 26), AIR)
    canvas.tube((0, 8), (wide, between(rng, 6, 9)), AIR, (-200.0, -88.0))


def _partial_volume(values: np.ndarray) -> np.ndarray:
    """Each voxel with a quarter of its neighbours' values, axis by axis: scanners blur a little."""
    for axis in range(3):
        padded = np.pad(values, [(int(a == axis),) * 2 for a in range(3)], "edge")
        before, after = (np.moveaxis(padded, axis, 0)[n : n - 2 or None] for n in (0, 2))
        mixed = np.moveaxis(before + after, 0, axis) * np.float32(0.25)
        values = values * np.float32(0.5) + mixed
    return values


def _signal(canvas: Canvas, rng: Rng, noise: float) -> np.ndarray:
    """The magnitude image: coil shading, then the length of a complex number with noise."""
    x, y, z = (axis * np.float32(0.01) for axis in (canvas.x, canvas.y, canvas.z))
    a, b, c, d, e = (np.float32(between(rng, -0.18, 0.18)) for _ in range(5))
    shading = (np.float32(1) + a * x) + (b * y + c * z) + (d * x * x + e * y * z)
    real = _partial_volume(canvas.mr) * shading + bell(rng, canvas.mr.shape, noise)
    other = bell(rng, canvas.mr.shape, noise)
    return np.sqrt(real * real + other * other)


@dataclass(frozen=True)
class Made:
    """Files and facts of one case."""

    public: dict[str, bytes]
    private: dict[str, bytes]
    facts: dict[str, Any]


def _case(rng: Rng, size: Mapping[str, Any], axcodes: str, slope: float) -> Made:
    grid = _grid(rng, size, axcodes)
    canvas = Canvas(grid, round(between(rng, -0.05, 0.05), 3), between(rng, 0.95, 1.05))
    head = Head.draw(rng)
    shapes = _outline(rng, head)
    _soft_tissue(canvas, rng, shapes)
    _skull(canvas, rng, head)
    _brain(canvas, rng, head)
    _skull_base(canvas, rng, head)
    _face(canvas, rng, head)
    body, region = canvas.union(shapes, 0.0), canvas.union(shapes, 5.0)
    canvas.fill(~body, AIR)
    # An MR scanner's unit means nothing: white matter is anywhere between 60 and 1100.
    white = 60 * (1 + between(rng, 0, 1.1)) * (1, 2.4, 5, 8.5)[int(rng.integers(4))]
    signal = _signal(canvas, rng, between(rng, *size["noise"])) * np.float32(white)
    stored = np.rint(signal * np.float32(1 / slope)).clip(0, 32767).astype(np.int16)
    truth = np.rint(_partial_volume(canvas.ct)).astype(np.int16)
    inside = int(region.sum())
    facts = {
        "orientation": grid.axcodes,
        "spacing_mm": list(grid.zooms),
        "mean_signal": round(slope * int(stored[region].sum(dtype=np.int64)) / inside, 4),
        "signal": [float(stored.min()) * slope, float(stored.max()) * slope],
        "scaled": slope != 1.0,
        "mean_hu": round(int(truth.sum(dtype=np.int64)) / truth.size, 3),
    }
    return Made(
        {
            "mr.nii.gz": pack(stored, grid.affine, slope),
            "mask.nii.gz": pack(region.astype(np.uint8), grid.affine),
        },
        {
            "synth.nii.gz": pack(truth, grid.affine),
            "mask.nii.gz": pack(body.astype(np.uint8), grid.affine),
        },
        facts,
    )


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: MR cases with their masks, one further probe case, and their CT.

    Cases start at a random place in the orientations and slopes and walk on, so that every
    instance mixes both.
    """
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    count = int(rng.integers(wanted["cases"][0], wanted["cases"][1] + 1)) + 1
    codes, first = rng.permutation(len(AXCODES)), int(rng.integers(len(SLOPES)))
    names = case_names(rng, fiction["prefix"], count)
    made = {
        name: _case(rng, wanted, AXCODES[codes[n]], SLOPES[(first + n) % len(SLOPES)])
        for n, name in enumerate(names)
    }
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    facts = {case: made[case].facts for case in cases}
    signals = [value for fact in facts.values() for value in fact["signal"]]
    by_case = {
        key: {case: fact[one] for case, fact in facts.items()}
        for key, one in (
            ("orientations", "orientation"),
            ("spacing_mm", "spacing_mm"),
            ("mean_signal", "mean_signal"),
            ("pilot_truth", "mean_hu"),
        )
    }
    return Generated(
        cases=cases,
        public={
            f"{case}/{name}": data for case in cases for name, data in made[case].public.items()
        },
        private={
            f"{case}/{name}": data for case in cases for name, data in made[case].private.items()
        },
        facts={
            "case_count": len(cases),
            "signal_range": [min(signals), max(signals)],
            "inputs": {
                "dtype": "int16",
                "ndim": 3,
                "scaled": any(fact["scaled"] for fact in facts.values()),
            },
            **by_case,
        },
        probe_case=probe,
        probe_public=made[probe].public,
        probe_private=made[probe].private,
    )
