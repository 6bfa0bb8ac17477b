"""An axial slice of a head as MR shows it: tissues painted one over the other.

Arrays meet only operations that IEEE 754 rounds exactly, so that the same seed gives the same
bytes on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from bat_env.tasks.drawing import Rng, between

# Signal of white matter, grey matter, fluid, fat, and of a lesion relative to white matter.
WEIGHTINGS = {
    "T1": (800, 560, 210, 1250, 0.62),
    "T2": (480, 680, 1300, 1000, 1.8),
    "FLAIR": (560, 720, 150, 900, 1.8),
}
BRAIN, SKULL = 0.82, 0.85  # Where brain and skull begin; the skin is at 0.97.

F = np.float32


def smooth_field(rng: Rng, shape: tuple[int, ...], knots: int) -> np.ndarray:
    """A smooth random image in [-1, 1]: value noise on ``knots`` x ``knots`` squares."""
    grid = (rng.random((knots + 1, knots + 1)) * 2 - 1).astype(np.float32)
    places, weights = [], []
    for count in shape:
        at = ((np.arange(count) + 0.5) * (knots / count)).astype(np.float32)
        low = at.astype(np.int32)
        part = at - low
        places.append(low)
        weights.append(part * part * (F(3) - F(2) * part))
    (i, j), (s, t) = places, weights
    rows = grid[i] + (grid[i + 1] - grid[i]) * s[:, None]
    return rows[:, j] + (rows[:, j + 1] - rows[:, j]) * t[None, :]


def inside(level: np.ndarray) -> np.ndarray:
    """How much of each pixel lies where ``level`` is positive, about: edges are a pixel wide."""
    steepest = np.full(level.shape, F(1e-4))
    for axis in (0, 1):
        step = np.abs(np.diff(level, axis=axis))
        first = [(1, 0) if axis == a else (0, 0) for a in (0, 1)]
        last = [(0, 1) if axis == a else (0, 0) for a in (0, 1)]
        side = np.maximum(np.pad(step, first), np.pad(step, last))
        steepest = np.sqrt(steepest * steepest + side * side)
    return np.clip(level / steepest + F(0.5), 0, 1)


class Canvas:
    """A slice, float32: rows run to the back, columns to the patient's left, in half heads."""

    def __init__(self, rng: Rng, shape: tuple[int, int], head: tuple[float, float]) -> None:
        self.head = head
        self.shape = shape
        axes = [
            ((np.arange(n) - (n - 1) / 2) / h).astype(F) for n, h in zip(shape, head, strict=True)
        ]
        self.y, self.x = axes[0][:, None], axes[1][None, :]
        # Shapes are painted at places moved smoothly by some millimetres: no outline is an ellipse.
        self.v = self.y + smooth_field(rng, shape, 5) * F(0.04)
        self.u = self.x + smooth_field(rng, shape, 5) * F(0.04)
        self.away = np.sqrt(self.v * self.v + self.u * self.u)
        self.signal = np.zeros(shape, np.float32)

    def share(self, centre: Any, radii: Any, tilt: float = 0.0) -> np.ndarray:
        """How much of each pixel an ellipse (y, x) covers, about; ``tilt`` shears it."""
        dv, du = self.v - F(centre[0]), self.u - F(centre[1])
        du = du - F(tilt) * dv if tilt else du
        dv, du = dv * F(1 / radii[0]), du * F(1 / radii[1])
        edge = F(min(radii[0] * self.head[0], radii[1] * self.head[1]))
        return np.clip((F(1) - np.sqrt(dv * dv + du * du)) * edge + F(0.5), 0, 1)

    def mix(self, share: np.ndarray, signal: Any) -> None:
        """Replace a share of every pixel by a signal, a number or an image."""
        self.signal = self.signal + (signal - self.signal) * share

    def paint(self, centre: Any, radii: Any, signal: float, tilt: float = 0.0) -> None:
        """Fill an ellipse."""
        self.mix(self.share(centre, radii, tilt), F(signal))


def _rind(canvas: Canvas, rng: Rng, grey: float, fat: float) -> None:
    """Skin, fat, muscles and skull: rings about the brain."""
    outer = between(rng, 0.9, 0.93)
    canvas.paint((0, 0), (0.97, 0.97), grey * 0.9)
    canvas.paint((0, 0), (0.955, 0.955), fat)
    canvas.paint((0, 0), (outer + 0.02, outer + 0.02), grey * 0.7)
    skin = canvas.share((0, 0), (0.94, 0.94))
    for side in (-1, 1):  # The muscles of the temples.
        temple = canvas.share((between(rng, -0.25, -0.05), side * 0.9), (0.32, 0.06))
        canvas.mix(temple * skin, F(grey * 0.75))
    canvas.paint((0, 0), (outer, outer), 30.0)
    marrow = (outer + 0.855) / 2
    canvas.paint((0, 0), (marrow + 0.013, marrow + 0.013), fat * 0.55)
    canvas.paint((0, 0), (marrow - 0.013, marrow - 0.013), 30.0)


