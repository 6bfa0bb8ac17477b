"""Seeded CT patches of lung around a nodule candidate, and what the candidate is.

Shapes are evaluated at the world coordinates (RAS, mm) that the NIfTI affine gives to each voxel,
so orientation and spacing are true without any resampling. Exact arithmetic only on arrays (no
transcendental functions, no BLAS), so that the same seed gives the same bytes on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from bat_env.tasks.drawing import Rng, bell, between, case_names, generator, sizes_of
from bat_env.tasks.instance import Generated
from bat_env.tasks.volumes import CT_SCALINGS, WORLD, pack

AXCODES: Final = ("LPS", "RAS", "LAS", "RPI", "PIR", "SRA", "ASL", "IPL")
TYPICAL_TOP_PROBABILITY: Final = 0.9

Array = np.ndarray


def _direction(rng: Rng) -> list[float]:
    """A random unit vector."""
    while True:
        v = [between(rng, -1, 1) for _ in range(3)]
        square = v[0] * v[0] + v[1] * v[1] + v[2] * v[2]
        if 0.05 < square <= 1:
            return [n / float(np.sqrt(square)) for n in v]


def _soft(distance: Array, width: float) -> Array:
    """1 where a signed distance (mm) is well inside (positive), 0 outside."""
    return np.clip(distance * np.float32(1 / width) + np.float32(0.5), 0, 1)


class Grid:
    """A voxel grid whose middle is near the world's origin: where a detector saw something."""

    def __init__(self, rng: Rng, size: Mapping[str, Any], axcodes: str) -> None:
        in_plane = round(between(rng, *size["in_plane_mm"]), 2)
        by_world = (in_plane, in_plane, round(between(rng, *size["slice_mm"]), 2))
        extent = between(rng, *size["field_of_view_mm"])
        self.axcodes = axcodes
        self.affine = np.eye(4)
        self.affine[:3, :3] = 0
        shape, zooms = [], []
        for axis, code in enumerate(axcodes):
            world, sign = WORLD[code]
            shape.append(round(extent / by_world[world]))
            zooms.append(by_world[world])
            self.affine[world, axis] = sign * by_world[world]
            middle = sign * by_world[world] * (shape[axis] - 1) / 2
            self.affine[world, 3] = round(between(rng, -1.5, 1.5) - middle, 2)
        # What the header can hold, so that the file and the phantom agree to the last bit.
        self.affine = self.affine.astype(np.float32).astype(np.float64)
        self.shape, self.zooms = tuple(shape), tuple(zooms)

    def world(self) -> list[Array]:
        """World x, y, z, each along its own axis of the file (broadcastable)."""
        found: list[Array] = [np.zeros(1)] * 3
        for axis, code in enumerate(self.axcodes):
            world = WORLD[code][0]
            line = np.arange(self.shape[axis], dtype=np.float32)
            line = line * np.float32(self.affine[world, axis]) + np.float32(self.affine[world, 3])
            found[world] = line.reshape([-1 if a == axis else 1 for a in range(3)])
        return found


