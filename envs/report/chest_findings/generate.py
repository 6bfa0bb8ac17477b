"""Seeded radiographs of the chest with findings on either side, and their reports.

Shapes are painted by exact arithmetic only (no transcendental functions, no BLAS), so that the
same seed gives the same bytes on every machine. Sizes are fractions of the picture's sides. Values
are 12 bits in 16. Some files are stored inverted (MONOCHROME1), some mirrored (rows that run to the
patient's right), as the text chunks of the PNG say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from bat_env.tasks.drawing import Rng, between, case_names, generator, sizes_of, smooth_field
from bat_env.tasks.instance import Generated
from bat_env.tasks.png import encode_png

LATERAL: Final = ("pleural effusion", "consolidation", "lung nodule", "pneumothorax")
FINDINGS: Final = ("cardiomegaly", "pulmonary edema", *LATERAL)
SIDES: Final = ("right", "left")
WHITE: Final = 4095
TO_LEFT, TO_RIGHT = "L\\F", "R\\F"
"""PatientOrientation: where rows and columns run to."""
GLYPHS: Final = {
    "left": ("10000", "10000", "10000", "10000", "10000", "10000", "11111"),
    "right": ("11110", "10001", "10001", "11110", "10100", "10010", "10001"),
}
"""The lead letters L and R, in seven rows of five."""

Keys = frozenset[tuple[str, str]]
"""(finding, side) pairs; the side is empty where a finding has none."""


def _ramp(distance: np.ndarray, soft: float) -> np.ndarray:
    """0 below -soft / 2, 1 above soft / 2."""
    return np.clip(distance / soft + 0.5, 0, 1)


# ------------------------------------------------------------------------------------- anatomy


class Lung(NamedTuple):
    """A lung that narrows to its apex; ``sign`` is -1 for the right one, at the picture's left."""

    sign: float
    x: float
    y: float
    a: float
    b: float
    dome: float


class Chest:
    """Attenuation, about 0 (air) to 1.2; x runs to the patient's left, both axes from -1 to 1."""

    def __init__(self, rng: Rng, height: int, width: int) -> None:
        self.rng = rng
        self.shape = (height, width)
        self.y = ((np.arange(height) + 0.5) * (2 / height) - 1)[:, None]
        self.x = ((np.arange(width) + 0.5) * (2 / width) - 1)[None, :]
        self.value = np.full(self.shape, 0.03)
        dome = between(rng, 0.42, 0.52)
        self.lungs = {
            side: Lung(
                sign,
                sign * between(rng, 0.43, 0.47),
                between(rng, -0.08, 0.0),
                between(rng, 0.34, 0.38),
                between(rng, 0.72, 0.8),
                dome + (0.06 if side == "left" else 0.0),
            )
            for side, sign in zip(SIDES, (-1.0, 1.0), strict=True)
        }
        self.inside = {side: self._lung(lung) for side, lung in self.lungs.items()}
        """Soft masks of the lungs."""

    def blob(self, x: float, y: float, a: float, b: float, soft: float) -> np.ndarray:
        """Soft mask of an ellipse."""
        dx, dy = (self.x - x) / a, (self.y - y) / b
        return np.clip((1 - np.sqrt(dx * dx + dy * dy)) / soft + 0.5, 0, 1)

    def stroke(self, start: tuple[float, float], end: tuple[float, float], wide: float) -> Any:
        """Soft mask of a line that gets thinner towards its end."""
        (ax, ay), (bx, by) = start, end
        dx, dy = bx - ax, by - ay
        along = ((self.x - ax) * dx + (self.y - ay) * dy) / (dx * dx + dy * dy)
        across = np.abs((self.x - ax) * dy - (self.y - ay) * dx)
        span = float(np.sqrt(dx * dx + dy * dy))
        half = wide * (1 - 0.7 * np.clip(along, 0, 1))
        inside = (along > 0) & (along < 1)
        return np.clip(1.5 - across / span / half, 0, 1) * inside

    def lay(self, mask: np.ndarray, level: Any, strength: float = 1.0) -> None:
        """Blend a level in."""
        share = mask * strength
        self.value = self.value * (1 - share) + level * share

    def add(self, mask: np.ndarray, level: float) -> None:
        """Lay something in front: attenuations add."""
        self.value = self.value + mask * level

    def _lung(self, lung: Lung) -> np.ndarray:
        up = np.clip((lung.y - self.y) / lung.b, 0, 1)
        dx = (self.x - lung.x + lung.sign * 0.12 * up * up) / (lung.a * (1 - 0.38 * up * up))
        dy = (self.y - lung.y) / lung.b
        round_ = np.clip((1 - np.sqrt(dx * dx + dy * dy)) / 0.12 + 0.5, 0, 1)
        away = (self.x - lung.x + lung.sign * 0.06) / lung.a
        return round_ * _ramp(lung.dome + 0.16 * away * away - self.y, 0.05)


