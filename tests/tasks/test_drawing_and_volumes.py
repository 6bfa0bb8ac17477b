"""What generators share: names, noise, fields, grids in the world and their files."""

from __future__ import annotations

import gzip

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.tasks import load_task
from bat_env.tasks.drawing import bell, between, case_names, generator, sizes_of, smooth_field
from bat_env.tasks.volumes import (
    AXCODES,
    CT_SCALINGS,
    Grid,
    axes_along,
    box_around,
    centred,
    pack,
    slice_spacing,
    turn,
)

CODES = st.sampled_from((*AXCODES, "RSP", "RSA", "AIR"))
NUMBERS = st.floats(-60, 60)


def test_names_are_different_and_come_from_the_seed() -> None:
    names = case_names(generator(3), "AB", 40)
    assert names == case_names(generator(3), "AB", 40) != case_names(generator(4), "AB", 40)
    assert len(set(names)) == 40 and all(name.startswith("AB-") for name in names)
    assert not {"0", "1", "I", "O"} & set("".join(name[3:] for name in names))


def test_noise_has_the_deviation_that_is_asked_for() -> None:
    noise = bell(generator(1), (200, 300), 12.0)
    assert noise.dtype == np.float32
    assert float(noise.mean()) == pytest.approx(0, abs=0.3)
    assert float(noise.std()) == pytest.approx(12, rel=0.02)


def test_fields_are_smooth_and_numbers_lie_between() -> None:
    field = smooth_field(generator(2), (64, 96), 4)
    assert field.shape == (64, 96) and 0 <= field.min() < field.max() <= 1
    assert np.abs(np.diff(field, axis=0)).max() < 0.08
    assert all(2 <= between(generator(n), 2, 3) < 3 for n in range(20))


def test_sizes_are_those_of_the_contract() -> None:
    task = load_task("seg/kidney_tumor")
    assert sizes_of(str(task.folder / "generate.py"), "mini") == task.spec.sizes["mini"]


@settings(max_examples=40, deadline=None)
@given(CODES, st.tuples(NUMBERS, NUMBERS, NUMBERS), st.floats(-0.05, 0.05))
def test_a_grid_lies_where_its_header_says(
    codes: str, centre: tuple[float, float, float], t: float
) -> None:
    spacing = slice_spacing(generator(5), {"in_plane_mm": [1.5, 2.5], "slice_mm": [3, 5]})
    shape, zooms, matrix = axes_along(codes, spacing, (40, 50, 60))
    turn(matrix, 0, 1, t)
    grid = Grid(shape, centred(matrix, shape, centre), codes, zooms)
    assert "".join(nib.aff2axcodes(grid.affine)) == codes
    np.testing.assert_allclose(nib.affines.voxel_sizes(grid.affine), zooms, rtol=1e-5)
    middle = nib.affines.apply_affine(grid.affine, (np.array(shape) - 1) / 2)
    np.testing.assert_allclose(middle, centre, atol=1e-3)
    assert grid.voxel_ml == pytest.approx(np.prod(zooms) / 1000)
    indices = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    for axis, values in enumerate(grid.world()):
        expected = nib.affines.apply_affine(grid.affine, indices)[..., axis]
        np.testing.assert_allclose(np.broadcast_to(values, shape), expected, atol=1e-3)


@settings(max_examples=40, deadline=None)
@given(CODES, st.tuples(NUMBERS, NUMBERS, NUMBERS), st.floats(2, 30))
def test_a_box_holds_everything_within_reach(
    codes: str, spot: tuple[float, float, float], reach: float
) -> None:
    shape, zooms, matrix = axes_along(codes, (2, 2, 4), (60, 60, 60))
    grid = Grid(shape, centred(matrix, shape, (0, 0, 0)), codes, zooms)
    box = box_around(np.linalg.inv(grid.affine), shape, spot, (reach, reach, reach))
    away = [np.abs(v - p) <= reach for v, p in zip(grid.world(), spot, strict=True)]
    near = np.broadcast_to(away[0] & away[1] & away[2], shape).copy()
    near[box] = False
    assert not near.any()


@pytest.mark.parametrize(("slope", "inter"), CT_SCALINGS)
def test_a_file_holds_what_was_packed_and_nothing_of_the_day(slope: float, inter: float) -> None:
    stored = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    affine = np.diag([2.0, 3.0, 4.0, 1.0])
    data = pack(stored, affine, slope, inter)
    assert data == pack(stored, affine, slope, inter) and data[4:8] == bytes(4)
    image = nib.Nifti1Image.from_bytes(gzip.decompress(data))
    np.testing.assert_array_equal(image.get_fdata(), stored * slope + inter)
    np.testing.assert_array_equal(image.affine, affine)
    assert image.header["sform_code"] == 1 and image.header["qform_code"] == 0
    assert image.header.get_xyzt_units()[0] == "mm"


def test_slices_are_cut_and_padded_about_their_middle() -> None:
    torch = pytest.importorskip("torch")
    from bat_env.tasks.training_slices import on_canvas

    image = torch.arange(12.0).reshape(1, 1, 2, 6)
    out = on_canvas(image, (4, 4), -1.0)
    assert out.shape == (1, 1, 4, 4) and (out[0, 0, [0, 3]] == -1).all()
    assert torch.equal(out[0, 0, 1:3], image[0, 0, :, 1:5])