class Patch:
    """Hounsfield units of a patch, painted with soft masks in mm."""

    def __init__(self, rng: Rng, grid: Grid) -> None:
        self.rng = rng
        self.shape = grid.shape
        self.x, self.y, self.z = grid.world()
        lung = between(rng, -890, -810)
        self.hu = np.full(grid.shape, lung, np.float32)
        self.hu += (self.field(5) - np.float32(0.5)) * np.float32(between(rng, 60, 140))

    def field(self, cells: int) -> Array:
        """Smooth noise in [0, 1]: a coarse random grid, linearly interpolated along each axis."""
        value = self.rng.random((cells + 1,) * 3).astype(np.float32)
        for axis, count in enumerate(self.shape):
            place = np.arange(count, dtype=np.float32) * np.float32(cells / count)
            low = place.astype(int)
            share = (place - low).reshape([-1 if a == axis else 1 for a in range(3)])
            value = value.take(low, axis) * (1 - share) + value.take(low + 1, axis) * share
        return value

    def paint(self, mask: Array, hu: float) -> None:
        """Blend a density in."""
        self.hu = self.hu + mask * (np.float32(hu) - self.hu)

    def ball(self, centre: Any, radii: Any, soft: float, rough: float = 0.0) -> Array:
        """Soft mask of an ellipsoid; ``rough`` (mm) makes its surface uneven."""
        d = [
            (axis - np.float32(c)) * np.float32(1 / r)
            for axis, c, r in zip((self.x, self.y, self.z), centre, radii, strict=True)
        ]
        least = np.float32(min(radii))
        inside = (1 - np.sqrt(d[0] * d[0] + d[1] * d[1] + d[2] * d[2])) * least
        if rough:
            inside = inside + (self.field(7) - np.float32(0.5)) * np.float32(rough)
        return _soft(inside, soft)

    def along(self, centre: Any, way: Any) -> tuple[Array, Array]:
        """Distance along a line from a point, and distance from the line."""
        d = [a - np.float32(c) for a, c in zip((self.x, self.y, self.z), centre, strict=True)]
        t = d[0] * np.float32(way[0]) + d[1] * np.float32(way[1]) + d[2] * np.float32(way[2])
        far = d[0] * d[0] + d[1] * d[1] + d[2] * d[2] - t * t
        return t, np.sqrt(np.maximum(far, 0))

    def wall(self, world: int, sign: float, at: float) -> Array:
        """Soft mask of what lies beyond a plane: the chest wall."""
        return _soft((self.x, self.y, self.z)[world] * np.float32(sign) - np.float32(at), 1.5)


Painter = Callable[[Patch, Rng], None]


def _radii(rng: Rng, low: float, high: float) -> tuple[float, list[float]]:
    r = between(rng, low, high)
    return r, [r * between(rng, 0.85, 1.15) for _ in range(3)]


def _solid(patch: Patch, rng: Rng) -> None:
    _, radii = _radii(rng, 5.0, 8.5)
    patch.paint(patch.ball((0, 0, 0), radii, 1.4, 0.8), between(rng, 10, 90))


def _small_solid(patch: Patch, rng: Rng) -> None:
    """The same below 8 mm: nobody is called back for it. Size in mm alone tells it apart."""
    _, radii = _radii(rng, 2.5, 3.6)
    patch.paint(patch.ball((0, 0, 0), radii, 1.4, 0.4), between(rng, 10, 90))


def _calcified(patch: Patch, rng: Rng) -> None:
    """Like a solid one, with a dense middle (a granuloma) or several dense flecks (a hamartoma)."""
    r, radii = _radii(rng, 4.5, 8.5)
    patch.paint(patch.ball((0, 0, 0), radii, 1.4, 0.8), between(rng, 10, 90))
    dense = between(rng, 190, 620)
    if rng.random() < 0.5:
        patch.paint(patch.ball((0, 0, 0), [n * between(rng, 0.45, 0.7) for n in radii], 1.4), dense)
        return
    for _ in range(4):
        spot = [between(rng, -0.45, 0.45) * r for _ in range(3)]
        patch.paint(patch.ball(spot, [r * between(rng, 0.25, 0.4)] * 3, 1.2), dense)


def _part_solid(patch: Patch, rng: Rng) -> None:
    """A ground-glass halo around a smaller solid part."""
    r, radii = _radii(rng, 7.0, 11.0)
    patch.paint(patch.ball((0, 0, 0), radii, 3.0, 3.0), between(rng, -680, -480))
    spot = [between(rng, -0.3, 0.3) * r for _ in range(3)]
    core = [r * between(rng, 0.32, 0.55) for _ in range(3)]
    patch.paint(patch.ball(spot, core, 1.6, 1.0), between(rng, -60, 50))