def _body(chest: Chest, rng: Rng) -> None:
    """Neck, shoulders and trunk: thick in the middle, thin at the sides."""
    neck = between(rng, 0.26, 0.32)
    slope = np.sqrt(np.clip((chest.y + 0.96) / 0.34, 0, 1))
    wide = neck + (between(rng, 0.94, 1.02) - neck) * slope
    across = np.clip(chest.x / wide, -1, 1)
    thick = np.sqrt(np.clip(1 - across * across, 0, 1))
    chest.lay(_ramp(wide - np.abs(chest.x), 0.05), 0.36 + between(rng, 0.3, 0.38) * thick)
    if rng.random() < 0.4:
        for side in SIDES:
            lung = chest.lungs[side]
            fold = chest.blob(lung.x + lung.sign * 0.05, 0.3, 0.36, 0.3, 0.3)
            chest.add(fold * _ramp(chest.y - 0.1, 0.3), between(rng, 0.03, 0.07))


def _lungs(chest: Chest, rng: Rng, congested: bool) -> None:
    """Aerated lungs, their vessels running out from the root."""
    level = between(rng, 0.2, 0.27)
    for side in SIDES:
        lung, mask = chest.lungs[side], chest.inside[side]
        chest.lay(mask, level + 0.05 * (chest.y + 0.5), 0.92)
        chest.add(mask * (smooth_field(rng, chest.shape, 9) - 0.5), 0.08)
        root = (lung.x - lung.sign * 0.24, lung.y - 0.02)
        chest.add(mask * chest.blob(*root, 0.15, 0.2, 0.9), 0.2)
        tree = np.zeros(chest.shape)
        for n in range(9):
            turn = (n - 4) / 4 + between(rng, -0.12, 0.12)
            reach = between(rng, 0.3, 0.52)
            end = (root[0] + lung.sign * reach * (1 - 0.5 * turn * turn), root[1] + turn * 0.55)
            tree = np.maximum(tree, chest.stroke(root, end, 0.036) * between(rng, 0.6, 1.0))
        chest.add(mask * tree, 0.11 if congested else 0.09)


def _bones(chest: Chest, rng: Rng) -> None:
    """Spine, windpipe, ribs that fall to the side, collar bones."""
    chest.add(_ramp(0.11 - np.abs(chest.x), 0.05), 0.09)
    for n in range(9):
        gap = np.abs(chest.y + 0.86 - n * 0.215)
        chest.add(_ramp(0.03 - gap, 0.03) * _ramp(0.1 - np.abs(chest.x), 0.04), -0.05)
    windpipe = _ramp(0.045 - np.abs(chest.x - 0.01), 0.03) * _ramp(-0.22 - chest.y, 0.1)
    chest.add(windpipe, -0.2)
    fall, step = between(rng, 0.28, 0.44), between(rng, 0.185, 0.205)
    width = np.abs(chest.x)
    cage = _ramp(0.84 - width, 0.04) * _ramp(width - 0.1, 0.06)
    for n in range(8):
        away = np.abs(chest.y + 0.83 - step * n - fall * (width - 0.1) * (width + 0.2))
        band = np.clip(1.6 - away / 0.026, 0, 1)
        chest.add((band - 0.4 * np.clip(1.2 - away / 0.016, 0, 1)) * cage, 0.07)
    tilt = between(rng, 0.05, 0.13)
    for sign in (-1.0, 1.0):
        bar = chest.stroke((sign * 0.09, -0.7 + tilt), (sign * 0.82, -0.76 - tilt), 0.055)
        chest.add(bar * (chest.value > 0.3), 0.1)


