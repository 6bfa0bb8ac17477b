"""Seeded radiographs of wrists with fractures, bone lesions, periosteal reactions and metal.

A picture is a projection: every bone adds the length of the ray's way through its wall, so that
shafts are denser at their walls and carpal bones that overlap are brighter. Exact arithmetic only
(no transcendental functions, no BLAS): the same seed gives the same bytes on every machine. Values
are 12 bits in 16; a part of the files is stored inverted (MONOCHROME1), as their text chunk says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from bat_env.tasks.drawing import Rng, between, case_names, generator, sizes_of, smooth_field
from bat_env.tasks.instance import Generated
from bat_env.tasks.png import encode_png

CLASSES: Final = ("fracture", "bone_lesion", "periosteal_reaction", "metal")
WHITE: Final = 4095
CLARITY: Final = (0.2, 0.92)
"""How much of its full contrast a finding has."""
GAP: Final = 0.1
"""Least distance between two findings, in half widths of the picture."""
CARPUS: Final = (
    # Across, along, half sides: two rows of four small bones.
    (-0.33, -0.2, 0.15, 0.12),
    (-0.09, -0.23, 0.14, 0.12),
    (0.14, -0.2, 0.13, 0.11),
    (0.25, -0.15, 0.09, 0.09),
    (-0.4, -0.42, 0.13, 0.12),
    (-0.2, -0.45, 0.11, 0.11),
    (0.0, -0.46, 0.13, 0.16),
    (0.22, -0.42, 0.14, 0.14),
)
LETTERS: Final = {
    "L": ("100", "100", "100", "100", "111"),
    "R": ("110", "101", "110", "101", "101"),
}

Array = np.ndarray


def _soft(distance: Array, width: float) -> Array:
    """1 where a signed distance is well inside (positive), 0 outside."""
    return np.clip(distance / width + 0.5, 0, 1)


class Bone(NamedTuple):
    """A long bone: it runs from its joint end along ``l``, its axis leaning by ``slope``."""

    a: float
    slope: float
    half: float
    end: float
    flare: float

    def centre(self, along: float) -> float:
        """Position across the forearm of the bone's axis."""
        return self.a + self.slope * along


class Spot(NamedTuple):
    """A finding in the forearm's own axes: class, centre, half sides, side of the bone."""

    name: str
    a: float
    b: float
    half_a: float
    half_b: float
    side: float = 1.0

    def clear_of(self, other: Spot) -> bool:
        """Whether another finding is far enough away to be told apart."""
        across = abs(self.a - other.a) >= self.half_a + other.half_a + GAP
        return across or abs(self.b - other.b) >= self.half_b + other.half_b + GAP


class Canvas:
    """Attenuation of a wrist; 1 is half the picture's width, and fingers point up.

    ``a`` runs across the forearm and ``b`` along it, turned against the picture by a small angle
    (a rational rotation) and shifted.
    """

    def __init__(self, rng: Rng, height: int, width: int) -> None:
        self.rng = rng
        self.shape = (height, width)
        turn = between(rng, -0.09, 0.09)
        self.cos, self.sin = (1 - turn * turn) / (1 + turn * turn), 2 * turn / (1 + turn * turn)
        self.mirror = 1.0 if rng.random() < 0.5 else -1.0
        self.shift = (between(rng, -0.08, 0.08), between(rng, -0.1, 0.1))
        self.x = ((np.arange(width) + 0.5) / (width / 2) - 1)[None, :]
        self.y = ((np.arange(height) + 0.5) / (width / 2) - height / width)[:, None]
        x, y = self.x - self.shift[0], self.y - self.shift[1]
        self.a = (x * self.cos + y * self.sin) * self.mirror
        self.b = y * self.cos - x * self.sin
        self.value = np.zeros(self.shape)

    def box(self, spot: Spot) -> tuple[float, float, float, float]:
        """Outer edges (x1, y1, x2, y2) of a finding in pixels, cut at the picture's border."""
        height, width = self.shape
        a, lean = spot.a * self.mirror, abs(self.sin)
        x = a * self.cos - spot.b * self.sin + self.shift[0]
        y = spot.b * self.cos + a * self.sin + self.shift[1]
        half_x = spot.half_a * self.cos + spot.half_b * lean
        half_y = spot.half_b * self.cos + spot.half_a * lean
        scale = width / 2
        xs = [(x + side * half_x + 1) * scale for side in (-1, 1)]
        ys = [(y + side * half_y + height / width) * scale for side in (-1, 1)]
        x1, x2 = (min(max(round(v, 2), 0.0), float(width)) for v in xs)
        y1, y2 = (min(max(round(v, 2), 0.0), float(height)) for v in ys)
        return x1, y1, x2, y2

    def shaft(self, bone: Bone) -> Array:
        """Way through the wall of a long bone that is wider and thinner-walled at its joint."""
        near = np.clip(1 - (self.b - bone.end) / 0.55, 0, 1)
        half = bone.half + bone.flare * near * near
        away = (self.a - bone.centre(0) - bone.slope * self.b) / half
        wall = 0.66 + 0.2 * near
        outer = np.sqrt(np.clip(1 - away * away, 0, 1))
        inner = np.sqrt(np.clip(1 - away * away / (wall * wall), 0, 1)) * wall
        return (outer - 0.62 * inner) * _soft(self.b - bone.end, 0.07)

    def stone(self, a: float, b: float, half_a: float, half_b: float) -> Array:
        """Way through the wall of a small round bone."""
        da, db = (self.a - a) / half_a, (self.b - b) / half_b
        far = da * da + db * db
        outer = np.sqrt(np.clip(1 - far, 0, 1))
        return outer - 0.6 * np.sqrt(np.clip(1 - far / 0.72, 0, 1)) * 0.85

    def oval(self, spot: Spot, share: float, soft: float) -> Array:
        """Soft mask of an ellipse in a finding's box."""
        da, db = (self.a - spot.a) / spot.half_a, (self.b - spot.b) / spot.half_b
        return _soft(share - np.sqrt(da * da + db * db), soft)


