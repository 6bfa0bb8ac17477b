"""Pictures that are nearly the same: one re-encoded, shifted in intensity, cropped or rescaled.

Phantoms of one generator look alike, so a hash of the coarse picture alone would accuse every
training case. A picture is therefore recognised in two steps: its middle is compared band-passed
with every known one, under a grid of crops; what comes close is aligned, and only then is the fine
structure compared, which a generator never draws twice.
"""

from __future__ import annotations

import functools
import io
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bat_env.bank.inflating import inflate

Floats = NDArray[np.float32]

SIDE: Final = 40
"""Pixels along a side of the kept middle of a picture."""

MIN_SIDE: Final = 24
"""Smaller pictures hold too little to be told from others."""

COARSE: Final = 0.55
FINE: Final = 0.72
"""Correlations in [-1, 1] from which on a picture is looked at closely, and can be the same. To be
so, it must also be twice as near to 1 as that of any other instance."""

KNOWN_SLICES: Final = 24
ASKED_SLICES: Final = 12
_MIN_VALUES: Final = 12
_MAX_VOXELS: Final = 64 << 20
_CLOSE: Final = 6
_EACH: Final = 2
_ALONE: Final = 0.5
_QUORUM: Final = 4
"""One slice of so many must agree."""

_AIR: Final = -500.0
_WINDOW: Final = (-160.0, 240.0)
"""HU: below the first there is air, and between the others what people look at."""

_SMALL: Final = 48
_FINE_SMALL: Final = 0.93
_APART: Final = 0.5
_EDGE: Final = 0.15
_CROPS: Final = (0.0, 0.033, 0.066, 0.1)
_COARSE_SIDE: Final = 24
_NIFTI: Final = {
    2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4", 1024: "i8",
}  # fmt: skip


def pictures(data: bytes, most: int) -> list[Floats]:
    """The grey pictures in a file: of a PNG or JPEG, of slices of a NIfTI, npy or npz array.

    Label maps and other arrays of few values give none: outlines of organs are no fingerprint.

    Args:
        data: Content of the file.
        most: Slices of a volume, spread evenly.

    Returns:
        Arrays of shape ``[height, width]``; empty if the file holds no picture.
    """
    found: list[Floats] = []
    try:
        for array in _arrays(data):
            found += _slices(array, most)
    except (ValueError, OSError, EOFError, KeyError, struct.error, zipfile.BadZipFile, TypeError):
        return found
    except MemoryError:
        return found
    return found


