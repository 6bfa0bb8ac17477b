"""101-point mAP against pycocotools, its interval against plain resampling, and the strict file."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.errors import TaskError
from bat_env.metrics import Case, TaskScore, missing_case
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
from bat_env.metrics.det import DetMap, dump_boxes
from bat_env.tasks.spec import TaskSpec

METRIC = DetMap()
NAMES = ["nodule", "fracture"]
SIDE = 64


@pytest.fixture(scope="module")
def spec(spec_of: Callable[..., TaskSpec]) -> TaskSpec:
    return spec_of("det_map", "outputs/{case}/prediction.json", labels=NAMES, quantity="box_count")


def truth_json(boxes: Sequence[Box]) -> bytes:
    rows = [
        {"class": NAMES[b.label], "x1": b.x1, "y1": b.y1, "x2": b.x2, "y2": b.y2} for b in boxes
    ]
    return json.dumps({"width": SIDE, "height": SIDE, "boxes": rows}).encode()


def graded(
    spec: TaskSpec, truths: Sequence[Sequence[Box]], said: Sequence[Sequence[Box] | bytes | None]
) -> TaskScore:
    cases = [
        Case(
            f"c{n}",
            {"truth.json": truth_json(truth)},
            output=boxes if boxes is None or isinstance(boxes, bytes) else dump_boxes(spec, boxes),
        )
        for n, (truth, boxes) in enumerate(zip(truths, said, strict=True))
    ]
    known = json.loads(json.dumps(METRIC.prepare(spec, cases)))
    return METRIC.total(spec, METRIC.score(spec, cases, known), known)


def random_boxes(rng: np.random.Generator, most: int, near: Sequence[Box] = ()) -> list[Box]:
    """Boxes, half of them close to given ones, with scores that tie now and then."""
    boxes = []
    for _ in range(int(rng.integers(0, most + 1))):
        if near and rng.random() < 0.6:
            seed = near[int(rng.integers(len(near)))]
            x1, y1, x2, y2 = (v + int(rng.integers(-3, 4)) for v in seed.corners)
            label = seed.label if rng.random() < 0.8 else 1 - seed.label
        else:
            x1, y1 = rng.integers(0, 40, 2).tolist()
            x2, y2 = x1 + int(rng.integers(4, 20)), y1 + int(rng.integers(4, 20))
            label = int(rng.integers(2))
        x1, y1 = max(0, x1), max(0, y1)
        x2, y2 = min(SIDE, max(x2, x1 + 1)), min(SIDE, max(y2, y1 + 1))
        boxes.append(Box(label, x1, y1, x2, y2, round(float(rng.random()), 1)))
    return boxes


def coco_map(truths: Sequence[Sequence[Box]], said: Sequence[Sequence[Box]]) -> float:
    """What pycocotools says."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def entries(images: Sequence[Sequence[Box]]) -> list[dict[str, Any]]:
        rows = []
        for image, boxes in enumerate(images, 1):
            for b in boxes:
                width, height = b.x2 - b.x1, b.y2 - b.y1
                rows.append(
                    {
                        "id": len(rows) + 1,
                        "image_id": image,
                        "category_id": b.label + 1,
                        "bbox": [b.x1, b.y1, width, height],
                        "area": width * height,
                        "iscrowd": 0,
                        "score": b.score,
                    }
                )
        return rows

    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {
            "images": [{"id": n + 1} for n in range(len(truths))],
            "categories": [{"id": n + 1} for n in range(len(NAMES))],
            "annotations": entries(truths),
        }
        coco.createIndex()
        run = COCOeval(coco, coco.loadRes(entries(said)), "bbox")
        run.params.iouThrs = np.array([0.5])
        run.evaluate()
        run.accumulate()
    precision = run.eval["precision"][0, :, :, 0, -1]
    return float(precision[precision > -1].mean())