def _wrist(canvas: Canvas, rng: Rng) -> list[Bone]:
    """Soft tissue, radius and ulna, carpal bones and the roots of the metacarpals."""
    half = between(rng, 0.7, 0.8) + 0.12 * np.clip(-canvas.b, 0, 1)
    away = canvas.a / half
    canvas.value += 0.42 * np.sqrt(np.clip(1 - away * away, 0, 1))
    canvas.value *= 0.85 + 0.3 * smooth_field(rng, canvas.shape, 6)
    level = between(rng, 0.7, 0.95)
    lean = between(rng, -0.03, 0.03)
    end = between(rng, -0.02, 0.06)
    bones = [
        Bone(-0.24, lean, between(rng, 0.19, 0.23), end, between(rng, 0.07, 0.11)),
        Bone(
            between(rng, 0.3, 0.36),
            lean,
            between(rng, 0.14, 0.17),
            end + between(rng, -0.02, 0.1),
            between(rng, 0.0, 0.04),
        ),
    ]
    grain = 0.8 + 0.4 * smooth_field(rng, canvas.shape, 30)
    for bone in bones:
        canvas.value += canvas.shaft(bone) * grain * level
    for a, b, half_a, half_b in CARPUS:
        size = between(rng, 0.88, 1.1)
        place = (a + between(rng, -0.02, 0.02), b + between(rng, -0.02, 0.02) + end)
        stone = canvas.stone(*place, half_a * size, half_b * size)
        canvas.value += stone * grain * level * 0.9
    for n in range(5):
        # The thumb stands off; the four others fan out.
        a, slope = -0.4 + 0.2 * n, 0.18 - 0.1 * n + (0.35 if n == 0 else 0.0)
        start = end - 0.55 - (0.04 if n else -0.02)
        root = (canvas.a - a - slope * (canvas.b - start)) / between(rng, 0.075, 0.09)
        way = np.sqrt(np.clip(1 - root * root, 0, 1))
        way -= 0.6 * np.sqrt(np.clip(1 - root * root / 0.5, 0, 1)) * 0.7
        canvas.value += way * _soft(start - canvas.b, 0.06) * grain * level * 0.8
    return bones


def _draw(rng: Rng, bones: list[Bone], name: str) -> Spot:
    """A finding of a class at a random place."""
    bone = bones[0] if rng.random() < 0.6 else bones[1]
    b = between(rng, bone.end + 0.24, 0.88)
    near = max(0.0, 1 - (b - bone.end) / 0.55)
    half = bone.half + bone.flare * near * near
    a = bone.centre(b)
    if name == "fracture":
        return Spot(name, a, b, half + 0.04, between(rng, 0.12, 0.17))
    if name == "bone_lesion":
        size = half * between(rng, 0.62, 0.9)
        return Spot(name, a + between(rng, -0.2, 0.2) * half, b, size, size * between(rng, 1, 1.6))
    side = 1.0 if rng.random() < 0.5 else -1.0
    if name == "periosteal_reaction":
        wide = between(rng, 0.085, 0.11)
        return Spot(name, a + side * (half + wide * 0.7), b, wide, between(rng, 0.2, 0.32), side)
    if rng.random() < 0.65:
        return Spot(
            name, a + side * half * 0.4, b, between(rng, 0.08, 0.11), between(rng, 0.24, 0.4)
        )
    return Spot(name, between(rng, -0.6, 0.6), b, between(rng, 0.1, 0.16), between(rng, 0.1, 0.16))


