"""Outputs that are tables: graded by row, drawn as text; and previews of every format."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import nibabel as nib
import numpy as np
import pytest

from bat_env.grader import shared_grader
from bat_env.grader.packing import pack_cases, unpack_cases
from bat_env.grader.preview import FORMATS, Preview, decode, unpack
from bat_env.tasks import Task, load_task
from bat_env.tasks.instance import Instance

PATH = "outputs/predictions.csv"


@pytest.fixture(scope="module")
def skin() -> Task:
    return load_task("cls/skin_lesion")


@pytest.fixture(scope="module")
def drawn(skin: Task) -> Instance:
    return skin.instance("train", 2, "mini")


def table(drawn: Instance, labels: dict[str, str] | None = None) -> bytes:
    truth = {c: json.loads(drawn.private[f"{c}/truth.json"])["label"] for c in drawn.cases}
    rows = {**truth, **(labels or {})}
    return "\n".join(["case,label", *(f"{c},{label}" for c, label in rows.items())]).encode()


def test_a_table_is_graded_row_by_row(skin: Task, drawn: Instance) -> None:
    grader = shared_grader()
    assert grader.grade(skin, drawn, {PATH: table(drawn)}).score == 1.0
    first = drawn.cases[0]
    wrong = grader.grade(skin, drawn, {PATH: table(drawn, {first: "mole"})})
    assert not wrong.valid[first] and sum(wrong.valid.values()) == len(drawn.cases) - 1
    missing = grader.grade(skin, drawn, {})
    assert missing.score == 0.0 and not any(missing.valid.values())
    for junk in (b"", b"\0" * 9, b"\xff\xfe", b"case,label\n" * 9, b'"' * 1000):
        assert grader.grade(skin, drawn, {PATH: junk}).score == 0.0


def test_one_row_is_inspected_and_compared(skin: Task, drawn: Instance) -> None:
    grader, case = shared_grader(), drawn.cases[0]
    names = list(skin.spec.output.labels.values())
    head = ",".join(["case", "label", *(f"p_{n}" for n in names)])
    shares = ",".join(["0.94", *["0.01"] * 6])
    row = f"{head}\n{case},{names[0]},{shares}\n".encode()
    seen = grader.inspect(skin, drawn, case, row)
    assert seen["valid"] and seen["quantity"] == pytest.approx(0.94)
    assert seen["labels"] == [names[0]]
    assert grader.agreement(skin, table(drawn, {case: names[0]}), row, case) == 1.0
    assert grader.agreement(skin, table(drawn, {case: names[1]}), row, case) == 0.0
    other = next(n for n in names if f"{case},{n}" not in table(drawn).decode())
    pairs = {c: (table(drawn), table(drawn, {case: other})) for c in drawn.cases}
    alone = {c: grader.agreement(skin, *pair, c) for c, pair in pairs.items()}
    assert grader.agreements(skin, pairs) == alone and len(set(alone.values())) > 1
    probe = grader.inspect(skin, drawn, drawn.probe_case, row.replace(case.encode(), b"nobody"))
    assert not probe["valid"]


def test_a_shared_table_travels_once(drawn: Instance) -> None:
    data = table(drawn)
    rows, blobs = pack_cases([(c, {"t": c.encode()}, {}, data) for c in drawn.cases])
    assert blobs.count(data) == 1 and len(blobs) == len(drawn.cases) + 1
    cases = unpack_cases(json.loads(json.dumps(rows)), blobs)
    assert [c.id for c in cases] == list(drawn.cases)
    assert all(c.output == data and c.truth["t"] == c.id.encode() for c in cases)


def _nifti(values: Any) -> bytes:
    return gzip.compress(nib.Nifti1Image(values, np.eye(4)).to_bytes())


def _npy(values: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


VOLUME = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
BOX = {"class": "a", "score": 0.5, "x1": 1, "y1": 2, "x2": 3, "y2": 4}
SHOWN: dict[str, tuple[str, bytes]] = {
    "nifti-labels": ("outputs/{case}/o.nii.gz", _nifti(np.ones((3, 4, 5), np.uint8))),
    "nifti-image": ("outputs/{case}/o.nii.gz", _nifti(VOLUME)),
    "npy-image": ("outputs/{case}/o.npy", _npy(VOLUME[0])),
    "boxes-json": ("outputs/{case}/o.json", json.dumps({"boxes": [BOX]}).encode()),
    "class-table": (PATH, b"case,label\nx,nevus\n"),
    "answer-table": (PATH, b"case,answer\nx,B\n"),
    "text": ("outputs/{case}/report.txt", b"No finding.\n\x07Odd\n"),
}


def _spec(skin: Task, kind: str, path: str) -> Any:
    output = skin.spec.output.model_copy(update={"format": kind, "path": path})
    return skin.spec.model_copy(update={"output": output})


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_has_a_preview(skin: Task, kind: str) -> None:
    path, data = SHOWN[kind]
    spec = _spec(skin, kind, path)
    seen = unpack(*decode(spec, data, data, "x"))
    assert seen is not None
    shown = [seen.labels is not None, seen.image is not None, bool(seen.boxes), bool(seen.lines)]
    assert sum(shown) == 1
    assert all(line.isprintable() for line in seen.lines)
    for junk in (b"", b"\x1f\x8b\0", b"\xff" * 40, b"[" * 5000):
        broken = unpack(*decode(spec, data, junk, "x"))
        assert broken is None or (broken.image is None and broken.labels is None)


@pytest.mark.parametrize(
    ("reply", "blobs"),
    [
        ({}, []),
        ({"kind": "labels", "shape": [2, 2]}, [b"abc"]),
        ({"kind": "labels", "shape": [2, True]}, [b"ab"]),
        ({"kind": "image", "shape": [1 << 30, 1 << 30]}, [b""]),
        ({"kind": "image", "shape": "ab"}, [b"ab"]),
        ({"kind": "boxes", "boxes": "no"}, []),
        ({"kind": "lines", "lines": 7}, []),
    ],
)
def test_a_child_is_not_believed(reply: dict[str, Any], blobs: list[bytes]) -> None:
    assert unpack(reply, blobs) is None


def test_bad_boxes_are_dropped() -> None:
    rows = [["a", 0.5, 1, 2, 3, 4], ["a", 0.5, float("inf"), 2, 3, 4], ["a"], 3, [1] * 6]
    assert unpack({"kind": "boxes", "boxes": rows}, []) == Preview(
        boxes=(("a", 0.5, 1.0, 2.0, 3.0, 4.0),)
    )