@given(st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_map_equals_pycocotools(spec: TaskSpec, seed: int) -> None:
    pytest.importorskip("pycocotools")
    rng = np.random.default_rng(seed)
    truths = [random_boxes(rng, 4) for _ in range(6)]
    said = [random_boxes(rng, 8, near=truth) for truth in truths]
    if not any(truths) or not any(said):
        return
    assert graded(spec, truths, said).score == pytest.approx(coco_map(truths, said), abs=1e-9)


def test_bootstrap_equals_repeating_cases() -> None:
    rng = np.random.default_rng(2)
    cases = []
    for _ in range(8):
        truth = random_boxes(rng, 3)
        boxes = random_boxes(rng, 6, near=truth)
        hits = match(truth, [b._replace(score=float(rng.random())) for b in boxes], 0.5)
        cases.append((hits, [sum(b.label == n for b in truth) for n in (0, 1)]))
    mine = bootstrap_map(Pool.of(cases), seed=4, draws=50)
    picks = np.random.default_rng(4).integers(0, 8, (50, 8))
    want = [
        mean_or_none(average_precision(Pool.of([cases[n] for n in sorted(pick)]))) for pick in picks
    ]
    np.testing.assert_allclose(mine, [value for value in want if value is not None], atol=1e-12)


def test_iou_and_greedy_matching() -> None:
    a, b = Box(0, 0, 0, 10, 10, 0.9), Box(0, 5, 0, 15, 10, 0.8)
    assert iou(a, b) == pytest.approx(50 / 150)
    assert iou(a, Box(0, 10, 0, 20, 10, 1)) == 0.0
    # The stronger box takes the true one; its duplicate is a miss, and so is another class.
    hits = match([a], [b, a, a, Box(1, 0, 0, 10, 10, 0.95)], 0.5)
    assert hits == [(1, 0.95, False), (0, 0.9, True), (0, 0.9, False), (0, 0.8, False)]
    assert match([a], [Box(0, 0, 0, 10, 5, 0.5)], 0.5)[0][2]


def test_duplicates_and_ranks_cost(spec: TaskSpec) -> None:
    real = [Box(0, 2, 2, 20, 20, 1.0)]
    wrong = Box(0, 40, 40, 60, 60, 0.9)
    assert graded(spec, [real], [real]).score == 1.0
    assert graded(spec, [real], [[*real, wrong]]).score == 1.0
    assert graded(spec, [real], [[real[0]._replace(score=0.5), wrong]]).score == pytest.approx(0.5)
    shifted = [real[0]._replace(label=1)]
    assert graded(spec, [real], [shifted]).score == 0.0


def test_froc_by_hand() -> None:
    # Two cases, two true boxes: a hit at .9, a miss at .8, a hit and a miss together at .5.
    pool = Pool.of(
        [([(0, 0.9, True), (0, 0.8, False)], [1]), ([(0, 0.5, True), (0, 0.5, False)], [1])]
    )
    curve = froc(pool)
    assert [curve[rate] for rate in (0.125, 0.25, 0.5, 1.0, 8.0)] == [0.5, 0.5, 0.5, 1.0, 1.0]
    assert froc(Pool.of([([], [1])]))[1.0] == 0.0
    assert froc(Pool.of([([(0, 0.5, False)], [0])]))[1.0] is None


@given(st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_froc_equals_every_threshold_tried(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def hits() -> list[tuple[int, float, bool]]:
        count = int(rng.integers(5))
        return [(0, round(float(rng.random()), 1), bool(rng.random() < 0.5)) for _ in range(count)]

    cases = [(hits(), [5]) for _ in range(4)]
    rows = [hit for hits, _ in cases for hit in hits]
    for rate, value in froc(Pool.of(cases)).items():
        best = 0.0
        for threshold in {score for _, score, _ in rows}:
            kept = [hit for _, score, hit in rows if score >= threshold]
            if kept.count(False) / 4 <= rate:
                best = max(best, kept.count(True) / 20)
        assert value == pytest.approx(best)


def test_missing_cases_count_even_without_boxes(spec: TaskSpec) -> None:
    real = [Box(0, 2, 2, 20, 20, 1.0)]
    assert graded(spec, [real, real], [real, None]).score == pytest.approx(51 / 101)
    assert graded(spec, [real, []], [real, []]).score == 1.0
    for broken in (None, b"{}"):
        total = graded(spec, [real, []], [real, broken])
        assert total.score == pytest.approx(0.5) and total.per_case["c1"] == 0.0
    assert graded(spec, [real, []], [None, None]).score == 0.0
    assert graded(spec, [[], []], [[], []]).score == 0.0


def test_rows_of_crashed_children_are_misses(spec: TaskSpec) -> None:
    cases = [Case("c0", {"truth.json": truth_json([Box(0, 2, 2, 20, 20, 1.0)])}, output=b"x")]
    total = METRIC.total(spec, {"c0": missing_case("crash")}, METRIC.prepare(spec, cases))
    assert total.score == 0.0 and total.messages == {"c0": "crash"}


def test_case_scores(spec: TaskSpec) -> None:
    real = [Box(0, 2, 2, 20, 20, 1.0)]
    total = graded(spec, [real, [], []], [real, [], [real[0]._replace(score=0.7)]])
    assert total.per_case == {"c0": 1.0, "c1": 1.0, "c2": pytest.approx(0.3)}
    assert total.secondary["ap_nodule"] == 1.0 and total.secondary["ap_fracture"] is None


def one(**change: Any) -> dict[str, Any]:
    return {"class": "nodule", "score": 0.5, "x1": 1, "y1": 1, "x2": 9, "y2": 9, **change}


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ([], "boxes"),
        ({"boxes": [], "extra": 1}, "boxes"),
        ({"boxes": {}}, "at most"),
        ({"boxes": [one()] * 101}, "at most"),
        ({"boxes": [[1, 1, 9, 9]]}, "keys"),
        ({"boxes": [one(note="x")]}, "keys"),
        ({"boxes": [{k: v for k, v in one().items() if k != "score"}]}, "keys"),
        ({"boxes": [one(score=True)]}, "score"),
        ({"boxes": [one(score="0.5")]}, "score"),
        ({"boxes": [one(score=1.5)]}, "score"),
        ({"boxes": [one(**{"class": "Nodule"})]}, "class"),
        ({"boxes": [one(**{"class": ["nodule"]})]}, "class"),
        ({"boxes": [one(x2=1)]}, "pixels"),
        ({"boxes": [one(x1=-1)]}, "pixels"),
        ({"boxes": [one(x2=65)]}, "pixels"),
        ({"boxes": [one(x1=None)]}, "finite"),
        ({"boxes": [one(x2=10**400)]}, "finite"),
    ],
)
def test_the_file_is_strict(spec: TaskSpec, content: Any, word: str) -> None:
    total = graded(spec, [[Box(0, 1, 1, 9, 9, 1.0)]], [json.dumps(content).encode()])
    assert total.score == 0.0 and not total.valid["c0"] and word in total.messages["c0"]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b'{"boxes": [NaN]}', "NaN"),
        (b'{"boxes": [Infinity]}', "Infinity"),
        (b'{"boxes": [], "boxes": []}', "twice"),
        (b"[" * 100_000, "nested"),
        (b"\xff", "UTF-8"),
        (b'{"boxes": []}' + b" " * (1 << 20), "bytes"),
        (b"1" * 100_000, "JSON"),
        (b"", "JSON"),
    ],
)
def test_hostile_json(spec: TaskSpec, data: bytes, word: str) -> None:
    total = graded(spec, [[Box(0, 1, 1, 9, 9, 1.0)]], [data])
    assert total.score == 0.0 and word in total.messages["c0"]


