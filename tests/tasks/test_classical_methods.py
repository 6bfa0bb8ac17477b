"""What classical methods earn on image tasks: simple filters nothing, real denoisers a part.

Simple filters are a line of code and no look at the data: they stay at the floors, listed or not.
Total variation and non-local means are work that a radiology department would take; they may earn
something, and never as much as careful use of the given network. So may a fit of intensities to
true pairs, which no agent has, and a skull that is drawn by hand.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Callable, Iterator
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from scipy import ndimage
from skimage import restoration

from bat_env.errors import UnknownNameError
from bat_env.metrics.arrays import Picture
from bat_env.metrics.floors import cases_of
from bat_env.metrics.images import ImageParams, ImageSsim, _cut, _input, _truth, masked_ssim
from bat_env.metrics.rule import rescale
from bat_env.metrics.trivial import trivial_output
from bat_env.task_rules.episodes import MIN_TASK
from bat_env.task_rules.floors import MAX_FLOOR
from bat_env.tasks import Task, load_task, task_ids

Array = np.ndarray
Methods = dict[str, Array]
IMAGE_TASKS = [name for name in task_ids() if name.split("/")[0] in ("enh", "synth")]
FILTERS = (
    *("median:3", "median:5", "gaussian:0.5", "gaussian:0.85", "gaussian:1.2", "wiener:3"),
    *("wiener:5", "unsharp:1:0.5", "unsharp:1.5:1"),
)


def _pictures(task: Task, *drawn: tuple[str, int, str]) -> Iterator[tuple[Any, ...]]:
    """(size, case, input, truth, mask, best trivial SSIM) of every case of some instances."""
    for split, index, size in drawn:
        cases = cases_of(task.instance(split, index, size))  # type: ignore[arg-type]
        known = ImageSsim().prepare(task.spec, cases)["trivial"]
        for case in cases:
            truth, mask = _truth(task.spec, case)
            yield size, case, _input(task.spec, case), truth, mask, max(known[case.id].values())


def _means(task: Task, methods: Callable[[Any, Picture, Picture], Methods]) -> dict[str, float]:
    """``<size> <method>`` -> mean score on dev instances of both sizes."""
    params, scores = ImageParams.model_validate(task.spec.metric.params), {}
    best = (1.0 + params.careful_ssim) / 2.0
    where = [("dev", n, "mini") for n in range(3)] + [("dev", 0, "full")]
    for size, case, source, truth, mask, baseline in _pictures(task, *where):
        real = _cut(params, truth.values)
        for name, values in methods(case, source, truth).items():
            said = _cut(params, np.asarray(values, np.float64))
            similarity = masked_ssim(said, real, mask, params.data_range)
            scores.setdefault(f"{size} {name}", []).append(rescale(similarity, baseline, best))
    return {name: float(np.mean(values)) for name, values in scores.items()}


def _in_slices(values: Array, across: int, filtered: Callable[[Array], Array]) -> Array:
    """A filter slice by slice; a picture is one slice."""
    if values.ndim == 2:
        return filtered(values)
    made = [filtered(part) for part in np.moveaxis(values, across, 0)]
    return np.moveaxis(np.stack(made), 0, across)


def _across(task: Task, case: Any, source: Picture) -> int:
    """The axis that slices are stacked along: the coarsest."""
    if source.affine is None:
        return 0
    return int(np.argmax(nib.affines.voxel_sizes(source.affine)))


# ------------------------------------------------------------------------------ simple filters


def _simple(task: Task, case: Any, source: Picture, truth: Picture) -> Methods:
    bases = {name: trivial_output(name, source, truth) for name in ("linear", "cubic")}
    made = dict(bases)
    for base in bases:
        for text in FILTERS:
            made[f"{base}+{text}"] = trivial_output(f"{base}+{text}", source, truth)
    across, cubic = _across(task, case, source), bases["cubic"]
    for size in (3, 5):
        made[f"median {size} in slices"] = _in_slices(
            cubic, across, functools.partial(ndimage.median_filter, size=size)
        )
    return made


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("task_id", IMAGE_TASKS)
def test_simple_filters_stay_at_the_floor(task_id: str) -> None:
    task = load_task(task_id)
    means = _means(task, functools.partial(_simple, task))
    high = {name: round(value, 3) for name, value in means.items() if value > MAX_FLOOR}
    assert not high


# ------------------------------------------------------------------------- what is real work


def _noise(picture: Array) -> float:
    """Deviation of white noise: what a Laplacian that ramps do not move leaves."""
    kernel = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]])
    return float(np.abs(ndimage.convolve(picture, kernel)).mean() * np.sqrt(np.pi / 2) / 6)


def _denoised(task: Task, case: Any, source: Picture, truth: Picture) -> Methods:
    params = ImageParams.model_validate(task.spec.metric.params)
    low, high = params.clip or (float(source.values.min()), float(source.values.max()))
    unit = (trivial_output("cubic", source, truth).clip(low, high) - low) / (high - low)
    across = _across(task, case, source)
    middle = (source.values.clip(low, high) - low) / (high - low)
    if middle.ndim == 3:
        middle = np.moveaxis(middle, across, 0)[middle.shape[across] // 2]
    sigma = max(_noise(middle), 0.005)
    non_local = functools.partial(
        restoration.denoise_nl_means,
        h=0.6 * sigma,
        sigma=sigma,
        patch_size=5,
        patch_distance=6,
        fast_mode=True,
    )
    made = {f"tv {w}": restoration.denoise_tv_chambolle(unit, weight=w) for w in (0.02, 0.1)}
    made["non-local means"] = _in_slices(unit, across, non_local)
    return {name: values * (high - low) + low for name, values in made.items()}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("task_id", IMAGE_TASKS)
def test_denoisers_earn_less_than_the_network(task_id: str) -> None:
    task = load_task(task_id)
    means = _means(task, functools.partial(_denoised, task))
    assert max(means.values()) < MIN_TASK, means


def _region(case: Any) -> Array:
    image = nib.Nifti1Image.from_bytes(gzip.decompress(case.inputs["mask.nii.gz"]))
    return np.asarray(image.get_fdata() > 0)


def _standardised(source: Picture, region: Array) -> Array:
    return np.asarray((source.values - source.values[region].mean()) / source.values[region].std())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ct_is_no_function_of_the_mr_signal() -> None:
    task = load_task("synth/mr_to_ct")
    signal, density = [], []
    for _, case, source, truth, *_ in _pictures(task, *(("train", n, "mini") for n in range(3))):
        region = _region(case)
        signal.append(_standardised(source, region)[region])
        density.append(truth.values[region])
    x, y = np.concatenate(signal), np.concatenate(density)
    fits = {f"polynomial {degree}": np.polyfit(x, y, degree) for degree in (1, 2, 3)}
    edges = np.quantile(x, np.linspace(0, 1, 41))[1:-1]
    bins = np.array([np.median(y[np.digitize(x, edges) == n]) for n in range(40)])

    def fitted(case: Any, source: Picture, truth: Picture) -> Methods:
        region = _region(case)
        smooth = ndimage.median_filter(_standardised(source, region), 3)
        made = {name: np.polyval(fit, smooth) for name, fit in fits.items()}
        made["bins"] = bins[np.digitize(smooth, edges)]
        return {name: np.where(region, values, -1000.0) for name, values in made.items()}

    means = _means(task, fitted)
    binned = {name: means.pop(name) for name in list(means) if name.endswith("bins")}
    assert max(means.values()) <= MAX_FLOOR, means
    assert max(binned.values()) < 0.45, binned


def _shells(case: Any, source: Picture, truth: Picture) -> Methods:
    """Anatomy by hand: what is dark a finger's breadth below the skin is skull, elsewhere air."""
    region = _region(case)
    smooth = ndimage.median_filter(_standardised(source, region), 3)
    below = np.pad(region, 1, mode="edge")  # A head goes on where the picture ends.
    below = ndimage.distance_transform_edt(below, nib.affines.voxel_sizes(source.affine))
    shell = (below[1:-1, 1:-1, 1:-1] > 5) & (below[1:-1, 1:-1, 1:-1] < 26)
    made = {}
    for dark, bone in ((-0.4, 500.0), (-0.4, 800.0), (-0.7, 500.0), (-1.0, 800.0)):
        values = np.where(smooth < -0.9, -1000.0, 40.0)
        values[shell & (smooth < dark)] = bone
        made[f"{bone} HU below {dark}"] = np.where(region, values, -1000.0)
    return made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dark_shell_below_the_skin_is_half_the_work_at_most() -> None:
    """Thresholds tuned to the truth earn what a fit to true pairs may, not what the network does.

    That is a segmentation by distance and signal: work, and no floor.
    """
    means = _means(load_task("synth/mr_to_ct"), _shells)
    assert 0.1 < max(means.values()) < 0.45, means


