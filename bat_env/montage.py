"""Pictures of inputs with the outputs drawn in: slices, photographs, boxes, rows and text.

Inputs are trusted, this project made them; outputs are decoded by the grader only.
"""

from __future__ import annotations

import io
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from bat_env.errors import BatError
from bat_env.grader.preview import Box, Preview, grey8
from bat_env.tasks import Task
from bat_env.tasks.instance import Instance

TILE: Final = 128
"""Side of one slice in pixels; a row of the montage has three tiles."""
MAX_CASES: Final = 6
COLOURS: Final[tuple[tuple[int, int, int], ...]] = (
    (64, 196, 255),
    (255, 111, 64),
    (120, 220, 120),
    (240, 210, 80),
    (210, 130, 255),
    (255, 90, 160),
    (60, 235, 215),
    (190, 150, 90),
)
"""Contour colours of labels 1, 2, ...; repeated for more."""

_WHITE: Final = (255, 255, 255)
_PICTURES: Final = (".png", ".jpg", ".jpeg")
_VOLUMES: Final = (".nii.gz", ".nii")
_LINE_CHARS: Final = 40
_LINES: Final = 9

Picture = NDArray[np.uint8]


class Previewer(Protocol):
    """Decodes an output that an agent wrote, away from this process."""

    def preview(self, task: Task, instance: Instance, case: str, data: bytes) -> Preview | None:
        """What the output looks like, or ``None`` if the file cannot be drawn."""


def montage(
    task: Task,
    instance: Instance,
    outputs: Mapping[str, bytes],
    previewer: Previewer,
    cases: int = MAX_CASES,
) -> Picture:
    """Inputs with the outputs drawn in, one row a case.

    A volume gives an axial, a coronal and a sagittal slice, the patient's right on the left: the
    middle one, or where labels were predicted the one with the largest labelled area. A picture
    gives the input, boxes drawn in; beside it the output as picture or as text.

    Args:
        task: The task.
        instance: Its inputs are trusted: this project made them.
        outputs: Case id -> file of the agent; parsed by ``previewer`` only.
        previewer: The grader process.
        cases: Cases to draw at most.

    Returns:
        ``[height, width, 3]`` uint8.
    """
    rows = []
    for case in instance.cases[:cases]:
        shown = None
        if case in outputs:
            try:
                shown = previewer.preview(task, instance, case, outputs[case])
            except BatError:
                shown = None
        name, data = _picture_file(task, instance, case)
        draw = _volume_row if name.endswith(_VOLUMES) else _flat_row
        picture, fits = draw(name, data, shown)
        note = case if fits else f"{case}: " + ("unreadable" if case in outputs else "no output")
        row = Image.fromarray(picture)
        ImageDraw.Draw(row).text((4, 2), note, fill=_WHITE)
        rows.append(np.asarray(row, dtype=np.uint8))
    return np.concatenate(rows, axis=0)


def _picture_file(task: Task, instance: Instance, case: str) -> tuple[str, bytes]:
    """The case's input that can be drawn: the input file itself, or else a picture beside it."""
    tree = {
        p.removeprefix(f"{case}/"): d
        for p, d in instance.public.items()
        if p.startswith(f"{case}/")
    }
    drawable = (*_VOLUMES, *_PICTURES, ".npy")
    names = [task.spec.input_file, *sorted(tree)]
    name = next((n for n in names if n in tree and n.endswith(drawable)), "")
    return name, tree.get(name, b"")


# ------------------------------------------------------------------------------------- volumes


def _volume_row(name: str, data: bytes, shown: Preview | None) -> tuple[Picture, bool]:
    volume, spacing, axes = _oriented(data)
    grey = grey8(volume)
    array = None if shown is None else shown.labels if shown.labels is not None else shown.image
    if array is None or array.ndim != len(axes):
        return _slices(grey, spacing, None), False
    turned = np.asarray(nib.apply_orientation(array, axes))  # type: ignore[no-untyped-call]
    if shown is not None and shown.labels is not None:
        fits = turned.shape == grey.shape
        return _slices(grey, spacing, turned if fits else None), fits
    # An image may have a grid of its own, finer than the input's.
    sizes = zip(spacing, grey.shape, turned.shape, strict=True)
    own = tuple(step * there / max(1, here) for step, there, here in sizes)
    return _slices(turned, own, None), True


def _oriented(data: bytes) -> tuple[NDArray[np.float32], tuple[float, ...], NDArray[np.float64]]:
    """The image turned to right-anterior-superior axes, its spacing in mm, and the turn."""
    with tempfile.TemporaryDirectory(prefix="bat-render-") as folder:
        file = Path(folder) / ("input.nii.gz" if data[:2] == b"\x1f\x8b" else "input.nii")
        file.write_bytes(data)
        image: Any = nib.load(file)
        axes = nib.io_orientation(image.affine)  # type: ignore[no-untyped-call]
        volume = nib.apply_orientation(image.get_fdata(dtype=np.float32), axes)  # type: ignore[no-untyped-call]
        zooms = image.header.get_zooms()
        spacing = tuple(float(zooms[int(i)]) for i in np.argsort(axes[:, 0]))
    return np.asarray(volume), spacing, axes