def _spiculated(patch: Patch, rng: Rng) -> None:
    """An uneven solid body with strands that run into the lung."""
    r, radii = _radii(rng, 4.5, 8.0)
    hu = between(rng, 0, 70)
    for _ in range(int(rng.integers(10, 16))):
        t, far = patch.along((0, 0, 0), _direction(rng))
        reach, wide = r + between(rng, 3.5, 8.0), between(rng, 1.5, 2.4)
        thin = np.clip((np.float32(reach) - t) * np.float32(1 / (reach - 0.5 * r)), 0, 1)
        strand = _soft(np.float32(wide) * thin - far, 1.2) * _soft(t - np.float32(0.4 * r), 1.0)
        patch.paint(strand, between(rng, -220, 0))
    patch.paint(patch.ball((0, 0, 0), radii, 1.4, 3.5), hu)


def _vessel(patch: Patch, rng: Rng) -> None:
    """A vessel that runs through, often with a branch: no nodule at all."""
    hu, wide = between(rng, 10, 90), between(rng, 2.8, 5.0)
    way = _direction(rng)
    _, far = patch.along((0, 0, 0), way)
    patch.paint(_soft(np.float32(wide) - far, 1.4), hu)
    if rng.random() < 0.6:
        t, far = patch.along((0, 0, 0), _direction(rng))
        patch.paint(_soft(np.float32(wide * 0.8) - far, 1.4) * _soft(t, 1.0), hu)


def _on_wall(patch: Patch, rng: Rng, sign: float) -> None:
    """A flat opacity on the pleura, in front (``sign`` 1) or behind (-1)."""
    at = between(rng, 2, 8)
    radii = (between(rng, 8, 15), between(rng, 4.5, 7.5), between(rng, 8, 15))
    centre = (between(rng, -2, 2), sign * at, between(rng, -2, 2))
    patch.paint(patch.ball(centre, radii, 2.0, 2.0), between(rng, -160, 60))
    patch.paint(patch.wall(1, sign, at), between(rng, 20, 70))
    _rib(patch, rng, (1, sign, at))


def _plaque(patch: Patch, rng: Rng) -> None:
    _on_wall(patch, rng, 1.0)


def _dependent(patch: Patch, rng: Rng) -> None:
    _on_wall(patch, rng, -1.0)


PAINTERS: Final[dict[str, Painter]] = {
    "small_solid": _small_solid,
    "solid": _solid,
    "calcified": _calcified,
    "part_solid": _part_solid,
    "spiculated": _spiculated,
    "vessel": _vessel,
    "pleural_plaque": _plaque,
    "dependent_opacity": _dependent,
}


def _rib(patch: Patch, rng: Rng, wall: tuple[int, float, float]) -> None:
    """A rib in the chest wall, beyond its inner surface."""
    world, sign, at = wall
    centre = [between(rng, -12, 12) for _ in range(3)]
    centre[world] = sign * (at + between(rng, 7, 10))
    way = _direction(rng)
    way[world] = 0.0
    length = float(np.sqrt(way[0] * way[0] + way[1] * way[1] + way[2] * way[2])) or 1.0
    _, far = patch.along(centre, [n / length for n in way])
    patch.paint(_soft(between(rng, 4, 5.5) - far, 1.5), between(rng, 350, 700))
    patch.paint(_soft(between(rng, 2, 3) - far, 1.5), between(rng, 60, 160))


def _surroundings(patch: Patch, rng: Rng, walls: bool) -> None:
    """Small vessels, an airway, and sometimes a chest wall at any side."""
    for _ in range(int(rng.integers(2, 6))):
        centre = [between(rng, 6, 16) * n for n in _direction(rng)]
        _, far = patch.along(centre, _direction(rng))
        patch.paint(_soft(between(rng, 0.7, 1.6) - far, 1.2), between(rng, -150, 40))
    if rng.random() < 0.4:
        centre = [between(rng, 11, 16) * n for n in _direction(rng)]
        _, far = patch.along(centre, _direction(rng))
        lumen = between(rng, 1.2, 2.4)
        patch.paint(_soft(lumen + 1.2 - far, 1.0), between(rng, -250, -50))
        patch.paint(_soft(lumen - far, 1.0), -980)
    if walls and rng.random() < 0.4:
        wall = (int(rng.integers(3)), (-1.0, 1.0)[int(rng.integers(2))], between(rng, 9, 15))
        patch.paint(patch.wall(*wall), between(rng, 20, 70))
        if wall[0] < 2:
            _rib(patch, rng, wall)