def _middle(chest: Chest, rng: Rng, large: bool) -> None:
    """Heart with the aortic knob, the belly below the domes, air in the stomach."""
    for side in SIDES:
        lung = chest.lungs[side]
        away = (chest.x - lung.x + lung.sign * 0.06) / lung.a
        below = _ramp(chest.y - lung.dome - 0.16 * away * away, 0.05)
        half = _ramp(lung.sign * chest.x, 0.05) * _ramp(0.86 - np.abs(chest.x), 0.1)
        chest.lay(below * half, 0.72, 0.8)
    if rng.random() < 0.7:
        low = chest.lungs["left"].dome + between(rng, 0.16, 0.22)
        chest.add(chest.blob(between(rng, 0.36, 0.5), low, 0.14, 0.08, 0.4), -0.22)
    column = 0.13 + 0.05 * np.clip(chest.y + 0.2, 0, 1)
    chest.lay(_ramp(column - np.abs(chest.x), 0.05) * _ramp(chest.y + 0.5, 0.4), 0.78, 0.7)
    chest.lay(chest.blob(0.1, -0.3, 0.1, 0.12, 0.3), 0.72, 0.8)
    half = between(rng, 0.425, 0.53) if large else between(rng, 0.31, 0.405)
    base = chest.lungs["right"].dome
    bottom = base - 0.2 - 0.12 * (half - 0.3)
    chest.lay(chest.blob(half * 0.36, bottom, half, 0.3 + 0.12 * half, 0.12), 0.79, 0.9)


def _mark(chest: Chest, rng: Rng) -> None:
    """The lead letter of one side, in the upper corner of that side."""
    side = SIDES[int(rng.integers(2))]
    glyph = np.array([[float(c) for c in row] for row in GLYPHS[side]])
    wide, high = 0.14, 0.2
    left = (1.0 if side == "left" else -1.0) * between(rng, 0.8, 0.86) - wide / 2
    top = between(rng, -0.95, -0.9)
    cols = np.floor((chest.x[0] - left) / wide * 5).astype(int)
    rows = np.floor((chest.y[:, 0] - top) / high * 7).astype(int)
    seen = ((rows >= 0) & (rows < 7))[:, None] & ((cols >= 0) & (cols < 5))[None, :]
    ink = glyph[np.clip(rows, 0, 6)][:, np.clip(cols, 0, 4)]
    chest.lay(ink * seen, between(rng, 1.5, 1.8))


# ------------------------------------------------------------------------------------ findings


def _edema(chest: Chest, rng: Rng) -> None:
    """Haze around both roots, like the wings of a bat."""
    clear = between(rng, 0.15, 1.0)
    for side in SIDES:
        lung = chest.lungs[side]
        wing = chest.blob(lung.x - lung.sign * 0.1, lung.y + 0.02, 0.3, 0.42, 1.0)
        rough = 0.7 + 0.3 * smooth_field(rng, chest.shape, 16)
        chest.add(chest.inside[side] * wing * rough, 0.3 * clear)


