"""From a record to the files of a case: one function for each kind of record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bat_env.data.pictures import read_picture, reduced, write_png
from bat_env.data.records import (
    AnyRecord,
    Bounds,
    BoxedPicture,
    CaseError,
    LabelledPicture,
    LabelledVolume,
    PairedVolume,
    Prepared,
    Question,
    Record,
    ReportedStudy,
)
from bat_env.data.reports import read_findings, read_report, tidy
from bat_env.data.volumes import (
    Volume,
    cropped,
    read_labels,
    read_volume,
    same_grid,
    slab,
    strided,
    thinned,
    write_nifti,
)

TRUTH: Final = "truth.json"
PICTURE: Final = "image.png"
QUESTION: Final = "question.json"
STUDY: Final = "study.json"
MASK: Final = "mask.nii.gz"
_MIN_BOX_PX: Final = 1.0


@dataclass(frozen=True)
class Frame:
    """What converters need beside the record.

    Attributes:
        track: Track of the staged task.
        input_file: Name of the input.
        output_name: Name of an output, and so of the truth of images.
        labels: Label value -> class name.
        bounds: Sizes.
    """

    track: str
    input_file: str
    output_name: str
    labels: Mapping[int, str]
    bounds: Bounds

    @property
    def by_name(self) -> dict[str, int]:
        """Class name -> label value."""
        return {name: value for value, name in self.labels.items()}


def convert(record: AnyRecord, frame: Frame) -> Prepared:
    """Read a case, check it, and make its files.

    Raises:
        CaseError: If it cannot be used.
        ConfigError: If a package is missing that its format needs.
    """
    return _convert(record, frame)


@singledispatch
def _convert(record: Record, frame: Frame) -> Prepared:
    raise TypeError(f"no converter for {type(record).__name__}")


def digest(*arrays: NDArray[Any]) -> str:
    """sha256 over the values and shapes of arrays, as hex."""
    h = hashlib.sha256()
    for array in arrays:
        h.update(f"{array.dtype.str}{array.shape}".encode())
        h.update(np.ascontiguousarray(array).tobytes())
    return h.hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1).encode()


# ------------------------------------------------------------------------------------- volumes


@_convert.register
def _labelled(record: LabelledVolume, frame: Frame) -> Prepared:
    full = read_volume(record.image)
    labels = _label_map(record, full, frame)
    unknown = sorted(set(np.unique(labels).tolist()) - set(frame.labels))
    if unknown:
        raise CaseError(f"its labels hold {unknown[:5]}, expected {sorted(frame.labels)}")
    strides = thinned(full.shape, full.spacing_mm, frame.bounds.max_voxels)
    small = strided(full, strides)
    truth = strided(Volume(labels, full.affine), strides)
    volume_ml = abs(float(np.linalg.det(small.affine[:3, :3]))) / 1000.0
    counts = np.bincount(truth.values.ravel(), minlength=max(frame.labels) + 1)
    kind = np.uint8 if max(frame.labels) < 256 else np.int16
    return Prepared(
        public=_channels(record, small, frame),
        private={frame.output_name: write_nifti(truth.values.astype(kind), small.affine)},
        content=digest(full.values),
        summary={
            "volumes_ml": {
                name: round(int(counts[value]) * volume_ml, 3)
                for value, name in frame.labels.items()
                if value != 0
            }
        },
    )


def _label_map(record: LabelledVolume, grid: Volume, frame: Frame) -> NDArray[np.int16]:
    if not isinstance(record.labels, Mapping):
        return read_labels(record.labels, grid)
    labels = np.zeros(grid.shape, np.int16)
    for name, path in record.labels.items():
        labels[read_labels(path, grid) > 0] = frame.by_name[name]
    return labels


def _channels(record: LabelledVolume, volume: Volume, frame: Frame) -> dict[str, bytes]:
    """The input file, and one file more for each further channel."""
    if volume.values.ndim == 3:
        if len(record.channels) > 1:
            raise CaseError(f"its image is 3D, expected the channels {', '.join(record.channels)}")
        return {frame.input_file: write_nifti(volume.values, volume.affine)}
    count = volume.values.shape[3]
    if count != len(record.channels):
        raise CaseError(f"its image has {count} channels, expected {len(record.channels)}")
    names = [frame.input_file, *(channel_file(frame.input_file, c) for c in record.channels[1:])]
    return {
        name: write_nifti(np.ascontiguousarray(volume.values[..., n]), volume.affine)
        for n, name in enumerate(names)
    }


def channel_file(input_file: str, channel: str) -> str:
    """Name of a further channel's file, for example ``mri_t1gd.nii.gz``."""
    word = "".join(c if c.isalnum() else "_" for c in channel.lower()).strip("_")
    return f"{input_file.removesuffix('.nii.gz')}_{word}.nii.gz"


