"""Seeded fetal brain volumes as super-resolution reconstruction of T2-weighted MRI gives them.

Surfaces are evaluated at the world coordinates (RAS, mm) that the NIfTI affine gives to each voxel,
so orientation, spacing and the turn of the head are true without any resampling. Only operations
that IEEE 754 rounds exactly are used on arrays (no transcendental functions, no BLAS), so that the
same seed gives the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bat_env.tasks.discovery import load_sibling
from bat_env.tasks.drawing import bell, between, case_names, generator, sizes_of
from bat_env.tasks.instance import Generated
from bat_env.tasks.volumes import Grid, axes_along, centred, pack

anatomy = load_sibling(__file__, "anatomy")

AXCODES = ("RAS", "LPS", "LAS", "RSP", "PIR", "SRA", "ASL", "IPL")


@dataclass(frozen=True)
class Storage:
    """How a scanner stores signal: fluid is ``level``, stored = (signal - inter) / slope."""

    level: float
    slope: float
    inter: float


STORAGES = (
    Storage(1350.0, 1.0, 0.0),
    Storage(5200.0, 4.0, -8192.0),
    Storage(96.0, 0.125, 0.0),
    Storage(420.0, 0.5, 300.0),
)


def _grid(
    rng: np.random.Generator,
    size: Mapping[str, Any],
    axcodes: str,
    reach: tuple[float, ...],
) -> Grid:
    """A random isotropic grid with a head of these half sizes (mm) near its middle."""
    zoom = round(between(rng, *size["voxel_mm"]), 2)
    extent = [2 * mm * between(rng, 0.98, 1.1) for mm in reach]
    shape, zooms, matrix = axes_along(axcodes, (zoom, zoom, zoom), extent)
    centre = [between(rng, -3, 3) for _ in range(3)]
    return Grid(shape, centred(matrix, shape, centre), axcodes, zooms)


def _case(
    rng: np.random.Generator,
    size: Mapping[str, Any],
    axcodes: str,
    enlarged: bool,
    storage: Storage,
) -> tuple[bytes, bytes, dict[str, Any]]:
    head = anatomy.draw_head(rng, enlarged)
    grid = _grid(rng, size, axcodes, head.reach_mm)
    canvas = anatomy.Canvas(head, grid.world())
    image = anatomy.smoothed(anatomy.signal(rng, canvas, head)) * anatomy.bias(rng, canvas)
    image = image + bell(rng, grid.shape, between(rng, 0.03, 0.05))
    # The reconstruction ends at a mask around the head; outside it is exactly 0.
    kept = canvas.radius <= 1 + head.space + between(rng, 0.16, 0.24)
    value = image.clip(0.02, 3.0) * np.float32(storage.level)
    value[~kept] = 0
    stored = np.rint((value - np.float32(storage.inter)) / np.float32(storage.slope))
    stored = stored.astype(np.int16)
    scaled = stored.astype(np.float64) * storage.slope + storage.inter
    voxel_ml = grid.zooms[0] ** 3 / 1000
    volumes = {
        name: round(int((canvas.labels == value).sum()) * voxel_ml, 3)
        for value, name in enumerate(anatomy.TISSUES, 1)
    }
    facts = {
        "orientation": grid.axcodes,
        "spacing_mm": list(grid.zooms),
        "shape": list(grid.shape),
        "signal_p99": round(float(np.percentile(scaled[kept], 99)), 3),
        "scaled": bool(storage.slope != 1 or storage.inter != 0),
        "volumes_ml": volumes,
    }
    return (
        pack(stored, grid.affine, storage.slope, storage.inter),
        pack(canvas.labels, grid.affine),
        facts,
    )


def _plan(rng: np.random.Generator, size: Mapping[str, Any]) -> Iterator[tuple[str, bool, Storage]]:
    """(axis codes, enlarged ventricles, storage) of each case, the probe case last.

    Cases start at a random place in orientations and storages and walk on, so that every instance
    mixes both, and has at least one file with an intercept and one with enlarged ventricles.
    """
    count = int(rng.integers(size["cases"][0], size["cases"][1] + 1))
    codes, first = rng.permutation(len(AXCODES)), int(rng.integers(len(STORAGES)))
    enlarged = rng.permutation([True] + [n % 3 == 2 for n in range(count - 1)])
    for n, large in enumerate([*enlarged, False]):
        yield (
            AXCODES[codes[n % len(AXCODES)]],
            bool(large),
            STORAGES[(first + n) % len(STORAGES)],
        )


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: 3-6 fetal brains, one further probe case, and their truth."""
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    plan = list(_plan(rng, wanted))
    names = case_names(rng, fiction["prefix"], len(plan))
    made = {name: _case(rng, wanted, *row) for name, row in zip(names, plan, strict=True)}
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    facts = {case: made[case][2] for case in cases}
    return Generated(
        cases=cases,
        public={f"{case}/t2w.nii.gz": made[case][0] for case in cases},
        private={f"{case}/dseg.nii.gz": made[case][1] for case in cases},
        facts={
            "case_count": len(cases),
            "orientations": {case: fact["orientation"] for case, fact in facts.items()},
            "spacing_mm": {case: fact["spacing_mm"] for case, fact in facts.items()},
            "shape": {case: fact["shape"] for case, fact in facts.items()},
            "signal_p99": {case: fact["signal_p99"] for case, fact in facts.items()},
            "inputs": {
                "dtype": "int16",
                "ndim": 3,
                "scaled": any(fact["scaled"] for fact in facts.values()),
                "zero_background": True,
            },
            "volumes_ml": {case: fact["volumes_ml"] for case, fact in facts.items()},
            "pilot_truth": {
                case: fact["volumes_ml"]["white_matter"] for case, fact in facts.items()
            },
        },
        probe_case=probe,
        probe_public={"t2w.nii.gz": made[probe][0]},
        probe_private={"dseg.nii.gz": made[probe][1]},
    )
