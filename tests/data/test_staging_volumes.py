"""Volumes and pictures: geometry survives reduction, headers are clean, bad files are named."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from published_layouts import ct, mha, nifti

from bat_env.data import Bounds, open_staged, stage_data
from bat_env.data.pictures import read_picture, reduced, write_png
from bat_env.data.records import CaseError
from bat_env.data.volumes import (
    Volume,
    cropped,
    read_labels,
    read_volume,
    slab,
    strided,
    thinned,
    write_nifti,
)

NILEARN = Path(next(iter(importlib.util.find_spec("nilearn").submodule_search_locations)))  # type: ignore[union-attr, arg-type]
TEMPLATE = NILEARN / "datasets/data/mni_icbm152_t1_tal_nlin_sym_09a_converted.nii.gz"


def test_the_template_that_nilearn_ships() -> None:
    volume = read_volume(TEMPLATE)
    plain = nib.load(TEMPLATE)
    assert volume.shape == plain.shape and np.allclose(volume.affine, plain.affine)
    assert np.allclose(volume.values, np.asanyarray(plain.dataobj), atol=1e-3)
    small = strided(volume, thinned(volume.shape, volume.spacing_mm, 1 << 17))
    assert small.values.size <= 1 << 17
    back = nib.Nifti1Image.from_bytes(gzip.decompress(write_nifti(small.values, small.affine)))
    assert np.allclose(back.affine, small.affine, atol=1e-4)
    assert not bytes(back.header["descrip"]).strip(b"\0") and back.header["qform_code"] == 0


def test_the_template_stages_as_a_decathlon_task_of_tissues(tmp_path: Path) -> None:
    """Real anatomy: the T1 template with its own grey and white matter as labels, in six crops."""
    maps = {
        name: read_volume(Path(str(TEMPLATE).replace("_t1_", f"_{name}_")))
        for name in ("t1", "gm", "wm")
    }
    scale = {name: volume.values.astype(np.float32) for name, volume in maps.items()}
    grey, white = (scale[name] / scale[name].max() for name in ("gm", "wm"))
    labels = np.where(grey > 0.5, 1, np.where(white > 0.5, 2, 0)).astype(np.uint8)
    root = tmp_path / "src" / "Task11_Tissues"
    training = []
    for n in range(6):
        box = (slice(20 + 12 * n, 84 + 12 * n), slice(60, 124), slice(50, 110))
        part = cropped(maps["t1"], box)
        nifti(root / "imagesTr" / f"mni_{n}.nii.gz", part.values, part.affine)
        nifti(root / "labelsTr" / f"mni_{n}.nii.gz", labels[box].copy(), part.affine)
        names = {"image": f"./imagesTr/mni_{n}.nii.gz", "label": f"./labelsTr/mni_{n}.nii.gz"}
        training.append(names)
    table = {"name": "Tissues", "modality": {"0": "T1"}, "training": training}
    table["labels"] = {"0": "background", "1": "grey matter", "2": "white matter"}
    (root / "dataset.json").write_text(json.dumps(table))
    bounds = Bounds(max_voxels=1 << 16)
    done = stage_data("msd", tmp_path / "src", tmp_path / "out", bounds=bounds)
    task = open_staged(done.folder)
    drawn = task.instance("train", 0)
    assert task.spec.pilot.quantity in ("grey_matter_volume_ml", "white_matter_volume_ml")
    for case in drawn.cases:
        image = nib.Nifti1Image.from_bytes(gzip.decompress(drawn.public[f"{case}/mri.nii.gz"]))
        truth = nib.Nifti1Image.from_bytes(gzip.decompress(drawn.private[f"{case}/dseg.nii.gz"]))
        assert np.array_equal(image.affine, truth.affine) and image.shape == truth.shape
        # White matter is brighter than grey matter in T1: the labels still lie on their tissue.
        values, tissue = np.asarray(image.dataobj), np.asarray(truth.dataobj)
        assert values[tissue == 2].mean() > values[tissue == 1].mean() * 1.1


shapes = st.tuples(*[st.integers(4, 40)] * 3)
numbers = st.floats(-3, 3)


@settings(max_examples=60, deadline=None)
@given(shape=shapes, rows=st.tuples(*[numbers] * 12), most=st.integers(500, 20_000))
def test_reduction_keeps_every_voxel_where_it_was(
    shape: tuple[int, int, int], rows: tuple[float, ...], most: int
) -> None:
    affine = np.eye(4)
    affine[:3] = np.array(rows).reshape(3, 4) * [1, 1, 1, 100]
    affine[:3, :3] += 4 * np.eye(3)
    values = np.arange(np.prod(shape), dtype=np.int64).reshape(shape)
    volume = Volume(values, affine)
    for small in (
        strided(volume, thinned(shape, volume.spacing_mm, most)),
        cropped(volume, slab(volume, most)),
        cropped(volume, slab(volume, most, values == values.max())),
    ):
        corner = tuple(n - 1 for n in small.shape)
        for voxel in ((0, 0, 0), corner):
            old = np.unravel_index(int(small.values[voxel]), shape)
            assert np.allclose(small.affine @ [*voxel, 1], affine @ [*old, 1], atol=1e-6)


def test_files_that_are_no_volume_are_named(tmp_path: Path) -> None:
    hu, labels = ct(1)
    nifti(tmp_path / "good.nii.gz", hu)
    grid = read_volume(tmp_path / "good.nii.gz")
    (tmp_path / "empty.nii.gz").write_bytes(b"")
    (tmp_path / "lfs.nii.gz").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid x\n")
    (tmp_path / "cut.nii.gz").write_bytes((tmp_path / "good.nii.gz").read_bytes()[:2000])
    nifti(tmp_path / "nan.nii.gz", np.where(hu > 0, np.nan, hu).astype(np.float32))
    nifti(tmp_path / "flat.nii.gz", hu[:, :, :1])
    singular = np.diag([2.0, 2.0, 3.0, 1.0])
    singular[:3, 2] = 0
    broken = nib.Nifti1Image(hu, None)
    broken.set_sform(singular, 1)
    nib.save(broken, tmp_path / "singular.nii.gz")
    for name, words in (
        ("absent.nii.gz", "is missing"),
        ("empty.nii.gz", "0 bytes"),
        ("lfs.nii.gz", "Git LFS pointer"),
        ("cut.nii.gz", "cannot be read"),
        ("nan.nii.gz", "NaN"),
        ("flat.nii.gz", "expected a volume"),
        ("singular.nii.gz", "cannot be inverted"),
    ):
        with pytest.raises(CaseError, match=words):
            read_volume(tmp_path / name)
    nifti(tmp_path / "moved.nii.gz", labels, np.diag([2.0, 2.0, 3.1, 1.0]))
    nifti(tmp_path / "other.nii.gz", labels[:-1])
    nifti(tmp_path / "negative.nii.gz", -labels.astype(np.int16))
    for name, words in (("moved", "mm away"), ("other", "shape"), ("negative", "no labels")):
        with pytest.raises(CaseError, match=words):
            read_labels(tmp_path / f"{name}.nii.gz", grid)


def test_scaled_and_float_labels_are_whole_numbers(tmp_path: Path) -> None:
    hu, labels = ct(1)
    nifti(tmp_path / "ct.nii.gz", hu)
    grid = read_volume(tmp_path / "ct.nii.gz")
    nifti(tmp_path / "float.nii.gz", labels.astype(np.float32) + 1e-6)
    nifti(tmp_path / "frame.nii.gz", labels[..., None])
    for name in ("float", "frame"):
        assert np.array_equal(read_labels(tmp_path / f"{name}.nii.gz", grid), labels)
    raw = bytearray(nib.Nifti1Image(hu, np.diag([2.0, 2.0, 3.0, 1.0])).to_bytes())
    raw[112:120] = np.array([2.0, -1024.0], "<f4").tobytes()  # scl_slope and scl_inter
    (tmp_path / "scaled.nii").write_bytes(bytes(raw))
    scaled = read_volume(tmp_path / "scaled.nii").values
    assert np.array_equal(scaled, hu.astype(np.int32) * 2 - 1024) and scaled.dtype == np.int16


def test_metaimage_lies_where_simpleitk_says(tmp_path: Path) -> None:
    hu, _ = ct(2)
    mha(tmp_path / "ct.mha", hu)
    volume = read_volume(tmp_path / "ct.mha")
    assert np.array_equal(volume.values, hu)
    assert np.allclose(volume.affine[:3, 3], [174.0, 130.2, 297.3])
    assert np.allclose(np.diag(volume.affine)[:3], [-1, -1, 3])


@settings(max_examples=40, deadline=None)
@given(
    size=st.tuples(st.integers(16, 90), st.integers(16, 90)),
    most=st.integers(16, 64),
    deep=st.booleans(),
    colour=st.booleans(),
)
def test_pictures_keep_their_shape_and_mean(
    size: tuple[int, int], most: int, deep: bool, colour: bool
) -> None:
    rng = np.random.default_rng(0)
    kind = np.uint16 if deep and not colour else np.uint8
    pixels = rng.integers(0, np.iinfo(kind).max, (*size, 3) if colour else size).astype(kind)
    small = reduced(pixels, most)
    assert max(small.shape[:2]) <= most and small.dtype == kind and small.ndim == pixels.ndim
    assert abs(float(small.mean()) - float(pixels.mean())) < 0.05 * np.iinfo(kind).max
    again = np.asarray(Image.open(io.BytesIO(write_png(small))))
    assert np.array_equal(again, small)


def test_pictures_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "good.png")
    assert np.array_equal(read_picture(tmp_path / "good.png"), noise)
    Image.fromarray(noise[:8]).save(tmp_path / "small.png")
    Image.fromarray(np.full((40, 40), 7, np.uint8)).save(tmp_path / "blank.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "good.png").read_bytes()[:600])
    (tmp_path / "empty.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_bytes(b"<html>Not found</html>")
    for name, words in (
        ("absent.png", "missing"),
        ("small.png", "too few"),
        ("blank.png", "blank"),
        ("cut.png", "cannot be decoded"),
        ("empty.jpg", "0 bytes"),
        ("text.jpg", "cannot be decoded"),
    ):
        with pytest.raises(CaseError, match=words):
            read_picture(tmp_path / name)