def _slices(grey: Picture, spacing: tuple[float, ...], labels: Picture | None) -> Picture:
    tiles = []
    for axis in (2, 1, 0):
        index = grey.shape[axis] // 2
        if labels is not None and labels.any():
            others = tuple(a for a in range(3) if a != axis)
            index = int(np.argmax((labels > 0).sum(axis=others)))
        rest = [a for a in range(3) if a != axis]
        plane = np.take(grey, index, axis=axis)
        over = None if labels is None else np.take(labels, index, axis=axis)
        tiles.append(_slice(plane, over, (spacing[rest[0]], spacing[rest[1]])))
    return np.concatenate(tiles, axis=1)


def _slice(plane: Picture, labels: Picture | None, spacing: tuple[float, float]) -> Picture:
    """One slice in a square, its first axis to the left and its second one up."""
    extent = np.array(plane.shape) * np.array(spacing)
    size = np.maximum(1, np.floor(extent * (TILE / extent.max()))).astype(int)
    shape = (int(size[0]), int(size[1]))
    image = Image.fromarray(np.ascontiguousarray(plane.T[::-1, ::-1]))
    rgb = np.asarray(image.resize(shape, Image.Resampling.BILINEAR).convert("RGB")).copy()
    if labels is not None:
        mask = Image.fromarray(np.ascontiguousarray(labels.T[::-1, ::-1]))
        drawn = np.asarray(mask.resize(shape, Image.Resampling.NEAREST))
        for label in np.unique(drawn[drawn > 0]):
            rgb[_contour(drawn == label)] = COLOURS[(int(label) - 1) % len(COLOURS)]
    return _centred(rgb)


def _contour(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pixels of ``mask`` that touch its outside."""
    padded = np.pad(mask, 1)
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return mask & ~inner


def _centred(rgb: Picture) -> Picture:
    tile = np.zeros((TILE, TILE, 3), np.uint8)
    top, left = (TILE - rgb.shape[0]) // 2, (TILE - rgb.shape[1]) // 2
    tile[top : top + rgb.shape[0], left : left + rgb.shape[1]] = rgb
    return tile


# ------------------------------------------------------------------------------------ pictures


def _flat_row(name: str, data: bytes, shown: Preview | None) -> tuple[Picture, bool]:
    """The input, then two tiles' width for the output."""
    image = _flat(name, data)
    left, beside = _fitted(image), np.zeros((TILE, 2 * TILE, 3), np.uint8)
    if shown is None:
        return np.concatenate([left, beside], axis=1), False
    if shown.boxes is not None:
        left = _boxed(image, shown.boxes)
        lines = tuple(f"{b[0]} {b[1]:.2f}" for b in shown.boxes) or ("no boxes",)
        beside = _written(lines)
    elif shown.image is not None and shown.image.ndim == 2:
        beside[:, :TILE] = _fitted(Image.fromarray(shown.image))
    elif shown.lines:
        beside = _written(shown.lines)
    else:
        return np.concatenate([left, beside], axis=1), False
    return np.concatenate([left, beside], axis=1), True


def _flat(name: str, data: bytes) -> Image.Image:
    if name.endswith(_PICTURES):
        image = Image.open(io.BytesIO(data))
        if image.mode in ("RGB", "L", "P", "RGBA"):
            return image.convert("RGB")
        return Image.fromarray(grey8(np.asarray(image)))
    if name.endswith(".npy"):
        array = np.load(io.BytesIO(data), allow_pickle=False)
        return Image.fromarray(
            grey8(array if array.ndim == 2 else array[..., array.shape[-1] // 2])
        )
    return Image.new("RGB", (TILE, TILE))


def _size(image: Image.Image) -> tuple[int, int]:
    scale = TILE / max(image.size)
    return max(1, int(image.width * scale)), max(1, int(image.height * scale))


def _fitted(image: Image.Image) -> Picture:
    resized = image.resize(_size(image), Image.Resampling.BILINEAR)
    return _centred(np.asarray(resized.convert("RGB")))


def _boxed(image: Image.Image, boxes: tuple[Box, ...]) -> Picture:
    size = _size(image)
    canvas = image.resize(size, Image.Resampling.BILINEAR).convert("RGB")
    pen, scale = ImageDraw.Draw(canvas), size[0] / image.width
    names = list(dict.fromkeys(box[0] for box in boxes))
    for name, _, *corners in boxes:
        x1, y1, x2, y2 = (min(max(v * scale, -1.0), 2.0 * TILE) for v in corners)
        colour = COLOURS[names.index(name) % len(COLOURS)]
        pen.rectangle((min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)), outline=colour)
    return _centred(np.asarray(canvas))


def _written(lines: tuple[str, ...]) -> Picture:
    canvas = Image.new("RGB", (2 * TILE, TILE))
    pen = ImageDraw.Draw(canvas)
    rows = [row for line in lines for row in textwrap.wrap(line, _LINE_CHARS) or [""]]
    for number, row in enumerate(rows[:_LINES]):
        pen.text(
            (6, 18 + 12 * number),
            row.encode("latin-1", "replace").decode("latin-1"),
            fill=_WHITE,
        )
    return np.asarray(canvas)
