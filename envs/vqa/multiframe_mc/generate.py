"""Seeded four-chamber views of beating hearts, a few frames each, with a question that needs them.

Frames are painted by exact arithmetic only (no transcendental functions, no BLAS), so that the
same seed gives the same bytes on every machine. The numbers of the frames say nothing of their
order in time: the trigger time in each file does. Questions are balanced by the text of the answer
and by its letter: who does not look at the frames is right in one case of four.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from bat_env.tasks.drawing import Rng, between, case_names, generator, sizes_of
from bat_env.tasks.instance import Generated
from bat_env.tasks.png import encode_png

LETTERS: Final = "ABCD"
WHITE: Final = 255
TYPICAL_CONFIDENCE: Final = 0.85
MOST_FRAMES: Final = 5
STRUCTURES: Final = ("left atrium", "myocardium", "left ventricle", "right heart")
"""What is outlined for training, each drawn over those before it."""
FRAMES: Final = tuple(f"frame {n + 1}" for n in range(MOST_FRAMES))
WALLS: Final = {
    "septum": (True, False),
    "lateral wall": (False, True),
    "both walls": (True, True),
    "neither wall": (False, False),
}
"""Answer -> whether septum and lateral wall are meant."""
CHANGES: Final = {
    "10 to 20 %": (0.105, 0.192),
    "20 to 30 %": (0.208, 0.292),
    "30 to 40 %": (0.308, 0.392),
    "40 to 50 %": (0.408, 0.495),
}
"""Answer -> fractional area changes that are drawn for it: away from its borders."""
PHRASES: Final = {
    "diastole": ("Which frame shows end-diastole?", "In which frame does diastole end?"),
    "systole": ("Which frame shows end-systole?", "In which frame does systole end?"),
    "after": (
        "Which frame comes right after end-systole in time?",
        "Which frame was taken right after the frame of end-systole?",
    ),
    "moving": (
        "Which wall of the left ventricle moves inwards?",
        "Which wall of the left ventricle contracts?",
    ),
    "still": (
        "Which wall of the left ventricle does not move inwards?",
        "Which wall of the left ventricle does not contract?",
    ),
    "change": (
        "What is the fractional area change of the left ventricle?",
        "How large is the fractional area change of the left ventricle?",
    ),
}


# ------------------------------------------------------------------------------------ questions


class Beat(NamedTuple):
    """One beat of a heart.

    Attributes:
        squeeze: Contraction of every frame in order of time, 0 at end-diastole, 1 at end-systole.
        times: Trigger time of every frame, ms.
        numbers: Number of every frame, from 1: where its file stands.
        walls: Whether septum and lateral wall move.
        change: Fractional area change of the left ventricle.
    """

    squeeze: tuple[float, ...]
    times: tuple[int, ...]
    numbers: tuple[int, ...]
    walls: tuple[bool, bool]
    change: float


@dataclass(frozen=True)
class Question:
    """A question, its options in the order of the letters, and the beat that it is asked of."""

    kind: str
    text: str
    answer: str
    options: tuple[str, ...]
    beat: Beat


def _some(rng: Rng, names: Any, count: int) -> list[str]:
    listed = list(names)
    return [listed[int(n)] for n in rng.permutation(len(listed))[:count]]


def _squeezes(rng: Rng, count: int) -> list[float]:
    """Contraction over one beat, from any moment of it; a frame follows end-systole."""
    rising = 1 if count == 4 else int(rng.integers(1, 3))
    falling = count - 2 - rising
    up = sorted(between(rng, 0.2, 0.94) for _ in range(rising))
    down = sorted((between(rng, 0.05, 0.92) for _ in range(falling)), reverse=True)
    cycle = [0.0, *up, 1.0, *down]
    starts = [n for n in range(count) if cycle[(n + count - 1) % count] < 1.0]
    start = starts[int(rng.integers(len(starts)))]
    return cycle[start:] + cycle[:start]


def _beat(rng: Rng, kind: str, answer: str) -> Beat:
    """A beat to which the answer is true."""
    many = MOST_FRAMES if answer == FRAMES[-1] else int(rng.integers(4, MOST_FRAMES + 1))
    squeeze = _squeezes(rng, many)
    times = [int(rng.integers(0, 60))]
    while len(times) < many:
        times.append(times[-1] + int(rng.integers(70, 150)))
    numbers = [int(n) + 1 for n in rng.permutation(many)]
    walls, change = (True, True), between(rng, 0.3, 0.5)
    if kind in ("diastole", "systole", "after"):
        place = {
            "diastole": squeeze.index(0.0),
            "systole": squeeze.index(1.0),
            "after": squeeze.index(1.0) + 1,
        }[kind]
        wanted = FRAMES.index(answer) + 1
        other = numbers.index(wanted)
        numbers[place], numbers[other] = numbers[other], numbers[place]
        if rng.random() < 0.3:
            walls, change = list(WALLS.values())[int(rng.integers(2))], between(rng, 0.22, 0.3)
    elif kind == "change":
        low, high = CHANGES[answer]
        change = between(rng, low, high)
        if change < 0.25 and rng.random() < 0.5:
            walls = list(WALLS.values())[int(rng.integers(2))]
    else:
        meant = WALLS[answer]
        walls = meant if kind == "moving" else (not meant[0], not meant[1])
        change = (0.0, between(rng, 0.225, 0.31), between(rng, 0.35, 0.46))[sum(walls)]
    return Beat(tuple(squeeze), tuple(times), tuple(numbers), walls, change)


def _question(rng: Rng, kind: str, answer: str, place: int) -> Question:
    """A question whose answer stands at the letter number ``place``."""
    if kind == "wall":
        kind = "moving" if rng.random() < 0.5 else "still"
    beat = _beat(rng, kind, answer)
    texts = {"change": tuple(CHANGES), "moving": tuple(WALLS), "still": tuple(WALLS)}
    pool = texts.get(kind, FRAMES[: len(beat.squeeze)])
    others = _some(rng, (text for text in pool if text != answer), 3)
    others.insert(place, answer)
    phrase = PHRASES[kind][int(rng.integers(2))]
    return Question(kind, phrase, answer, tuple(others), beat)


def _questions(rng: Rng, size: Mapping[str, Any]) -> list[Question]:
    """Every answer equally often, a few more at random; letters as even as can be."""
    wanted = [(kind, name) for kind in ("diastole", "systole", "after") for name in FRAMES]
    wanted += [("wall", name) for name in WALLS] + [("change", name) for name in CHANGES]
    wanted = wanted * int(size["rounds"])
    count = int(rng.integers(size["cases"][0], size["cases"][1] + 1))
    more = [wanted[int(n)] for n in rng.permutation(len(wanted))[: max(0, count - len(wanted))]]
    asked = [*wanted, *more]
    places = [int(n) % len(LETTERS) for n in rng.permutation(len(asked))]
    order = rng.permutation(len(asked))
    return [_question(rng, *asked[int(n)], place) for n, place in zip(order, places, strict=True)]


# --------------------------------------------------------------------------------------- frames


def _ramp(distance: np.ndarray, soft: float) -> np.ndarray:
    """0 below -soft / 2, 1 above soft / 2."""
    return np.clip(distance / soft + 0.5, 0, 1)


def smooth_field(rng: Rng, shape: tuple[int, int], rows: int, columns: int) -> np.ndarray:
    """Smooth noise in [0, 1]: a coarse random grid, linearly interpolated."""
    grid = rng.random((rows + 1, columns + 1))
    down = np.arange(shape[0]) * (rows / shape[0])
    along = np.arange(shape[1]) * (columns / shape[1])
    i, j = down.astype(int), along.astype(int)
    u, v = (down - i)[:, None], (along - j)[None, :]
    left = grid[:, j] * (1 - v) + grid[:, j + 1] * v
    return left[i] * (1 - u) + left[i + 1] * u


class Heart:
    """A heart in the four-chamber view, ventricle on the right; x and y from -1 to 1, y downwards.

    The long axis of the left ventricle runs from its apex (top) to the mitral ring; ``u`` is the
    distance from it, towards the lateral wall, ``s`` the share of the way from apex to ring.
    """

    def __init__(self, rng: Rng, height: int, width: int, beat: Beat) -> None:
        self.beat = beat
        self.shape = (height, width)
        zoom, turn = between(rng, 0.94, 1.1), between(rng, -0.1, 0.1)
        y = (((np.arange(height) + 0.5) * (2 / height) - 1)[:, None] - 0.02) / zoom
        x = ((np.arange(width) + 0.5) * (2 / width) - 1)[None, :]
        x = (x - between(rng, -0.06, 0.06)) / zoom
        # A rotation without sine and cosine.
        cosine, sine = (1 - turn * turn) / (1 + turn * turn), 2 * turn / (1 + turn * turn)
        self.x, self.y = x * cosine - y * sine, x * sine + y * cosine
        self.fan_x, self.fan_y = x * zoom, y * zoom + 1.08
        self.top, self.length = between(rng, -0.76, -0.68), between(rng, 0.92, 1.02)
        self.axis, self.lean = between(rng, 0.2, 0.26), between(rng, 0.02, 0.12)
        self.half, self.wall = between(rng, 0.25, 0.29), between(rng, 0.1, 0.13)
        self.atrium = (between(rng, 0.24, 0.29), between(rng, 0.24, 0.29))
        self.level = {
            "tissue": between(rng, 0.2, 0.3),
            "wall": between(rng, 0.46, 0.58),
            "blood": between(rng, 0.03, 0.12),
        }
        self.haze = (between(rng, 0.0, 0.45), between(rng, 0.3, 0.8))
        self.shadow = (between(rng, -0.35, 0.6), between(rng, 0.1, 0.85))
        moving = sum(beat.walls)
        shorter = 0.12 if moving else 0.1
        self.shorter = min(shorter, 0.5 * beat.change) if moving else shorter
        # (left + right) * length falls by the fractional area change.
        self.inward = 0.0
        if moving:
            self.inward = (1 - (1 - beat.change) / (1 - self.shorter)) * 2 / moving

    def _profile(self, s: np.ndarray) -> np.ndarray:
        """Half width over its largest value."""
        up, down = np.clip((s - 0.58) / 0.58, -1, 0), np.clip((s - 0.58) / 0.42, 0, 1)
        return np.sqrt(1 - up * up) * (1 - 0.22 * down * down)

    def outline(self, squeeze: float, thick: float) -> np.ndarray:
        """Soft mask of the ventricle with ``thick`` of wall around it."""
        length = self.length * (1 - self.shorter * squeeze)
        top = self.top - thick
        bottom = self.top + length
        s = (self.y - top) / (bottom - top)
        u = self.x - self.axis + self.lean * (1 - s)
        inward = [self.inward * squeeze * moves for moves in self.beat.walls]
        septal, lateral = (self.half * (1 - share) + thick for share in inward)
        profile = self._profile(s)
        edge = np.where(u < 0, u + septal * profile, lateral * profile - u)
        inside = (s > 0) & (s < 1)
        return _ramp(edge, 0.05) * inside

    def blob(self, x: float, y: float, a: float, b: float, soft: float) -> np.ndarray:
        """Soft mask of an ellipse."""
        dx, dy = (self.x - x) / a, (self.y - y) / b
        return np.clip((1 - np.sqrt(dx * dx + dy * dy)) / soft + 0.5, 0, 1)

    def stroke(self, start: tuple[float, float], end: tuple[float, float], half: float) -> Any:
        """Soft mask of a line."""
        (ax, ay), (bx, by) = start, end
        dx, dy = bx - ax, by - ay
        square = dx * dx + dy * dy
        along = ((self.x - ax) * dx + (self.y - ay) * dy) / square
        across = np.abs((self.x - ax) * dy - (self.y - ay) * dx) / float(np.sqrt(square))
        return np.clip(1.5 - across / half, 0, 1) * (along > 0) * (along < 1)

    def frame(self, rng: Rng, place: int, gain: float) -> tuple[np.ndarray, np.ndarray]:
        """Frame number ``place`` in time: (height, width) uint8, and the index of the structure.

        Structures count from 1 in the order of ``STRUCTURES``; 0 is everything else.
        """
        squeeze = self.beat.squeeze[place]
        ring = self.top + self.length * (1 - self.shorter * squeeze)
        cavity, outer = self.outline(squeeze, 0.0), self.outline(0.0, self.wall)
        outer = outer * (self.y < ring + 0.02)
        wide, high = self.atrium
        swell = 1 + 0.08 * squeeze
        left = self.blob(self.axis - 0.01, ring + high * 0.86, wide, high * swell, 0.14)
        left = left * (self.y > ring + 0.02)
        edge = self.axis - self.half - self.wall
        right = self.blob(edge - 0.2, 0.02, 0.25 - 0.03 * squeeze, 0.56, 0.14)
        right = right * (1 - self.outline(0.0, self.wall + 0.02)) * (np.abs(self.y - ring) > 0.03)
        right = np.maximum(right, self.blob(edge - 0.16, ring + 0.3, 0.25, 0.24, 0.14))
        right = right * (1 - self.blob(self.axis - 0.01, ring + high * 0.86, wide + 0.05, 0.4, 0.1))
        grey = np.full(self.shape, self.level["tissue"])
        for mask, level in (
            (self.blob(edge - 0.18, 0.1, 0.33, 0.68, 0.1), self.level["wall"] * 0.8),
            (self.blob(self.axis, ring + high * 0.8, wide + 0.07, high + 0.1, 0.1), 0.4),
            (outer, self.level["wall"]),
            (cavity, self.level["blood"]),
            (left, self.level["blood"]),
            (right, self.level["blood"] * 1.3),
        ):
            grey = grey * (1 - mask) + level * mask
        skin = np.clip(self.outline(0.0, self.wall + 0.05) - self.outline(0.0, self.wall), 0, 1)
        grey = grey + 0.35 * skin * (self.x > self.axis)
        grey = self._valve(grey, ring, squeeze, place)
        grey = self._sound(rng, grey, gain)
        labels = np.zeros(self.shape, np.uint8)
        for number, mask in enumerate((left, outer, cavity, right), start=1):
            labels[mask > 0.5] = number
        return np.rint(np.clip(grey * WHITE, 0, WHITE)).astype(np.uint8), labels

    def _valve(self, grey: np.ndarray, ring: float, squeeze: float, place: int) -> np.ndarray:
        """Mitral leaflets: shut while the ventricle contracts, open while it fills."""
        later = self.beat.squeeze[(place + 1) % len(self.beat.squeeze)]
        filling = 0.0 < squeeze < 1.0 and later < squeeze
        reach, gap = (0.2, 0.5) if filling else (0.06, 0.04)
        for sign in (-1.0, 1.0):
            hinge = (self.axis + sign * self.half * 0.74, ring)
            tip = (self.axis + sign * self.half * gap, ring - reach if filling else ring + 0.03)
            leaflet = self.stroke(hinge, tip, 0.022)
            grey = grey * (1 - leaflet) + 0.75 * leaflet
        return grey

    def _sound(self, rng: Rng, grey: np.ndarray, gain: float) -> np.ndarray:
        """Speckle, loss with depth, haze near the probe, a shadow along one beam, and the fan."""
        fine = smooth_field(rng, self.shape, self.shape[0] // 2, self.shape[1] // 3)
        coarse = smooth_field(rng, self.shape, 26, 18)
        grey = grey * (0.35 + 0.75 * fine + 0.55 * coarse) * (1.08 - 0.16 * self.fan_y)
        echo, reach = self.haze
        grey = grey + echo * coarse * np.clip(1 - self.fan_y / (2 * reach), 0, 1)
        slope = self.fan_x / self.fan_y
        at, depth = self.shadow[0] + between(rng, -0.2, 0.2), self.shadow[1]
        grey = grey * (1 - depth * np.clip(1 - np.abs(slope - at) / 0.16, 0, 1))
        grey = gain * between(rng, 0.88, 1.14) * grey + 0.02 * rng.random(self.shape)
        away = self.fan_x * self.fan_x + self.fan_y * self.fan_y
        fan = _ramp(0.84 - np.abs(slope), 0.02) * _ramp(4.1 - away, 0.06) * (away > 0.012)
        return grey * fan


# ------------------------------------------------------------------------------------- instance


def _frames(rng: Rng, size: Mapping[str, Any], beat: Beat) -> list[tuple[np.ndarray, np.ndarray]]:
    """All frames of a beat in order of time, with their structures."""
    low, high = size["side_px"]
    height, width = (int(n) for n in rng.integers(low, high + 1, 2))
    heart = Heart(rng, height, width, beat)
    gain = between(rng, 0.6, 1.35)
    return [heart.frame(rng, place, gain) for place in range(len(beat.squeeze))]


def _case(
    rng: Rng, size: Mapping[str, Any], name: str, question: Question, mirrored: bool
) -> tuple[dict[str, bytes], bytes, dict[str, Any]]:
    """Public files, truth and facts of a case."""
    beat, display = question.beat, "LV left" if mirrored else "LV right"
    frames = [pixels for pixels, _ in _frames(rng, size, beat)]
    options = dict(zip(LETTERS, question.options, strict=True))
    letter = LETTERS[question.options.index(question.answer)]
    public = {"question.json": json.dumps({"question": question.text, "options": options}).encode()}
    for pixels, number, time in zip(frames, beat.numbers, beat.times, strict=True):
        shown = np.ascontiguousarray(pixels[:, ::-1]) if mirrored else pixels
        text = {"TriggerTime": str(time), "Display": display}
        public[f"frame_{number}.png"] = encode_png(shown, text=text)
    truth = json.dumps({"case": name, "answer": letter, "options": options}).encode()
    facts = {
        "size_px": [frames[0].shape[1], frames[0].shape[0]],
        "frame_order": list(beat.numbers),
        "display": display,
        "times": beat.times,
    }
    return public, truth, facts


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: hearts with a question each, and one further probe case."""
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    questions = _questions(rng, wanted)
    questions.append(_question(rng, "systole", FRAMES[2], int(rng.integers(len(LETTERS)))))
    names = case_names(rng, fiction["prefix"], len(questions))
    flips = [int(n) % 3 == 0 for n in rng.permutation(len(questions))]
    made = {
        name: _case(rng, wanted, name, question, flip)
        for name, question, flip in zip(names, questions, flips, strict=True)
    }
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    facts = {case: made[case][2] for case in cases}
    times = [time for fact in facts.values() for time in fact["times"]]
    return Generated(
        cases=cases,
        public={f"{case}/{name}": data for case in cases for name, data in made[case][0].items()},
        private={f"{case}/truth.json": made[case][1] for case in cases},
        facts={
            "case_count": len(cases),
            **{
                key: {case: fact[key] for case, fact in facts.items()}
                for key in ("size_px", "frame_order", "display")
            },
            "trigger_ms": [min(times), max(times)],
            "inputs": {"mode": "L", "channels": 1, "bit_depth": 8},
            "pilot_truth": dict.fromkeys(cases, TYPICAL_CONFIDENCE),
        },
        probe_case=probe,
        probe_public=made[probe][0],
        probe_private={"truth.json": made[probe][1]},
    )
