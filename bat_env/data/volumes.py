"""Volumes: read from what data sets ship, checked, made small enough, written clean.

Values keep the order of the file's axes; the affine maps voxels to RAS millimetres.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import nibabel as nib
import numpy as np
from numpy.typing import NDArray

from bat_env.data.records import CaseError

NIFTI: Final = (".nii", ".nii.gz")
ITK: Final = (".mha", ".mhd", ".nrrd", ".nhdr")
MIN_SIDE: Final = 4
"""Voxels that an axis must have to be a volume."""
_KEPT: Final = 24
"""An axis is not thinned below this many voxels."""
_SLICES: Final = 8
MAX_AFFINE_MM: Final = 0.05
"""Two images of a case lie on one grid if their corners differ by less than this, mm."""


@dataclass(frozen=True)
class Volume:
    """A volume in file order.

    Attributes:
        values: 3D (or 4D, channels last), int16 where that is exact, else float32; finite.
        affine: 4x4 voxel-to-world (RAS, mm), invertible.
    """

    values: NDArray[Any]
    affine: NDArray[np.float64]

    @property
    def spacing_mm(self) -> NDArray[np.float64]:
        """Voxel sizes in file order, mm."""
        return np.asarray(np.sqrt((self.affine[:3, :3] ** 2).sum(axis=0)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Voxels along the three axes of space."""
        return tuple(self.values.shape[:3])


def read_volume(path: Path) -> Volume:
    """Read NIfTI, MetaImage or NRRD, or a folder that holds one DICOM series.

    Raises:
        CaseError: If it is missing, unreadable, empty or no volume.
        ConfigError: If a reader's package is missing.
    """
    if path.is_dir():
        from bat_env.data.dicom import read_series

        return read_series(path)
    if not path.is_file():
        raise CaseError(f"{path.name} is missing")
    if path.stat().st_size == 0:
        raise CaseError(f"{path.name} is empty (0 bytes); the download was cut short")
    if path.name.endswith(NIFTI):
        return _checked(path.name, *_read_nifti(path))
    if path.name.endswith(ITK):
        from bat_env.data.dicom import read_itk

        return _checked(path.name, *read_itk(path))
    raise CaseError(f"{path.name} is no volume; expected {', '.join((*NIFTI, *ITK))}")


def _read_nifti(path: Path) -> tuple[NDArray[Any], NDArray[np.float64]]:
    try:
        image: Any = nib.load(path)
        return np.asanyarray(image.dataobj), np.asarray(image.affine, np.float64)
    except Exception as error:
        if path.stat().st_size < 1024 and path.read_bytes().startswith(b"version https://git-lfs"):
            why = "is a Git LFS pointer, not the volume; fetch the files themselves"
        else:
            why = f"cannot be read: {str(error)[:160]}"
        raise CaseError(f"{path.name} {why}") from error


def _checked(name: str, values: NDArray[Any], affine: NDArray[np.float64]) -> Volume:
    while values.ndim > 3 and values.shape[-1] == 1:
        values = values[..., 0]
    if values.ndim not in (3, 4) or min(values.shape[:3], default=0) < MIN_SIDE:
        raise CaseError(f"{name} has the shape {values.shape}, expected a volume")
    if affine.shape != (4, 4) or not np.isfinite(affine).all():
        raise CaseError(f"{name} has a broken affine")
    sizes = np.sqrt((affine[:3, :3] ** 2).sum(axis=0))
    if not (sizes > 1e-6).all() or abs(np.linalg.det(affine[:3, :3] / sizes)) < 1e-3:
        raise CaseError(f"{name} has an affine that cannot be inverted (spacing {sizes.tolist()})")
    return Volume(compact(name, values), affine)


def compact(name: str, values: NDArray[Any]) -> NDArray[Any]:
    """Values as int16 where that loses nothing, else float32.

    Raises:
        CaseError: If they are no finite real numbers.
    """
    if values.dtype.kind not in "iufb":
        raise CaseError(f"{name} holds {values.dtype} voxels, expected real numbers")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise CaseError(f"{name} holds NaN or infinity")
    whole = values.dtype.kind != "f" or bool((np.abs(values - np.rint(values)) <= 1e-3).all())
    if whole and values.min() >= -32768 and values.max() <= 32767:
        return np.asarray(np.rint(values), np.int16)
    return np.asarray(values, np.float32)


