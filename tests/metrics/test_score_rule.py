"""The one rule for missing cases, clipping and intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bat_env.metrics import CaseScore, aggregate, bootstrap_ci, clip, missing_case


def test_missing_cases_stay_in_the_denominator() -> None:
    scores = {"a": CaseScore(1.0, True, secondary={"dice": 1.0}), "b": missing_case()}
    total = aggregate(["a", "b", "c"], scores)
    assert total.score == pytest.approx(1 / 3)
    assert total.valid == {"a": True, "b": False, "c": False}
    assert set(total.messages) == {"b", "c"}
    assert total.secondary == {"dice": 1.0}


def test_no_case_scores_zero() -> None:
    assert aggregate([], {}).score == 0.0
    assert bootstrap_ci([]) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("value", "want"), [(-1.0, 0.0), (2.0, 1.0), (0.25, 0.25), (math.nan, 0.0), (math.inf, 0.0)]
)
def test_clip(value: float, want: float) -> None:
    assert clip(value) == want


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(0, 100))
def test_interval_is_seeded_and_stays_in_range(values: list[float], seed: int) -> None:
    low, high = bootstrap_ci(values, seed=seed, draws=200)
    assert (low, high) == bootstrap_ci(values, seed=seed, draws=200)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9


def test_interval_covers_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        low, high = bootstrap_ci(rng.random(30), draws=300)
        hits += low <= 0.5 <= high
    assert 0.88 <= hits / 200 <= 1.0


def test_undefined_secondary_values_do_not_count() -> None:
    scores = {
        "a": CaseScore(1.0, True, secondary={"hd": None, "n": 0.5}),
        "b": CaseScore(1.0, True, secondary={"hd": None, "n": None}),
    }
    assert aggregate(["a", "b"], scores).secondary == {"hd": None, "n": 0.5}
