from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_agent.stats import bootstrap_interval, paired_difference, track_mean
from bat_env.errors import ConfigError

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.sampled_from(["seg", "cls", "det"]), SCORES, min_size=1))
def test_interval_holds_the_mean_and_repeats(groups: dict[str, list[float]]) -> None:
    first = bootstrap_interval(groups, seed=1, resamples=500)
    assert first is not None and first == bootstrap_interval(groups, seed=1, resamples=500)
    assert first.mean == pytest.approx(track_mean(groups))
    assert -1e-12 <= first.low <= first.high <= 1 + 1e-12
    assert first.n == sum(map(len, groups.values()))


def test_one_track_resamples_instances_and_matches_the_normal_theory() -> None:
    values = [i / 99 for i in range(100)]
    interval = bootstrap_interval({"seg": values}, resamples=8000)
    assert interval is not None
    half = 1.96 * math.sqrt((100**2 - 1) / 12 / 99**2 / 100)
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.06)


def test_tracks_are_the_unit_where_there_are_several() -> None:
    many = {"seg": [0.0] * 500, "cls": [1.0] * 500}
    interval = bootstrap_interval(many)
    assert interval is not None and (interval.low, interval.high) == (0.0, 1.0)


def test_pairing_removes_what_instances_share() -> None:
    baseline = {"seg": {i: i / 30 for i in range(24)}}
    candidate = {"seg": {i: i / 30 + 0.1 for i in range(24)}}
    difference = paired_difference(candidate, baseline)
    assert difference is not None and difference.above_zero
    assert difference.mean == pytest.approx(0.1) and difference.high - difference.low < 1e-9
    with pytest.raises(ConfigError, match="same cells"):
        paired_difference({"seg": {0: 0.5}}, {"seg": {1: 0.5}})


def test_no_value_is_no_interval_and_nonsense_is_refused() -> None:
    assert bootstrap_interval({}) is None and bootstrap_interval({"seg": []}) is None
    with pytest.raises(ConfigError, match="finite"):
        bootstrap_interval({"seg": [float("nan")]})
    with pytest.raises(ConfigError, match="level"):
        bootstrap_interval({"seg": [0.5]}, level=1.0)
