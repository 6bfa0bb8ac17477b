"""Pictures of inputs and outputs that are no label maps."""

from __future__ import annotations

import dataclasses
import io

import numpy as np
import pytest
from PIL import Image

from bat_env.errors import GraderError
from bat_env.grader.preview import Preview
from bat_env.montage import TILE, montage
from bat_env.tasks import Task, load_task
from bat_env.tasks.instance import Instance
from bat_env.tasks.png import encode_png


class Shows:
    """A previewer that gives one answer."""

    def __init__(self, preview: Preview | None, error: Exception | None = None) -> None:
        self.answer, self.error = preview, error

    def preview(self, task: Task, instance: Instance, case: str, data: bytes) -> Preview | None:
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture(scope="module")
def skin() -> Task:
    return load_task("cls/skin_lesion")


@pytest.fixture(scope="module")
def drawn(skin: Task) -> Instance:
    return skin.instance("train", 2, "mini")


def draw(skin: Task, drawn: Instance, shown: Preview | None) -> np.ndarray:
    outputs = dict.fromkeys(drawn.cases, b"x")
    return montage(skin, drawn, outputs, Shows(shown), cases=2)


def test_each_kind_of_output_is_drawn(skin: Task, drawn: Instance) -> None:
    blank = montage(skin, drawn, {}, Shows(None), cases=2)
    assert blank.shape == (2 * TILE, 3 * TILE, 3) and blank[20:TILE, :TILE].any()
    assert not blank[20:TILE, TILE + 90 :].any()
    for shown, beside in [
        (Preview(lines=("label: nevus",)), True),
        (Preview(boxes=(("nevus", 0.9, 8.0, 8.0, 40.0, 40.0),)), True),
        (Preview(image=np.full((40, 30), 200, np.uint8)), True),
        (Preview(labels=np.ones((4, 4, 4), np.uint8)), False),
        (None, False),
    ]:
        picture = draw(skin, drawn, shown)
        assert picture.shape == blank.shape and picture.dtype == np.uint8
        assert bool(picture[20:TILE, TILE + 2 :].any()) == beside


def test_boxes_change_the_input_tile_and_never_fail(skin: Task, drawn: Instance) -> None:
    blank = draw(skin, drawn, None)
    wild = (("a", 1.0, -1e6, 1e6, 1e6, -1e6), ("b", 0.1, 5.0, 5.0, 30.0, 30.0))
    boxed = draw(skin, drawn, Preview(boxes=wild))
    assert (boxed[20:TILE, :TILE] != blank[20:TILE, :TILE]).any()
    assert draw(skin, drawn, Preview(boxes=())).shape == blank.shape


def test_a_grader_that_fails_leaves_the_input(skin: Task, drawn: Instance) -> None:
    outputs = dict.fromkeys(drawn.cases, b"x")
    picture = montage(skin, drawn, outputs, Shows(None, GraderError("gone")), cases=1)
    assert picture.shape == (TILE, 3 * TILE, 3)


@pytest.mark.parametrize("kind", ["png16", "npy2", "npy3", "json"])
def test_inputs_of_other_kinds(skin: Task, drawn: Instance, kind: str) -> None:
    values = (np.arange(48 * 64, dtype=np.uint16) * 11).reshape(48, 64)
    buffer = io.BytesIO()
    np.save(buffer, values if kind == "npy2" else np.stack([values] * 3, -1))
    name, data = {
        "png16": ("photo.png", encode_png(values)),
        "npy2": ("photo.npy", buffer.getvalue()),
        "npy3": ("photo.npy", buffer.getvalue()),
        "json": ("question.json", b"{}"),
    }[kind]
    public = {f"{case}/{name}": data for case in drawn.cases}
    changed = Task(skin.folder)
    changed.spec = skin.spec.model_copy(update={"input_file": name})
    picture = draw(changed, dataclasses.replace(drawn, public=public), None)
    assert picture[30:100, 20:100].any() == (kind != "json")


def test_png_reads_back_and_has_fixed_bytes() -> None:
    rng = np.random.default_rng(0)
    for shape, kind in (((7, 9), "u1"), ((7, 9), "u2"), ((300, 90, 3), "u1"), ((5, 4, 4), "u1")):
        pixels = rng.integers(0, np.iinfo(kind).max + 1, shape).astype(kind)
        data = encode_png(pixels, spacing_mm=0.25, text={"Kind": "MONOCHROME1"})
        image = Image.open(io.BytesIO(data))
        assert np.array_equal(np.asarray(image), pixels)
        assert image.info["Kind"] == "MONOCHROME1"
        assert 25.4 / image.info["dpi"][0] == pytest.approx(0.25, rel=1e-3)
        assert data == encode_png(pixels, spacing_mm=0.25, text={"Kind": "MONOCHROME1"})
    with pytest.raises(ValueError, match="shape"):
        encode_png(np.zeros((2, 2, 5), np.uint8))
    with pytest.raises(ValueError, match="uint8"):
        encode_png(np.zeros((2, 2), np.float32))
