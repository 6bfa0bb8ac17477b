"""Seeded chest radiographs with a question each, in 12 bits, some of them inverted.

Pictures are painted by exact arithmetic only (no transcendental functions, no BLAS), so that the
same seed gives the same bytes on every machine. Questions are balanced by the text of the answer
and by its letter: who does not look at the picture is right in one case of four.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bat_env.tasks.drawing import Rng, between, case_names, generator, sizes_of
from bat_env.tasks.instance import Generated
from bat_env.tasks.png import encode_png

LETTERS = "ABCD"
FULL_SCALE = 4095
TYPICAL_CONFIDENCE = 0.9
LUNG = ("pleural effusion", "pneumothorax", "consolidation", "lung mass")
"""Findings of one lung or both."""
OTHER = ("cardiomegaly", "pacemaker")
FINDINGS = (*LUNG, *OTHER)
SIDES = {"left lung": (1,), "right lung": (-1,), "both lungs": (-1, 1), "neither lung": ()}
"""Answer -> halves of the picture; the patient's left is on the right of the picture."""
PHRASES = {
    "present": ("Which of these findings is present?", "Which finding does the radiograph show?"),
    "absent": ("Which of these findings is absent?", "Which finding does the radiograph not show?"),
    "side": ("On which side does the patient have {}?", "Where does the patient have {}?"),
}


# ------------------------------------------------------------------------------------ questions


@dataclass
class Question:
    """A question, its options, and what the picture must show.

    Attributes:
        kind: ``present``, ``absent`` or ``side``.
        answer: Text of the right option.
        options: The other three texts and the answer, in the order of the letters.
        shown: Finding -> halves of the picture (-1, 1); of findings without a side: any.
    """

    kind: str
    text: str
    answer: str
    options: list[str]
    shown: dict[str, tuple[int, ...]] = field(default_factory=dict)


def _halves(rng: Rng) -> tuple[int, ...]:
    return ((-1,), (1,), (-1, 1))[int(rng.integers(3))]


def _some(rng: Rng, names: Any, count: int) -> list[str]:
    listed = list(names)
    return [listed[int(n)] for n in rng.permutation(len(listed))[:count]]


def _question(rng: Rng, kind: str, answer: str, place: int) -> Question:
    """A question whose answer stands at the letter number ``place``."""
    phrase = PHRASES[kind][int(rng.integers(2))]
    shown: dict[str, tuple[int, ...]] = {}
    if kind == "side":
        finding = LUNG[int(rng.integers(len(LUNG)))]
        others, phrase = [name for name in SIDES if name != answer], phrase.format(finding)
        others = _some(rng, others, 3)
        free = [name for name in FINDINGS if name != finding]
        if SIDES[answer]:
            shown[finding] = SIDES[answer]
    else:
        others = _some(rng, (name for name in FINDINGS if name != answer), 3)
        free = [name for name in FINDINGS if name != answer and name not in others]
        for name in [answer] if kind == "present" else others:
            shown[name] = _halves(rng)
    for name in free:
        if rng.random() < 0.3:
            shown[name] = _halves(rng)
    others.insert(place, answer)
    return Question(kind, phrase, answer, others, shown)


def _questions(rng: Rng, size: Mapping[str, Any]) -> list[Question]:
    """Every answer equally often, a few more at random; letters as even as can be."""
    wanted = [(kind, name) for kind in ("present", "absent") for name in FINDINGS]
    wanted = wanted * int(size["per_finding"])
    wanted += [("side", name) for name in SIDES] * int(size["per_side"])
    count = int(rng.integers(size["cases"][0], size["cases"][1] + 1))
    more = [wanted[int(n)] for n in rng.permutation(len(wanted))[: max(0, count - len(wanted))]]
    asked = [*wanted, *more]
    places = [int(n) % len(LETTERS) for n in rng.permutation(len(asked))]
    order = rng.permutation(len(asked))
    return [_question(rng, *asked[int(n)], place) for n, place in zip(order, places, strict=True)]


# ------------------------------------------------------------------------------------- pictures