def _case(
    rng: Rng, size: Mapping[str, Any], label: str, axcodes: str, scaling: int
) -> tuple[bytes, dict[str, Any]]:
    """File of one candidate, and its facts."""
    grid = Grid(rng, size, axcodes)
    patch = Patch(rng, grid)
    _surroundings(patch, rng, walls=PAINTERS[label] not in (_plaque, _dependent))
    PAINTERS[label](patch, rng)
    # Thin slices are noisier.
    sigma = between(rng, *size["noise_hu"]) / float(np.sqrt(grid.zooms[axcodes.find("S")]))
    hu = patch.hu + bell(rng, grid.shape, sigma) + np.float32(between(rng, -12, 12))
    slope, inter = CT_SCALINGS[scaling]
    stored = np.rint((hu.clip(-1024, 1500) - inter) / slope).astype(np.int16)
    scaled = stored.astype(np.float64) * slope + inter
    facts = {
        "orientation": axcodes,
        "spacing_mm": list(grid.zooms),
        "intensity_hu": [float(scaled.min()), float(scaled.max())],
        "scaled": bool(slope != 1 or inter != 0),
    }
    return pack(stored, grid.affine, slope, inter), facts


def _labels(rng: Rng, size: Mapping[str, Any]) -> list[str]:
    """Every class at least ``per_class`` times, the rest drawn with vessels more frequent."""
    names = list(PAINTERS)
    count = int(rng.integers(size["cases"][0], size["cases"][1] + 1))
    drawn = names * int(size["per_class"])
    while len(drawn) < count:
        drawn.append(names[int(rng.integers(len(names)))] if rng.random() < 0.6 else "vessel")
    return [drawn[int(n)] for n in rng.permutation(len(drawn))]


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: patches, one further probe patch, and their classes."""
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    labels = [*_labels(rng, wanted), "spiculated"]
    names = case_names(rng, fiction["prefix"], len(labels))
    # Cases walk through orientations and scalings from a random start: every instance mixes both.
    codes, first = rng.permutation(len(AXCODES)), int(rng.integers(len(CT_SCALINGS)))
    made = {}
    for n, (name, label) in enumerate(zip(names, labels, strict=True)):
        axcodes = AXCODES[int(codes[n % len(AXCODES)])]
        scaling = (first + n + n // len(CT_SCALINGS)) % len(CT_SCALINGS)
        made[name] = _case(rng, wanted, label, axcodes, scaling)
    truth = {
        name: json.dumps({"case": name, "label": label}).encode()
        for name, label in zip(names, labels, strict=True)
    }
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    facts = {case: made[case][1] for case in cases}
    hu = [value for fact in facts.values() for value in fact["intensity_hu"]]
    return Generated(
        cases=cases,
        public={f"{case}/ct.nii.gz": made[case][0] for case in cases},
        private={f"{case}/truth.json": truth[case] for case in cases},
        facts={
            "case_count": len(cases),
            "orientations": {case: fact["orientation"] for case, fact in facts.items()},
            "spacing_mm": {case: fact["spacing_mm"] for case, fact in facts.items()},
            "intensity_hu": [min(hu), max(hu)],
            "inputs": {
                "dtype": "int16",
                "ndim": 3,
                "scaled": any(fact["scaled"] for fact in facts.values()),
            },
            "pilot_truth": dict.fromkeys(cases, TYPICAL_TOP_PROBABILITY),
        },
        probe_case=probe,
        probe_public={"ct.nii.gz": made[probe][0]},
        probe_private={"truth.json": truth[probe]},
    )
