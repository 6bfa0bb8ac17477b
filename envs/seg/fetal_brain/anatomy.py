"""A fetal head as nested surfaces in its own coordinates, and its T2-weighted signal.

Only operations that IEEE 754 rounds exactly are used on arrays (no sine, no exponential), so that
the same seed gives the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bat_env.tasks.drawing import between

TISSUES = (
    "external_csf",
    "grey_matter",
    "white_matter",
    "ventricles",
    "cerebellum",
    "deep_grey_matter",
    "brainstem",
)
"""Tissues in the order of their labels 1, 2, ..."""
CSF, GREY, WHITE, VENTRICLES, CEREBELLUM, DEEP, STEM = range(1, 8)


@dataclass(frozen=True)
class Head:
    """A drawn fetus.

    Attributes:
        weeks: Gestational age.
        half_mm: Half width, half length and half height of the cerebrum, mm.
        turn: 3x3 rotation of the head in the scanner, rows of numbers.
        sulcus: Depth of the sulci, relative to the half sizes.
        cortex: Thickness of the cortex, likewise.
        space: Width of the fluid space around the brain, likewise.
        waves: Folds along an axis.
        phases: Where they begin.
        ventricles: Factor of the ventricles' width; 2 is ventriculomegaly.
        shift: Small displacements of the inner structures.
    """

    weeks: float
    half_mm: tuple[float, float, float]
    turn: tuple[tuple[float, float, float], ...]
    sulcus: float
    cortex: float
    space: float
    waves: float
    phases: tuple[float, float]
    ventricles: float
    shift: tuple[float, ...]

    @property
    def reach_mm(self) -> tuple[float, float, float]:
        """Half sizes of a box around the head, skull and scalp included, before it is turned."""
        wide, long, high = (h * (1.0 + self.space + 0.3) for h in self.half_mm)
        return wide, long, high


def _rotation(rng: np.random.Generator, most: float) -> tuple[tuple[float, float, float], ...]:
    """Turns about the three axes one after another; a rational rotation needs no sine."""
    turn = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    for axis in range(3):
        t = round(between(rng, -most, most), 3)
        cos, sin = (1 - t * t) / (1 + t * t), 2 * t / (1 + t * t)
        a, b = [n for n in range(3) if n != axis]
        first, second = list(turn[a]), list(turn[b])
        turn[a] = [cos * p - sin * q for p, q in zip(first, second, strict=True)]
        turn[b] = [sin * p + cos * q for p, q in zip(first, second, strict=True)]
    return tuple((row[0], row[1], row[2]) for row in turn)


def draw_head(rng: np.random.Generator, enlarged: bool) -> Head:
    """Draw a fetus of 21 to 35 weeks; ``enlarged`` ventricles are the commonest finding."""
    weeks = between(rng, 21, 35)
    age = (weeks - 21) / 14
    size = (1 + 0.62 * age) * between(rng, 0.96, 1.05)
    half = (26.5 * size, 33.5 * size, 26.0 * size * between(rng, 0.96, 1.04))
    return Head(
        weeks=weeks,
        half_mm=half,
        turn=_rotation(rng, 0.11),
        sulcus=0.03 + 0.11 * age,
        cortex=between(rng, 0.145, 0.17) - 0.03 * age,
        space=between(rng, 0.11, 0.15) - 0.04 * age,
        waves=1.4 + 1.5 * age,
        phases=(between(rng, 0, 1), between(rng, 0, 1)),
        ventricles=between(rng, 1.5, 1.9) if enlarged else between(rng, 0.85, 1.2),
        shift=tuple(between(rng, -0.025, 0.025) for _ in range(6)),
    )


def _triangle(t: np.ndarray) -> np.ndarray:
    """A wave of period 1 between -1 and 1."""
    return np.float32(4) * np.abs(t - np.floor(t + np.float32(0.5))) - np.float32(1)


class Canvas:
    """A head on a grid: relative coordinates, and the label map.

    Args:
        head: The fetus.
        world: World x, y, z (RAS, mm) of every voxel, the head at the origin.
    """

    def __init__(self, head: Head, world: Sequence[np.ndarray]) -> None:
        x, y, z = world
        self._head = head
        self.u, self.v, self.w = (
            (np.float32(a) * x + np.float32(b) * y + np.float32(c) * z) * np.float32(1 / half)
            for (a, b, c), half in zip(head.turn, head.half_mm, strict=True)
        )
        self.radius = np.sqrt(self.u * self.u + self.v * self.v + self.w * self.w)
        # The cerebrum rests on a plane that rises towards the back and sinks at the temples; the
        # posterior fossa lies below it.
        rise = np.float32(0.28) * (-self.v).clip(-0.6, 1)
        temple = np.float32(0.5) * (np.abs(self.u) - np.float32(0.22)).clip(0, 0.45)
        self._above = self.w - (rise - temple - np.float32(0.4))
        self.cavity = self._around(head.space)
        self.skull = self._around(head.space + 0.1) & ~self.cavity
        self.labels = np.zeros(x.shape, np.uint8)
        self._tissues()

    def _around(self, margin: float) -> np.ndarray:
        """What lies in the cerebrum and posterior fossa, or nearer to them than a margin."""
        fossa = self._ball((0, -0.42, -0.5), (0.5 + margin, 0.44 + margin, 0.38 + margin))
        return (self.radius <= 1 + margin) & ((self._above > -margin) | fossa)

    def _ball(self, centre: Sequence[float], radii: Sequence[float]) -> np.ndarray:
        axes = zip((self.u, self.v, self.w), centre, radii, strict=True)
        d = [(axis - np.float32(c)) * np.float32(1 / r) for axis, c, r in axes]
        return d[0] * d[0] + d[1] * d[1] + d[2] * d[2] <= 1.0

    def _tissues(self) -> None:
        head, labels = self._head, self.labels
        s = head.shift
        labels[self.cavity] = CSF
        ring = _triangle(
            np.float32(head.waves) * self.v + np.float32(0.6) * self.w + np.float32(head.phases[0])
        )
        cross = _triangle(
            np.float32(head.waves) * self.w
            - np.float32(0.5) * np.abs(self.u)
            + np.float32(head.phases[1])
        )
        furrow = (np.maximum(ring, cross) - np.float32(0.45)).clip(0, 0.55)
        depth = furrow * np.float32(head.sulcus / 0.55)
        above = self._above > 0
        cerebrum = (self.radius <= 1 - depth) & above
        inner = self.radius <= 1 - np.float32(head.cortex) - np.float32(0.9) * depth
        base = self._above > np.float32(head.cortex)
        labels[cerebrum] = GREY
        labels[cerebrum & inner & base] = WHITE
        # Between the hemispheres: fluid, and cortex on both sides.
        middle = np.abs(self.u - np.float32(s[0] * 0.4))
        fissure = cerebrum & (self.radius > 0.56) & (self.w > -0.15)
        labels[fissure & (middle < np.float32(0.045 + 0.9 * head.cortex)) & above] = GREY
        labels[fissure & (middle < 0.05)] = CSF
        wide = head.ventricles
        for side in (-1, 1):
            deep = self._ball((side * 0.2, 0.06 + s[1], -0.13 + s[2]), (0.18, 0.34, 0.19))
            labels[deep & above] = DEEP
            body = self._ball(
                (side * (0.19 + 0.04 * wide), -0.02 + s[3], 0.17),
                (0.105 * wide, 0.46, 0.14 * wide),
            )
            horn = self._ball(
                (side * (0.27 + 0.03 * wide), -0.42 + s[3], 0.04),
                (0.12 * wide, 0.24, 0.16 * wide),
            )
            labels[(body | horn) & inner] = VENTRICLES
        labels[self._ball((0, -0.08 + s[4], -0.52), (0.19, 0.2, 0.44)) & self.cavity] = STEM
        for side in (-1, 1):
            lobe = self._ball((side * 0.19, -0.52 + s[5], -0.58), (0.33, 0.28, 0.27))
            labels[lobe & self.cavity & (self.labels != STEM)] = CEREBELLUM
        vermis = self._ball((0, -0.52 + s[5], -0.56), (0.14, 0.23, 0.25))
        labels[vermis & self.cavity & (self.labels != STEM)] = CEREBELLUM


def signal(rng: np.random.Generator, canvas: Canvas, head: Head) -> np.ndarray:
    """T2-weighted signal, fluid at about 1, without noise and bias field.

    Unmyelinated white matter is brighter than grey matter; the gap closes with age.
    """
    age = (head.weeks - 21) / 14
    grey = between(rng, 0.48, 0.56)
    levels = np.zeros(8, np.float32)
    levels[CSF] = between(rng, 0.94, 1.04)
    levels[VENTRICLES] = levels[CSF] - np.float32(between(rng, 0.0, 0.06))
    levels[GREY] = grey
    levels[WHITE] = grey + between(rng, 0.17, 0.24) - 0.05 * age
    levels[DEEP] = grey + between(rng, -0.03, 0.04)
    levels[CEREBELLUM] = grey + between(rng, 0.0, 0.08)
    levels[STEM] = grey + between(rng, -0.08, -0.02)
    image = levels[canvas.labels]
    image[canvas.skull] = np.float32(between(rng, 0.1, 0.2))
    outside = ~(canvas.cavity | canvas.skull)
    layers = _triangle(np.float32(5.0) * canvas.radius + canvas.u * np.float32(1.5))
    scalp = np.float32(between(rng, 0.4, 0.7)) + np.float32(0.15) * layers
    image[outside] = scalp[outside]
    return image


def smoothed(image: np.ndarray) -> np.ndarray:
    """Weights 1, 2, 1 along every axis: the partial volume of neighbours."""
    for axis in range(3):
        first = [slice(None)] * 3
        last = [slice(None)] * 3
        first[axis], last[axis] = slice(0, 1), slice(-1, None)
        padded = np.concatenate([image[tuple(first)], image, image[tuple(last)]], axis)
        n = image.shape[axis]
        parts = [np.take(padded, range(k, k + n), axis) for k in range(3)]
        image = (parts[0] + parts[2]) * np.float32(0.25) + parts[1] * np.float32(0.5)
    return image


def bias(rng: np.random.Generator, canvas: Canvas) -> np.ndarray:
    """A smooth receive field around 1: a polynomial of second degree."""
    a, b, c, d, e = (between(rng, -0.3, 0.3) for _ in range(5))
    u, v, w = canvas.u, canvas.v, canvas.w
    field = np.float32(1) + np.float32(a) * u + np.float32(b) * v + np.float32(c) * w
    field = field + np.float32(d * 0.5) * (u * v) + np.float32(e * 0.5) * (w * w)
    return field.clip(0.35, 2.0)