@dataclass(frozen=True, eq=False)
class Gallery:
    """Known pictures.

    Attributes:
        middles: Their middles, ``[n, SIDE, SIDE]`` uint8.
        names: What each shows, one index into ``labels`` each.
        labels: Texts.
    """

    middles: NDArray[np.uint8] = field(
        default_factory=lambda: np.zeros((0, SIDE, SIDE), dtype=np.uint8)
    )
    names: NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, dtype=np.int32))
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, shown: Sequence[tuple[str, bytes]]) -> Gallery:
        """The gallery of some files.

        Args:
            shown: (what it is, content) of each file.
        """
        middles: list[NDArray[np.uint8]] = []
        names: list[int] = []
        labels: dict[str, int] = {}
        for what, data in shown:
            for picture in _as_seen(pictures(data, KNOWN_SLICES)):
                middle = _window(picture, (_EDGE, 1 - _EDGE), (_EDGE, 1 - _EDGE), SIDE)
                low, high = float(middle.min()), float(middle.max())
                if high > low:
                    middles.append(np.rint((middle - low) * (255 / (high - low))).astype(np.uint8))
                    names.append(labels.setdefault(what, len(labels)))
        if not middles:
            return cls()
        return cls(np.stack(middles), np.array(names, dtype=np.int32), tuple(labels))

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Gallery)
            and self.labels == other.labels
            and np.array_equal(self.names, other.names)
            and np.array_equal(self.middles, other.middles)
        )

    __hash__ = None  # type: ignore[assignment]

    def merge(self, other: Gallery) -> Gallery:
        """Both galleries."""
        if not len(other.middles) or not len(self.middles):
            return self if len(self.middles) else other
        labels = {label: place for place, label in enumerate(self.labels)}
        moved = [labels.setdefault(label, len(labels)) for label in other.labels]
        names = np.array(moved, dtype=np.int32)[other.names]
        # Suites overlap: the same picture of the same instance counts once.
        here = {
            (int(name), middle.tobytes())
            for name, middle in zip(self.names, self.middles, strict=True)
        }
        fresh = [
            place
            for place, (name, middle) in enumerate(zip(names, other.middles, strict=True))
            if (int(name), middle.tobytes()) not in here
        ]
        return Gallery(
            np.concatenate([self.middles, other.middles[fresh]]),
            np.concatenate([self.names, names[fresh]]),
            tuple(labels),
        )

    def recognise(self, data: bytes) -> str | None:
        """What a file nearly shows, or ``None``."""
        if not len(self.middles):
            return None
        shown = pictures(data, ASKED_SLICES)
        votes: Counter[str] = Counter()
        for number, picture in enumerate(shown):
            found = self._same(picture)
            if found is not None:
                votes[found] += 1
                if votes[found] * _QUORUM >= len(shown):
                    return found
            if not votes and number * 2 > len(shown):
                break
        return None

    @functools.cached_property
    def _coarse(self) -> Floats:
        """Band-passed middles at the coarse side, one unit vector a row."""
        shrink = _sampler(SIDE, (0.0, 1.0), _COARSE_SIDE)
        small = shrink @ self.middles.astype(np.float32) @ shrink.T
        return _unit(_band(small, 2.0))

    def _same(self, picture: Floats) -> str | None:
        spans = _spans()
        height, width = picture.shape
        rows = np.concatenate([_sampler(height, span, _COARSE_SIDE) for span in spans])
        columns = np.concatenate([_sampler(width, span, _COARSE_SIDE) for span in spans])
        count = len(spans)
        tiles = (rows @ picture @ columns.T).reshape(count, _COARSE_SIDE, count, _COARSE_SIDE)
        windows = tiles.transpose(0, 2, 1, 3).reshape(-1, _COARSE_SIDE, _COARSE_SIDE)
        scores = _unit(_band(windows, 2.0)) @ self._coarse.T
        best = scores.max(axis=0)
        aligned: dict[int, tuple[float, int]] = {}
        looked: Counter[int] = Counter()
        for number in np.argsort(best)[::-1]:
            if best[number] < COARSE or sum(looked.values()) >= _CLOSE:
                break
            name = int(self.names[number])
            if looked[name] >= _EACH:
                continue
            looked[name] += 1
            at = divmod(int(scores[:, number].argmax()), count)
            score = self._align(picture, int(number), spans[at[0]], spans[at[1]])
            aligned[name] = max(aligned.get(name, (-1.0, 0)), (score, int(number)))
        if not aligned:
            return None
        ranked = sorted(((score, name) for name, (score, _) in aligned.items()), reverse=True)
        # What all pictures of a generator share lifts the runner-up as well; a copy stands alone.
        second = max([_ALONE, *(score for score, _ in ranked[1:])])
        score, name = ranked[0]
        enough = FINE if min(picture.shape) >= _SMALL else _FINE_SMALL
        alone = 1 - score <= _APART * (1 - second)
        return self.labels[name] if score >= enough and alone else None

    def _align(
        self, picture: Floats, number: int, rows: tuple[float, float], columns: tuple[float, float]
    ) -> float:
        """Correlation of the fine structure under the best window near the given one."""
        wanted = _unit(_band(self.middles[number].astype(np.float32)[None], 1.5))[0]

        def score(edges: Sequence[float]) -> float:
            if not (0 <= edges[0] < edges[1] <= 1 and 0 <= edges[2] < edges[3] <= 1):
                return -1.0
            window = _window(picture, (edges[0], edges[1]), (edges[2], edges[3]), SIDE)
            return float(_unit(_band(window[None], 1.5))[0] @ wanted)

        edges = [*rows, *columns]
        best = score(edges)
        for step in (0.016, 0.008, 0.004, 0.002):
            for _ in range(2):
                before = best
                for moved in ((0, 1), (2, 3), (0,), (1,), (2,), (3,)):
                    for sign in (step, -step):
                        tried = [e + sign * (k in moved) for k, e in enumerate(edges)]
                        value = score(tried)
                        if value > best:
                            best, edges = value, tried
                if best == before:
                    break
        return best


def _as_seen(shown: Sequence[Floats]) -> Iterator[Floats]:
    """Pictures, and those of CT also under the window in which people look at soft tissue."""
    for picture in shown:
        yield picture
        if picture.min() < _AIR and picture.max() > _WINDOW[0]:
            yield np.clip(picture, *_WINDOW)


@functools.cache
def _spans() -> tuple[tuple[float, float], ...]:
    """Where the known middle lies along an axis of a picture cropped by up to a tenth a side."""
    return tuple(
        ((_EDGE - low) / (1 - low - high), (1 - _EDGE - low) / (1 - low - high))
        for low in _CROPS
        for high in _CROPS
    )


@functools.lru_cache(maxsize=4096)
def _sampler(size: int, span: tuple[float, float], side: int) -> Floats:
    """The matrix ``[side, size]`` that samples part of an axis with a triangle filter."""
    begin, end = span[0] * size, span[1] * size
    pitch = (end - begin) / side
    centres = begin + (np.arange(side) + 0.5) * pitch - 0.5
    reach = max(1.0, pitch)
    weights = np.maximum(0.0, 1.0 - np.abs(centres[:, None] - np.arange(size)[None]) / reach)
    total = weights.sum(axis=1, keepdims=True)
    return np.asarray(weights / np.where(total > 0, total, 1.0), dtype=np.float32)


