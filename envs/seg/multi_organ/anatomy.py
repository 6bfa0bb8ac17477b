"""The abdomen as shapes in world coordinates (RAS, mm): drawn from a seed, painted on any grid.

Only operations that IEEE 754 rounds exactly are used on arrays, so that the same seed gives the
same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from bat_env.tasks.drawing import between
from bat_env.tasks.volumes import box_around

AIR, LUNG = -1000.0, -850.0
ORGANS = (
    "spleen",
    "kidney_right",
    "kidney_left",
    "gallbladder",
    "liver",
    "stomach",
    "aorta",
    "pancreas",
)
"""Organs in the order of their labels 1, 2, ..."""


@dataclass(frozen=True)
class Ellipsoid:
    """An ellipsoid; ``shear`` moves it along x with height (mm per mm)."""

    centre: tuple[float, float, float]
    radii: tuple[float, float, float]
    shear: float = 0.0


@dataclass(frozen=True)
class Tube:
    """An elliptic cylinder along z that bends to the side by ``bend`` mm at 100 mm from z = 0."""

    centre: tuple[float, float]
    radii: tuple[float, float]
    bend: float = 0.0


@dataclass(frozen=True)
class Part:
    """Something of one density: the union of shapes, without holes.

    Attributes:
        hu: Density in Hounsfield units.
        shapes: What it is made of.
        holes: What is cut out of it.
        organ: Name in :data:`ORGANS`, or "" for what is not labelled.
    """

    hu: float
    shapes: tuple[Ellipsoid | Tube, ...]
    holes: tuple[Ellipsoid, ...] = ()
    organ: str = ""


@dataclass(frozen=True)
class Abdomen:
    """Parts in painting order, and the height of each organ.

    Attributes:
        parts: Later ones cover earlier ones.
        gas_y: Front part of the stomach, from this y on, is gas.
        heights: Organ -> (lowest, highest) z in mm, of the organs that are there.
    """

    parts: tuple[Part, ...]
    gas_y: float
    heights: dict[str, tuple[float, float]] = field(default_factory=dict)


class Canvas:
    """A CT volume (HU, float32) and its label map, painted part by part.

    Args:
        world: World x, y, z of every voxel.
        affine: 4x4 voxel-to-world.
        build: Size of the patient relative to the shapes.
    """

    def __init__(self, world: Sequence[np.ndarray], affine: np.ndarray, build: float = 1.0) -> None:
        self.x, self.y, self.z = (axis * np.float32(1 / build) for axis in world)
        # LAPACK may round differently elsewhere: for bounds with a margin only.
        self._to_voxel = np.linalg.inv(np.diag([1 / build] * 3 + [1.0]) @ affine)
        self.hu = np.full(self.x.shape, AIR, np.float32)
        self.labels = np.zeros(self.x.shape, np.uint8)

    def paint(self, part: Part, gas_y: float | None = None) -> None:
        """Give a part its density and label; from ``gas_y`` on towards the front it is gas."""
        mask = np.zeros(self.hu.shape, bool)
        for shapes, value in ((part.shapes, True), (part.holes, False)):
            for shape in shapes:
                near, inside = self._inside(shape)
                mask[near][inside] = value
        self.hu[mask] = np.float32(part.hu)
        if gas_y is not None:
            self.hu[mask & (self.y > np.float32(gas_y))] = np.float32(LUNG)
        self.labels[mask] = ORGANS.index(part.organ) + 1 if part.organ else 0

    def _inside(self, shape: Ellipsoid | Tube) -> tuple[tuple[slice, ...], np.ndarray]:
        """The box that holds a shape, and which of its voxels lie in it."""
        if isinstance(shape, Tube):
            return (slice(None),) * 3, self._tube(shape)
        (a, b, c), (p, q, r) = shape.centre, shape.radii
        reach = (p + abs(shape.shear) * r, q, r)
        near = box_around(self._to_voxel, self.hu.shape, shape.centre, reach)
        dx, dy = self.x[near] - np.float32(a), self.y[near] - np.float32(b)
        dz = self.z[near] - np.float32(c)
        if shape.shear:
            dx = dx - np.float32(shape.shear) * dz
        dx, dy, dz = (
            dx * np.float32(1 / p),
            dy * np.float32(1 / q),
            dz * np.float32(1 / r),
        )
        return near, dx * dx + dy * dy + dz * dz <= 1.0

    def _tube(self, shape: Tube) -> np.ndarray:
        dx = self.x - np.float32(shape.centre[0])
        if shape.bend:
            dx = dx - np.float32(shape.bend / 1e4) * (self.z * self.z)
        dx = dx * np.float32(1 / shape.radii[0])
        dy = (self.y - np.float32(shape.centre[1])) * np.float32(1 / shape.radii[1])
        return dx * dx + dy * dy <= 1.0


def draw_abdomen(rng: np.random.Generator, resected: Collection[str]) -> Abdomen:
    """Draw a patient.

    Args:
        rng: Source of every number; how many are drawn does not depend on ``resected``.
        resected: Organs that were removed by surgery; fat or bowel lies in their place.
    """
    enhanced = between(rng, 92, 116)
    parts = _trunk(rng, enhanced)
    organs = _upper_organs(rng, enhanced) + _kidneys(rng, enhanced) + _midline(rng, enhanced)
    kept = [part for part in organs if part.organ not in resected]
    heights: dict[str, tuple[float, float]] = {}
    for part in kept:
        if part.organ and isinstance(part.shapes[0], Ellipsoid):
            low = min(s.centre[2] - s.radii[2] for s in part.shapes if isinstance(s, Ellipsoid))
            high = max(s.centre[2] + s.radii[2] for s in part.shapes if isinstance(s, Ellipsoid))
            heights[part.organ] = (low, high)
    return Abdomen(tuple(parts + kept), between(rng, 44, 52), heights)


def _trunk(rng: np.random.Generator, enhanced: float) -> list[Part]:
    """Wall, fat, lung bases, heart, bowel, spine and ribs."""
    wide, deep = between(rng, 138, 152), between(rng, 98, 110)
    fat, wall = between(rng, 8, 14), between(rng, 16, 22)
    # Muscle shares the organs' range, so that no threshold finds an organ.
    muscle = enhanced + between(rng, -30, -6)
    bone = between(rng, 160, 260)
    inner = (wide - fat - wall, deep - fat - wall)
    parts = [
        Part(between(rng, -115, -90), (Tube((0, 0), (wide, deep)),)),
        Part(muscle, (Tube((0, 0), (wide - fat, deep - fat)),)),
        Part(between(rng, -105, -78), (Tube((0, 0), inner),)),
    ]
    ribs = []
    for n in range(9):
        drop, side = between(rng, -4, 4), (-1, 1)[n % 2]
        x = side * (inner[0] + 5) * (0.94, 0.99, 0.8)[n % 3]
        y = deep * (-0.32, 0.08, -0.5)[n % 3]
        ribs.append(Ellipsoid((x, y, 116.0 - 26 * (n // 2) + drop), (6, 14, 7)))
    parts.append(Part(bone + 60, tuple(ribs)))
    for side in (-1, 1):
        base = between(rng, 96, 112)
        lung = Ellipsoid((side * 62, -6, base + 88), (58, 68, 88))
        parts.append(Part(LUNG + between(rng, -20, 30), (lung,)))
    heart = Ellipsoid((-22, 28, between(rng, 152, 164)), (58, 42, 44))
    parts.append(Part(enhanced + between(rng, 15, 45), (heart,)))
    for n in range(16):
        spot = (between(rng, -92, 92), between(rng, 2, 62), between(rng, -112, 6))
        loop = (between(rng, 14, 26), between(rng, 13, 22), between(rng, 13, 24))
        # Some loops hold fluid, some contrast, and some as dense as an organ.
        hu = between(rng, *((10, 45), (60, 118), (95, 150))[n % 3])
        parts.append(Part(hu, (Ellipsoid(spot, loop),)))
    for side in (-1, 1):
        colon = Tube((side * between(rng, 86, 94), between(rng, 0, 14)), (19, 20))
        gap = Ellipsoid((side * 90, 6, 95), (40, 40, 92))
        parts.append(Part(between(rng, 15, 70), (colon,), (gap,)))
    back = between(rng, -62, -57)
    plain = between(rng, 48, 66)
    for side in (-1, 1):
        parts.append(Part(plain, (Tube((side * 38, back + 8), (17, 17)),)))
        parts.append(Part(plain, (Tube((side * 36, back - 20), (26, 14)),)))
        wing = Ellipsoid((side * 26, back - 8, between(rng, -40, 40)), (22, 6, 8))
        parts.append(Part(bone, (wing,)))
    parts.append(Part(bone, (Tube((0, back), (24, 19)),)))
    parts.append(Part(36.0, (Tube((0, back - 7), (9, 8)),)))
    return parts


def _upper_organs(rng: np.random.Generator, enhanced: float) -> list[Part]:
    """Liver, gallbladder, spleen and stomach."""
    x, y, z = between(rng, 58, 66), between(rng, 6, 16), between(rng, 38, 52)
    low = between(rng, 76, 90)
    left = Ellipsoid((between(rng, 2, 12), between(rng, 40, 48), z + 22), (56, 25, 36))
    right = Ellipsoid((x, y, z), (between(rng, 54, 60), between(rng, 56, 63), low), -0.08)
    liver = Part(enhanced + between(rng, -8, 10), (right, left), (), "liver")
    bladder = Ellipsoid(
        (between(rng, 40, 50), between(rng, 46, 54), z - low * 0.42),
        (between(rng, 15, 19), between(rng, 15, 19), between(rng, 24, 31)),
        between(rng, -0.3, 0.1),
    )
    gallbladder = Part(between(rng, 2, 24), (bladder,), (), "gallbladder")
    spot = (between(rng, -98, -90), between(rng, -26, -12), between(rng, 54, 68))
    size = (between(rng, 25, 31), between(rng, 34, 42), between(rng, 44, 54))
    spleen = Part(enhanced + between(rng, 4, 24), (Ellipsoid(spot, size, 0.12),), (), "spleen")
    fundus = (between(rng, -60, -50), between(rng, 18, 28), between(rng, 62, 76))
    antrum = (between(rng, -26, -14), between(rng, 44, 52), between(rng, 24, 32))
    stomach = Part(
        between(rng, 24, 62),
        (
            Ellipsoid(
                fundus,
                (between(rng, 32, 38), between(rng, 28, 34), between(rng, 36, 44)),
            ),
            Ellipsoid(antrum, (42, between(rng, 20, 24), between(rng, 19, 24))),
        ),
        (),
        "stomach",
    )
    return [liver, gallbladder, stomach, spleen]


def _kidneys(rng: np.random.Generator, enhanced: float) -> list[Part]:
    """Both kidneys with their sinus; the right one lies a little lower."""
    parts = []
    for side, name in ((1, "kidney_right"), (-1, "kidney_left")):
        down = between(rng, -14, 2) if side > 0 else between(rng, -6, 8)
        centre = (side * between(rng, 60, 70), between(rng, -42, -32), down)
        radii = (between(rng, 25, 29), between(rng, 22, 26), between(rng, 46, 54))
        kidney = Ellipsoid(centre, radii, -side * between(rng, 0.1, 0.22))
        sinus = Ellipsoid((centre[0] - side * 17, centre[1] + 4, down), (12, 10, 19))
        # One density for both: only the side tells them apart.
        parts.append(Part(enhanced + 26 + between(rng, -8, 8), (kidney,), (sinus,), name))
    return parts


def _midline(rng: np.random.Generator, enhanced: float) -> list[Part]:
    """Pancreas, great vessels."""
    level = between(rng, 2, 12)
    pancreas = Part(
        enhanced + between(rng, -26, -8),
        (
            Ellipsoid((between(rng, 24, 30), between(rng, 14, 20), level - 6), (19, 16, 25)),
            Ellipsoid((between(rng, -4, 4), between(rng, 20, 26), level + 12), (28, 13, 15)),
            Ellipsoid((between(rng, -44, -36), between(rng, 2, 10), level + 24), (32, 14, 16)),
        ),
        (),
        "pancreas",
    )
    bend = between(rng, -5, 5)
    side, wide = between(rng, -16, -9), between(rng, 11.5, 14.5)
    aorta = Part(
        enhanced + between(rng, 40, 75),
        (Tube((side, between(rng, -31, -27)), (wide, wide), bend),),
        (),
        "aorta",
    )
    cava = Part(
        enhanced + between(rng, 4, 30),
        (Tube((between(rng, 14, 19), -26), (12.5, 10), bend),),
    )
    return [pancreas, cava, aorta]
