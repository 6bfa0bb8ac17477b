"""A slab of an abdomen on a scanner's couch: shapes in HU, painted one over the other.

Arrays meet only operations that IEEE 754 rounds exactly, so that the same seed gives the same
bytes on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bat_env.tasks.drawing import Rng, between


def _smooth_field(rng: Rng, shape: tuple[int, ...], knots: int, height: float) -> np.ndarray:
    """A smooth random image within +- ``height``: value noise on ``knots`` x ``knots`` squares."""
    grid = ((rng.random((knots + 1, knots + 1)) * 2 - 1) * height).astype(np.float32)
    places, weights = [], []
    for count in shape:
        at = ((np.arange(count) + 0.5) * (knots / count)).astype(np.float32)
        low = at.astype(np.int32)
        part = at - low
        places.append(low)
        weights.append(part * part * (np.float32(3) - np.float32(2) * part))
    (i, j), (s, t) = places, weights
    rows = grid[i] + (grid[i + 1] - grid[i]) * s[:, None]
    return rows[:, j] + (rows[:, j + 1] - rows[:, j]) * t[None, :]


class Canvas:
    """A slab in HU, float32, axes x (to the patient's right), y (to the front), z (up), in mm.

    ``x`` and ``y`` are the places of the voxels; shapes are painted at ``u`` and ``v``, the same
    places moved smoothly by some millimetres, so that no outline is an ellipse.
    """

    def __init__(self, rng: Rng, shape: tuple[int, int, int], zooms: Any) -> None:
        self.pixel = zooms[0]
        axes = [(np.arange(n) - (n - 1) / 2) * mm for n, mm in zip(shape, zooms, strict=True)]
        self.x, self.y, self.z = (
            axis.astype(np.float32).reshape([-1 if a == b else 1 for b in range(3)])
            for a, axis in enumerate(axes)
        )
        self.u = self.x + _smooth_field(rng, shape[:2], 5, 7.0)[:, :, None]
        self.v = self.y + _smooth_field(rng, shape[:2], 5, 7.0)[:, :, None]
        self.hu = np.full(shape, -1000.0, np.float32)

    def share(self, centre: Any, radii: Any, tilt: float = 0.0) -> np.ndarray:
        """How much of each voxel an ellipsoid covers, about; ``tilt`` shears it in the slice.

        Two numbers instead of three mean a cylinder along z.
        """
        du, dv = self.u - np.float32(centre[0]), self.v - np.float32(centre[1])
        du = du - np.float32(tilt) * dv if tilt else du
        du, dv = du * np.float32(1 / radii[0]), dv * np.float32(1 / radii[1])
        away = du * du + dv * dv
        if len(radii) == 3:
            dz = (self.z - np.float32(centre[2])) * np.float32(1 / radii[2])
            away = away + dz * dz
        edge = np.float32(min(radii[:2]) / self.pixel)
        return np.clip((np.float32(1) - np.sqrt(away)) * edge + np.float32(0.5), 0, 1)

    def paint(self, centre: Any, radii: Any, hu: Any, tilt: float = 0.0) -> np.ndarray:
        """Fill an ellipsoid with a number or an image; returns how much of each voxel it covers."""
        share = self.share(centre, radii, tilt)
        self.hu = self.hu + (hu - self.hu) * share
        return share

    def branch(self, start: Any, end: Any, radius: float, hu: float, within: np.ndarray) -> None:
        """Paint a vessel from one point to another where ``within`` is 1."""
        step = [np.float32(b - a) for a, b in zip(start, end, strict=True)]
        length = np.float32(1 / sum(float(s) ** 2 for s in step))
        away = [v - np.float32(a) for v, a in zip((self.u, self.v, self.z), start, strict=True)]
        along = (away[0] * step[0] + away[1] * step[1] + away[2] * step[2]) * length
        along = np.clip(along, 0, 1)
        d = [a - along * s for a, s in zip(away, step, strict=True)]
        distance = np.sqrt(d[0] * d[0] + d[1] * d[1] + d[2] * d[2])
        share = np.clip((radius - distance) * np.float32(1 / self.pixel) + np.float32(0.5), 0, 1)
        self.hu = self.hu + (np.float32(hu) - self.hu) * share * within


def _liver(canvas: Canvas, rng: Rng, body: tuple[float, float], enhanced: float) -> None:
    """Paint a liver with its vessels, and metastases, cysts or a bright lesion in it."""
    a, b = body
    centre = (a * 0.42, b * 0.14, between(rng, -20, 20))
    radii = (a * between(rng, 0.34, 0.41), b * between(rng, 0.5, 0.58), between(rng, 60, 90))
    grain = _smooth_field(rng, canvas.hu.shape[:2], 24, 5.0)[:, :, None]
    tilt = between(rng, -0.2, 0.2)
    inside = canvas.paint(centre, radii, np.float32(enhanced) + grain, tilt)
    left = (a * between(rng, 0.02, 0.1), b * between(rng, 0.36, 0.44), centre[2])
    lobe = (a * between(rng, 0.2, 0.28), b * between(rng, 0.2, 0.26), radii[2])
    inside = np.maximum(inside, canvas.paint(left, lobe, np.float32(enhanced) + grain, tilt))
    hilum = (centre[0] - radii[0] * 0.5, centre[1] - radii[1] * 0.1, between(rng, -4, 4))
    for _ in range(int(rng.integers(3, 6))):
        end = [
            centre[0] + radii[0] * between(rng, -0.5, 0.8),
            centre[1] + radii[1] * between(rng, -0.8, 0.8),
            between(rng, -8, 8),
        ]
        canvas.branch(hilum, end, between(rng, 2.0, 3.6), enhanced + 35, inside)
    for _ in range(int(rng.integers(2, 5))):
        spot = [centre[n] + radii[n] * between(rng, -0.58, 0.58) for n in range(2)]
        size = a * between(rng, 0.04, 0.09)
        change = between(rng, 28, 55) * (-1, -1, 1)[int(rng.integers(3))]
        round_ = (size, size * between(rng, 0.8, 1.2), size)
        canvas.paint((*spot, between(rng, -4, 4)), round_, np.float32(enhanced + change))


def _organs(canvas: Canvas, rng: Rng, body: tuple[float, float]) -> None:
    """Paint an abdomen of these half axes (mm) that lies on a couch."""
    a, b = body
    muscle = np.float32(between(rng, 50, 70))
    fat = np.float32(between(rng, -115, -90))
    streaks = _smooth_field(rng, canvas.hu.shape[:2], 18, 9.0)[:, :, None]
    canvas.paint((0, 0), (a, b), np.float32(20))  # Skin.
    canvas.paint((0, 0), (a - 2.5, b - 2.5), fat)
    under = between(rng, 0.06, 0.2)  # Fat below the skin; most of it in front and at the sides.
    wall = (a * (1 - under), b * (0.98 - under))
    canvas.paint((0, -b * under * 0.4), wall, muscle)
    cavity = (wall[0] - a * 0.09, wall[1] - b * 0.11)
    canvas.paint((0, b * 0.02), cavity, fat + np.float32(between(rng, 0, 10)) + streaks)
    a, b = cavity[0] / 0.83, cavity[1] / 0.8
    for _ in range(int(rng.integers(7, 12))):
        spot = (a * between(rng, -0.55, 0.45), b * between(rng, -0.1, 0.58), between(rng, -15, 15))
        loop = (a * between(rng, 0.06, 0.11), b * between(rng, 0.09, 0.15), between(rng, 15, 30))
        filling = -600.0 if rng.random() < 0.15 else between(rng, 0, 40)
        canvas.paint(spot, loop, np.float32(between(rng, 60, 110)), between(rng, -0.4, 0.4))
        canvas.paint(spot, [r * 0.62 for r in loop], np.float32(filling))
    enhanced = between(rng, 85, 125)
    stomach = (-a * 0.26, b * between(rng, 0.34, 0.44), 0.0)
    canvas.paint(stomach, (a * 0.22, b * 0.24, 50.0), np.float32(between(rng, 15, 50)), 0.3)
    _liver(canvas, rng, (a, b), enhanced)
    spleen = (-a * 0.58, b * between(rng, -0.12, 0.08), between(rng, -15, 15))
    canvas.paint(spleen, (a * 0.16, b * 0.36, 55.0), np.float32(enhanced + between(rng, -5, 20)))
    spine = (a * between(rng, -0.02, 0.02), -b * 0.5)
    bright = enhanced + between(rng, 30, 70)
    for side in (-1, 1):
        psoas = (spine[0] + side * a * 0.17, -b * 0.47)
        canvas.paint(psoas, (a * 0.085, b * 0.13), muscle)
        back = (spine[0] + side * a * 0.2, -b * 0.74)
        canvas.paint(back, (a * 0.16, b * 0.17), muscle)
        kidney = (spine[0] + side * a * 0.38, -b * between(rng, 0.3, 0.42), between(rng, -25, 25))
        turned = side * between(rng, 0.1, 0.4)
        canvas.paint(kidney, (a * 0.13, b * 0.2, 50.0), np.float32(bright), turned)
        sinus = (kidney[0] - side * a * 0.06, kidney[1], kidney[2])
        canvas.paint(sinus, (a * 0.06, b * 0.08, 25.0), fat)
    bone = np.float32(between(rng, 150, 230))
    grain = _smooth_field(rng, canvas.hu.shape[:2], 40, 40.0)[:, :, None]
    canvas.paint(spine, (a * 0.14, b * 0.19), bone + 150)
    canvas.paint(spine, (a * 0.12, b * 0.16), bone + grain)
    for side in (-1, 1):  # Arch and processes of the vertebra.
        canvas.paint(
            (spine[0] + side * a * 0.09, spine[1] - b * 0.2), (a * 0.03, b * 0.1), bone + 200
        )
        canvas.paint(
            (spine[0] + side * a * 0.15, spine[1] - b * 0.24), (a * 0.08, b * 0.03), bone + 200
        )
    canvas.paint((spine[0], spine[1] - b * 0.34), (a * 0.025, b * 0.1), bone + 200)
    canvas.paint((spine[0], spine[1] - b * 0.22), (a * 0.06, b * 0.07), np.float32(35))
    for x, y, size in ((-0.07, 0.27, 0.065), (0.1, 0.24, 0.06)):  # Aorta and vena cava.
        place = (spine[0] + a * x, spine[1] + b * y)
        canvas.paint(place, (a * size,) * 2, np.float32(enhanced + 40))
    for n in range(8):  # Ribs run forwards and down through the slab.
        x = (n % 2 * 2 - 1) * a * (0.87, 0.76, 0.72, 0.45)[n // 2]
        y = b * (0.02, 0.5, -0.45, -0.8)[n // 2] + b * between(rng, -0.06, 0.06)
        place = (x, y + canvas.z * np.float32(between(rng, 0.4, 0.9)))
        hard = np.float32(between(rng, 300, 600))
        lean = (0.0, -0.5, 0.5, 1.2)[n // 2] * (n % 2 * 2 - 1)
        canvas.paint(place, (a * 0.04, b * 0.085), hard, lean)
        canvas.paint(place, (a * 0.018, b * 0.055), np.float32(120), lean)


def _couch(canvas: Canvas, body: tuple[float, float]) -> None:
    """Paint the scanner's couch below the body: two thin shells."""
    for depth, hu in ((13.0, -40), (22.0, -120)):
        top = np.float32(-body[1] - depth) + canvas.x * canvas.x * np.float32(0.0009)
        share = np.clip(np.float32(1.8) - np.abs(canvas.y - top), 0, 1) * (canvas.hu < -900)
        canvas.hu = canvas.hu + (np.float32(hu) - canvas.hu) * share


def abdomen(rng: Rng, shape: tuple[int, int, int], zooms: Any, body: tuple[float, float]) -> Canvas:
    """Paint a patient.

    Args:
        rng: Source of everything random.
        shape: Voxels along x, y and z.
        zooms: Their sizes, mm.
        body: Half of the body's width and depth, mm.
    """
    canvas = Canvas(rng, shape, zooms)
    _organs(canvas, rng, body)
    _couch(canvas, body)
    return canvas
