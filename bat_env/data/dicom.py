"""DICOM and MetaImage: what needs the extra ``data`` (pydicom for headers, SimpleITK for pixels).

A series is sorted by position along its normal, never by file name or instance number. What is
not one clean stack is refused by name: a volume with a slice missing looks whole.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bat_env.data.records import CaseError
from bat_env.data.volumes import Volume, compact
from bat_env.extras import require

_LPS_TO_RAS: Final = np.diag([-1.0, -1.0, 1.0, 1.0])
_OTHER: Final = {".txt", ".csv", ".json", ".xml", ".md", ".zip", ".png", ".jpg", ".html"}
_TURN: Final = 1e-3
_GAP: Final = 0.02
"""Spacings of one series may differ by this share."""


def _libraries() -> tuple[Any, Any]:
    require("data", "Reading DICOM, MetaImage or NRRD")
    import pydicom
    import SimpleITK

    # Corrupt elements of headers that nobody needs are common; they are no news.
    SimpleITK.ProcessObject.SetGlobalWarningDisplay(False)  # type: ignore[no-untyped-call]
    return pydicom, SimpleITK


def is_dicom(path: Path) -> bool:
    """Whether a file carries the mark of DICOM, or may be one without it."""
    if path.suffix.lower() in _OTHER or path.name.startswith(".") or not path.is_file():
        return False
    with path.open("rb") as stream:
        head = stream.read(132)
    return head[128:132] == b"DICM" or path.suffix.lower() in (".dcm", ".ima", ".dicom")


def dicom_files(folder: Path) -> list[Path]:
    """DICOM files that lie in a folder itself, by name."""
    return [path for path in sorted(folder.iterdir()) if is_dicom(path)]


def read_itk(path: Path) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Values in file order (x first) and RAS affine of a file that SimpleITK reads.

    Raises:
        CaseError: If it cannot be read, or is no 3D image.
    """
    _, sitk = _libraries()
    try:
        image = sitk.ReadImage(str(path))
    except RuntimeError as error:
        raise CaseError(f"{path.name} cannot be read: {_reason(error)}") from error
    if image.GetDimension() != 3 or image.GetNumberOfComponentsPerPixel() != 1:
        raise CaseError(f"{path.name} has {image.GetDimension()} dimensions, expected a volume")
    turn = np.array(image.GetDirection()).reshape(3, 3) * np.array(image.GetSpacing())
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn, image.GetOrigin()
    return sitk.GetArrayFromImage(image).transpose(2, 1, 0), _LPS_TO_RAS @ affine


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:160] if lines else type(error).__name__


# -------------------------------------------------------------------------------------- series


def read_series(folder: Path) -> Volume:
    """Read the one DICOM series in a folder: sorted by position, rescaled to true units.

    Args:
        folder: Holds the files itself. Slices of several series are refused.

    Raises:
        CaseError: If there is no series, more than one, or none that is a clean stack.
        ConfigError: If the extra is missing.
    """
    pydicom, _ = _libraries()
    files = dicom_files(folder)
    if not files:
        raise CaseError(f"{folder.name} holds no DICOM file")
    headers = [_header(pydicom, path) for path in files]
    _one_series(folder, headers)
    order, affine = stack(folder.name, headers)
    planes = [_pixels(files[n]) for n in order]
    values = np.stack(planes, axis=-1)
    return Volume(compact(folder.name, values), affine)


def _header(pydicom: Any, path: Path) -> Any:
    try:
        return pydicom.dcmread(path, stop_before_pixels=True)
    except Exception as error:
        raise CaseError(f"{path.name} is no DICOM file: {_reason(error)}") from error


def _one_series(folder: Path, headers: Sequence[Any]) -> None:
    series = Counter(str(getattr(h, "SeriesInstanceUID", "")) for h in headers)
    if len(series) > 1:
        listed = ", ".join(
            f"...{uid[-12:]} ({count} files)" for uid, count in series.most_common(4)
        )
        raise CaseError(
            f"{folder.name} mixes {len(series)} DICOM series: {listed}. Put each into a folder "
            "of its own"
        )
    if any(int(getattr(h, "NumberOfFrames", None) or 1) > 1 for h in headers):
        raise CaseError(f"{folder.name} holds a multi-frame file; convert it to NIfTI first")


