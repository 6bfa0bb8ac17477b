"""Seeded bootstrap intervals of means and of paired differences.

The statistical unit is the track: a score is the mean over tracks of the mean of the repeats
within a track, and the bootstrap resamples tracks, then the repeats inside each. With a single
track there is nothing to resample above the instances, so the instances are the unit.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bat_env.errors import ConfigError

RESAMPLES = 4000
"""Bootstrap replicates; the interval ends move by about .01 standard deviations beyond it."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its percentile bootstrap interval.

    Attributes:
        mean: Mean over tracks of the track means.
        low, high: Ends of the interval.
        n: Number of values below it.
    """

    mean: float
    low: float
    high: float
    n: int

    @property
    def above_zero(self) -> bool:
        """Whether the whole interval lies above 0."""
        return self.low > 0.0

    def to_json(self) -> dict[str, float | int]:
        """Plain values for a results file."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n}


def track_mean(groups: Mapping[str, Sequence[float]]) -> float | None:
    """Mean over tracks of the mean within each; ``None`` if a track has no value or none exists."""
    if not groups or any(len(values) == 0 for values in groups.values()):
        return None
    return float(np.mean([np.mean(groups[track]) for track in sorted(groups)]))


def bootstrap_interval(
    groups: Mapping[str, Sequence[float]],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = 0.95,
) -> Interval | None:
    """Percentile bootstrap interval of :func:`track_mean`.

    Args:
        groups: Track -> one value per instance (repeat).
        seed: Of the resampling; equal arguments give equal intervals.
        resamples: Number of bootstrap replicates.
        level: Coverage in (0, 1).

    Returns:
        The interval, or ``None`` where the mean is undefined.

    Raises:
        ConfigError: If ``level`` or ``resamples`` cannot work, or a value is not finite.
    """
    if not 0.0 < level < 1.0 or resamples < 1:
        raise ConfigError(
            f"Expected a level in (0, 1) and at least 1 resample, came {level!r}, {resamples!r}."
        )
    mean = track_mean(groups)
    if mean is None:
        return None
    tracks = [np.asarray(groups[track], dtype=np.float64) for track in sorted(groups)]
    if not all(np.isfinite(values).all() for values in tracks):
        raise ConfigError("Expected finite scores for the bootstrap, came NaN or infinity.")
    rng = np.random.default_rng(seed)
    # One row of `means` per track: the replicates of that track's own mean.
    means = np.stack(
        [
            values[rng.integers(0, values.size, (resamples, values.size))].mean(axis=1)
            for values in tracks
        ]
    )
    if len(tracks) == 1:
        replicates = means[0]
    else:
        chosen = rng.integers(0, len(tracks), (resamples, len(tracks)))
        replicates = means[chosen, np.arange(resamples)[:, None]].mean(axis=1)
    tail = 100.0 * (1.0 - level) / 2.0
    low, high = np.percentile(replicates, [tail, 100.0 - tail])
    return Interval(mean, float(low), float(high), int(sum(v.size for v in tracks)))


def paired_difference(
    candidate: Mapping[str, Mapping[Hashable, float]],
    baseline: Mapping[str, Mapping[Hashable, float]],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = 0.95,
) -> Interval | None:
    """Interval of ``candidate - baseline``, paired by instance within each track.

    Args:
        candidate: Track -> instance key -> score.
        baseline: The same of the other side; the keys must match exactly.
        seed: Of the resampling.
        resamples: Number of bootstrap replicates.
        level: Coverage in (0, 1).

    Raises:
        ConfigError: If the two do not cover exactly the same tracks and instances.
    """
    left = {(track, key) for track, cells in candidate.items() for key in cells}
    right = {(track, key) for track, cells in baseline.items() for key in cells}
    if left != right:
        raise ConfigError(
            f"Expected the same cells on both sides of a paired difference; {len(left - right)} "
            f"are only in the candidate and {len(right - left)} only in the baseline. Evaluate "
            "both on the same suite with the same number of repeats."
        )
    differences = {
        track: [cells[key] - baseline[track][key] for key in sorted(cells, key=str)]
        for track, cells in candidate.items()
    }
    return bootstrap_interval(differences, seed=seed, resamples=resamples, level=level)


def seeds_interval(
    grid: Mapping[int, Mapping[str, Mapping[str, float]]],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = 0.95,
) -> Interval | None:
    """Interval of the mean over seeds of :func:`track_mean`, by resampling on every level.

    Seeds are resampled, tracks (where there are several), and the instances within them; the
    instances are the same for all seeds, so one draw of them holds for all.

    Args:
        grid: Seed -> track -> instance -> score, or difference of two scores.
        seed: Of the resampling.
        resamples: Number of bootstrap replicates.
        level: Coverage in (0, 1).

    Returns:
        The interval, or ``None`` without a score.

    Raises:
        ConfigError: If the seeds do not cover the same tracks and instances.
    """
    seeds = sorted(grid)
    covered = [{t: sorted(cells) for t, cells in grid[s].items() if cells} for s in seeds]
    if not covered or not covered[0]:
        return None
    if any(one != covered[0] for one in covered):
        raise ConfigError(
            "Expected every seed to cover the same tracks and instances, they differ. Evaluate "
            "all of them on the same suite."
        )
    tracks = [
        np.array([[grid[s][t][key] for key in keys] for s in seeds])
        for t, keys in sorted(covered[0].items())
    ]
    rng = np.random.default_rng(seed)
    # Weights of a resampled mean: how often each seed and each instance was drawn.
    drawn = rng.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), resamples) / len(seeds)
    means = np.stack(
        [
            np.einsum(
                "rs,sn,rn->r",
                drawn,
                values,
                rng.multinomial(values.shape[1], np.full(values.shape[1], 1 / values.shape[1]),
                                resamples) / values.shape[1],
                optimize=True,
            )
            for values in tracks
        ]
    )  # fmt: skip
    replicates = means[0]
    if len(tracks) > 1:
        count = rng.multinomial(len(tracks), np.full(len(tracks), 1 / len(tracks)), resamples)
        replicates = (means * count.T).sum(axis=0) / len(tracks)
    tail = 100.0 * (1.0 - level) / 2.0
    low, high = np.percentile(replicates, [tail, 100.0 - tail])
    mean = float(np.mean([values.mean() for values in tracks]))
    return Interval(mean, float(low), float(high), int(sum(v.size for v in tracks)))