def _paint(chest: Chest, rng: Rng, finding: str, side: str) -> None:
    """Paint a finding into one lung, anything from faint to plain."""
    lung, mask = chest.lungs[side], chest.inside[side]
    clear = between(rng, 0.0, 0.85)
    outward = (chest.x - lung.x) * lung.sign / lung.a
    if finding == "pleural effusion":
        level = lung.dome - between(rng, 0.04, 0.4)
        curve = np.clip(outward, -1, 1)
        filled = _ramp(chest.y - level + 0.16 * curve + 0.1 * curve * curve, 0.07)
        chest.lay(mask * filled, 0.72, 0.55 + 0.4 * clear)
    elif finding == "consolidation":
        x, y = lung.x + lung.sign * between(rng, -0.04, 0.12), lung.y + between(rng, -0.36, 0.24)
        size = between(rng, 0.16, 0.23)
        rough = 0.55 + 0.45 * smooth_field(rng, chest.shape, 14)
        chest.lay(mask * chest.blob(x, y, size, size * 1.2, 0.7), 0.68, (0.3 + 0.7 * clear) * rough)
    elif finding == "lung nodule":
        x, y = lung.x + lung.sign * between(rng, -0.08, 0.16), lung.y + between(rng, -0.5, 0.25)
        size = between(rng, 0.075, 0.105)
        chest.add(mask * chest.blob(x, y, size, size, 0.3), 0.16 + 0.3 * clear)
    else:
        rim = between(rng, 0.15, 0.6)
        top = np.clip((lung.y - 0.05 - chest.y) / 0.4, 0, 1)
        free = _ramp(outward - rim + 0.55 * top, 0.08)
        line = np.clip(1 - np.abs(outward - rim + 0.55 * top) / 0.09, 0, 1)
        chest.lay(mask * free, 0.1, 0.4 + 0.6 * clear)
        chest.add(mask * line, 0.16 * (0.4 + clear))


def _draw_keys(rng: Rng, many: int) -> Keys:
    """``many`` findings; one of a lateral kind has a side, or both."""
    keys: set[tuple[str, str]] = set()
    for n in rng.permutation(len(FINDINGS))[:many]:
        name = FINDINGS[int(n)]
        if name not in LATERAL:
            keys.add((name, ""))
            continue
        pick = rng.random()
        sides = SIDES if pick < 0.15 else (SIDES[int(pick < 0.575)],)
        keys |= {(name, side) for side in sides}
    # A collapsed lung with shadows in it would need another picture of both.
    for side in SIDES:
        if ("pneumothorax", side) in keys:
            keys -= {("consolidation", side), ("lung nodule", side)}
        if ("consolidation", side) in keys:
            keys -= {("lung nodule", side)}
    return frozenset(keys)


def _contents(rng: Rng, size: Mapping[str, Any]) -> list[Keys]:
    """Findings of every picture: a fixed share has none."""
    count = int(rng.integers(size["cases"][0], size["cases"][1] + 1))
    drawn: list[Keys] = [frozenset()] * max(2, round(count * 0.2))
    while len(drawn) < count:
        drawn.append(_draw_keys(rng, 1 + int(rng.random() < 0.6) + int(rng.random() < 0.3)))
    return [drawn[int(n)] for n in rng.permutation(count)]


# ------------------------------------------------------------------------------------- reports


def _listed(keys: Keys) -> list[dict[str, str]]:
    """Findings with their sides, as the truth file holds them."""
    found = []
    for name in FINDINGS:
        sides = [side for side in SIDES if (name, side) in keys]
        if len(sides) == 2:
            found.append({"finding": name, "side": "bilateral"})
        elif sides:
            found.append({"finding": name, "side": sides[0]})
        elif (name, "") in keys:
            found.append({"finding": name})
    return found


def _present(rng: Rng, name: str, side: str) -> str:
    """A sentence that claims a finding, in one of three habits."""
    both, counted = side == "bilateral", name == "lung nodule"
    what = f"{side} {name}".strip() + ("s" if both and counted else "")
    plain = what[0].upper() + what[1:]
    habit = int(rng.integers(4))
    if habit == 0:
        start = "There are" if both and counted else "There is a" if counted else "There is"
        return f"{start} {what}."
    if habit == 1:
        return f"{plain} {'are' if both and counted else 'is'} seen."
    return f"{plain}."


