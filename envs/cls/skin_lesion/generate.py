"""Seeded photograph-like pictures of skin: six kinds of lesion, and skin without any.

Colours and structures are painted by exact arithmetic only (no transcendental functions, no
BLAS), so that the same seed gives the same bytes on every machine. Sizes are fractions of the
picture's side: what a network needs is the same structure at its own input size.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from bat_env.tasks.drawing import Rng, between, case_names, generator, sizes_of, smooth_field
from bat_env.tasks.instance import Generated
from bat_env.tasks.png import encode_png

TYPICAL_TOP_PROBABILITY = 0.9


class Canvas:
    """A picture in [0, 255], painted with soft masks; x and y run from -1 to 1."""

    def __init__(self, rng: Rng, height: int, width: int) -> None:
        self.rng = rng
        self.shape = (height, width)
        self.y = ((np.arange(height) + 0.5) * (2 / height) - 1)[:, None]
        self.x = ((np.arange(width) + 0.5) * (2 / width) - 1)[None, :]
        tone = rng.random()
        skin = [226 - 62 * tone, 184 - 70 * tone, 162 - 74 * tone]
        self.rgb = np.zeros((height, width, 3)) + [v + between(rng, -8, 8) for v in skin]
        self.rgb += ((smooth_field(rng, self.shape, 4) - 0.5) * 18)[..., None]

    def blob(self, centre: Any, radii: Any, soft: float, rough: float = 0.0) -> np.ndarray:
        """Soft mask of an ellipse; ``rough`` bends its border."""
        dx, dy = (self.x - centre[0]) / radii[0], (self.y - centre[1]) / radii[1]
        distance = np.sqrt(dx * dx + dy * dy)
        if rough:
            distance = distance + (smooth_field(self.rng, self.shape, 6) - 0.5) * rough
        return np.clip((1 - distance) / soft + 0.5, 0, 1)

    def paint(self, mask: np.ndarray, colour: Any, strength: float = 1.0) -> None:
        """Blend a colour in."""
        share = (mask * strength)[..., None]
        self.rgb = self.rgb * (1 - share) + np.asarray(colour, float) * share

    def spots(self, count: int, within: Any, radius: Any, colour: Any, strength: float) -> None:
        """Small blobs at random places of an ellipse."""
        (a, b), (p, q) = within
        for _ in range(count):
            u, v = between(self.rng, -0.7, 0.7), between(self.rng, -0.7, 0.7)
            r = between(self.rng, *radius)
            self.paint(self.blob((a + u * p, b + v * q), (r, r), 0.5), colour, strength)


def _shade(rng: Rng, colour: Any, spread: float) -> list[float]:
    shift = between(rng, -spread, spread)
    return [v + shift + between(rng, -6, 6) for v in colour]


def _brown(rng: Rng, lighter: float = 0.0) -> list[float]:
    """The pigment that several classes share."""
    return _shade(rng, (118 + lighter, 78 + lighter, 56 + lighter), 26)


def _place(rng: Rng, low: float, high: float) -> tuple[tuple[float, float], tuple[float, float]]:
    r = between(rng, low, high)
    centre = (between(rng, -0.2, 0.2), between(rng, -0.2, 0.2))
    return centre, (r * between(rng, 0.9, 1.1), r * between(rng, 0.9, 1.1))


def _nevus(canvas: Canvas, rng: Rng) -> None:
    centre, radii = _place(rng, 0.3, 0.55)
    canvas.paint(canvas.blob(centre, radii, 0.25, between(rng, 0, 0.5)), _brown(rng), 0.9)
    if rng.random() < 0.4:  # An atypical one has a darker part.
        canvas.spots(1, (centre, radii), (0.1, 0.2), _shade(rng, (60, 42, 38), 10), 0.7)


def _melanoma(canvas: Canvas, rng: Rng) -> None:
    centre, radii = _place(rng, 0.38, 0.65)
    canvas.paint(canvas.blob(centre, radii, 0.15, between(rng, 0.3, 0.9)), _brown(rng), 0.95)
    dark, veil = int(rng.integers(1, 3)), int(rng.integers(0, 3))
    canvas.spots(dark, (centre, radii), (0.12, 0.22), _shade(rng, (38, 30, 34), 10), 0.85)
    canvas.spots(veil, (centre, radii), (0.1, 0.18), _shade(rng, (96, 106, 132), 10), 0.7)


def _carcinoma(canvas: Canvas, rng: Rng) -> None:
    centre, radii = _place(rng, 0.35, 0.58)
    canvas.paint(canvas.blob(centre, radii, 0.35, 0.3), _shade(rng, (216, 158, 158), 10), 0.7)
    nests = int(rng.integers(1, 7))
    canvas.spots(nests, (centre, radii), (0.05, 0.09), _shade(rng, (88, 98, 150), 14), 0.8)
    if rng.random() < 0.7:
        ulcer = (centre, (radii[0] * 0.4, radii[1] * 0.4))
        canvas.spots(1, ulcer, (0.1, 0.18), _shade(rng, (168, 48, 46), 12), 0.75)


def _keratosis(canvas: Canvas, rng: Rng) -> None:
    centre, radii = _place(rng, 0.35, 0.6)
    body = canvas.blob(centre, radii, between(rng, 0.08, 0.25), between(rng, 0.1, 0.5))
    canvas.paint(body, _shade(rng, (150, 112, 76), 22), 0.85)
    cysts, plugs = int(rng.integers(2, 10)), int(rng.integers(1, 7))
    canvas.spots(cysts, (centre, radii), (0.04, 0.08), _shade(rng, (232, 216, 176), 12), 0.75)
    canvas.spots(plugs, (centre, radii), (0.04, 0.07), _shade(rng, (84, 62, 40), 8), 0.8)


def _dermatofibroma(canvas: Canvas, rng: Rng) -> None:
    centre, radii = _place(rng, 0.33, 0.55)
    canvas.paint(canvas.blob(centre, radii, 0.5, between(rng, 0, 0.3)), _brown(rng, 26), 0.7)
    core = (radii[0] * between(rng, 0.3, 0.5), radii[1] * between(rng, 0.3, 0.5))
    scar = _shade(rng, (228, 204, 192), 14)
    canvas.paint(canvas.blob(centre, core, 0.5), scar, between(rng, 0.36, 0.9))


def _vascular(canvas: Canvas, rng: Rng) -> None:
    centre, radii = _place(rng, 0.28, 0.5)
    count = int(rng.integers(3, 10))
    red = _shade(rng, (164, 44, 58), 18)
    canvas.spots(count, (centre, radii), (0.1, 0.2), red, between(rng, 0.4, 0.8))


def _normal(canvas: Canvas, rng: Rng) -> None:
    """Skin alone, often with freckles or a flush."""
    if rng.random() < 0.5:
        freckle = [v * between(rng, 0.72, 0.86) for v in canvas.rgb[0, 0]]
        canvas.spots(int(rng.integers(2, 8)), ((0, 0), (1, 1)), (0.03, 0.1), freckle, 0.7)
    if rng.random() < 0.4:
        centre, radii = _place(rng, 0.3, 0.6)
        flush = [v * k for v, k in zip(canvas.rgb[0, 0], (1.0, 0.84, 0.84), strict=True)]
        canvas.paint(canvas.blob(centre, radii, 0.6, 0.4), flush, between(rng, 0.4, 0.9))


PAINTERS: dict[str, Callable[[Canvas, Rng], None]] = {
    "melanoma": _melanoma,
    "nevus": _nevus,
    "basal_cell_carcinoma": _carcinoma,
    "keratosis": _keratosis,
    "dermatofibroma": _dermatofibroma,
    "vascular_lesion": _vascular,
    "normal_skin": _normal,
}


def _hairs(canvas: Canvas, rng: Rng) -> None:
    for _ in range(int(rng.integers(0, 5))):
        slope, offset = between(rng, -1.2, 1.2), between(rng, -1, 1)
        away = canvas.y - slope * canvas.x - offset
        canvas.paint(np.clip(1.4 - np.abs(away) * 45, 0, 1), (62, 44, 36), 0.6)


def _photo(rng: Rng, size: Mapping[str, Any], label: str) -> np.ndarray:
    """One picture, (height, width, 3) uint8 in RGB."""
    low, high = size["side_px"]
    height, width = (int(n) for n in rng.integers(low, high + 1, 2))
    canvas = Canvas(rng, height, width)
    skin = canvas.rgb
    PAINTERS[label](canvas, rng)
    # Some lesions are faint.
    canvas.rgb = skin + (canvas.rgb - skin) * between(rng, 0.34, 1.0)
    _hairs(canvas, rng)
    gain = [between(rng, 0.93, 1.05) for _ in range(3)]
    light = 1 + (canvas.x * between(rng, -0.1, 0.1) + canvas.y * between(rng, -0.1, 0.1))
    noise = rng.integers(-10, 11, (height, width, 3)) + rng.integers(-10, 11, (height, width, 3))
    rgb = canvas.rgb * gain * light[..., None] + noise
    return np.rint(np.clip(rgb, 0, 255)).astype(np.uint8)


def _labels(rng: Rng, size: Mapping[str, Any]) -> list[str]:
    """Every class at least ``per_class`` times, the rest drawn with nevi more frequent."""
    names = list(PAINTERS)
    count = int(rng.integers(size["cases"][0], size["cases"][1] + 1))
    drawn = names * int(size["per_class"])
    while len(drawn) < count:
        drawn.append(names[int(rng.integers(len(names)))] if rng.random() < 0.7 else "nevus")
    return [drawn[int(n)] for n in rng.permutation(len(drawn))]


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: pictures, one further probe picture, and their classes."""
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    labels = [*_labels(rng, wanted), "melanoma"]
    names = case_names(rng, fiction["prefix"], len(labels))
    photos = {n: _photo(rng, wanted, label) for n, label in zip(names, labels, strict=True)}
    truth = {
        name: json.dumps({"case": name, "label": label}).encode()
        for name, label in zip(names, labels, strict=True)
    }
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    pixels = sum(photos[case].shape[0] * photos[case].shape[1] for case in cases)
    totals = [
        sum(int(photos[case][..., c].sum(dtype=np.int64)) for case in cases) for c in range(3)
    ]
    return Generated(
        cases=cases,
        public={f"{case}/photo.png": encode_png(photos[case]) for case in cases},
        private={f"{case}/truth.json": truth[case] for case in cases},
        facts={
            "case_count": len(cases),
            "size_px": {case: [photos[case].shape[1], photos[case].shape[0]] for case in cases},
            "mean_rgb": [round(total / pixels, 4) for total in totals],
            "inputs": {"mode": "RGB", "channels": 3, "bit_depth": 8},
            "pilot_truth": dict.fromkeys(cases, TYPICAL_TOP_PROBABILITY),
        },
        probe_case=probe,
        probe_public={"photo.png": encode_png(photos[probe])},
        probe_private={"truth.json": truth[probe]},
    )
