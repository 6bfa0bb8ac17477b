"""What image scores share and shorten changes no bit of them."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from bat_env.metrics import Case
from bat_env.metrics.images import ImageSsim
from bat_env.metrics.median import median_filter
from bat_env.tasks.spec import TaskSpec

KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "whole numbers": lambda values: np.round(100 * values),
    "few values": np.sign,
    "constant": lambda values: np.full(values.shape, 40.0),
    "nothing": np.zeros_like,
    "single precision": lambda values: values.astype(np.float32).astype(np.float64),
    "double precision": lambda values: 1e8 * values,
    "beyond 16 bits": lambda values: np.round(1e5 * values),
}


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**31), size=st.integers(1, 7), data=st.data())
@settings(max_examples=12, deadline=None)
def test_the_median_is_that_of_scipy(kind: str, seed: int, size: int, data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(3, 14, 9), (9, 12, 1), (15, 8), (1, 1), (30, 2), (11,)]))
    values = KINDS[kind](np.random.default_rng(seed).normal(size=shape))
    before = values.copy()
    made = median_filter(values, size)
    np.testing.assert_array_equal(made, ndimage.median_filter(values, size))
    np.testing.assert_array_equal(values, before)
    assert made.dtype == np.float64 and made.flags.c_contiguous


def test_pieces_of_a_large_image_meet() -> None:
    values = np.random.default_rng(3).normal(size=(70, 4, 60))
    np.testing.assert_array_equal(median_filter(values, 5), ndimage.median_filter(values, 5))


def slow_ssim(a: np.ndarray, b: np.ndarray, mask: np.ndarray, width: float) -> float:
    """The formula, with everything taken of both images each time."""

    def smooth(values: np.ndarray) -> np.ndarray:
        return ndimage.gaussian_filter(values, 1.5, radius=5)

    hit = [np.flatnonzero(mask.any(axis=tuple({0, 1, 2} - {axis}))) for axis in range(3)]
    box = tuple(slice(max(0, h[0] - 5), h[-1] + 6) for h in hit)
    a, b = a[box], b[box]
    mean_a, mean_b = smooth(a), smooth(b)
    var_a, var_b = smooth(a * a) - mean_a**2, smooth(b * b) - mean_b**2
    cov = smooth(a * b) - mean_a * mean_b
    c1, c2 = (0.01 * width) ** 2, (0.03 * width) ** 2
    found = ((2 * mean_a * mean_b + c1) * (2 * cov + c2)) / (
        (mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2)
    )
    return float(found[mask[box]].mean())


def slow_method(method: str, values: np.ndarray) -> np.ndarray:
    name, _, number = method.partition(":")
    match name:
        case "median":
            return ndimage.median_filter(values, int(number))
        case "gaussian":
            return ndimage.gaussian_filter(values, float(number))
        case "constant":
            return np.full(values.shape, float(number))
    return values


def packed(values: np.ndarray) -> bytes:
    return gzip.compress(nib.Nifti1Image(values.astype(np.float32), np.eye(4)).to_bytes(), 1)


@pytest.mark.parametrize("flat", [False, True])
def test_trivial_methods_reach_what_the_slow_formula_says(
    flat: bool, spec_of: Callable[..., TaskSpec]
) -> None:
    methods = [
        *("identity", "nearest", "linear", "cubic", "gaussian:1", "gaussian:2.5"),
        *("median:3", "median:4", "median:7", "constant:40"),
    ]
    spec = spec_of(
        "image_ssim",
        "outputs/{case}/synth.nii.gz",
        {"data_range": 400.0, "careful_ssim": 0.9, "trivial": methods, "clip": [-150.0, 200.0]},
        input_file="mr.nii.gz",
    )
    rng = np.random.default_rng(5)
    shape = (3, 30, 26)
    source, truth = (
        np.full(shape, 40.0) if flat else 100 * rng.normal(size=shape).astype(np.float32)
        for _ in range(2)
    )
    mask = np.zeros(shape, bool)
    mask[:, 8:20, 2:25] = rng.random((3, 12, 23)) < 0.6
    private = {"synth.nii.gz": packed(truth), "mask.nii.gz": packed(mask)}
    known = ImageSsim().prepare(spec, [Case("a", private, {"mr.nii.gz": packed(source)})])
    values, real = source.astype(np.float64), np.clip(truth.astype(np.float64), -150, 200)
    assert known["trivial"]["a"] == {
        method: slow_ssim(np.clip(slow_method(method, values), -150, 200), real, mask, 400.0)
        for method in methods
    }