def _window(
    picture: Floats, rows: tuple[float, float], columns: tuple[float, float], side: int
) -> Floats:
    height, width = picture.shape
    down, along = _sampler(height, rows, side), _sampler(width, columns, side)
    return np.asarray(down @ picture @ along.T, dtype=np.float32)


@functools.cache
def _blur(side: int, sigma: float) -> Floats:
    """The matrix of a Gaussian blur along an axis, edges repeated."""
    offsets = np.arange(side)
    made = np.zeros((side, side))
    for shift in range(-int(4 * sigma), int(4 * sigma) + 1):
        made[offsets, np.clip(offsets + shift, 0, side - 1)] += np.exp(-0.5 * (shift / sigma) ** 2)
    return np.asarray(made / made.sum(axis=1, keepdims=True), dtype=np.float32)


def _band(stack: Floats, sigma: float) -> Floats:
    blur = _blur(stack.shape[-1], sigma)
    return np.asarray(stack - blur @ stack @ blur.T, dtype=np.float32)


def _unit(stack: Floats) -> Floats:
    flat = stack.reshape(len(stack), -1)
    flat = flat - flat.mean(axis=1, keepdims=True)
    length = np.linalg.norm(flat, axis=1, keepdims=True)
    unit = np.where(length > 1e-6, flat / np.maximum(length, 1e-6), 0.0)
    return np.asarray(unit, dtype=np.float32)


# ------------------------------------------------------------------------------------- file kinds


def _arrays(data: bytes) -> Iterator[NDArray[Any]]:
    head = data[:8]
    if head[:2] == b"\x1f\x8b":
        data = inflate(data) or b""
        head = data[:8]
    if head == b"\x89PNG\r\n\x1a\n" or head[:3] == b"\xff\xd8\xff":
        from PIL import Image

        with Image.open(io.BytesIO(data)) as image:
            if image.size[0] * image.size[1] <= _MAX_VOXELS:
                yield np.asarray(image.convert("F"))
    elif head[:6] == b"\x93NUMPY":
        yield _npy(data)
    elif head[:4] == b"PK\x03\x04":
        with zipfile.ZipFile(io.BytesIO(data)) as members:
            for member in members.infolist():
                if member.filename.endswith(".npy") and member.file_size <= 8 * _MAX_VOXELS:
                    yield _npy(members.read(member))
    elif data[344:347] in (b"n+1", b"ni1"):
        yield _nifti(data)


def _npy(data: bytes) -> NDArray[Any]:
    array = np.load(io.BytesIO(data), allow_pickle=False)
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "uifb":
        raise ValueError("no array of numbers")
    return array


def _nifti(data: bytes) -> NDArray[Any]:
    order = "<" if data[:4] == b"\x5c\x01\x00\x00" else ">"
    shape = struct.unpack(f"{order}8h", data[40:56])
    (code,) = struct.unpack(f"{order}h", data[70:72])
    (offset,) = struct.unpack(f"{order}f", data[108:112])
    dims = [max(1, size) for size in shape[1 : 1 + min(7, max(1, shape[0]))]]
    count = int(np.prod(dims, dtype=np.int64))
    if count > _MAX_VOXELS:
        raise ValueError("too large")
    flat = np.frombuffer(data, f"{order}{_NIFTI[code]}", count, int(offset) or 352)
    volume = flat.reshape(dims, order="F")
    slope, shift = struct.unpack(f"{order}2f", data[112:120])
    if np.isfinite([slope, shift]).all() and (slope, shift) not in ((0.0, 0.0), (1.0, 0.0)):
        return volume.astype(np.float32) * np.float32(slope or 1.0) + np.float32(shift)
    return volume


def _slices(array: NDArray[Any], most: int) -> list[Floats]:
    array = np.squeeze(array)
    if array.ndim == 3 and array.shape[2] in (3, 4) and array.dtype == np.uint8:
        array = array[..., :3] @ np.array([0.299, 0.587, 0.114])  # colours, as PIL weighs them
    if array.ndim == 4:
        array = array[..., 0]
    if array.ndim not in (2, 3) or array.size > _MAX_VOXELS:
        return []
    if len(np.unique(array.ravel()[:: max(1, array.size // 20000)])) < _MIN_VALUES:
        return []
    if array.ndim == 2:
        planes = [array]
    else:
        axis = int(np.argmin(array.shape))
        size = array.shape[axis]
        places = np.unique(np.rint(np.linspace(0, size - 1, min(most, size))).astype(int))
        planes = [np.take(array, place, axis) for place in places]
    made = []
    for plane in planes:
        if min(plane.shape) < MIN_SIDE:
            continue
        grey = np.nan_to_num(plane.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
        low, high = np.percentile(grey, (1, 99))
        if high > low:
            made.append(np.clip(grey, low, high))
    return made
