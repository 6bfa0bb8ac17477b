"""Pictures: read, checked, made small enough, written without any of their metadata."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bat_env.data.records import CaseError

SUFFIXES: Final = (".png", ".jpg", ".jpeg")
DICOM_SUFFIXES: Final = (".dcm", ".dicom")
MIN_SIDE: Final = 16
MAX_PIXELS: Final = 1 << 27
_DEEP: Final = ("I;16", "I;16B", "I;16L", "I")


def read_picture(path: Path) -> NDArray[Any]:
    """Pixels (rows, columns) or (rows, columns, 3), uint8 or uint16.

    Raises:
        CaseError: If the file is missing, empty, cut short or no picture.
        ConfigError: If it is DICOM and the extra is missing.
    """
    if not path.is_file():
        raise CaseError(f"the picture {path.name} is missing")
    if path.stat().st_size == 0:
        raise CaseError(f"{path.name} is empty (0 bytes); the download was cut short")
    if path.suffix.lower() in DICOM_SUFFIXES:
        from bat_env.data.dicom import read_radiograph

        pixels: NDArray[Any] = read_radiograph(path)
    else:
        pixels = _decoded(path)
    if min(pixels.shape[:2]) < MIN_SIDE:
        raise CaseError(f"{path.name} has {pixels.shape[1]} x {pixels.shape[0]} pixels: too few")
    if pixels.min() == pixels.max():
        raise CaseError(f"{path.name} is blank: all of its pixels are equal")
    return pixels


def _decoded(path: Path) -> NDArray[Any]:
    try:
        with Image.open(path, formats=["PNG", "JPEG"]) as image:
            if image.width * image.height > MAX_PIXELS:
                raise CaseError(f"{path.name} has {image.width} x {image.height} pixels: too many")
            image.load()
            if image.mode in _DEEP:
                deep = np.asarray(image)
                if deep.min() < 0 or deep.max() > 65535:
                    raise CaseError(f"{path.name} holds values beyond 16 bits")
                return deep.astype(np.uint16)
            grey = image.mode in ("L", "1", "LA")
            return np.asarray(image.convert("L" if grey else "RGB"))
    except CaseError:
        raise
    except Exception as error:
        raise CaseError(f"{path.name} cannot be decoded: {str(error)[:160]}") from error


def reduced(pixels: NDArray[Any], most: int) -> NDArray[Any]:
    """A picture whose longer side has at most ``most`` pixels; new pixels are means of old ones."""
    height, width = pixels.shape[:2]
    if max(height, width) <= most:
        return pixels
    scale = most / max(height, width)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    planes = pixels[..., None] if pixels.ndim == 2 else pixels
    small = [
        np.asarray(Image.fromarray(plane.astype(np.float32)).resize(size, Image.Resampling.BOX))
        for plane in np.moveaxis(planes, -1, 0)
    ]
    whole: NDArray[Any] = np.rint(np.stack(small, axis=-1)).astype(pixels.dtype)
    return whole[..., 0] if pixels.ndim == 2 else whole


def write_png(pixels: NDArray[Any]) -> bytes:
    """A PNG file of 8 or 16 bits."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=4)
    return buffer.getvalue()
