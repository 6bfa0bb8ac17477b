"""What holds for the metric of every track: missing cases, ranges, intervals, hostile bytes."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.errors import TaskError, UnknownNameError
from bat_env.metrics import Case, CaseScore, Metric, TaskScore, load_metric, metric_names
from bat_env.metrics.det import DetParams
from bat_env.metrics.findings import FindingSpec
from bat_env.metrics.floors import trivial_files
from bat_env.metrics.images import ImageParams
from bat_env.metrics.report import ReportParams
from bat_env.metrics.rule import bootstrap_ci, percentiles, resamples, rescale
from bat_env.metrics.seg import SegParams
from bat_env.tasks.spec import TaskSpec

FINDING = {"mass": {"terms": ["mass"], "lateral": True}}
CASES = 4


@dataclasses.dataclass(frozen=True)
class Track:
    """A metric with a small instance, and its perfect outputs."""

    metric: Metric
    spec: TaskSpec
    cases: tuple[Case, ...]

    def with_outputs(self, outputs: list[bytes | None]) -> list[Case]:
        return [dataclasses.replace(c, output=o) for c, o in zip(self.cases, outputs, strict=True)]

    @property
    def perfect(self) -> list[bytes | None]:
        return [case.output for case in self.cases]

    def grade(self, cases: list[Case], seed: int = 0) -> TaskScore:
        known = json.loads(json.dumps(self.metric.prepare(self.spec, cases), allow_nan=False))
        rows = self.metric.score(self.spec, cases, known)
        text = json.dumps({c: dataclasses.asdict(row) for c, row in rows.items()}, allow_nan=False)
        back = {case: CaseScore(**row) for case, row in json.loads(text).items()}
        return self.metric.total(self.spec, back, known, seed=seed)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _track(name: str, spec_of: Callable[..., TaskSpec]) -> Track:
    rng = np.random.default_rng(0)
    cases: list[Case] = []

    def add(truth: object, output: bytes) -> None:
        data = json.dumps(truth).encode()
        cases.append(Case(f"c{len(cases)}", {"truth.json": data}, {}, output))

    if name == "seg_dice":
        spec = spec_of(
            name, "outputs/{case}/dseg.nii.gz", labels=["background", "liver"], dtype=("uint8",)
        )
        for n in range(CASES):
            labels = np.zeros((6, 6, 6), np.uint8)
            labels[1 : 3 + n, 1:4, 1:5] = 1
            data = nib.Nifti1Image(labels, np.eye(4)).to_bytes()
            cases.append(Case(f"c{n}", {"dseg.nii.gz": data}, {}, data))
    elif name == "image_ssim":
        params = {"data_range": 4.0, "careful_ssim": 0.9, "trivial": ["identity", "constant:0"]}
        spec = spec_of(name, "outputs/{case}/out.npy", params, input_file="in.npy")
        for n in range(CASES):
            image = rng.standard_normal((16, 16)).astype(np.float32)
            source = {"in.npy": _npy(image + rng.standard_normal((16, 16)))}
            cases.append(Case(f"c{n}", {"out.npy": _npy(image)}, source, _npy(image)))
    elif name == "det_map":
        spec = spec_of(name, "outputs/{case}/prediction.json", labels=["mass"])
        for n in range(CASES):
            box = {"class": "mass", "x1": n, "y1": 1, "x2": n + 5, "y2": 9}
            boxes = [box] if n else []
            said = {"boxes": [{**entry, "score": 0.5} for entry in boxes]}
            add({"width": 20, "height": 20, "boxes": boxes}, json.dumps(said).encode())
    elif name == "cls_balanced_accuracy":
        spec = spec_of(name, "outputs/predictions.csv", labels=["x", "y"])
        data = b"case,label\n" + b"".join(
            b"c%d,%s\n" % (n, b"xy"[n % 2 :][:1]) for n in range(CASES)
        )
        for n in range(CASES):
            add({"label": "xy"[n % 2]}, data)
    elif name == "vqa_accuracy":
        spec = spec_of(name, "outputs/answers.csv", labels=["A", "B"])
        data = b"case,answer\n" + b"".join(
            b"c%d,%s\n" % (n, b"AB"[n % 2 :][:1]) for n in range(CASES)
        )
        for n in range(CASES):
            add({"answer": "AB"[n % 2], "options": {"A": f"p{n}", "B": f"q{n}"}}, data)
    else:
        spec = spec_of(name, "outputs/{case}/report.txt", {"findings": FINDING})
        for side in ("left", "right", "bilateral", ""):
            text = (
                f"There is a {side} mass in the lung." if side else "The lungs are entirely clear."
            )
            found = [{"finding": "mass", "side": side}] if side else []
            add({"findings": found, "report": text}, text.encode())
    return Track(load_metric(name), spec, tuple(cases))


@pytest.fixture(scope="module", params=metric_names())
def track(request: pytest.FixtureRequest, spec_of: Callable[..., TaskSpec]) -> Track:
    return _track(request.param, spec_of)


def test_a_perfect_instance(track: Track) -> None:
    track.metric.check(track.spec)
    total = track.grade(list(track.cases))
    assert total.score == pytest.approx(1.0) and all(total.valid.values()) and not total.messages
    assert total.ci95 == pytest.approx((1.0, 1.0))
    assert set(total.per_case) == {case.id for case in track.cases}


def test_nothing_handed_in_scores_zero(track: Track) -> None:
    total = track.grade(track.with_outputs([None] * CASES))
    assert total.score == 0.0 and total.ci95 == (0.0, 0.0)
    assert not any(total.valid.values()) and len(total.messages) == CASES
    assert set(total.per_case.values()) == {0.0}


def test_any_missing_case_costs(track: Track) -> None:
    for gone in range(CASES):
        outputs = track.perfect
        outputs[gone] = None
        total = track.grade(track.with_outputs(outputs))
        assert total.score < 0.9 and not total.valid[f"c{gone}"]
        assert total.ci95[0] <= total.score <= total.ci95[1] and total.ci95[0] < total.ci95[1]


def test_rows_that_never_came_count_as_missing(track: Track) -> None:
    known = track.metric.prepare(track.spec, track.cases)
    total = track.metric.total(track.spec, {}, known)
    assert total.score == 0.0 and set(total.valid) == {case.id for case in track.cases}


def test_the_interval_is_seeded(track: Track) -> None:
    cases = track.with_outputs([*track.perfect[:2], None, None])
    assert track.grade(cases, 3).ci95 == track.grade(cases, 3).ci95


@given(st.binary(max_size=200), st.integers(0, CASES - 1))
@settings(max_examples=25, deadline=None)
def test_no_bytes_break_a_score(track: Track, data: bytes, place: int) -> None:
    outputs = track.perfect
    outputs[place] = data
    cases = track.with_outputs(outputs)
    total = track.grade(cases)
    assert 0.0 <= total.ci95[0] <= total.ci95[1] <= 1.0 and 0.0 <= total.score < 1.0
    assert not total.valid[f"c{place}"]
    facts = track.metric.inspect(track.spec, cases[place])
    assert not facts["valid"] and facts["message"]
    perfect = track.perfect[place] or b""
    assert track.metric.agreement(track.spec, f"c{place}", perfect, data) == 0.0
    assert track.metric.agreement(track.spec, f"c{place}", data, perfect) == 0.0


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_changed_bytes_stay_in_range(track: Track, data: st.DataObject) -> None:
    good = track.perfect[1] or b""
    broken = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        broken[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    outputs = track.perfect
    outputs[1] = bytes(broken)
    total = track.grade(track.with_outputs(outputs))
    assert 0.0 <= total.score <= 1.0
    json.dumps(dataclasses.asdict(total), allow_nan=False)


def test_inspection_needs_no_truth(track: Track) -> None:
    if track.metric.name == "seg_dice":
        pytest.skip("a label map is held against a grid")
    case = track.cases[1]
    facts = track.metric.inspect(track.spec, dataclasses.replace(case, truth={}))
    assert facts["valid"] and facts["readable"] and "quantity" in facts and facts["values"]


def test_a_perfect_output_agrees_with_itself(track: Track) -> None:
    for case in track.cases:
        data = case.output or b""
        assert track.metric.agreement(track.spec, case.id, data, data) == pytest.approx(1.0)


def test_trivial_files_are_valid_and_score_next_to_nothing(track: Track) -> None:
    made = trivial_files(track.spec, track.cases, track.cases)
    assert made
    for method, files in made.items():
        cases = [
            dataclasses.replace(c, output=files[track.spec.output.path.format(case=c.id)])
            for c in track.cases
        ]
        total = track.grade(cases)
        assert all(total.valid.values()), (method, total.messages)
        # This liver fills a sixth of its grid, and a prior from the same cases knows the answers.
        if method != "all_liver" and "prior" not in method:
            assert total.score <= 0.1, (method, total.score)


def test_unknown_metrics_and_parameters(track: Track) -> None:
    with pytest.raises(UnknownNameError):
        load_metric("dice_seg")
    metric = track.spec.metric.model_copy(update={"params": {"nonsense": 1}})
    with pytest.raises(TaskError, match="nonsense"):
        track.metric.check(track.spec.model_copy(update={"metric": metric}))


def test_the_metrics_load_neither_torch_nor_heavy_libraries() -> None:
    code = (
        "import sys\nfrom bat_env.metrics import load_metric, metric_names\n"
        "[load_metric(name) for name in metric_names()]\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & "
        "{'torch','monai','sklearn','skimage','pandas','pycocotools','transformers'}))\n"
        "print('scipy.stats' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split("\n")[:2] == ["[]", "False"]


def test_rescale() -> None:
    assert rescale(0.5, 0.0, 1.0) == 0.5 and rescale(0.2, 0.4, 0.8) == 0.0
    assert rescale(0.7, 0.5, 0.9) == pytest.approx(0.5) and rescale(2.0, 0.0, 1.0) == 1.0
    assert rescale(1.0, 1.0, 1.0) == 0.0 and rescale(0.9, 0.8, 0.7) == 1.0
    assert rescale(0.75, 0.8, 0.7) == 0.0


def test_resamples_are_those_of_the_mean() -> None:
    values = np.array([0.1, 0.9, 0.4, 0.3])
    weights = resamples(4, seed=7)
    assert (weights.sum(axis=1) == 4).all()
    assert percentiles(weights @ values / 4) == pytest.approx(bootstrap_ci(values, seed=7))


def test_the_page_on_scores_names_every_metric_and_parameter(repo_root: Path) -> None:
    page = (repo_root / "docs" / "scores.md").read_text()
    for name in metric_names():
        assert f"`{name}`" in page
    for model in (SegParams, ImageParams, DetParams, ReportParams, FindingSpec):
        for field in model.model_fields:
            assert field in page, field
