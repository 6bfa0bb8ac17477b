"""Pictures of an episode for people: a scoreboard, and slices with the outputs drawn in."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from rich.console import Console, Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bat_env.episode import Episode
from bat_env.errors import BatError
from bat_env.rubric.base import RubricResult
from bat_env.tasks import Task
from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import TaskSpec

TILE: Final = 128
"""Side of one slice in pixels."""

MAX_CASES: Final = 6
_MAX_OUTPUT_BYTES: Final = 64 << 20
COLOURS: Final[tuple[tuple[int, int, int], ...]] = (
    (64, 196, 255),
    (255, 111, 64),
    (120, 220, 120),
    (240, 210, 80),
    (210, 130, 255),
)
"""Contour colours of labels 1, 2, ...; repeated for more."""

_MARKS: Final[Mapping[str, tuple[str, str]]] = {
    "pass": ("pass", "green"),
    "fail": ("fail", "red"),
    "pending": ("open", "yellow"),
    "na": ("n/a", "bright_black"),
    "null": ("lost", "magenta"),
}


class Previewer(Protocol):
    """Decodes an output that an agent wrote, away from this process."""

    def preview(
        self, task: Task, instance: Instance, case: str, data: bytes
    ) -> NDArray[np.uint8] | None:
        """Labels on the input's grid, or ``None`` if the file cannot be drawn."""


def outputs_of(
    episode: Episode, spec: TaskSpec, read: Callable[[str, int], bytes | None]
) -> dict[str, bytes]:
    """Case id -> output file as it is now, as far as there is one.

    Args:
        episode: The record; at the end its evidence holds the files.
        spec: Says where outputs lie.
        read: ``(path, max_bytes)`` -> content of a workspace file, or ``None``.
    """
    found = {}
    for case in episode.cases:
        path = spec.output.path.format(case=case)
        data = episode.evidence.files.get(path)
        if data is None and path in episode.current:
            data = read(path, _MAX_OUTPUT_BYTES)
        if data is not None:
            found[case] = data
    return found


def scoreboard(
    episode: Episode, rubric: RubricResult | None, score: float, spec: TaskSpec, width: int = 96
) -> str:
    """The state of an episode as a text table with ANSI colours.

    Args:
        episode: The record.
        rubric: The last evaluation, or ``None`` before the first step.
        score: Episode score in [0, 1].
        spec: For title and budgets.
        width: Columns.
    """
    items = Table(expand=True, show_edge=False, pad_edge=False)
    for name, ratio in (("item", 3), ("state", 1), ("value", 1), ("", 5)):
        items.add_column(name, ratio=ratio, overflow="fold")
    for verdict in rubric.verdicts if rubric is not None else ():
        label, colour = _MARKS[verdict.state]
        items.add_row(
            Text(verdict.item),
            Text(label, style=colour),
            f"{verdict.value:.2f}" if verdict.state in ("pass", "fail") else "",
            Text(verdict.message + (" (false claim)" if verdict.false_claim else "")),
        )
    stages = ""
    if rubric is not None:
        parts = [
            f"{stage.name} {'null' if r.reward is None else format(r.reward, '.2f')}"
            for stage, r in sorted(rubric.stages.items())
        ]
        stages = "   ".join(parts)
    used = (
        f"turn {len(episode.turns)}/{spec.budgets.turns}   call {len(episode.cells)}/"
        f"{spec.budgets.calls}   {episode.status} {episode.end_reason}"
    )
    head = Text(f"score {score:.3f}   {stages}\n{used}")
    title = f"{episode.task} · {episode.focus.name} {episode.focus.title} · {episode.tier}"
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, color_system="standard")
    console.print(Panel(Group(head, Text(""), items), title=Text(title)))
    return stream.getvalue()


def montage(
    task: Task, instance: Instance, outputs: Mapping[str, bytes], previewer: Previewer
) -> NDArray[np.uint8]:
    """Slices of the input with the contours of the outputs.

    One row a case (at most :data:`MAX_CASES`), three columns: axial, coronal and sagittal, the
    patient's right on the left; the middle slice, or where there is an output the slice with the
    largest labelled area.

    Args:
        task: The task.
        instance: Its inputs are trusted: this project made them.
        outputs: Case id -> file of the agent; parsed by ``previewer`` only.
        previewer: The grader process.

    Returns:
        ``[height, width, 3]`` uint8.
    """
    rows = []
    for case in instance.cases[:MAX_CASES]:
        volume, spacing, axes = _input(instance.public[f"{case}/{task.spec.input_file}"])
        labels = None
        if case in outputs:
            labels = _labels(task, instance, case, outputs[case], previewer, axes)
            labels = labels if labels is not None and labels.shape == volume.shape else None
        window = np.percentile(volume, [1, 99])
        grey = (volume - window[0]) / max(float(window[1] - window[0]), 1e-6)
        grey8 = (np.clip(grey, 0, 1) * 255).astype(np.uint8)
        rows.append(_row(case, grey8, spacing, labels, case in outputs))
    return np.concatenate(rows, axis=0)


def _input(data: bytes) -> tuple[NDArray[np.float32], tuple[float, ...], NDArray[np.float64]]:
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


def _labels(
    task: Task,
    instance: Instance,
    case: str,
    data: bytes,
    previewer: Previewer,
    axes: NDArray[np.float64],
) -> NDArray[np.uint8] | None:
    try:
        labels = previewer.preview(task, instance, case, data)
    except BatError:
        return None
    if labels is None or labels.ndim != len(axes):
        return None
    return np.asarray(nib.apply_orientation(labels, axes))  # type: ignore[no-untyped-call]


def _row(
    case: str,
    grey: NDArray[np.uint8],
    spacing: tuple[float, ...],
    labels: NDArray[np.uint8] | None,
    has_output: bool,
) -> NDArray[np.uint8]:
    tiles = []
    for axis in (2, 1, 0):
        index = grey.shape[axis] // 2
        if labels is not None and labels.any():
            others = tuple(a for a in range(3) if a != axis)
            index = int(np.argmax((labels > 0).sum(axis=others)))
        rest = [a for a in range(3) if a != axis]
        plane = np.take(grey, index, axis=axis)
        over = None if labels is None else np.take(labels, index, axis=axis)
        tiles.append(_tile(plane, over, (spacing[rest[0]], spacing[rest[1]])))
    picture = Image.fromarray(np.concatenate(tiles, axis=1))
    note = (
        case if labels is not None else f"{case}: " + ("unreadable" if has_output else "no output")
    )
    ImageDraw.Draw(picture).text((4, 2), note, fill=(255, 255, 255))
    return np.asarray(picture, dtype=np.uint8)


def _tile(
    plane: NDArray[np.uint8], labels: NDArray[np.uint8] | None, spacing: tuple[float, float]
) -> NDArray[np.uint8]:
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
    tile = np.zeros((TILE, TILE, 3), np.uint8)
    top, left = (TILE - rgb.shape[0]) // 2, (TILE - rgb.shape[1]) // 2
    tile[top : top + rgb.shape[0], left : left + rgb.shape[1]] = rgb
    return tile


def _contour(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Pixels of ``mask`` that touch its outside."""
    padded = np.pad(mask, 1)
    inner = padded[:-2, 1:-1] & padded[2:, 1:-1] & padded[1:-1, :-2] & padded[1:-1, 2:]
    return mask & ~inner