def stack(name: str, headers: Sequence[Any]) -> tuple[list[int], NDArray[np.float64]]:
    """Order of slices along their normal, and the RAS affine of the stack.

    Args:
        name: Of the series, for messages.
        headers: Objects with ``ImagePositionPatient``, ``ImageOrientationPatient``,
            ``PixelSpacing``, ``Rows`` and ``Columns``; any order.

    Raises:
        CaseError: If geometry is missing, differs between slices, or a slice is missing or double.
    """
    try:
        places = np.array([[float(v) for v in h.ImagePositionPatient] for h in headers])
        turns = np.array([[float(v) for v in h.ImageOrientationPatient] for h in headers])
        pixels = np.array([[float(v) for v in h.PixelSpacing] for h in headers])
        sizes = {(int(h.Rows), int(h.Columns)) for h in headers}
    except (AttributeError, TypeError, ValueError) as error:
        raise CaseError(f"{name} has a slice without position, orientation or spacing") from error
    if (
        len(sizes) > 1
        or np.ptp(turns, axis=0).max() > _TURN
        or np.ptp(pixels, axis=0).max() > _TURN
    ):
        raise CaseError(f"{name} mixes slices of different size, orientation or pixel spacing")
    if len(headers) < 4:
        raise CaseError(f"{name} has {len(headers)} slices, expected a volume")
    row, column = turns[0, :3], turns[0, 3:]
    normal = np.cross(row, column)
    depth = places @ normal
    order = [int(n) for n in np.argsort(depth, kind="stable")]
    gaps = np.diff(depth[order])
    step = float(np.median(gaps))
    if gaps.min() < 1e-3:
        twice = order[int(np.argmin(gaps))]
        raise CaseError(f"{name} has two slices at {depth[twice]:.2f} mm; one series each folder")
    if np.ptp(gaps) > max(_GAP * step, 0.02):
        where = int(np.argmax(np.abs(gaps - step)))
        raise CaseError(
            f"{name} has uneven slices: {gaps[where]:.2f} mm behind {depth[order[where]]:.2f} mm, "
            f"elsewhere {step:.2f} mm. A slice is missing, or there are two stacks"
        )
    first, last = places[order[0]], places[order[-1]]
    affine = np.eye(4)
    affine[:3, 0] = row * pixels[0, 1]
    affine[:3, 1] = column * pixels[0, 0]
    affine[:3, 2] = (last - first) / (len(order) - 1)
    affine[:3, 3] = first
    return order, _LPS_TO_RAS @ affine


def _pixels(path: Path) -> NDArray[Any]:
    """Rescaled values of one slice, (columns, rows)."""
    _, sitk = _libraries()
    try:
        image = sitk.ReadImage(str(path))
    except RuntimeError as error:
        raise CaseError(f"{path.name} cannot be decoded: {_reason(error)}") from error
    values = np.squeeze(sitk.GetArrayFromImage(image))
    if values.ndim != 2:
        raise CaseError(f"{path.name} holds the shape {values.shape}, expected one grey slice")
    return np.asarray(values.T)


def read_radiograph(path: Path) -> NDArray[np.uint16]:
    """A radiograph as unsigned pixels (rows, columns), dense always bright.

    MONOCHROME1 pictures are inverted within the range of their bits.

    Raises:
        CaseError: If it cannot be read, or is no grey picture.
        ConfigError: If the extra is missing.
    """
    pydicom, _ = _libraries()
    header = _header(pydicom, path)
    values = _pixels(path).T
    low = int(values.min())
    if low < 0 or int(values.max()) > 65535:
        raise CaseError(f"{path.name} holds values beyond 16 bits")
    inverted = str(getattr(header, "PhotometricInterpretation", "")) == "MONOCHROME1"
    if inverted and not _turns_inverted():
        full = (1 << int(getattr(header, "BitsStored", 16))) - 1
        values = max(full, int(values.max())) - values.astype(np.int64)
    return values.astype(np.uint16)


@cache
def _turns_inverted() -> bool:
    """Whether this SimpleITK turns MONOCHROME1 into MONOCHROME2 itself: versions differ."""
    pydicom, _ = _libraries()
    one = pydicom.Dataset()
    one.file_meta = pydicom.dataset.FileMetaDataset()
    one.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    kind = pydicom.uid.DigitalXRayImageStorageForPresentation
    one.file_meta.MediaStorageSOPClassUID = one.SOPClassUID = kind
    one.file_meta.MediaStorageSOPInstanceUID = one.SOPInstanceUID = pydicom.uid.generate_uid()
    one.Rows = one.Columns = 4
    one.SamplesPerPixel, one.PhotometricInterpretation = 1, "MONOCHROME1"
    one.BitsAllocated, one.BitsStored, one.HighBit, one.PixelRepresentation = 16, 12, 11, 0
    one.PixelData = np.zeros((4, 4), "<u2").tobytes()
    with tempfile.TemporaryDirectory(prefix="bat-dicom-") as folder:
        path = Path(folder) / "probe.dcm"
        pydicom.dcmwrite(path, one, enforce_file_format=True)
        return bool(_pixels(path).any())


def series_folders(root: Path) -> Iterator[Path]:
    """Folders under ``root`` that hold DICOM files themselves, sorted."""
    for folder in sorted({root, *(p for p in root.rglob("*") if p.is_dir())}):
        if any(is_dicom(path) for path in folder.iterdir()):
            yield folder
