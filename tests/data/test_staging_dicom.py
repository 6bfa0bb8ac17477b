"""DICOM in: sorted by position, rescaled, refused where it is no clean stack. Real files too."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_layouts import noisy_pair, series, xray

from bat_env.data.dicom import is_dicom, read_radiograph, read_series, stack
from bat_env.data.records import CaseError
from bat_env.data.volumes import read_volume

SHIPPED = Path(next(iter(importlib.util.find_spec("pydicom").submodule_search_locations)))  # type: ignore[union-attr, arg-type]
FILES = SHIPPED / "data" / "test_files"


@pytest.mark.parametrize(("slope", "inter"), [(1.0, -1024.0), (2.0, -1000.0), (0.5, 0.0)])
def test_a_series_is_sorted_by_position_and_rescaled(
    slope: float, inter: float, tmp_path: Path
) -> None:
    hu = (noisy_pair(3, (24, 20, 9))[1] // 2) * 2
    series(tmp_path / "s", hu, slope=slope, inter=inter)
    volume = read_series(tmp_path / "s")
    assert np.array_equal(volume.values, hu) and volume.values.dtype == np.int16
    # LPS (-20, -30, 10) is RAS (20, 30, 10); rows run to the back, columns to the left.
    wanted = np.array([[-0.7, 0, 0, 20], [0, -0.7, 0, 30], [0, 0, 3, 10], [0, 0, 0, 1]])
    assert np.allclose(volume.affine, wanted)


def test_mixed_uneven_doubled_and_single_series_are_refused(tmp_path: Path) -> None:
    hu = noisy_pair(3, (16, 16, 9))[1]
    series(tmp_path / "mixed", hu, names=lambda n: f"a{n}.dcm")
    series(tmp_path / "mixed", hu, names=lambda n: f"b{n}.dcm")
    series(tmp_path / "gap", hu, skip=[4])
    series(tmp_path / "twice", hu, uid="1.2.3", names=lambda n: f"a{n}.dcm")
    series(tmp_path / "twice", hu, uid="1.2.3", names=lambda n: f"b{n}.dcm")
    series(tmp_path / "one", hu[..., :1])
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "notes.txt").write_text("x" * 200)
    for name, words in (
        ("mixed", "mixes 2 DICOM series"),
        ("gap", "uneven slices: 6.00 mm behind"),
        ("twice", "two slices at"),
        ("one", "has 1 slices"),
        ("none", "no DICOM file"),
    ):
        with pytest.raises(CaseError, match=words):
            read_volume(tmp_path / name)


def test_slices_of_another_size_or_turn_are_refused(tmp_path: Path) -> None:
    hu = noisy_pair(3, (16, 16, 6))[1]
    series(tmp_path / "s", hu, uid="1.2.3")
    odd = tmp_path / "s" / "1-001.dcm"
    one = pydicom.dcmread(odd)
    one.PixelSpacing = [0.9, 0.7]
    one.save_as(odd)
    with pytest.raises(CaseError, match="pixel spacing"):
        read_series(tmp_path / "s")
    del one.ImagePositionPatient
    one.save_as(odd)
    with pytest.raises(CaseError, match="without position"):
        read_series(tmp_path / "s")


def test_monochrome1_is_turned_so_that_dense_is_bright(tmp_path: Path) -> None:
    pixels = np.arange(20 * 24, dtype=np.uint16).reshape(20, 24) * 8
    xray(tmp_path / "a.dicom", pixels, inverted=False)
    xray(tmp_path / "b.dicom", pixels, inverted=True)
    assert np.array_equal(read_radiograph(tmp_path / "a.dicom"), pixels)
    assert np.array_equal(read_radiograph(tmp_path / "b.dicom"), pixels)


def test_files_that_pydicom_ships() -> None:
    """A real CT slice: SimpleITK's pixels equal pydicom's, rescaled."""
    for name in ("CT_small.dcm", "MR_small.dcm", "MR_small_bigendian.dcm", "MR_small_RLE.dcm"):
        header = pydicom.dcmread(FILES / name)
        assert is_dicom(FILES / name)
        plain = header.pixel_array.astype(float) * float(header.get("RescaleSlope", 1))
        plain += float(header.get("RescaleIntercept", 0))
        if plain.min() >= 0:
            assert np.array_equal(read_radiograph(FILES / name), plain.astype(np.uint16)), name
        else:
            from bat_env.data.dicom import _pixels

            assert np.array_equal(_pixels(FILES / name).T, plain), name
    assert not is_dicom(FILES / "README.txt")


def test_compressed_files_decode_to_the_same_pixels() -> None:
    """Lossless JPEG 2000 and JPEG-LS, as radiographs are often shipped."""
    plain = read_radiograph(FILES / "MR_small.dcm")
    for name in ("MR_small_jp2klossless.dcm", "MR_small_jpeg_ls_lossless.dcm"):
        assert np.array_equal(read_radiograph(FILES / name), plain), name
    with pytest.raises(CaseError, match=r"cannot be decoded|is no DICOM"):
        read_radiograph(FILES / "MR_truncated.dcm")


def test_real_slices_become_a_series(tmp_path: Path) -> None:
    """A real CT header, moved through space: the stack is what its positions say."""
    (tmp_path / "s").mkdir()
    for n in (3, 0, 4, 1, 2):
        one = pydicom.dcmread(FILES / "CT_small.dcm")
        x, y, z = (float(v) for v in one.ImagePositionPatient)
        one.ImagePositionPatient = [x, y, z + 5 * n]
        one.save_as(tmp_path / "s" / f"{9 - n}.dcm")
    volume = read_series(tmp_path / "s")
    assert volume.shape == (128, 128, 5) and np.allclose(volume.spacing_mm[2], 5)
    with pytest.raises(CaseError, match="mixes 2"):
        other = pydicom.dcmread(FILES / "CT_small.dcm")
        other.SeriesInstanceUID = "1.2.3"
        other.save_as(tmp_path / "s" / "z.dcm")
        read_series(tmp_path / "s")


@settings(max_examples=60, deadline=None)
@given(
    order=st.permutations(range(7)),
    step=st.floats(0.3, 12.0),
    turn=st.tuples(*[st.floats(-1, 1)] * 3),
    place=st.tuples(*[st.floats(-500, 500)] * 3),
    pixel=st.tuples(st.floats(0.1, 5), st.floats(0.1, 5)),
)
def test_the_stack_does_not_depend_on_the_order_of_files(
    order: list[int],
    step: float,
    turn: tuple[float, ...],
    place: tuple[float, ...],
    pixel: tuple[float, float],
) -> None:
    axes, _ = np.linalg.qr(np.eye(3) + 0.4 * np.array([turn, turn[::-1], turn]))
    if np.linalg.det(axes) < 0:
        axes[:, 2] *= -1
    row, column, normal = axes.T
    headers = [
        SimpleNamespace(
            ImagePositionPatient=list(np.array(place) + step * n * normal),
            ImageOrientationPatient=[*row, *column],
            PixelSpacing=list(pixel),
            Rows=8,
            Columns=9,
        )
        for n in order
    ]
    found, affine = stack("s", headers)
    assert [order[n] for n in found] == list(range(7))
    # DICOM's own formula for the voxel (column 2, row 3, slice 4), turned from LPS to RAS.
    point = np.array(place) + 2 * pixel[1] * row + 3 * pixel[0] * column + 4 * step * normal
    assert np.allclose((affine @ [2, 3, 4, 1])[:3], point * [-1, -1, 1], atol=1e-6)