def _paint(canvas: Canvas, rng: Rng, spot: Spot) -> None:
    da, db = (canvas.a - spot.a) / spot.half_a, (canvas.b - spot.b) / spot.half_b
    clear = between(rng, *CLARITY)
    if spot.name == "fracture":
        # An oblique gap with impacted, denser edges; the wall stands out on one side.
        tilt = between(rng, 0.25, 0.55) * (1.0 if rng.random() < 0.5 else -1.0)
        jagged = (smooth_field(rng, canvas.shape, 24) - 0.5) * 0.35
        away = np.abs(db - tilt * da + jagged)
        inside = _soft(1 - np.abs(da), 0.15)
        canvas.value += inside * _soft(0.55 - away, 0.25) * (0.22 * clear)
        canvas.value *= 1 - inside * _soft(0.2 - away, 0.2) * (0.72 * clear)
    elif spot.name == "bone_lesion":
        canvas.value *= 1 - canvas.oval(spot, 0.84, 0.22) * (0.5 * clear)
        rim = canvas.oval(spot, 0.98, 0.14) - canvas.oval(spot, 0.8, 0.14)
        canvas.value += np.clip(rim, 0, 1) * (0.34 * clear)
    elif spot.name == "periosteal_reaction":
        # Layers of new bone outside the wall, thickest in the middle.
        bow = np.clip(1 - db * db, 0, 1)
        for layer, height in ((-0.15, 0.3), (0.45, 0.24)):
            line = _soft(0.2 - np.abs(da * spot.side - layer * bow), 0.2) * bow
            canvas.value += line * (height * clear * 1.25)
    elif spot.half_b > 1.9 * spot.half_a:
        # A plate with the holes of its screws.
        plate = _soft(1 - np.abs(da), 0.2) * _soft(1 - np.abs(db), 0.1)
        holes = np.zeros(canvas.shape)
        for n in range(4):
            hole = db - (-0.66 + 0.44 * n)
            far = da * da + hole * hole * (spot.half_b / spot.half_a) ** 2
            holes += _soft(0.35 - far, 0.3)
        canvas.value += (plate - 0.7 * holes * plate) * (1.25 * clear)
    else:
        # A clip or splinter.
        canvas.value += _soft(1 - np.maximum(np.abs(da), np.abs(db)), 0.15) * (1.0 * clear)


def _others(canvas: Canvas, rng: Rng, bones: list[Bone]) -> None:
    """What is no finding: growth plates, vessels in the bone, a cast, the shutters, a letter."""
    for bone in bones:
        near = _soft(bone.half * 1.3 - np.abs(canvas.a - bone.centre(bone.end)), 0.08)
        if rng.random() < 0.6:
            line = np.clip(
                1.3 - np.abs(canvas.b - bone.end - between(rng, 0.1, 0.15)) / 0.022, 0, 1
            )
            canvas.value *= 1 - near * line * between(rng, 0.2, 0.5)
        if rng.random() < 0.5:
            b = between(rng, bone.end + 0.3, 1.1)
            vessel = Spot("", bone.centre(b) + between(rng, -0.1, 0.1), b, 0.035, 0.07)
            canvas.value *= 1 - canvas.oval(vessel, 0.8, 0.5) * between(rng, 0.2, 0.5)
    if rng.random() < 0.25:
        wide = between(rng, 0.84, 0.92)
        cast = _soft(wide - np.abs(canvas.a), 0.06) * _soft(canvas.b + between(rng, 0.2, 0.7), 0.1)
        edge = np.clip(1 - np.abs(wide - 0.03 - np.abs(canvas.a)) / 0.06, 0, 1)
        weave = 0.12 + 0.1 * smooth_field(rng, canvas.shape, 40) + 0.2 * edge
        canvas.value += cast * weave
    if rng.random() < 0.5:
        top = canvas.shape[0] / canvas.shape[1]
        inside = _soft(between(rng, 0.88, 0.97) - np.abs(canvas.x), 0.03)
        inside = inside * _soft(between(rng, 0.9, 0.97) * top - np.abs(canvas.y), 0.03)
        canvas.value *= 0.06 + 0.94 * inside


