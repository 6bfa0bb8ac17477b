"""Average precision and FROC of boxes, from matches that are pooled over cases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bat_env.metrics.rule import BOOTSTRAP_DRAWS, resamples

RECALLS: Final = np.linspace(0.0, 1.0, 101)
FROC_RATES: Final = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""False positives per case at which sensitivity is read and averaged."""
_CHUNK: Final = 100

Hit: TypeAlias = tuple[int, float, bool]
"""Class, score, and whether a predicted box found a true one."""
Floats = NDArray[np.float64]


class Box(NamedTuple):
    """A box in pixels; ``x2``, ``y2`` lie outside it.

    Attributes:
        label: Class index.
        x1: Left edge.
        y1: Upper edge.
        x2: Right edge.
        y2: Lower edge.
        score: In [0, 1].
    """

    label: int
    x1: float
    y1: float
    x2: float
    y2: float
    score: float

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """x1, y1, x2, y2."""
        return self.x1, self.y1, self.x2, self.y2


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes, whatever their classes."""
    width = min(a.x2, b.x2) - max(a.x1, b.x1)
    height = min(a.y2, b.y2) - max(a.y1, b.y1)
    if width <= 0 or height <= 0:
        return 0.0
    both = width * height
    area = (a.x2 - a.x1) * (a.y2 - a.y1) + (b.x2 - b.x1) * (b.y2 - b.y1)
    return both / (area - both)


def match(truth: Sequence[Box], boxes: Sequence[Box], threshold: float) -> list[Hit]:
    """Greedy matching within a case, by falling score, each to the free true box it fits best.

    Args:
        truth: True boxes.
        boxes: Predicted boxes.
        threshold: IoU from which a box is a hit.

    Returns:
        One hit or miss for every predicted box, by falling score; ties keep their order.
    """
    free = list(range(len(truth)))
    hits: list[Hit] = []
    for box in sorted(boxes, key=lambda box: -box.score):
        best, chosen = min(threshold, 1 - 1e-10), -1
        for n in free:
            if truth[n].label == box.label and (overlap := iou(truth[n], box)) >= best:
                best, chosen = overlap, n
        if chosen >= 0:
            free.remove(chosen)
        hits.append((box.label, box.score, chosen >= 0))
    return hits


class Pool(NamedTuple):
    """Hits of all cases, by falling score.

    Attributes:
        case: Case index of every hit, shape (hits,).
        label: Its class index.
        score: Its score.
        hit: Whether it found a true box.
        real: Number of true boxes, shape (cases, classes).
    """

    case: NDArray[np.int64]
    label: NDArray[np.int64]
    score: Floats
    hit: NDArray[np.bool_]
    real: NDArray[np.int64]

    @classmethod
    def of(cls, cases: Sequence[tuple[Sequence[Hit], Sequence[int]]]) -> Pool:
        """Pool the hits and the numbers of true boxes by class of every case."""
        rows = [(n, *hit) for n, (hits, _) in enumerate(cases) for hit in hits]
        score = np.array([row[2] for row in rows], float)
        order = np.argsort(-score, kind="stable")
        classes = len(cases[0][1]) if cases else 0
        return cls(
            np.array([row[0] for row in rows], np.int64)[order],
            np.array([row[1] for row in rows], np.int64)[order],
            score[order],
            np.array([row[3] for row in rows], bool)[order],
            np.array([counts for _, counts in cases], np.int64).reshape(len(cases), classes),
        )


def _interpolated(hit: Floats, miss: Floats, real: Floats) -> Floats:
    """101-point average precision of every draw.

    Args:
        hit: Weight of the true positives, by falling score, shape (draws, hits).
        miss: That of the false positives.
        real: Number of true boxes, shape (draws,), all above 0.

    Returns:
        Shape (draws,).
    """
    if hit.shape[1] == 0:
        return np.zeros(len(real))
    found, wrong = hit.cumsum(axis=1), miss.cumsum(axis=1)
    precision = found / np.maximum(found + wrong, np.spacing(1))
    # The best precision at this recall or a higher one.
    envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    areas = np.empty(len(real))
    for n, total in enumerate(real):
        place = np.searchsorted(found[n] / total, RECALLS, side="left")
        inside = place < hit.shape[1]
        areas[n] = envelope[n, place[inside]].sum() / len(RECALLS)
    return areas


def average_precision(pool: Pool) -> list[float | None]:
    """COCO's 101-point average precision of every class; ``None`` without true boxes."""
    areas: list[float | None] = []
    for label, real in enumerate(pool.real.sum(axis=0)):
        chosen = pool.hit[pool.label == label][None].astype(float)
        area = _interpolated(chosen, 1.0 - chosen, np.array([float(real)])) if real else None
        areas.append(None if area is None else float(area[0]))
    return areas


def bootstrap_map(pool: Pool, *, seed: int = 0, draws: int = BOOTSTRAP_DRAWS) -> Floats:
    """Mean average precision of resampled cases, one value a draw.

    A class counts in the draws that hold a true box of it; draws without any are left out. Copies
    of a case stand side by side in the ranking, so that a weight on a hit is the same as repeating
    it; only among equal scores can their order differ from that of cases put one after another.
    """
    cases, classes = pool.real.shape
    if cases == 0:
        return np.zeros(1)
    weights = resamples(cases, seed=seed, draws=draws)
    real = (weights @ pool.real).astype(float)
    total, counted = np.zeros(draws), np.zeros(draws)
    for label in range(classes):
        chosen = pool.label == label
        hit = pool.hit[chosen]
        for start in range(0, draws, _CHUNK):
            part = np.arange(start, min(draws, start + _CHUNK))
            part = part[real[part, label] > 0]
            copies = weights[np.ix_(part, pool.case[chosen])].astype(float)
            total[part] += _interpolated(copies * hit, copies * ~hit, real[part, label])
            counted[part] += 1
    defined = counted > 0
    return total[defined] / counted[defined] if defined.any() else np.zeros(1)


def froc(pool: Pool) -> dict[float, float | None]:
    """Sensitivity over all classes at each mean number of false positives per case.

    Boxes of one score are taken or left together. ``None`` without true boxes.
    """
    cases, real = len(pool.real), int(pool.real.sum())
    if not real:
        return dict.fromkeys(FROC_RATES)
    found, wrong = np.cumsum(pool.hit), np.cumsum(~pool.hit)
    last = np.append(pool.score[1:] != pool.score[:-1], True) if pool.score.size else pool.hit
    curve: dict[float, float | None] = {}
    for rate in FROC_RATES:
        reached = found[last & (wrong <= rate * cases)] if pool.score.size else found
        curve[rate] = float(reached.max()) / real if reached.size else 0.0
    return curve


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """Mean of the values that are defined; ``None`` if none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
