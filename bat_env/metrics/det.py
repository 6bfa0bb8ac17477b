"""Detection: mean average precision at IoU 0.5 (COCO's 101 points), with FROC beside it.

An output is ``{"boxes": [{"class", "score", "x1", "y1", "x2", "y2"}, ...]}`` in pixels of the
input, with the origin at the outer corner of the first pixel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import Field

from bat_env.errors import TaskError
from bat_env.metrics.base import (
    TRUTH_JSON,
    Case,
    MetricParams,
    UnreadableError,
    class_names,
    parse_params,
    unreadable_facts,
    with_quantity,
)
from bat_env.metrics.boxes import (
    Box,
    Pool,
    average_precision,
    bootstrap_map,
    froc,
    iou,
    match,
    mean_or_none,
)
from bat_env.metrics.records import finite, read_json, truth_of
from bat_env.metrics.rule import CaseScore, TaskScore, clip, missing_case, percentiles
from bat_env.tasks.spec import TaskSpec

_CORNERS: Final = ("x1", "y1", "x2", "y2")
_KEYS: Final = frozenset(("class", "score", *_CORNERS))
_SAME_IOU: Final = 0.9
_SAME_SCORE: Final = 0.05


_COARSE: Final = 20
_PIXELS: Final = 4
"""Steps across a picture, and pixels of a step, in which places of boxes are told apart."""


class DetParams(MetricParams):
    """Constants of the detection score."""

    iou: float = Field(0.5, gt=0, le=1, description="Overlap from which a box is a hit.")
    max_boxes: int = Field(100, ge=1, le=100, description="Boxes that a case may have.")


def _corners(
    entry: Mapping[str, Any], width: float, height: float
) -> tuple[float, float, float, float]:
    """Corners of a box, checked against the image.

    Raises:
        UnreadableError: If they are no box within it.
    """
    found = [finite(entry.get(key)) for key in _CORNERS]
    corners = tuple(value for value in found if value is not None)
    if len(corners) != 4:
        raise UnreadableError("has a box whose x1, y1, x2, y2 are not finite numbers")
    x1, y1, x2, y2 = corners
    if not (0 <= x1 < x2 <= width and 0 <= y1 < y2 <= height):
        raise UnreadableError(
            f"has the box {list(corners)}, expected x1 < x2 and y1 < y2 within "
            f"{width:g} x {height:g} pixels"
        )
    return x1, y1, x2, y2


def read_boxes(
    spec: TaskSpec, data: bytes, size: tuple[float, float] = (math.inf, math.inf)
) -> list[Box]:
    """Parse the boxes of an output.

    Args:
        spec: The task.
        data: File content.
        size: Width and height of the input in pixels.

    Raises:
        UnreadableError: If the file breaks the contract in any box.
    """
    params = parse_params(DetParams, spec)
    content = read_json(data)
    if not isinstance(content, dict) or set(content) != {"boxes"}:
        raise UnreadableError('must be a JSON object with the one key "boxes"')
    entries = content["boxes"]
    if not isinstance(entries, list) or len(entries) > params.max_boxes:
        raise UnreadableError(f"must list at most {params.max_boxes} boxes")
    names = class_names(spec)
    boxes = []
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) != _KEYS:
            raise UnreadableError(f"has a box whose keys are not {', '.join(sorted(_KEYS))}")
        score = finite(entry["score"])
        if score is None or not 0.0 <= score <= 1.0:
            raise UnreadableError("has a box whose score is no number in [0, 1]")
        if not isinstance(entry["class"], str) or entry["class"] not in names:
            raise UnreadableError(f"has a box whose class is not among {', '.join(names)}")
        x1, y1, x2, y2 = _corners(entry, *size)
        boxes.append(Box(names.index(entry["class"]), x1, y1, x2, y2, score))
    return boxes


def _true_boxes(spec: TaskSpec, case: Case) -> tuple[list[Box], tuple[float, float]]:
    """True boxes and image size of a case."""
    truth = truth_of(case)
    names = class_names(spec)
    try:
        width, height = float(truth["width"]), float(truth["height"])
        boxes = [
            Box(names.index(entry["class"]), *_corners(entry, width, height), 1.0)
            for entry in truth["boxes"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise TaskError(
            f"Expected width, height and boxes in {case.id}/{TRUTH_JSON}: {error}. "
            "Correct the task's generate.py."
        ) from error
    return boxes, (width, height)


def _properties(spec: TaskSpec, boxes: Sequence[Box]) -> dict[str, Any]:
    names = class_names(spec)
    values = {
        "box_count": len(boxes),
        "top_score": round(max((box.score for box in boxes), default=0.0), 6),
    }
    used = [name for index, name in enumerate(names) if any(box.label == index for box in boxes)]
    facts = {"shape": [len(boxes)], "dtype": "json", "labels": used, "values": values}
    return with_quantity(spec, {"readable": True, "affine_ok": True, **facts})


def _answer(boxes: Sequence[Box], size: tuple[float, float]) -> str:
    """Classes and coarse places: in pixels, and as parts of the picture."""
    sure = " ".join(f"{box.score:.1f}" for box in sorted(boxes))
    width, height = size
    forms = []
    for scale in ((_PIXELS,) * 4, (width / _COARSE, height / _COARSE) * 2):
        rows = sorted(
            (box.label, *(round(c / s) for c, s in zip(box.corners, scale, strict=True)))
            for box in boxes
        )
        forms.append(" ".join(",".join(map(str, row)) for row in rows) or "no boxes")
    return "\n".join(f"{form}\t{sure}" for form in forms)


class DetMap:
    """See the module."""

    name: Final = "det_map"
    shared_output: Final = False
    needs_input: Final = False

    def truth_names(self, spec: TaskSpec) -> tuple[str, ...]:
        """``truth.json``: ``{"width", "height", "boxes": [{"class", "x1", "y1", "x2", "y2"}]}``."""
        return (TRUTH_JSON,)

    def check(self, spec: TaskSpec) -> None:
        """Raise if the parameters do not fit, or there is no class."""
        parse_params(DetParams, spec)
        names = class_names(spec)
        if not names or len(set(names)) != len(names):
            raise TaskError(f"Expected distinct classes in output.labels of {spec.id}: {names}.")

    def prepare(self, spec: TaskSpec, cases: Sequence[Case]) -> dict[str, Any]:
        """Number of true boxes of every class, by case."""
        counts: dict[str, list[int]] = {}
        for case in cases:
            labels = [box.label for box in _true_boxes(spec, case)[0]]
            counts[case.id] = [labels.count(n) for n in range(len(class_names(spec)))]
        return {"counts": counts}

    def score(
        self, spec: TaskSpec, cases: Sequence[Case], known: Mapping[str, Any]
    ) -> dict[str, CaseScore]:
        """Match every case's boxes.

        A case's own score is the mAP within it; without true boxes, 1 minus the highest score
        that was claimed. The task score pools the matches of all cases instead.
        """
        params = parse_params(DetParams, spec)
        rows: dict[str, CaseScore] = {}
        for case in cases:
            if case.output is None:
                rows[case.id] = missing_case()
                continue
            truth, size = _true_boxes(spec, case)
            try:
                boxes = read_boxes(spec, case.output, size)
            except UnreadableError as error:
                facts = {"readable": False, "affine_ok": False}
                rows[case.id] = CaseScore(0.0, False, f"the file {error}", properties=facts)
                continue
            hits = match(truth, boxes, params.iou)
            pool = Pool.of([(hits, known["counts"][case.id])])
            own = mean_or_none(average_precision(pool))
            top = max((box.score for box in boxes), default=0.0)
            rows[case.id] = CaseScore(
                score=clip(own) if own is not None else 1.0 - top,
                valid=True,
                properties=_properties(spec, boxes),
                parts={"matches": [list(hit) for hit in hits]},
                answer=_answer(boxes, size),
            )
        return rows

    def total(
        self,
        spec: TaskSpec,
        rows: Mapping[str, CaseScore],
        known: Mapping[str, Any],
        *,
        seed: int = 0,
    ) -> TaskScore:
        """MAP over all cases of ``known``.

        The true boxes of an invalid case are missed. One that has none counts as a wrong box
        above all others in every class, or a missing file would cost nothing there.
        """
        counts: Mapping[str, Sequence[int]] = known["counts"]
        table = {case: rows.get(case) or missing_case() for case in counts}
        parts = []
        for case, row in table.items():
            hits = [(int(c), float(s), bool(h)) for c, s, h in row.parts.get("matches", ())]
            if not row.valid and not any(counts[case]):
                hits = [(label, math.inf, False) for label in range(len(counts[case]))]
            parts.append((hits, counts[case]))
        pool = Pool.of(parts)
        by_class = average_precision(pool)
        curve = froc(pool)
        names = class_names(spec)
        return TaskScore(
            score=clip(mean_or_none(by_class) or 0.0),
            per_case={case: clip(row.score) for case, row in table.items()},
            valid={case: row.valid for case, row in table.items()},
            messages={case: row.message for case, row in table.items() if row.message},
            secondary={
                **{f"ap_{name}": value for name, value in zip(names, by_class, strict=True)},
                "froc": mean_or_none(list(curve.values())),
                "sensitivity_at_1_fp": curve[1.0],
            },
            ci95=percentiles(bootstrap_map(pool, seed=seed)),
            properties={case: row.properties for case, row in table.items()},
        )

    def inspect(self, spec: TaskSpec, case: Case) -> dict[str, Any]:
        """Facts of a file; boxes are held against the image's size where the truth is at hand."""
        if case.output is None:
            return unreadable_facts(missing_case().message)
        try:
            known = TRUTH_JSON in case.truth
            size = _true_boxes(spec, case)[1] if known else (math.inf, math.inf)
            boxes = read_boxes(spec, case.output, size)
        except UnreadableError as error:
            return unreadable_facts(f"the file {error}")
        return {**_properties(spec, boxes), "valid": True, "message": ""}

    def agreement(self, spec: TaskSpec, case: str, a: bytes, b: bytes) -> float:
        """Share of both files' boxes that have a like box (class, place, score) in the other."""
        try:
            one, two = read_boxes(spec, a), read_boxes(spec, b)
        except UnreadableError:
            return 0.0
        if not one and not two:
            return 1.0
        free = list(two)
        pairs = 0
        for box in one:
            for other in free:
                if (
                    box.label == other.label
                    and abs(box.score - other.score) <= _SAME_SCORE
                    and iou(box, other) >= _SAME_IOU
                ):
                    free.remove(other)
                    pairs += 1
                    break
        return 2.0 * pairs / (len(one) + len(two))


def dump_boxes(spec: TaskSpec, boxes: Sequence[Box]) -> bytes:
    """Boxes as an output file."""
    names = class_names(spec)
    entries = [
        {"class": names[b.label], "score": b.score, **dict(zip(_CORNERS, b.corners, strict=True))}
        for b in boxes
    ]
    return json.dumps({"boxes": entries}).encode()