@_convert.register
def _paired(record: PairedVolume, frame: Frame) -> Prepared:
    source, target = read_volume(record.source), read_volume(record.target)
    if source.values.ndim != 3:
        raise CaseError("its input has channels, expected a 3D volume")
    same_grid(record.target.name, target, source)
    mask = None if record.mask is None else read_labels(record.mask, source)
    if mask is not None and not mask.any():
        raise CaseError(f"{record.mask.name if record.mask else 'its mask'} is empty")
    if float(np.ptp(target.values)) == 0:
        raise CaseError(f"{record.target.name} is blank: all of its voxels are equal")
    if np.array_equal(source.values, target.values):
        raise CaseError("its two volumes are equal: there is nothing to do")
    whole = digest(source.values)
    public = {frame.input_file: _pack(source, frame, mask)}
    private = {frame.output_name: _pack(Volume(target.values, source.affine), frame, mask)}
    if mask is not None:
        packed = _pack(Volume((mask > 0).astype(np.uint8), source.affine), frame, mask)
        public[MASK] = private[MASK] = packed
    return Prepared(public, private, whole, {"std": round(float(target.values.std()), 3)})


def _pack(volume: Volume, frame: Frame, mask: NDArray[Any] | None) -> bytes:
    small = lessened(volume, frame.track, frame.bounds.max_voxels, mask)
    return write_nifti(small.values, small.affine)


def lessened(volume: Volume, track: str, most: int, mask: NDArray[Any] | None = None) -> Volume:
    """A volume of at most ``most`` voxels: enh keeps neighbours, all else every k-th voxel."""
    if int(np.prod(volume.shape)) <= most:
        return volume
    if track == "enh":
        return cropped(volume, slab(volume, most, mask))
    return strided(volume, thinned(volume.shape, volume.spacing_mm, most))


# ------------------------------------------------------------------------------------ pictures


@_convert.register
def _boxed(record: BoxedPicture, frame: Frame) -> Prepared:
    pixels = read_picture(record.image)
    height, width = pixels.shape[:2]
    small = reduced(pixels, frame.bounds.max_side_px)
    scale_x, scale_y = small.shape[1] / width, small.shape[0] / height
    boxes = []
    for box in record.boxes:
        if box["class"] not in frame.by_name:
            raise CaseError(f"it has a box of the unknown class {box['class']!r}")
        unit = (width, height) if record.relative else (1, 1)
        x1, x2 = (float(box[key]) * unit[0] * scale_x for key in ("x1", "x2"))
        y1, y2 = (float(box[key]) * unit[1] * scale_y for key in ("y1", "y2"))
        if not (x1 < x2 and y1 < y2) or x2 <= 0 or y2 <= 0 or x1 >= small.shape[1]:
            raise CaseError(f"it has the box {dict(box)}, expected x1 < x2 and y1 < y2 within it")
        clipped = {
            "x1": round(max(0.0, x1), 2),
            "y1": round(max(0.0, y1), 2),
            "x2": round(min(float(small.shape[1]), x2), 2),
            "y2": round(min(float(small.shape[0]), y2), 2),
        }
        if min(clipped["x2"] - clipped["x1"], clipped["y2"] - clipped["y1"]) >= _MIN_BOX_PX:
            boxes.append({"class": box["class"], **clipped})
    truth = {
        "case": record.case,
        "width": small.shape[1],
        "height": small.shape[0],
        "boxes": boxes,
    }
    return Prepared(
        {PICTURE: write_png(small)}, {TRUTH: _json(truth)}, digest(pixels), {"boxes": len(boxes)}
    )


@_convert.register
def _classed(record: LabelledPicture, frame: Frame) -> Prepared:
    if record.label not in frame.by_name:
        raise CaseError(f"its class is {record.label!r}, expected {', '.join(frame.by_name)}")
    pixels = read_picture(record.image)
    return Prepared(
        {PICTURE: write_png(reduced(pixels, frame.bounds.max_side_px))},
        {TRUTH: _json({"case": record.case, "label": record.label})},
        digest(pixels),
        {"label": record.label},
    )


@_convert.register
def _asked(record: Question, frame: Frame) -> Prepared:
    pixels = read_picture(record.image)
    options = dict(record.options)
    question = {"question": record.question, "options": options}
    truth = {"case": record.case, "answer": record.answer, "options": options}
    return Prepared(
        {
            QUESTION: _json(question),
            PICTURE: write_png(reduced(pixels, frame.bounds.max_side_px)),
        },
        {TRUTH: _json(truth)},
        # Many questions share a picture: a copy is the same question about it.
        hashlib.sha256(f"{digest(pixels)}{record.question.casefold()}".encode()).hexdigest(),
        {"answer": record.answer, "text": options[record.answer]},
    )


@_convert.register
def _reported(record: ReportedStudy, frame: Frame) -> Prepared:
    text = tidy(record.report) if isinstance(record.report, str) else read_report(record.report)
    findings = read_findings(text)
    pictures = [read_picture(path) for path in record.images]
    names = [f"view{n}.png" for n in range(1, len(pictures) + 1)]
    truth = {"case": record.case, "findings": findings, "report": text}
    return Prepared(
        {
            STUDY: _json({"images": names}),
            **{
                name: write_png(reduced(pixels, frame.bounds.max_side_px))
                for name, pixels in zip(names, pictures, strict=True)
            },
        },
        {TRUTH: _json(truth)},
        digest(*pictures),
        {"findings": len(findings), "words": len(text.split())},
    )
