"""Seeded axial MR slices of heads, measured with half the resolution, and what full k-space shows.

The acquisition keeps the middle half of k-space along both axes: written as a convolution with a
truncated sinc and every second sample, whose places lie between two pixels of the fine grid, so
that both grids cover the same field of view. Gibbs ringing and Rician noise come with it. Arrays
meet only operations that IEEE 754 rounds exactly, so that the same seed gives the same bytes on
every machine.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from bat_env.tasks.discovery import load_sibling
from bat_env.tasks.drawing import Rng, bell, between, case_names, generator, sizes_of
from bat_env.tasks.instance import Generated

phantom = load_sibling(__file__, "phantom")

TAPS = 32


@functools.cache
def _sinc() -> tuple[float, ...]:
    """Low-pass filter of half the bandwidth, centred between its two middle taps."""
    places = [math.pi * (n - (TAPS - 1) / 2) / 2 for n in range(TAPS)]
    # A mild taper: k-space is measured a little beyond what the image keeps.
    taps = [math.sin(x) / x * (0.9 + 0.1 * math.cos(2 * x / TAPS)) for x in places]
    return tuple(round(tap / math.fsum(taps), 7) for tap in taps)


def _half(signal: np.ndarray) -> np.ndarray:
    """Half the samples along the first axis, low-pass filtered."""
    reach = TAPS // 2 - 1
    padded = np.pad(signal, ((reach, reach + 1), (0, 0)))
    out = np.zeros((signal.shape[0] // 2, signal.shape[1]), np.float32)
    for n, tap in enumerate(_sinc()):
        out += padded[n : n + signal.shape[0] : 2] * np.float32(tap)
    return out


def _case(rng: Rng, size: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(measured, true, mask) of one slice; uint16, uint16, uint8."""
    head = (between(rng, *size["half_length_px"]), between(rng, *size["half_width_px"]))
    shape = [2 * round(half * between(rng, 1.06, 1.2)) for half in head]
    if shape[0] == shape[1]:
        shape[0] += 2
    canvas = phantom.head(rng, (shape[0], shape[1]), head)
    slopes = [np.float32(between(rng, -0.12, 0.12)) for _ in range(3)]
    coil = 1 + canvas.y * slopes[0] + canvas.x * slopes[1] + canvas.y * canvas.x * slopes[2]
    gain = np.float32(between(rng, 0.6, 1.4))
    fine = canvas.signal * coil * gain
    coarse = _half(np.ascontiguousarray(_half(fine).T)).T
    sigma = np.float32(between(rng, *size["noise"]))
    real = coarse + bell(rng, coarse.shape) * sigma
    imaginary = bell(rng, coarse.shape) * sigma
    measured = np.rint(np.sqrt(real * real + imaginary * imaginary)).astype(np.uint16)
    mask = canvas.share((0, 0), (phantom.SKULL, phantom.SKULL)) >= 0.5
    return measured, np.rint(fine).astype(np.uint16), mask.astype(np.uint8)


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    np.lib.format.write_array(buffer, little, version=(1, 0), allow_pickle=False)
    return buffer.getvalue()


def generate(seed: int, size: str, fiction: Mapping[str, str]) -> Generated:
    """Draw one instance: coarse slices, one further probe slice, and the fine truth."""
    rng = generator(seed)
    wanted = sizes_of(__file__, size)
    count = int(rng.integers(wanted["cases"][0], wanted["cases"][1] + 1)) + 1
    names = case_names(rng, fiction["prefix"], count)
    made = {name: _case(rng, wanted) for name in names}
    cases, probe = tuple(sorted(names[:-1])), names[-1]
    inputs = [made[case][0] for case in cases]

    def private(name: str) -> dict[str, bytes]:
        return {"enhanced.npy": _npy(made[name][1]), "mask.npy": _npy(made[name][2])}

    return Generated(
        cases=cases,
        public={f"{case}/coarse.npy": _npy(made[case][0]) for case in cases},
        private={f"{c}/{name}": data for c in cases for name, data in private(c).items()},
        facts={
            "case_count": len(cases),
            "shape_px": {case: list(made[case][0].shape) for case in cases},
            "intensity": [min(int(v.min()) for v in inputs), max(int(v.max()) for v in inputs)],
            "inputs": {
                "dtype": "uint16",
                "ndim": 2,
                "square": all(v.shape[0] == v.shape[1] for v in inputs),
            },
            "pilot_truth": {
                case: round(int(made[case][1].sum(dtype=np.int64)) / made[case][1].size, 3)
                for case in cases
            },
        },
        probe_case=probe,
        probe_public={"coarse.npy": _npy(made[probe][0])},
        probe_private=private(probe),
    )
