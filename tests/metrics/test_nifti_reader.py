"""Degenerate NIfTI files: geometry, types and headers that real tools write."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import nibabel as nib
import numpy as np
import pytest

from bat_env.metrics import Case, load_metric, score_case
from bat_env.metrics.base import UnreadableError
from bat_env.metrics.nifti import read_image
from bat_env.metrics.seg import read_labels, score_labels
from bat_env.tasks import load_task
from bat_env.tasks.spec import TaskSpec

SPEC = load_task("kidney_tumor").spec
AFFINE = np.diag([-2.0, 3.0, 4.0, 1.0])
SHEARED = AFFINE + np.array([[0, 0.4, 0, 0], [0, 0, 0.3, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
LABELS = np.zeros((7, 8, 9), np.uint8)
LABELS[1:5, 2:6, 3:7] = 1
LABELS[2:4, 3:5, 4:6] = 2

Change = Callable[[nib.Nifti1Image], None]


def packed(
    labels: np.ndarray = LABELS, affine: np.ndarray = AFFINE, change: Change | None = None
) -> bytes:
    image = nib.Nifti1Image(labels, affine)
    if change:
        change(image)
    return image.to_bytes()


TRUTH = packed()


def big_endian(labels: np.ndarray) -> bytes:
    header = nib.Nifti1Header(endianness=">")
    header.set_data_dtype(labels.dtype)
    image = nib.Nifti1Image(labels.astype(labels.dtype.newbyteorder(">")), AFFINE, header)
    return image.to_bytes()


def raw_header(data: bytes, **fields: int) -> bytes:
    """A file with some header fields overwritten."""
    header = np.frombuffer(data[:348], nib.nifti1.header_dtype).copy()
    for name, value in fields.items():
        header[name] = value
    return header.tobytes() + data[348:]


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "i4"])
def test_integer_types_of_both_byte_orders(pack: Callable[[bytes], bytes], dtype: str) -> None:
    for data in (packed(LABELS.astype(dtype)), big_endian(LABELS.astype(dtype))):
        result = score_case(SPEC, TRUTH, None, pack(data))
        assert result.score == 1.0
        assert result.valid is (np.dtype(dtype).name in SPEC.output.dtype)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_64_bit_integers_are_scored_and_not_of_the_contract(dtype: type) -> None:
    data = nib.Nifti1Image(LABELS.astype(dtype), AFFINE, dtype=dtype).to_bytes()
    result = score_case(SPEC, TRUTH, None, data)
    assert result.score == 1.0 and not result.valid and "64" in result.message


def test_huge_64_bit_values_are_no_labels() -> None:
    labels = LABELS.astype(np.uint64)
    labels[0, 0, 0] = np.iinfo(np.uint64).max
    result = score_case(
        SPEC, TRUTH, None, nib.Nifti1Image(labels, AFFINE, dtype=np.uint64).to_bytes()
    )
    assert not result.valid and 0.0 <= result.score <= 1.0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float_labels_are_rounded(dtype: type) -> None:
    near = LABELS.astype(dtype) + dtype(1e-8)
    result = score_case(SPEC, TRUTH, None, packed(near))
    assert result.score == 1.0 and not result.valid and "dtype" in result.message


def test_a_sheared_sform_is_a_geometry_like_any_other() -> None:
    truth = packed(affine=SHEARED)
    assert score_case(SPEC, truth, None, packed(affine=SHEARED)).valid
    moved = score_case(SPEC, truth, None, packed())
    assert moved.score == 0.0 and "affine" in moved.message
    assert read_labels(truth).voxel_ml == pytest.approx(0.024)


def test_the_sform_decides_and_the_qform_steps_in() -> None:
    def conflict(image: nib.Nifti1Image) -> None:
        image.set_qform(np.eye(4), 1)
        image.set_sform(AFFINE, 1)

    def swapped(image: nib.Nifti1Image) -> None:
        image.set_qform(AFFINE, 1)
        image.set_sform(np.eye(4), 1)

    def only_qform(image: nib.Nifti1Image) -> None:
        image.set_qform(AFFINE, 1)
        image.set_sform(None, 0)

    assert score_case(SPEC, TRUTH, None, packed(change=conflict)).score == 1.0
    assert score_case(SPEC, TRUTH, None, packed(change=swapped)).score == 0.0
    assert score_case(SPEC, TRUTH, None, packed(change=only_qform)).score == 1.0


def test_missing_geometry_is_wrong_geometry() -> None:
    def none(image: nib.Nifti1Image) -> None:
        image.set_qform(None, 0)
        image.set_sform(None, 0)

    result = score_case(SPEC, TRUTH, None, packed(change=none))
    assert result.score == 0.0 and "affine" in result.message


@pytest.mark.parametrize("frames", [1, 2])
def test_four_dimensions_are_refused(frames: int) -> None:
    data = packed(np.repeat(LABELS[..., None], frames, axis=3))
    result = score_case(SPEC, TRUTH, None, data)
    assert result.score == 0.0 and "3D" in result.message


@pytest.mark.parametrize(
    "fields",
    [
        {"magic": 0},
        {"datatype": 0},
        {"datatype": 9999},
        {"datatype": 128},
        {"bitpix": 64},
        {"vox_offset": 10_000_000},
        {"sizeof_hdr": 0},
        {"sform_code": -5},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_broken_header_fields_never_raise(fields: dict[str, int]) -> None:
    result = score_case(SPEC, TRUTH, None, raw_header(TRUTH, **fields))
    assert 0.0 <= result.score <= 1.0


def test_nan_in_the_affine() -> None:
    data = bytearray(TRUTH)
    data[280:284] = np.float32(np.nan).tobytes()
    with pytest.raises(UnreadableError, match="affine"):
        read_image(bytes(data))


def test_nan_in_the_scaling() -> None:
    data = bytearray(TRUTH)
    data[112:116] = np.float32(np.inf).tobytes()
    result = score_case(SPEC, TRUTH, None, bytes(data))
    assert 0.0 <= result.score <= 1.0


def test_one_voxel() -> None:
    single = np.ones((1, 1, 1), np.uint8)
    result = score_case(SPEC, packed(single), None, packed(single))
    assert result.score == 1.0 and result.secondary["hd95_kidney_mm"] == 0.0
    assert result.secondary["nsd_kidney"] == 1.0
    speck, other = np.zeros((5, 5, 5), np.uint8), np.zeros((5, 5, 5), np.uint8)
    speck[1, 1, 1], other[1, 1, 3] = 2, 2
    result = score_case(SPEC, packed(speck), None, packed(other))
    assert result.secondary["hd95_tumor_mm"] == pytest.approx(8.0)
    assert result.secondary["nsd_tumor"] == 0.0 and result.score == 0.0


def many_classes() -> TaskSpec:
    """A task without organ and lesion: some classes are absent in some cases."""
    labels = {0: "background", 1: "liver", 2: "spleen", 3: "aorta"}
    return SPEC.model_copy(
        update={
            "output": SPEC.output.model_copy(update={"labels": labels}),
            "metric": SPEC.metric.model_copy(update={"params": {"nsd_tolerance_mm": 2.0}}),
        }
    )


def test_classes_that_the_truth_lacks_do_not_count() -> None:
    spec = many_classes()
    load_metric("seg_dice").check(spec)
    said = LABELS.copy()
    said[6] = 3
    result = score_case(spec, TRUTH, None, packed(said))
    assert result.score == 1.0 and result.secondary["dice_aorta"] is None
    assert result.secondary["nsd_aorta"] == 0.0
    truth = read_labels(TRUTH)
    half = np.where(LABELS == 2, 0, LABELS)
    assert score_labels(spec, truth, read_labels(packed(half))).score == 0.5


def test_a_made_up_class_counts_where_the_task_says_so() -> None:
    base = many_classes()
    params = {"nsd_tolerance_mm": 2.0, "absent_ml": 2 * read_labels(TRUTH).voxel_ml}
    spec = base.model_copy(update={"metric": base.metric.model_copy(update={"params": params})})
    load_metric("seg_dice").check(spec)
    background = np.argwhere(LABELS == 0)
    for voxels, score in ((0, 1.0), (2, 1.0), (3, 2 / 3)):
        said = LABELS.copy()
        said[tuple(background[:voxels].T)] = 3
        result = score_case(spec, TRUTH, None, packed(said))
        assert result.score == pytest.approx(score) and result.secondary["dice_aorta"] is None
    assert score_case(spec, TRUTH, None, packed(np.zeros_like(LABELS))).score == 0.0
    made_up = score_case(spec, packed(np.zeros_like(LABELS)), None, TRUTH)
    assert made_up.score == 0.0 and made_up.valid


def test_a_case_without_any_class_wants_none() -> None:
    spec, empty = many_classes(), packed(np.zeros_like(LABELS))
    assert score_case(spec, empty, None, empty).score == 1.0
    assert score_case(spec, empty, None, TRUTH).score == 0.0


def test_seg_behind_the_protocol() -> None:
    metric = load_metric("seg_dice")
    metric.check(SPEC)
    cases = [
        Case("a", {"dseg.nii.gz": TRUTH}, output=TRUTH),
        Case("b", {"dseg.nii.gz": TRUTH}),
    ]
    known = metric.prepare(SPEC, cases)
    total = metric.total(SPEC, metric.score(SPEC, cases, known), known)
    assert total.score == 0.5 and total.ci95 == (0.0, 1.0)
    assert metric.inspect(SPEC, cases[0])["valid"]
    assert not metric.inspect(SPEC, cases[1])["readable"]
    assert metric.agreement(SPEC, "a", TRUTH, TRUTH) == 1.0