class Canvas:
    """A picture of densities from 0 to 1; x and y run from -1 to 1, y downwards."""

    def __init__(self, rng: Rng, height: int, width: int) -> None:
        self.rng = rng
        self.y = ((np.arange(height) + 0.5) * (2 / height) - 1)[:, None]
        self.x = ((np.arange(width) + 0.5) * (2 / width) - 1)[None, :]
        self.grey = np.zeros((height, width))

    def blob(self, centre: Any, radii: Any, soft: float) -> np.ndarray:
        """Soft mask of an ellipse."""
        dx, dy = (self.x - centre[0]) / radii[0], (self.y - centre[1]) / radii[1]
        return np.clip((1 - np.sqrt(dx * dx + dy * dy)) / soft + 0.5, 0, 1)

    def paint(self, mask: np.ndarray, grey: float, strength: float = 1.0) -> None:
        """Blend a density in."""
        share = mask * strength
        self.grey = self.grey * (1 - share) + grey * share


def _chest(canvas: Canvas, rng: Rng, big_heart: bool) -> dict[int, Any]:
    """Paint a chest; returns centre and radii of the lung in each half of the picture."""
    canvas.paint(canvas.blob((0, 0.2), (1.05, 1.35), 0.1), between(rng, 0.52, 0.6))
    lungs = {}
    for half in (-1, 1):
        centre = (half * between(rng, 0.42, 0.47), between(rng, -0.14, -0.06))
        lungs[half] = (centre, (between(rng, 0.32, 0.36), between(rng, 0.62, 0.7)))
        canvas.paint(canvas.blob(*lungs[half], 0.12), between(rng, 0.27, 0.33))
    for n in range(7):
        arc = canvas.y - (n * 0.2 - 0.8) - 0.25 * canvas.x * canvas.x
        canvas.paint(np.clip(1.5 - np.abs(arc) * 50, 0, 1), 0.62, 0.3)
    canvas.paint(np.clip(1.5 - np.abs(canvas.x) * 11, 0, 1), 0.72, 0.8)
    wide = between(rng, 0.5, 0.56) if big_heart else between(rng, 0.26, 0.31)
    centre = (between(rng, 0.08, 0.12) + (0.05 if big_heart else 0.0), 0.32)
    canvas.paint(canvas.blob(centre, (wide, 0.27 + wide * 0.12), 0.12), 0.74)
    belly = np.clip((canvas.y - 0.56 - 0.25 * canvas.x * canvas.x) * 14, 0, 1)
    canvas.paint(belly, between(rng, 0.68, 0.76))
    return lungs


def _finding(canvas: Canvas, rng: Rng, name: str, half: int, lung: Any) -> None:
    """Paint a finding into one half of the picture."""
    (a, b), (p, q) = lung
    if name == "pleural effusion":
        level = between(rng, 0.02, 0.18)
        rise = canvas.y - level + 0.3 * np.clip((canvas.x - a) * half, -0.3, 0.4)
        base = canvas.blob((a, b + 0.1), (p * 1.05, q * 1.1), 0.12)
        canvas.paint(base * np.clip(rise * 12, 0, 1), 0.7)
    elif name == "pneumothorax":
        rim = canvas.blob((a, b), (p, q), 0.1)
        inner = canvas.blob((a - half * 0.14, b + 0.2), (p * 0.72, q * 0.78), 0.08)
        canvas.paint(np.clip(rim - inner, 0, 1) * (canvas.y < 0.15), between(rng, 0.02, 0.08))
    elif name == "consolidation":
        spot = (a + between(rng, -0.06, 0.06), between(rng, -0.14, 0.0))
        canvas.paint(canvas.blob(spot, (0.24, 0.17), 0.7), between(rng, 0.62, 0.7), 0.95)
    else:
        r = between(rng, 0.11, 0.14)
        spot = (a + between(rng, -0.08, 0.06) * half, between(rng, -0.5, -0.4))
        canvas.paint(canvas.blob(spot, (r, r), 0.15), between(rng, 0.8, 0.9))