# --------------------------------------------------------------------------- the filters


def test_a_filter_follows_the_interpolation_that_it_names() -> None:
    rng = np.random.default_rng(0)
    source = Picture(rng.normal(100, 10, (12, 14)), None, "float64")
    grid = Picture(np.zeros((24, 28)), None, "float64")
    cubic = trivial_output("cubic", source, grid)
    made = trivial_output("cubic+median:5", source, grid)
    np.testing.assert_array_equal(made, ndimage.median_filter(cubic, 5))
    made = trivial_output("gaussian:1", source, grid)
    np.testing.assert_array_equal(made, trivial_output("linear+gaussian:1", source, grid))
    sharp = trivial_output("cubic+unsharp:1:0.5", source, grid)
    assert sharp.std() > cubic.std()
    for method in ("cubic+wiener:5", "cubic+bilateral:1.5:30"):
        assert trivial_output(method, source, grid).std() < 0.9 * cubic.std()


def test_edges_survive_a_filter_that_looks_at_values() -> None:
    step = np.zeros((20, 20))
    step[:, 10:] = 100.0
    picture = Picture(step, None, "float64")
    for method in ("cubic+bilateral:1.5:5", "cubic+wiener:3", "cubic+median:3"):
        made = trivial_output(method, picture, picture)
        assert np.abs(made - step)[:, [5, 14]].max() < 1e-6
        if "wiener" not in method:
            assert np.abs(made - step).max() < 1e-6
    flat = Picture(np.full((9, 9, 9), 7.0), None, "float64")
    for method in ("cubic+bilateral:1:5", "cubic+wiener:3"):
        np.testing.assert_allclose(trivial_output(method, flat, flat), 7.0)


@pytest.mark.parametrize("method", ["cubic+blur:3", "cubic+median", "sinc+median:3", "cubic+", "+"])
def test_a_filter_that_is_not_there_is_named(method: str) -> None:
    picture = Picture(np.zeros((4, 4)), None, "float64")
    with pytest.raises(UnknownNameError, match=r"trivial method"):
        trivial_output(method, picture, picture)