def _letter(canvas: Canvas, rng: Rng) -> None:
    """The lead letter of the side, in an upper corner."""
    rows = LETTERS["R" if canvas.mirror > 0 else "L"]
    height, width = canvas.shape
    cell = max(2, round(width * 0.02))
    mask = np.array([[int(c) for c in row] for row in rows], float).repeat(cell, 0).repeat(cell, 1)
    top = int(rng.integers(height // 30, height // 9))
    left = int(rng.integers(width // 30, width // 10))
    if rng.random() < 0.5:
        left = width - left - mask.shape[1]
    canvas.value[top : top + mask.shape[0], left : left + mask.shape[1]] += mask * 1.6


def _spots(rng: Rng, bones: list[Bone], names: list[str]) -> list[Spot]:
    """Findings that do not touch; one that finds no place is left out."""
    found: list[Spot] = []
    for name in names:
        for _ in range(60):
            spot = _draw(rng, bones, name)
            if all(spot.clear_of(other) for other in found):
                found.append(spot)
                break
    return found


class Film(NamedTuple):
    """A stored picture."""

    pixels: Array
    inverted: bool
    spacing_mm: float
    boxes: list[dict[str, Any]]

    @property
    def photometric(self) -> str:
        """As the file's text chunk says it."""
        return "MONOCHROME1" if self.inverted else "MONOCHROME2"

    def encoded(self) -> bytes:
        """The file."""
        text = {"PhotometricInterpretation": self.photometric}
        return encode_png(self.pixels, spacing_mm=self.spacing_mm, text=text)

    def truth(self, name: str) -> bytes:
        """The private answer."""
        height, width = self.pixels.shape
        content = {"case": name, "width": width, "height": height, "boxes": self.boxes}
        return json.dumps(content).encode()


def _film(rng: Rng, size: Mapping[str, Any], names: list[str], inverted: bool) -> Film:
    width = int(rng.integers(size["width_px"][0], size["width_px"][1] + 1))
    height = int(rng.integers(size["height_px"][0], size["height_px"][1] + 1))
    canvas = Canvas(rng, height, width)
    bones = _wrist(canvas, rng)
    spots = _spots(rng, bones, names)
    for spot in spots:
        _paint(canvas, rng, spot)
    _others(canvas, rng, bones)
    _letter(canvas, rng)
    gain, offset = between(rng, 900, 1500), between(rng, 150, 500)
    # The finer the pixels, the fewer photons each of them has.
    grain = int(rng.integers(30, 110)) * width // 94
    noise = rng.integers(-grain, grain + 1, canvas.shape)
    noise = noise + rng.integers(-grain, grain + 1, canvas.shape)
    light = 1 + canvas.x * between(rng, -0.1, 0.1)
    stored = np.rint(np.clip(canvas.value * gain * light + offset + noise, 0, WHITE))
    stored = (WHITE - stored if inverted else stored).astype(np.uint16)
    boxes = []
    for spot in spots:
        x1, y1, x2, y2 = canvas.box(spot)
        boxes.append({"class": spot.name, "x1": x1, "y1": y1, "x2": x2, "y2": y2})
    return Film(stored, inverted, round(between(rng, 0.4, 0.9), 2), boxes)


def _contents(rng: Rng, size: Mapping[str, Any]) -> list[list[str]]:
    """Classes of every picture: a fixed share without findings, the others with one to three."""
    count = int(rng.integers(size["cases"][0], size["cases"][1] + 1))
    normal = max(2, round(count * 0.15))
    drawn: list[list[str]] = [[] for _ in range(normal)]
    turn = 0
    while len(drawn) < count:
        many = 1 + int(rng.random() < 0.65) + int(rng.random() < 0.3)
        names = [CLASSES[(turn + n) % len(CLASSES)] for n in range(many)]
        if many > 1 and rng.random() < 0.35:
            names[1] = names[0]
        drawn.append(names)
        turn += 1
    return [drawn[int(n)] for n in rng.permutation(count)]


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: pictures, one further probe picture, and their boxes."""
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    contents = [*_contents(rng, wanted), ["metal"]]
    names = case_names(rng, fiction["prefix"], len(contents))
    # A third of the files is stored inverted, whatever the instance.
    inverted = [bool(n % 3 == 0) for n in rng.permutation(len(contents))]
    films = {
        name: _film(rng, wanted, content, flag)
        for name, content, flag in zip(names, contents, inverted, strict=True)
    }
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    used = [films[case] for case in cases]
    return Generated(
        cases=cases,
        public={f"{case}/wrist.png": films[case].encoded() for case in cases},
        private={f"{case}/truth.json": films[case].truth(case) for case in cases},
        facts={
            "case_count": len(cases),
            "size_px": {case: list(films[case].pixels.shape[::-1]) for case in cases},
            "photometric": {case: films[case].photometric for case in cases},
            "pixel_range": [
                min(int(film.pixels.min()) for film in used),
                max(int(film.pixels.max()) for film in used),
            ],
            "inputs": {"mode": "I;16", "channels": 1, "bit_depth": 16},
            "pilot_truth": {case: len(films[case].boxes) for case in cases},
        },
        probe_case=probe,
        probe_public={"wrist.png": films[probe].encoded()},
        probe_private={"truth.json": films[probe].truth(probe)},
    )