def _picture(rng: Rng, size: Mapping[str, Any], shown: Mapping[str, tuple[int, ...]]) -> np.ndarray:
    """One radiograph, (height, width) uint16 of 12 bits; dense is bright."""
    low, high = size["side_px"]
    height, width = (int(n) for n in rng.integers(low, high + 1, 2))
    canvas = Canvas(rng, height, width)
    lungs = _chest(canvas, rng, "cardiomegaly" in shown)
    for name in ("pneumothorax", "consolidation", "pleural effusion", "lung mass"):
        for half in shown.get(name, ()):
            _finding(canvas, rng, name, half, lungs[half])
    if "pacemaker" in shown:
        half = 1 if rng.random() < 0.7 else -1
        x, y = half * between(rng, 0.5, 0.56), between(rng, -0.74, -0.68)
        box = (np.abs(canvas.x - x) < 0.13) & (np.abs(canvas.y - y) < 0.08)
        canvas.paint(box.astype(float), 1.0)
        lead = np.abs((canvas.x - x) * (0.3 - y) - (canvas.y - y) * (0.1 - x))
        along = (canvas.y > y) & (canvas.y < 0.3)
        canvas.paint(np.clip(1.5 - lead * 40, 0, 1) * along, 1.0)
    noise = rng.integers(-60, 61, (height, width)) + rng.integers(-60, 61, (height, width))
    grey = canvas.grey * between(rng, 0.88, 1.0) + between(rng, 0.0, 0.06)
    return np.rint(np.clip(grey * 3600 + noise, 0, FULL_SCALE)).astype(np.uint16)


def _case(
    rng: Rng, size: Mapping[str, Any], name: str, question: Question, inverted: bool
) -> tuple[dict[str, bytes], bytes, dict[str, Any]]:
    """Public files, truth and facts of a case."""
    pixels = _picture(rng, size, question.shown)
    photometric = "MONOCHROME1" if inverted else "MONOCHROME2"
    if inverted:
        pixels = (FULL_SCALE - pixels).astype(np.uint16)
    options = dict(zip(LETTERS, question.options, strict=True))
    letter = LETTERS[question.options.index(question.answer)]
    public = {
        "question.json": json.dumps({"question": question.text, "options": options}).encode(),
        "xray.png": encode_png(pixels, text={"PhotometricInterpretation": photometric}),
    }
    truth = json.dumps({"case": name, "answer": letter, "options": options}).encode()
    facts = {
        "size_px": [pixels.shape[1], pixels.shape[0]],
        "photometric": photometric,
        "asks": question.kind,
        "pixels": (pixels.size, int(pixels.sum(dtype=np.int64))),
    }
    return public, truth, facts


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: radiographs with their questions, and one further probe case."""
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    questions = _questions(rng, wanted)
    questions.append(_question(rng, "side", "left lung", int(rng.integers(len(LETTERS)))))
    names = case_names(rng, fiction["prefix"], len(questions))
    flips = [int(n) % 4 == 0 for n in rng.permutation(len(questions))]
    made = {
        name: _case(rng, wanted, name, question, flip)
        for name, question, flip in zip(names, questions, flips, strict=True)
    }
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    facts = {case: made[case][2] for case in cases}
    count, total = (sum(fact["pixels"][n] for fact in facts.values()) for n in (0, 1))
    return Generated(
        cases=cases,
        public={f"{case}/{name}": data for case in cases for name, data in made[case][0].items()},
        private={f"{case}/truth.json": made[case][1] for case in cases},
        facts={
            "case_count": len(cases),
            **{
                key: {case: fact[key] for case, fact in facts.items()}
                for key in ("size_px", "photometric", "asks")
            },
            "mean_pixel": round(total / count, 4),
            "inputs": {"mode": "I;16", "channels": 1, "bit_depth": 16},
            "pilot_truth": dict.fromkeys(cases, TYPICAL_CONFIDENCE),
        },
        probe_case=probe,
        probe_public=made[probe][0],
        probe_private={"truth.json": made[probe][1]},
    )
