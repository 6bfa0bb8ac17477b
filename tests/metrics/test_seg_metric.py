"""Segmentation metrics against MONAI and a second formula, on random and degenerate inputs."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.metrics import agreement, inspect_output, score_case
from bat_env.metrics.seg import (
    UnreadableError,
    dice,
    hd95,
    nsd,
    read_labels,
    surface_distances,
)
from bat_env.tasks import load_task

SPEC = load_task("kidney_tumor").spec
AFFINE = np.diag([-2.0, 3.0, 4.0, 1.0])


def blob(seed: int, shape: tuple[int, int, int] = (14, 12, 10), share: float = 0.3) -> np.ndarray:
    """A random mask with structure: smoothed noise above a quantile."""
    from scipy.ndimage import uniform_filter

    noise = uniform_filter(np.random.default_rng(seed).random(shape), 3)
    return noise > np.quantile(noise, 1 - share)


def packed(
    labels: np.ndarray,
    affine: np.ndarray = AFFINE,
    change: Callable[[nib.Nifti1Image], None] | None = None,
) -> bytes:
    image = nib.Nifti1Image(labels, affine)
    if change:
        change(image)
    return gzip.compress(image.to_bytes(), 1)


def label_map(seed: int, lesion: bool = True) -> np.ndarray:
    labels = blob(seed).astype(np.uint8)
    if lesion:
        labels[blob(seed + 1, share=0.1)] = 2
    return labels


@pytest.mark.parametrize("seed", range(6))
def test_dice_hd95_nsd_equal_monai(seed: int) -> None:
    torch = pytest.importorskip("torch")
    from monai.metrics import (
        compute_dice,
        compute_hausdorff_distance,
        compute_surface_dice,
    )

    spacing = (2.0, 3.0, 4.0)
    a, b = blob(seed), blob(seed + 100)
    one, two = (torch.from_numpy(m)[None, None].float() for m in (a, b))
    assert dice(a, b) == pytest.approx(float(compute_dice(one, two)), abs=1e-6)
    found = surface_distances(a, b, spacing)
    assert found is not None
    want = compute_hausdorff_distance(
        one, two, include_background=True, percentile=95, spacing=spacing
    )
    assert hd95(found) == pytest.approx(float(want), abs=1e-4)
    want = compute_surface_dice(one, two, [3.0], include_background=True, spacing=spacing)
    assert nsd(found, 3.0) == pytest.approx(float(want), abs=1e-6)


@given(seed=st.integers(0, 2**31), share=st.floats(0.02, 0.9))
@settings(max_examples=25, deadline=None)
def test_distances_equal_a_second_formula(seed: int, share: float) -> None:
    from scipy.spatial import cKDTree

    spacing = (1.5, 2.0, 5.0)
    a, b = blob(seed, share=share), blob(seed + 7, share=0.2)
    found = surface_distances(a, b, spacing)
    assert found is not None

    def surface_points(mask: np.ndarray) -> np.ndarray:
        padded = np.pad(mask, 1)
        inner = np.ones_like(mask)
        for axis in range(3):
            for step in (-1, 1):
                inner &= np.roll(padded, step, axis)[1:-1, 1:-1, 1:-1]
        return np.argwhere(mask & ~inner) * np.asarray(spacing)

    pa, pb = surface_points(a), surface_points(b)
    np.testing.assert_allclose(np.sort(found[0]), np.sort(cKDTree(pb).query(pa)[0]), atol=1e-9)
    np.testing.assert_allclose(np.sort(found[1]), np.sort(cKDTree(pa).query(pb)[0]), atol=1e-9)
    overlap = len({*map(tuple, np.argwhere(a))} & {*map(tuple, np.argwhere(b))})
    assert dice(a, b) == pytest.approx(2 * overlap / (a.sum() + b.sum()))


def test_hd95_uses_the_spacing() -> None:
    a, b = np.zeros((9, 9, 9), bool), np.zeros((9, 9, 9), bool)
    a[4, 4, 2], b[4, 4, 5] = True, True
    found = surface_distances(a, b, (1.0, 1.0, 5.0))
    assert found is not None and hd95(found) == pytest.approx(15.0)


def test_empty_masks() -> None:
    empty, full = np.zeros((3, 3, 3), bool), np.ones((3, 3, 3), bool)
    assert dice(empty, empty) is None
    assert dice(empty, full) == 0.0
    assert surface_distances(empty, full, (1, 1, 1)) is None


def test_perfect_output_scores_one() -> None:
    truth = packed(label_map(3))
    result = score_case(SPEC, truth, None, truth)
    assert result.score == 1.0 and result.valid and result.message == ""
    assert result.secondary["dice_tumor"] == 1.0 and result.secondary["hd95_kidney_mm"] == 0.0


def test_score_is_the_mean_dice_over_classes_present() -> None:
    truth, said = label_map(5), label_map(50)
    result = score_case(SPEC, packed(truth), None, packed(said))
    want = np.mean([dice(truth == v, said == v) for v in (1, 2)])
    assert result.score == pytest.approx(want)


def test_lesion_free_case_with_and_without_a_false_lesion() -> None:
    truth, said = label_map(5, lesion=False), label_map(5, lesion=False)
    said[:7] = 0
    organ = dice(truth == 1, said == 1)
    assert organ is not None and 0 < organ < 1
    assert score_case(SPEC, packed(truth), None, packed(said)).score == pytest.approx(organ)
    # One voxel is 0.024 ml: four are within the 0.1 ml that are forgiven, five are not.
    for voxels, term in ((4, True), (5, False)):
        speck = said.copy()
        speck[0, 0, :voxels] = 2
        score = score_case(SPEC, packed(truth), None, packed(speck)).score
        assert score == pytest.approx(organ if term else organ / 2)


def test_lesion_free_case_all_background_scores_zero() -> None:
    truth = packed(label_map(5, lesion=False))
    assert score_case(SPEC, truth, None, packed(np.zeros((14, 12, 10), np.uint8))).score == 0.0


def test_missing_case_scores_zero() -> None:
    result = score_case(SPEC, packed(label_map(1)), None, None)
    assert (result.score, result.valid) == (0.0, False) and "missing" in result.message


def shifted(affine: np.ndarray, by: float) -> np.ndarray:
    out = affine.copy()
    out[0, 3] += by
    return out


@pytest.mark.parametrize(
    ("output", "word"),
    [
        (b"", "shorter"),
        (b"\x1f\x8b\x08junk", "gzip"),
        (packed(label_map(1))[:-200], "truncated"),
        (gzip.compress(b"x" * 5000), "NIfTI"),
        (packed(label_map(1)[:-1]), "shape"),
        (packed(label_map(1)[..., None]), "3D"),
        (packed(label_map(1), np.eye(4)), "affine"),
        (packed(label_map(1), shifted(AFFINE, 0.01)), "affine"),
        (packed(np.zeros((60, 60, 60), np.uint8)), "larger"),
        (gzip.compress(bytes(40_000_000)), "unpacks"),
        (packed(np.full((14, 12, 10), np.nan, np.float32)), "no labels"),
        (packed(np.zeros((14, 12, 10), np.complex64)), "voxels"),
    ],
    ids=lambda value: value if isinstance(value, str) else "bytes",
)
def test_unreadable_or_wrong_geometry_scores_zero(output: bytes, word: str) -> None:
    result = score_case(SPEC, packed(label_map(1)), None, output)
    assert result.score == 0.0 and not result.valid
    assert word in result.message


def test_affine_within_tolerance_is_accepted() -> None:
    near = packed(label_map(1), shifted(AFFINE, 5e-4))
    assert score_case(SPEC, packed(label_map(1)), None, near).valid


def test_wrong_dtype_or_labels_are_invalid_but_scored() -> None:
    truth = label_map(1)
    for output, word in (
        (packed(truth.astype(np.float32)), "dtype"),
        (packed(np.where(truth == 0, 7, truth).astype(np.uint8)), "labels"),
    ):
        result = score_case(SPEC, packed(truth), None, output)
        assert result.score == pytest.approx(1.0) and not result.valid
        assert word in result.message


def test_values_that_are_not_whole_are_invalid() -> None:
    def scale(image: nib.Nifti1Image) -> None:
        image.header.set_slope_inter(0.3, 0.0)

    truth = label_map(1)
    result = score_case(SPEC, packed(truth), None, packed(truth, change=scale))
    assert not result.valid and "labels" in result.message


def test_scaling_that_restores_whole_labels_is_accepted() -> None:
    def scale(image: nib.Nifti1Image) -> None:
        image.header.set_slope_inter(0.5, 0.0)

    truth = label_map(1)
    doubled = packed((truth * 2).astype(np.int16), change=scale)
    assert score_case(SPEC, packed(truth), None, doubled).score == 1.0


def test_sform_wins_over_qform() -> None:
    def spoil(image: nib.Nifti1Image) -> None:
        image.set_qform(np.eye(4), 1)
        image.set_sform(AFFINE, 1)

    assert score_case(SPEC, packed(label_map(1)), None, packed(label_map(1), change=spoil)).valid


def test_inspection_measures_the_file() -> None:
    labels = label_map(9)
    facts = inspect_output(SPEC, packed(np.zeros((14, 12, 10), np.int16)), packed(labels))
    assert facts["readable"] and facts["affine_ok"] and facts["valid"]
    assert facts["shape"] == [14, 12, 10] and facts["dtype"] == "uint8"
    assert facts["labels"] == sorted(np.unique(labels).tolist())
    assert facts["quantity"] == pytest.approx((labels == 1).sum() * 24 / 1000)
    broken = inspect_output(SPEC, packed(labels), b"nothing")
    assert not broken["readable"] and broken["message"]


def test_agreement() -> None:
    a, b = packed(label_map(2)), packed(label_map(20))
    assert agreement(SPEC, a, a) == 1.0
    assert 0.0 < agreement(SPEC, a, b) < 1.0
    assert agreement(SPEC, a, b) == agreement(SPEC, b, a)
    assert agreement(SPEC, a, b"junk") == 0.0
    assert agreement(SPEC, a, packed(label_map(2), np.eye(4))) == 0.0
    empty = packed(np.zeros((14, 12, 10), np.uint8))
    assert agreement(SPEC, empty, empty) == 1.0


@given(st.binary(max_size=600))
@settings(max_examples=60, deadline=None)
def test_no_bytes_break_the_reader(data: bytes) -> None:
    truth = packed(label_map(1))
    for content in (data, gzip.compress(data)):
        with pytest.raises(UnreadableError, match=r"^(is|has|holds|unpacks|cannot) .{5}"):
            read_labels(content, 100)
        result = score_case(SPEC, truth, None, content)
        assert result.score == 0.0 and not result.valid and result.message


@given(st.integers(0, 2031), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_cut_file_is_unreadable_and_a_whole_one_is_what_was_packed(
    length: int, compressed: bool
) -> None:
    labels = label_map(1)
    plain = gzip.decompress(packed(labels))
    assert len(plain) == 352 + labels.size == 2032
    seen = read_labels(gzip.compress(plain) if compressed else plain, labels.size)
    np.testing.assert_array_equal(seen.labels, labels)
    cut = plain[:length]
    with pytest.raises(UnreadableError):
        read_labels(gzip.compress(cut) if compressed else cut, labels.size)


@given(st.integers(0, 351), st.integers(0, 255))
@settings(max_examples=80, deadline=None)
def test_no_header_byte_breaks_the_score(position: int, value: int) -> None:
    plain = bytearray(gzip.decompress(packed(label_map(1))))
    plain[position] = value
    result = score_case(SPEC, packed(label_map(1)), None, bytes(plain))
    assert 0.0 <= result.score <= 1.0
