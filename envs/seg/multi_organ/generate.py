"""Seeded abdominal CT with eight organs, some of them resected or out of the field of view.

Shapes are evaluated at the world coordinates (RAS, mm) that the NIfTI affine gives to each voxel,
so orientation, spacing and obliqueness are true without any resampling. Only operations that IEEE
754 rounds exactly are used on arrays (no transcendental functions, no BLAS), so that the same seed
gives the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bat_env.tasks.discovery import load_sibling
from bat_env.tasks.drawing import between, bytes_summed, case_names, generator, sizes_of
from bat_env.tasks.instance import Generated
from bat_env.tasks.volumes import (
    AXCODES,
    CT_SCALINGS,
    Grid,
    axes_along,
    centred,
    pack,
    slice_spacing,
    turn,
)

anatomy = load_sibling(__file__, "anatomy")

TOP, BOTTOM = (116.0, 130.0), (-112.0, -98.0)
LEAST_SHOWN = 0.3
"""An organ is out of the field of view, or at least this share of its height is in it."""
LEAST_LIVER = 0.22
"""Share of the liver's height that is always in the field of view."""


@dataclass(frozen=True)
class Scene:
    """What makes a case's classes: the part of the body that is scanned, and surgery before."""

    view: str
    resected: tuple[str, ...] = ()


SCENES = (
    Scene("whole"),
    Scene("whole", ("kidney",)),
    Scene("upper"),
    Scene("whole", ("gallbladder",)),
    Scene("lower"),
    Scene("whole", ("spleen", "gallbladder")),
)


def _grid(
    rng: np.random.Generator,
    size: Mapping[str, Any],
    axcodes: str,
    heights: tuple[float, float],
) -> Grid:
    """A random grid between two heights (z, mm)."""
    by_world = slice_spacing(rng, size)
    extent = [mm * between(rng, 0.96, 1.06) for mm in size["field_of_view_mm"]]
    extent.append(heights[1] - heights[0])
    shape, zooms, matrix = axes_along(axcodes, by_world, extent)
    # A slight tilt about the head-foot axis.
    turn(matrix, 0, 1, round(between(rng, -0.04, 0.04), 3))
    centre = [between(rng, -8, 8), between(rng, -8, 8), (heights[0] + heights[1]) / 2]
    return Grid(shape, centred(matrix, shape, centre), axcodes, zooms)


def _heights(rng: np.random.Generator, view: str, organs: Mapping[str, Any]) -> tuple[float, float]:
    """The scanned heights: every organ is well in the field of view, or not at all."""
    whole = low, high = between(rng, *BOTTOM), between(rng, *TOP)
    for _ in range(400):
        if view == "upper":
            low = between(rng, 24, 62)
        elif view == "lower":
            high = between(rng, -12, 40)
        shown = {
            name: (min(span[1], high) - max(span[0], low)) / (span[1] - span[0])
            for name, span in organs.items()
        }
        liver = shown.pop("liver")
        if liver >= LEAST_LIVER and all(s <= -0.03 or s >= LEAST_SHOWN for s in shown.values()):
            return low, high
    return whole