def _cortex(canvas: Canvas, rng: Rng, white: float, grey: float, fluid: float) -> None:
    """Folds: where a smooth random image is near zero there is a furrow, lined by grey matter."""
    # Fine heads have more folds: a fold is some pixels wide.
    knots = round(min(canvas.head) * between(rng, 0.08, 0.1))
    folds = smooth_field(rng, canvas.shape, knots)
    folds = folds + smooth_field(rng, canvas.shape, knots * 3 // 2) * F(0.2)
    # The midline is a furrow too.
    middle = np.abs(canvas.u) * F(7)
    folds = np.minimum(np.abs(folds), middle + np.clip(F(0.5) - canvas.away, 0, 1) * F(9))
    out = np.clip((canvas.away - F(0.5)) * F(1 / (BRAIN - 0.5)), 0, 1)
    brain = canvas.share((0, 0), (BRAIN, BRAIN))
    canvas.paint((0, 0), (SKULL, SKULL), fluid)
    canvas.mix(brain, F(white))
    lining = inside(out * F(0.62) - folds) * (canvas.away > 0.47)
    rim = np.clip((canvas.away - F(BRAIN - 0.055)) * F(canvas.head[1]) + F(0.5), 0, 1)
    canvas.mix(np.maximum(lining, rim) * brain, F(grey))
    furrow = inside(out * F(0.25) - folds) * (canvas.away > 0.55)
    canvas.mix(furrow * brain, F(fluid))


def _depth(canvas: Canvas, rng: Rng, white: float, grey: float, fluid: float) -> None:
    """Basal ganglia, thalami, ventricles."""
    wide = between(rng, 0.7, 1.3)
    third = (0.13, 0.018 * wide)
    for side in (-1, 1):
        putamen = (between(rng, -0.08, 0.0), side * between(rng, 0.27, 0.32))
        canvas.paint(putamen, (between(rng, 0.16, 0.2), 0.07), grey * 1.02, tilt=side * 0.25)
        canvas.paint((0.12, side * 0.12), (0.13, 0.1), grey * 0.97, tilt=side * -0.3)
        canvas.paint((-0.24, side * 0.15), (0.1, 0.055), grey, tilt=side * 0.3)
        horn = (between(rng, 0.12, 0.16), between(rng, 0.035, 0.05) * wide)
        canvas.paint((-0.25, side * 0.08), horn, fluid, tilt=side * 0.45)
        back = (between(rng, 0.14, 0.2), between(rng, 0.04, 0.06) * wide)
        canvas.paint((0.36, side * 0.2), back, fluid, tilt=side * -0.35)
    canvas.paint((0.08, 0), third, fluid)


def head(rng: Rng, shape: tuple[int, int], half: tuple[float, float]) -> Canvas:
    """Paint a head.

    Args:
        rng: Source of everything random.
        shape: Rows and columns.
        half: Half of the head's length (rows) and width (columns), pixels.
    """
    canvas = Canvas(rng, shape, half)
    levels = WEIGHTINGS[tuple(WEIGHTINGS)[int(rng.integers(len(WEIGHTINGS)))]]
    white, grey, fluid, fat = (level * between(rng, 0.94, 1.06) for level in levels[:4])
    _rind(canvas, rng, grey, fat)
    _cortex(canvas, rng, white, grey, fluid)
    _depth(canvas, rng, white, grey, fluid)
    for _ in range(int(rng.integers(4, 9))):  # Lesions of white matter.
        spot = (between(rng, -0.5, 0.5), between(rng, 0.2, 0.5) * (-1, 1)[int(rng.integers(2))])
        size = [between(rng, 0.022, 0.05) for _ in range(2)]
        canvas.paint(spot, size, white * levels[4], tilt=between(rng, -0.5, 0.5))
    for _ in range(int(rng.integers(2, 5))):  # Vessels with inflow: few, and far brighter.
        spot = (between(rng, -0.7, 0.7), between(rng, -0.6, 0.6))
        size = between(rng, 0.025, 0.035)
        canvas.paint(spot, (size, size), between(rng, 2400, 3600))
    grain = smooth_field(rng, shape, 40) * F(0.02) + F(1)
    canvas.signal = canvas.signal * grain
    return canvas
