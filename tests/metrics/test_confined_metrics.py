"""Every metric in the grader's confined child: same numbers and messages as in this process.

A module that would be imported only on some path of an agent's file cannot be imported there.
"""

from __future__ import annotations

import gzip
import io
import json
import types
from collections.abc import Callable, Iterator
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from bat_env.grader import Grader, shared_grader
from bat_env.metrics import Case, load_metric
from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import TaskSpec

LABELS = np.zeros((6, 6, 6), np.uint8)
LABELS[1:4, 1:4, 1:5] = 1
IMAGE = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
FINDING = {"mass": {"terms": ["mass"], "lateral": True}}
BOX = {"class": "mass", "x1": 1, "y1": 1, "x2": 5, "y2": 9}


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    made = shared_grader()
    yield made
    made.close()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def nifti(array: np.ndarray) -> bytes:
    return nib.Nifti1Image(array, np.eye(4)).to_bytes()


def truth(content: object) -> dict[str, bytes]:
    return {"truth.json": json.dumps(content).encode()}


JUNK = [b"", b"\x00\xff\xfe", b"\xef\xbb\xbf", b"{}", b"[1e999, NaN]", b"a,b\n1\n", b"\x1f\x8b\x08"]
TRACKS: dict[str, tuple[str, dict[str, Any], dict[str, bytes], list[bytes]]] = {
    "seg_dice": (
        "outputs/{case}/dseg.nii.gz",
        {"labels": ["background", "liver"], "dtype": ("uint8",)},
        {"dseg.nii.gz": nifti(LABELS)},
        [
            gzip.compress(nifti(LABELS)),
            nifti(LABELS.astype(np.float64)),
            nifti(LABELS.astype(">i2")),
            nifti(LABELS[::-1]),
            nifti(np.full((6, 6, 6), np.nan, np.float32)),
        ],
    ),
    "image_ssim": (
        "outputs/{case}/out.npy",
        {
            "params": {
                "data_range": 4.0,
                "careful_ssim": 0.9,
                "trivial": ["identity", "linear", "cubic", "gaussian:1", "median:3", "constant:0"],
            },
            "input_file": "in.npy",
        },
        {"out.npy": npy(IMAGE), "mask.npy": npy(IMAGE > 0)},
        [
            npy(IMAGE),
            npy(np.asfortranarray(IMAGE + 0.1)),
            npy(IMAGE.astype(">f8")),
            npy(IMAGE.T[:3]),
            npy(IMAGE)[:128].replace(b"16", b"1L") + npy(IMAGE)[128:],
            npy(IMAGE)[:128].replace(b"<f4", b"|O4") + npy(IMAGE)[128:],
        ],
    ),
    "det_map": (
        "outputs/{case}/prediction.json",
        {"labels": ["mass"]},
        truth({"width": 20, "height": 20, "boxes": [BOX]}),
        [
            json.dumps({"boxes": [{**BOX, "score": 0.5}]}).encode(),
            json.dumps({"boxes": [{**BOX, "score": 2}]}).encode(),
            b'{"boxes": [' + b"1" * 9000 + b"]}",
        ],
    ),
    "cls_balanced_accuracy": (
        "outputs/predictions.csv",
        {"labels": ["x", "y"]},
        truth({"label": "x"}),
        [
            b"case,label,p_x,p_y\na,x,.7,.3\n",
            b"\xef\xbb\xbfcase,label\r\na,x\r\n",
            b'case,label\na,"x',
            b"case,label,p_x,p_y\na,x,nan,inf\n",
        ],
    ),
    "vqa_accuracy": (
        "outputs/answers.csv",
        {"labels": ["A", "B"]},
        truth({"answer": "A", "options": {"A": "p", "B": "q"}}),
        [b"case,answer\na,A\n", b"case,answer\na,\xc3\x84\n", b"case,answer\na,C\n"],
    ),
    "report_findings": (
        "outputs/{case}/report.txt",
        {"params": {"findings": FINDING}},
        truth({"findings": [{"finding": "mass", "side": "left"}], "report": "A left mass."}),
        [
            b"There is a left mass in the lung.",
            "FINDINGS: There’s possibly a mass, left side – größer.".encode(),
            b"\xef\xbb\xbfNo mass in either of the two lungs.",
        ],
    ),
}


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
@pytest.mark.parametrize("name", TRACKS)
def test_a_confined_child_says_the_same(
    name: str, grader: Grader, spec_of: Callable[..., TaskSpec]
) -> None:
    path, rest, private, outputs = TRACKS[name]
    spec = spec_of(name, path, **rest)
    metric = load_metric(name)
    inputs = {spec.input_file: npy(IMAGE + 0.5) if name == "image_ssim" else private.get(
        "dseg.nii.gz", b"")}  # fmt: skip
    instance = Instance(
        cases=("a",),
        public={f"a/{file}": data for file, data in inputs.items()},
        private={f"a/{file}": data for file, data in private.items()},
        facts={},
        probe_case="p",
        probe_public={},
        probe_private={},
    )
    task = types.SimpleNamespace(spec=spec)
    for output in [*outputs, *JUNK]:
        cases = [Case("a", private, inputs, output)]
        known = metric.prepare(spec, cases)
        want = metric.total(spec, metric.score(spec, cases, known), known)
        got = grader.grade(task, instance, {path.format(case="a"): output})
        assert got.messages.get("a", "") == want.messages.get("a", "")[:300]
        assert got.score == pytest.approx(want.score) and got.per_case == want.per_case
        assert got.secondary == pytest.approx(want.secondary)
