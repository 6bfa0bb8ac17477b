"""Masked SSIM, PSNR and MAE against scikit-image, MONAI and torchmetrics; geometry and readers."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter

from bat_env.errors import TaskError, UnknownNameError
from bat_env.metrics import Case, TaskScore
from bat_env.metrics.arrays import Picture, read_picture
from bat_env.metrics.base import UnreadableError
from bat_env.metrics.images import ImageSsim, masked_ssim, psnr, ssim_map
from bat_env.metrics.trivial import trivial_output
from bat_env.tasks.spec import TaskSpec

METRIC = ImageSsim()
RANGE = 400.0
PARAMS: dict[str, Any] = {
    "data_range": RANGE,
    "careful_ssim": 0.9,
    "trivial": ["identity", "gaussian:1", "constant:0"],
    "unit": "HU",
}
AFFINE = np.array([[0, -1.5, 0, 10], [2.0, 0, 0, -20], [0, 0, 4.0, 5], [0, 0, 0, 1]])


@pytest.fixture(scope="module")
def spec(spec_of: Callable[..., TaskSpec]) -> TaskSpec:
    return spec_of(
        "image_ssim",
        "outputs/{case}/enhanced.npy",
        PARAMS,
        input_file="input.npy",
        quantity="mean",
    )


@pytest.fixture(scope="module")
def volume_spec(spec_of: Callable[..., TaskSpec]) -> TaskSpec:
    return spec_of(
        "image_ssim",
        "outputs/{case}/synth.nii.gz",
        PARAMS,
        input_file="mr.nii.gz",
        dtype=("int16", "float32"),
    )


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=array.dtype.hasobject)
    return buffer.getvalue()


def nifti(array: np.ndarray, affine: np.ndarray = AFFINE) -> bytes:
    return gzip.compress(nib.Nifti1Image(array, affine).to_bytes(), 1)


def scene(seed: int, shape: tuple[int, ...] = (40, 48)) -> np.ndarray:
    """A smooth image with an edge, float32, within [-200, 200]."""
    rng = np.random.default_rng(seed)
    field = gaussian_filter(rng.standard_normal(shape), 2)
    field = field / np.abs(field).max() * 120
    field[tuple(slice(n // 4, n // 2) for n in shape)] += 80
    return field.astype(np.float32)


def noisy(image: np.ndarray, seed: int, sigma: float = 30.0) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(image.shape) * sigma
    return (image + noise).astype(np.float32)


def case(
    output: bytes | None,
    *,
    seed: int = 1,
    mask: np.ndarray | None = None,
    truth: bytes | None = None,
) -> Case:
    image = scene(seed)
    private: dict[str, bytes] = {"enhanced.npy": truth or npy(image)}
    if mask is not None:
        private["mask.npy"] = npy(mask)
    return Case("a", private, {"input.npy": npy(noisy(image, seed + 50))}, output)


def graded(spec: TaskSpec, *cases: Case) -> TaskScore:
    known = json.loads(json.dumps(METRIC.prepare(spec, cases)))
    return METRIC.total(spec, METRIC.score(spec, cases, known), known)


# ------------------------------------------------------------------------------------- formulas


@given(st.integers(0, 2**31), st.sampled_from([(17, 23), (40, 12), (14, 15, 13)]))
@settings(max_examples=20, deadline=None)
def test_ssim_map_equals_scikit_image(seed: int, shape: tuple[int, ...]) -> None:
    from skimage.metrics import structural_similarity

    a = scene(seed, shape).astype(np.float64)
    b = noisy(a, seed + 1).astype(np.float64)
    _, want = structural_similarity(
        a,
        b,
        data_range=RANGE,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        full=True,
    )
    np.testing.assert_allclose(ssim_map(a, b, RANGE), want, atol=1e-10)


@pytest.mark.parametrize("shape", [(30, 36), (18, 20, 22)])
def test_ssim_equals_monai_away_from_borders(shape: tuple[int, ...]) -> None:
    torch = pytest.importorskip("torch")
    from monai.metrics import SSIMMetric

    a = scene(4, shape)
    b = noisy(a, 5)
    metric = SSIMMetric(spatial_dims=len(shape), data_range=RANGE, win_size=11, kernel_sigma=1.5)
    one, two = (torch.from_numpy(x)[None, None] for x in (a, b))
    inside = np.zeros(shape, bool)
    inside[tuple(slice(5, n - 5) for n in shape)] = True
    mine = masked_ssim(a.astype(float), b.astype(float), inside, RANGE)
    assert mine == pytest.approx(float(metric(one, two)), abs=2e-4)


def test_psnr_equals_torchmetrics() -> None:
    torch = pytest.importorskip("torch")
    from torchmetrics.functional.image import peak_signal_noise_ratio

    a = scene(6)
    b = noisy(a, 7)
    want = peak_signal_noise_ratio(torch.from_numpy(b), torch.from_numpy(a), data_range=RANGE)
    everywhere = np.ones(a.shape, bool)
    assert psnr(a, b, everywhere, RANGE) == pytest.approx(float(want), abs=1e-4)
    assert psnr(a, a, everywhere, RANGE) == 99.0


@given(st.integers(0, 2**31))
@settings(max_examples=20, deadline=None)
def test_the_crop_to_the_mask_changes_nothing(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = scene(seed, (30, 40)).astype(float)
    b = noisy(a, seed + 1).astype(float)
    mask = np.zeros((30, 40), bool)
    y, x = rng.integers(0, 30), rng.integers(0, 40)
    mask[y : y + int(rng.integers(1, 9)), x : x + int(rng.integers(1, 9))] = True
    want = ssim_map(a, b, RANGE)[mask].mean()
    assert masked_ssim(a, b, mask, RANGE) == pytest.approx(want, abs=1e-12)


def test_constant_images_have_defined_values() -> None:
    flat, mask = np.full((12, 12), 3.0), np.ones((12, 12), bool)
    assert masked_ssim(flat, flat, mask, RANGE) == pytest.approx(1.0)
    assert 0 <= masked_ssim(flat, flat + 50, mask, RANGE) < 1
    one = np.full((1, 1), 3.0)
    assert masked_ssim(one, one, np.ones((1, 1), bool), RANGE) == pytest.approx(1.0)


# --------------------------------------------------------------------------------------- scores


def test_score_lies_on_the_line_between_trivial_and_careful(spec: TaskSpec) -> None:
    image = scene(1)
    source = noisy(image, 51)
    said = (0.7 * image + 0.3 * source).astype(np.float32)
    total = graded(spec, case(npy(said)))
    everywhere = np.ones(image.shape, bool)
    trivial = {
        "identity": source,
        "gaussian:1": gaussian_filter(source.astype(float), 1),
        "constant:0": np.zeros_like(source),
    }
    best = max(
        masked_ssim(t.astype(float), image.astype(float), everywhere, RANGE)
        for t in trivial.values()
    )
    mine = masked_ssim(said.astype(float), image.astype(float), everywhere, RANGE)
    assert 0 < total.score < 1
    assert total.score == pytest.approx((mine - best) / (0.95 - best))
    assert total.secondary["ssim"] == pytest.approx(mine)
    assert total.secondary["trivial_ssim"] == pytest.approx(best)
    assert total.secondary["mae_hu"] == pytest.approx(np.abs(said - image).mean(), rel=1e-5)


def test_listed_trivial_outputs_score_zero_and_the_truth_one(spec: TaskSpec) -> None:
    source = noisy(scene(1), 51)
    assert graded(spec, case(npy(source))).score == 0.0
    assert graded(spec, case(npy(np.zeros_like(source)))).score == 0.0
    blurred = gaussian_filter(source.astype(float), 1).astype(np.float32)
    assert graded(spec, case(npy(blurred))).score == pytest.approx(0.0, abs=1e-6)
    assert graded(spec, case(npy(scene(1)))).score == 1.0
    assert graded(spec, case(None)).score == 0.0


def test_only_the_mask_counts(spec: TaskSpec) -> None:
    image = scene(1)
    mask = np.zeros(image.shape, np.uint8)
    mask[10:20, 10:20] = 1
    said = image.copy()
    said[:, 40:] = 1e4
    assert graded(spec, case(npy(said), mask=mask)).score == 1.0
    assert graded(spec, case(npy(said))).score < 1.0
    with pytest.raises(TaskError):
        graded(spec, case(npy(said), mask=np.zeros_like(mask)))
    with pytest.raises(TaskError):
        graded(spec, case(npy(said), mask=mask[:-1]))


def test_values_beyond_the_clip_are_cut(spec_of: Callable[..., TaskSpec]) -> None:
    clipped = spec_of(
        "image_ssim",
        "outputs/{case}/enhanced.npy",
        {**PARAMS, "clip": [-200, 200]},
        input_file="input.npy",
    )
    image = scene(1)
    image[:4] = 200.0
    said = image.copy()
    said[:4] = 3000.0
    total = graded(clipped, case(npy(said), truth=npy(image)))
    assert total.score == 1.0 and (total.secondary["mae_hu"] or 0) > 100


def test_cases_average_and_missing_ones_count(spec: TaskSpec) -> None:
    good, gone = case(npy(scene(1))), case(None)
    cases = [good, Case("b", gone.truth, gone.inputs, None)]
    total = graded(spec, *cases)
    assert total.score == 0.5 and total.per_case == {"a": 1.0, "b": 0.0}
    assert total.ci95 == (0.0, 1.0)


IMAGE = scene(1)
LONG = np.zeros((80, 96), np.float32)


@pytest.mark.parametrize(
    ("output", "word"),
    [
        (b"", ".npy"),
        (b"\x93NUMPY", ".npy"),
        (npy(IMAGE)[:-1], "bytes"),
        (npy(IMAGE) + b"0", "bytes"),
        (npy(IMAGE.T), "shape"),
        (npy(IMAGE[None]), "shape"),
        (npy(IMAGE.ravel()), "shape"),
        (npy(LONG), "shape"),
        (npy(IMAGE[:0]), "shape"),
        (npy(np.where(IMAGE > 50, np.nan, IMAGE).astype(np.float32)), "NaN"),
        (npy(np.where(IMAGE > 50, np.inf, IMAGE).astype(np.float32)), "NaN"),
        (npy((IMAGE * 1e30).astype(np.float32)), "1e9"),
        (npy(IMAGE.astype(np.complex64)), "dtype"),
        (npy(IMAGE.astype(object)), "dtype"),
        (npy(IMAGE.astype("U4")), "dtype"),
        (npy(IMAGE.astype([("a", "f4")])), "dtype"),
        (pickle.dumps(IMAGE), ".npy"),
        (b"\x93NUMPY\x03\x00" + npy(IMAGE)[8:], "version"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + b" " * 50, ".npy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unreadable_arrays_score_zero(spec: TaskSpec, output: bytes, word: str) -> None:
    total = graded(spec, case(output))
    assert total.score == 0.0 and not total.valid["a"] and word in total.messages["a"]


@pytest.mark.parametrize(
    ("array", "valid"),
    [
        (np.asfortranarray(IMAGE), True),
        (IMAGE.astype(">f4"), True),
        (IMAGE.astype(np.float64), False),
        (np.rint(IMAGE).astype(np.int64), False),
        (np.rint(IMAGE).astype(">i2"), False),
    ],
)
def test_byte_orders_and_dtypes(spec: TaskSpec, array: np.ndarray, valid: bool) -> None:
    total = graded(spec, case(npy(array)))
    assert total.score == pytest.approx(1.0, abs=0.02) and total.valid["a"] is valid


@given(st.binary(max_size=400))
@settings(max_examples=60, deadline=None)
def test_no_bytes_break_the_array_reader(data: bytes) -> None:
    whole = npy(np.zeros((5, 5)))[:-200] + data[:200].ljust(200, b"\0")  # any 25 numbers
    for content in (data, b"\x93NUMPY\x01\x00" + data, npy(IMAGE)[:128] + data, whole):
        try:
            picture = read_picture("x.npy", content, 100)
        except UnreadableError:
            continue
        assert picture.values.shape == (5, 5) and np.isfinite(picture.values).all()


# -------------------------------------------------------------------------------------- volumes


def volume_case(output: bytes | None, mask: bool = True) -> Case:
    image = scene(3, (14, 16, 12))
    private: Mapping[str, bytes] = {"synth.nii.gz": nifti(np.rint(image).astype(np.int16))}
    if mask:
        private = {**private, "mask.nii.gz": nifti((image > -60).astype(np.uint8))}
    return Case("a", private, {"mr.nii.gz": nifti(noisy(image, 9))}, output)


def test_volumes(volume_spec: TaskSpec) -> None:
    image = np.rint(scene(3, (14, 16, 12))).astype(np.int16)
    assert graded(volume_spec, volume_case(nifti(image))).score == 1.0
    assert graded(volume_spec, volume_case(nifti(image.astype(np.float32)), False)).score == 1.0
    plain = nib.Nifti1Image(image, AFFINE).to_bytes()
    assert graded(volume_spec, volume_case(plain)).score == 1.0
    for other in (AFFINE @ np.diag([-1, 1, 1, 1]), np.eye(4)):
        total = graded(volume_spec, volume_case(nifti(image, other)))
        assert total.score == 0.0 and "affine" in total.messages["a"]
    total = graded(volume_spec, volume_case(nifti(image[..., None])))
    assert total.score == 0.0 and "3D" in total.messages["a"]
    flipped = graded(volume_spec, volume_case(nifti(image[:, :, ::-1].copy())))
    assert flipped.valid["a"] and flipped.score == 0.0


# --------------------------------------------------------------------------------------- trivial


def test_trivial_volumes_are_resampled_in_the_world() -> None:
    image = scene(8, (12, 14, 16)).astype(float)
    thick = np.diag([1.0, 1.0, 4.0, 1.0])
    thick[2, 3] = 1.5
    source = Picture(image[:, :, :16].reshape(12, 14, 4, 4).mean(axis=3), thick, "float32")
    grid = Picture(image, np.eye(4), "float32")
    nearest = trivial_output("nearest", source, grid)
    np.testing.assert_array_equal(nearest, np.repeat(source.values, 4, axis=2))
    linear = trivial_output("linear", source, grid)
    np.testing.assert_allclose(
        linear[:, :, 3], 0.625 * source.values[..., 0] + 0.375 * source.values[..., 1]
    )
    reoriented = Picture(image[::-1], np.array(np.diag([-1.0, 1, 1, 1])) + np.eye(4, k=3) * 11, "f")
    np.testing.assert_allclose(trivial_output("identity", reoriented, grid), image)


def test_trivial_pictures_line_up_by_area() -> None:
    small = Picture(np.array([[0.0, 1.0], [2.0, 3.0]]), None, "float32")
    grid = Picture(np.zeros((4, 4)), None, "float32")
    want = np.kron(small.values, np.ones((2, 2)))
    np.testing.assert_array_equal(trivial_output("nearest", small, grid), want)
    assert trivial_output("linear", small, grid)[0, 1] == pytest.approx(0.25)
    assert (trivial_output("scaled:2:5", small, grid)[0, 0]) == 5.0
    assert (trivial_output("constant:-7", small, grid) == -7).all()
    spiky = Picture(np.pad([[9.0]], 3), None, "float32")
    assert trivial_output("median:3", spiky, spiky).max() == 0.0
    for name in ("blur", "gaussian", "constant:x", "nearest:2"):
        with pytest.raises(UnknownNameError):
            trivial_output(name, small, grid)


# --------------------------------------------------------------------------------------- others


def test_image_inspection_and_agreement(spec: TaskSpec) -> None:
    shown = case(npy(IMAGE))
    facts = METRIC.inspect(spec, shown)
    assert facts["valid"] and facts["affine_ok"] and facts["shape"] == [40, 48]
    assert facts["quantity"] == pytest.approx(float(IMAGE.mean()), abs=1e-4)
    removed = (IMAGE - noisy(IMAGE, 51)).std()
    assert facts["values"]["removed_std"] == pytest.approx(float(removed), rel=1e-4)
    blind = METRIC.inspect(spec, Case("a", {}, shown.inputs, npy(IMAGE.T)))
    assert blind["readable"] and not blind["affine_ok"] and not blind["valid"]
    assert not METRIC.inspect(spec, case(b"x"))["readable"]
    one, two = npy(IMAGE), npy(noisy(IMAGE, 3, 1.0))
    assert METRIC.agreement(spec, "a", one, one) == pytest.approx(1.0)
    assert 0.9 < METRIC.agreement(spec, "a", one, two) < 1.0
    assert METRIC.agreement(spec, "a", one, npy(IMAGE.T)) == 0.0
    assert METRIC.agreement(spec, "a", one, b"") == 0.0


def test_image_faults_of_a_task(spec: TaskSpec, spec_of: Callable[..., TaskSpec]) -> None:
    METRIC.check(spec)
    for change in (
        {"data_range": 0},
        {"careful_ssim": 1.2},
        {"trivial": []},
        {"clip": [5, -5]},
        {"more": 1},
    ):
        with pytest.raises(TaskError):
            METRIC.check(spec_of("image_ssim", "o/{case}/x.npy", {**PARAMS, **change}))
    with pytest.raises(UnknownNameError):
        METRIC.check(spec_of("image_ssim", "o/{case}/x.npy", {**PARAMS, "trivial": ["blur"]}))
    with pytest.raises(TaskError):
        METRIC.prepare(spec, [Case("a", {}, {"input.npy": npy(IMAGE)})])
    with pytest.raises(TaskError):
        METRIC.prepare(spec, [Case("a", {"enhanced.npy": npy(IMAGE)})])