def _noise(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> np.ndarray:
    """Bell-shaped noise, correlated in two directions as after a smooth reconstruction kernel.

    A sum of uniform bytes: exact, unlike a logarithm in a tail.
    """
    summed = bytes_summed(rng, shape)
    summed = summed + np.roll(summed, 1, 0)
    summed = summed + np.roll(summed, 1, 1)
    return summed.astype(np.float32) * np.float32(sigma / 295.6)


def _case(
    rng: np.random.Generator,
    size: Mapping[str, Any],
    axcodes: str,
    scene: Scene,
    scaling: int,
) -> tuple[bytes, bytes, dict[str, Any]]:
    side = ("kidney_right", "kidney_left")[int(rng.integers(2))]
    resected = [side if name == "kidney" else name for name in scene.resected]
    abdomen = anatomy.draw_abdomen(rng, resected)
    low, high = _heights(rng, scene.view, abdomen.heights)
    build = between(rng, 0.9, 1.08)  # Small and large patients: the same shapes, scaled.
    grid = _grid(rng, size, axcodes, (low * build, high * build))
    canvas = anatomy.Canvas(grid.world(), grid.affine, build)
    for part in abdomen.parts:
        canvas.paint(part, abdomen.gas_y if part.organ == "stomach" else None)
    inside = canvas.hu > -900
    hu = canvas.hu + _noise(rng, grid.shape, between(rng, 14, 24))
    hu[inside] += np.float32(between(rng, -8, 8))
    slope, inter = CT_SCALINGS[scaling]
    stored = np.rint((hu.clip(-1024, 1500) - inter) / slope).astype(np.int16)
    scaled = stored.astype(np.float64) * slope + inter
    facts = {
        "orientation": grid.axcodes,
        "spacing_mm": list(grid.zooms),
        "shape": list(grid.shape),
        "intensity_hu": [float(scaled.min()), float(scaled.max())],
        "scaled": bool(slope != 1 or inter != 0),
        "volumes_ml": {
            name: round(int((canvas.labels == value).sum()) * grid.voxel_ml, 3)
            for value, name in enumerate(anatomy.ORGANS, 1)
        },
    }
    return (
        pack(stored, grid.affine, slope, inter),
        pack(canvas.labels, grid.affine),
        facts,
    )


def _plan(rng: np.random.Generator, size: Mapping[str, Any]) -> Iterator[tuple[str, Scene, int]]:
    """(axis codes, scene, scaling) of each case, the probe case last.

    Cases start at a random place in the lists and walk on, so that every instance mixes
    orientations, has a scaled file, and lacks organs in at least half of its cases.
    """
    count = int(rng.integers(size["cases"][0], size["cases"][1] + 1))
    codes, first = rng.permutation(len(AXCODES)), int(rng.integers(len(CT_SCALINGS)))
    start = int(rng.integers(len(SCENES)))
    for n in range(count):
        scene = SCENES[(start + n) % len(SCENES)]
        yield AXCODES[codes[n % len(AXCODES)]], scene, (first + n) % len(CT_SCALINGS)
    yield (
        AXCODES[codes[count % len(AXCODES)]],
        SCENES[0],
        (first + count) % len(CT_SCALINGS),
    )


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: 3-6 CT cases, one further probe case, and their truth."""
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    plan = list(_plan(rng, wanted))
    names = case_names(rng, fiction["prefix"], len(plan))
    made = {name: _case(rng, wanted, *row) for name, row in zip(names, plan, strict=True)}
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    facts = {case: made[case][2] for case in cases}
    hu = [value for fact in facts.values() for value in fact["intensity_hu"]]
    return Generated(
        cases=cases,
        public={f"{case}/ct.nii.gz": made[case][0] for case in cases},
        private={f"{case}/dseg.nii.gz": made[case][1] for case in cases},
        facts={
            "case_count": len(cases),
            "orientations": {case: fact["orientation"] for case, fact in facts.items()},
            "spacing_mm": {case: fact["spacing_mm"] for case, fact in facts.items()},
            "shape": {case: fact["shape"] for case, fact in facts.items()},
            "intensity_hu": [min(hu), max(hu)],
            "inputs": {
                "dtype": "int16",
                "ndim": 3,
                "scaled": any(fact["scaled"] for fact in facts.values()),
            },
            "volumes_ml": {case: fact["volumes_ml"] for case, fact in facts.items()},
            "pilot_truth": {case: fact["volumes_ml"]["liver"] for case, fact in facts.items()},
        },
        probe_case=probe,
        probe_public={"ct.nii.gz": made[probe][0]},
        probe_private={"dseg.nii.gz": made[probe][1]},
    )
