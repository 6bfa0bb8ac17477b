"""What a published data set holds, case by case, before anything of it is read.

A layout's reader turns folders and tables into records; the converters turn a record into files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Record:
    """One case.

    Attributes:
        case: Id that the data set gives it; unique within the set.
        group: What must not be split: patient, lesion or picture.
    """

    case: str
    group: str


@dataclass(frozen=True)
class LabelledVolume(Record):
    """A volume and its label map.

    Attributes:
        image: A file, or a folder of one DICOM series.
        labels: A label map, or class name -> binary mask (an absent mask is an absent class).
        channels: Names of the channels of a 4D image, in order; empty for 3D.
    """

    image: Path
    labels: Path | Mapping[str, Path]
    channels: tuple[str, ...] = ()


@dataclass(frozen=True)
class PairedVolume(Record):
    """Two volumes of one body on one grid: what is given, and what it should become.

    Attributes:
        source: File or DICOM folder of the input.
        target: The same of the truth.
        mask: Where the result is judged, or ``None`` for everywhere.
    """

    source: Path
    target: Path
    mask: Path | None = None


@dataclass(frozen=True)
class BoxedPicture(Record):
    """A picture with boxes.

    Attributes:
        image: PNG, JPEG or DICOM.
        boxes: ``{"class", "x1", "y1", "x2", "y2"}`` each.
        relative: Whether corners are shares of width and height, not pixels.
    """

    image: Path
    boxes: tuple[Mapping[str, Any], ...]
    relative: bool = False


@dataclass(frozen=True)
class LabelledPicture(Record):
    """A picture and its class."""

    image: Path
    label: str


@dataclass(frozen=True)
class Question(Record):
    """A question about a picture.

    Attributes:
        image: PNG or JPEG.
        question: Its text.
        options: Letter -> text, in the order of the letters.
        answer: The right letter.
    """

    image: Path
    question: str
    options: Mapping[str, str]
    answer: str


@dataclass(frozen=True)
class ReportedStudy(Record):
    """Pictures of one study and the report on it.

    Attributes:
        images: PNG, JPEG or DICOM, the most telling view first.
        report: Findings and impression, or the file of a whole report: a large data set is not
            read to stage a few cases of it.
    """

    images: tuple[Path, ...]
    report: str | Path


AnyRecord: TypeAlias = (
    LabelledVolume | PairedVolume | BoxedPicture | LabelledPicture | Question | ReportedStudy
)


@dataclass(frozen=True)
class Scan:
    """What a reader found.

    Attributes:
        records: In a fixed order, whatever the file system's.
        labels: Label value -> class name (seg with background 0, det, cls, letters of vqa).
        modality: In words, for the brief: ``"CT"``, ``"chest radiographs"``.
        title: Title of the task where the layout holds several data sets.
        suffix: Added to the staged name for the same reason, for example ``"task03_liver"``.
        track, input_file: Where they depend on the folder; else those of the layout.
        licence: What the data set itself says of its licence, where its files do.
        notes: Remarks for the person who stages: what was left out, and why.
    """

    records: Sequence[AnyRecord]
    labels: Mapping[int, str] = field(default_factory=dict)
    modality: str = ""
    title: str = ""
    suffix: str = ""
    track: str = ""
    input_file: str = ""
    licence: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """How large staged inputs may be.

    Attributes:
        max_voxels: Voxels of a volume.
        max_side_px: Longer side of a picture, pixels.
    """

    max_voxels: int = 1 << 21
    max_side_px: int = 1024


@dataclass(frozen=True)
class Prepared:
    """Files of one case.

    Attributes:
        public: File name -> bytes for the agent.
        private: File name -> bytes: the truth.
        content: sha256 of the decoded input, to find copies under other names.
        summary: JSON-able facts of the truth that the task's contract is made from.
    """

    public: Mapping[str, bytes]
    private: Mapping[str, bytes]
    content: str
    summary: Mapping[str, Any]


class CaseError(ValueError):
    """A case that cannot be used; the message follows "<case>: " and is complete."""