def _report(rng: Rng, keys: Keys) -> str:
    """A report as one of several readers would word it; what is absent is denied."""
    listed = {entry["finding"]: entry.get("side", "") for entry in _listed(keys)}
    lines = ["Frontal chest radiograph."]
    last = FINDINGS[-1]
    pair = "pleural effusion" not in listed and last not in listed and rng.random() < 0.3
    for name in FINDINGS:
        if name in listed:
            lines.append(_present(rng, name, listed[name]))
        elif pair and name == "pleural effusion":
            lines.append(f"No {name} or {last}.")
        elif not (pair and name == last):
            lines.append(f"No {name}." if rng.random() < 0.7 else f"No evidence of {name}.")
    return " ".join(lines) + "\n"


# ------------------------------------------------------------------------------------ instance


class Film(NamedTuple):
    """A stored picture with its truth."""

    pixels: np.ndarray
    photometric: str
    orientation: str
    spacing_mm: float
    keys: Keys
    report: str

    def encoded(self) -> bytes:
        """The file."""
        text = {
            "PhotometricInterpretation": self.photometric,
            "PatientOrientation": self.orientation,
        }
        return encode_png(self.pixels, spacing_mm=self.spacing_mm, text=text)

    def truth(self, name: str) -> bytes:
        """The private answer."""
        content = {"case": name, "findings": _listed(self.keys), "report": self.report}
        return json.dumps(content).encode()


def _film(rng: Rng, size: Mapping[str, Any], keys: Keys, inverted: bool, mirrored: bool) -> Film:
    low, high = size["side_px"]
    height, width = (int(n) for n in rng.integers(low, high + 1, 2))
    chest = Chest(rng, height, width)
    _body(chest, rng)
    _lungs(chest, rng, ("pulmonary edema", "") in keys)
    if ("pulmonary edema", "") in keys:
        _edema(chest, rng)
    _middle(chest, rng, ("cardiomegaly", "") in keys)
    for finding, side in sorted(keys):
        if side:
            _paint(chest, rng, finding, side)
    _bones(chest, rng)
    _mark(chest, rng)
    gain, offset = between(rng, 1500, 2300), between(rng, 150, 560)
    grain = int(rng.integers(30, 90))
    noise = rng.integers(-grain, grain + 1, chest.shape)
    noise = noise + rng.integers(-grain, grain + 1, chest.shape)
    stored = np.rint(np.clip(chest.value * gain + offset + noise, 0, WHITE))
    stored = (WHITE - stored if inverted else stored).astype(np.uint16)
    stored = np.ascontiguousarray(stored[:, ::-1]) if mirrored else stored
    return Film(
        stored,
        "MONOCHROME1" if inverted else "MONOCHROME2",
        TO_RIGHT if mirrored else TO_LEFT,
        round(between(rng, 2.4, 4.2), 2),
        keys,
        _report(rng, keys),
    )


def _share(rng: Rng, count: int, every: int) -> list[bool]:
    """One in ``every`` is true, in random order."""
    return [int(n) % every == 0 for n in rng.permutation(count)]


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: pictures, one further probe picture, and their reports."""
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    contents = [*_contents(rng, wanted), frozenset({("pleural effusion", "left")})]
    count = len(contents)
    names = case_names(rng, fiction["prefix"], count)
    rows = zip(names, contents, _share(rng, count, 3), _share(rng, count, 3), strict=True)
    films = {name: _film(rng, wanted, *content) for name, *content in rows}
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    used = [films[case] for case in cases]
    return Generated(
        cases=cases,
        public={f"{case}/chest.png": films[case].encoded() for case in cases},
        private={f"{case}/truth.json": films[case].truth(case) for case in cases},
        facts={
            "case_count": len(cases),
            "size_px": {case: list(films[case].pixels.shape[::-1]) for case in cases},
            "photometric": {case: films[case].photometric for case in cases},
            "orientation": {case: films[case].orientation for case in cases},
            "pixel_range": [
                min(int(film.pixels.min()) for film in used),
                max(int(film.pixels.max()) for film in used),
            ],
            "inputs": {"mode": "I;16", "channels": 1, "bit_depth": 16},
            "pilot_truth": {case: len(films[case].keys) for case in cases},
        },
        probe_case=probe,
        probe_public={"chest.png": films[probe].encoded()},
        probe_private={"truth.json": films[probe].truth(probe)},
    )