def read_labels(path: Path, grid: Volume) -> NDArray[np.int16]:
    """A label map on the grid of its image.

    Raises:
        CaseError: If it is unreadable, lies elsewhere, or holds values that are no labels.
    """
    labels = read_volume(path)
    same_grid(path.name, labels, grid)
    if labels.values.dtype != np.int16 or labels.values.min() < 0:
        raise CaseError(f"{path.name} holds values that are no labels (negative or broken numbers)")
    return cast("NDArray[np.int16]", labels.values)


def same_grid(name: str, other: Volume, grid: Volume) -> None:
    """Check that two images of a case lie on one grid.

    Raises:
        CaseError: Says in which way they do not.
    """
    if other.values.shape != grid.shape:
        raise CaseError(f"{name} has the shape {other.values.shape}, its image has {grid.shape}")
    far = np.array([[n * (size - 1) for n, size in zip(corner, grid.shape, strict=True)] + [1]
                    for corner in np.ndindex(2, 2, 2)])  # fmt: skip
    apart = float(np.abs(far @ (other.affine - grid.affine).T).max())
    if apart > MAX_AFFINE_MM:
        raise CaseError(f"{name} lies {apart:.2f} mm away from its image, expected the same grid")


# ------------------------------------------------------------------------------------ reduction


def thinned(shape: tuple[int, ...], spacing_mm: NDArray[np.float64], most: int) -> tuple[int, ...]:
    """Strides that bring a grid to at most ``most`` voxels, the finest axis first.

    Every k-th voxel is kept, so that an image and its labels stay aligned to the voxel.
    """
    strides = [1, 1, 1]

    def sides() -> list[int]:
        return [-(-size // step) for size, step in zip(shape, strides, strict=True)]

    while np.prod(sides()) > most:
        wide = [n for n, size in enumerate(sides()) if size > _KEPT]
        if not wide:
            break
        axis = min(wide, key=lambda n: (spacing_mm[n] * strides[n], -shape[n]))
        strides[axis] += 1
    return tuple(strides)


def strided(volume: Volume, strides: tuple[int, ...]) -> Volume:
    """Every k-th voxel along each axis; the first voxel keeps its place in the world."""
    x, y, z = strides
    affine = volume.affine.copy()
    affine[:3, :3] = affine[:3, :3] * np.asarray(strides, float)
    return Volume(np.ascontiguousarray(volume.values[::x, ::y, ::z]), affine)


def slab(volume: Volume, most: int, mask: NDArray[Any] | None = None) -> tuple[slice, slice, slice]:
    """A box of neighbouring voxels, at most ``most``, for tasks whose texture must stay.

    Args:
        volume: Its coarsest axis counts as the slice axis: whole slices are kept, at least eight.
        most: Voxels; where eight slices are too many, their middle is kept.
        mask: The box lies around its centre; default: around the volume's.

    Returns:
        A slice along each axis.
    """
    spacing, shape = volume.spacing_mm, volume.shape
    axis = max(range(3), key=lambda n: (round(float(spacing[n]), 3), n))
    plane = int(np.prod([size for n, size in enumerate(shape) if n != axis]))
    sides = list(shape)
    sides[axis] = min(shape[axis], max(_SLICES, most // plane))
    if sides[axis] * plane > most:
        share = float(np.sqrt(most / (sides[axis] * plane)))
        sides = [
            n if a == axis else max(min(_KEPT, n), int(n * share)) for a, n in enumerate(sides)
        ]
    centre = [size / 2 for size in shape]
    if mask is not None and mask.any():
        centre = [float(found.mean()) + 0.5 for found in np.nonzero(mask)]
    starts = [
        min(max(0, round(middle - side / 2)), size - side)
        for middle, side, size in zip(centre, sides, shape, strict=True)
    ]
    x, y, z = (slice(start, start + side) for start, side in zip(starts, sides, strict=True))
    return x, y, z


def cropped(volume: Volume, box: tuple[slice, slice, slice]) -> Volume:
    """A box of a volume, in its place in the world."""
    first = [part.indices(size)[0] for part, size in zip(box, volume.shape, strict=True)]
    affine = volume.affine.copy()
    affine[:3, 3] = (affine @ [*first, 1])[:3]
    return Volume(np.ascontiguousarray(volume.values[box]), affine)


def write_nifti(values: NDArray[Any], affine: NDArray[np.float64]) -> bytes:
    """gzip-compressed NIfTI-1 bytes with a fresh header: no name, date or comment survives."""
    image: Any = cast(Any, nib).Nifti1Image(values, affine)
    image.header.set_xyzt_units("mm")
    image.set_sform(affine, 1)
    image.set_qform(None, 0)
    return gzip.compress(image.to_bytes(), compresslevel=1, mtime=0)