def test_det_inspection_and_agreement(spec: TaskSpec) -> None:
    boxes = [Box(0, 1, 1, 30, 30, 0.5), Box(1, 30, 30, 60, 60, 0.9)]
    data = dump_boxes(spec, boxes)
    facts = METRIC.inspect(spec, Case("c0", output=data))
    assert facts["valid"] and facts["quantity"] == 2 and facts["values"]["top_score"] == 0.9
    assert not METRIC.inspect(spec, Case("c0", output=b"{"))["readable"]
    assert METRIC.agreement(spec, "c0", data, data) == 1.0
    near = dump_boxes(spec, [boxes[0]._replace(score=0.52), boxes[1]._replace(label=0)])
    assert METRIC.agreement(spec, "c0", data, near) == 0.5
    empty = dump_boxes(spec, [])
    assert METRIC.agreement(spec, "c0", empty, empty) == 1.0
    assert METRIC.agreement(spec, "c0", data, empty) == 0.0
    assert METRIC.agreement(spec, "c0", data, b"") == 0.0


def test_det_faults_of_a_task(spec: TaskSpec, spec_of: Callable[..., TaskSpec]) -> None:
    METRIC.check(spec)
    with pytest.raises(TaskError):
        METRIC.check(spec_of("det_map", "p.json", {"iou": 2}, labels=NAMES))
    for truth in ({"boxes": []}, {"width": 9, "height": 9, "boxes": [one(x2=99)]}, {"width": 9}):
        with pytest.raises(TaskError):
            METRIC.prepare(spec, [Case("c0", {"truth.json": json.dumps(truth).encode()})])
