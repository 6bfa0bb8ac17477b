from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bat_env.bank.distribution import chances, check_distribution, draw
from bat_env.errors import BankError, ConfigError, UnknownNameError
from bat_env.stages import OUTCOMES, Stage

TRACKS = ("det", "seg", "vqa")
HELD = [(t, s.name, o) for t in TRACKS for s in Stage for o in OUTCOMES]
names = st.sampled_from([*TRACKS, *Stage.__members__, *OUTCOMES])


def share(value: Any, held: Any = HELD, **kwargs: Any) -> dict[Any, float]:
    checked = check_distribution(value, TRACKS)
    assert checked is not None
    return chances(json.loads(json.dumps(checked)), held, **kwargs)


@settings(max_examples=60, deadline=None)
@given(weights=st.dictionaries(names, st.floats(0.1, 9.0), min_size=1), data=st.data())
def test_weights_of_one_kind_hold_exactly(weights: dict[str, float], data: Any) -> None:
    chance = share(weights)
    assert sum(chance.values()) == pytest.approx(1.0)
    for place, kind in enumerate((TRACKS, tuple(Stage.__members__), OUTCOMES)):
        mine = {n: w for n, w in weights.items() if n in kind}
        for name in mine:
            got = sum(p for cell, p in chance.items() if cell[place] == name)
            assert got == pytest.approx(mine[name] / sum(mine.values()))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    assert draw(rng, chance) in HELD


def test_what_a_bank_lacks_moves_no_weight_of_the_first_kind() -> None:
    held = [("seg", "S1", "success"), ("seg", "S1", "failure"), ("det", "S3", "success")]
    chance = share({"S1": 3, "S3": 1, "success": 1, "failure": 1}, held)
    assert chance == {
        ("seg", "S1", "success"): pytest.approx(0.375),
        ("seg", "S1", "failure"): pytest.approx(0.375),
        ("det", "S3", "success"): pytest.approx(0.25),
    }
    assert share("uniform", held) == dict.fromkeys(held, pytest.approx(1 / 3))
    assert share({"seg/S1/success": 1, "det/s3/success": 0}, held) == {held[0]: 1.0}
    assert share([["seg", Stage.S1, "success"], "det/S3/success"], held)[held[2]] == 0.5
    assert share({"S1": 1}, held, given={"stage"}) == share("uniform", held)


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        ({"S9": 1}, UnknownNameError, "stage, track or outcome"),
        ({"recovry": 1}, UnknownNameError, "Did you mean 'recovery'"),
        ({"seg/S3/recovry": 1}, UnknownNameError, "Did you mean 'recovery'"),
        (["set/S3/recovery"], UnknownNameError, "Did you mean 'seg'"),
        (["seg/S3"], ConfigError, "track/stage/outcome"),
        ([3], ConfigError, "track/stage/outcome"),
        ({"S1": 0, "seg": 1}, ConfigError, "by stage sum to 0"),
        ({"seg/S1/success": 0.0}, ConfigError, "sum to 0"),
        ({"S1": -1}, ConfigError, ">= 0"),
        ({"S1": float("nan")}, ConfigError, "finite"),
        ({"S1": True}, ConfigError, "finite"),
        ({"S1": 1, "seg/S1/success": 1}, ConfigError, "not both"),
        ({}, ConfigError, "distribution must be"),
        ([], ConfigError, "distribution must be"),
        ("even", ConfigError, "distribution must be"),
    ],
)
def test_what_is_no_distribution_is_refused(value: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        check_distribution(value, TRACKS)


def test_cells_that_the_bank_does_not_hold_are_named() -> None:
    held = [("seg", "S1", "success")]
    for value, words in (
        (["seg/S1/success", "seg/S2/failure"], "seg/S2/failure"),
        ({"seg/S1/success": 1, "det/S2/failure": 2}, "det/S2/failure"),
        ({"S1": 1, "S4": 1}, "asks for S4"),
        ({"vqa": 1}, "asks for vqa"),
    ):
        with pytest.raises(BankError, match=rf"{words}.*bank build"):
            share(value, held)
    with pytest.raises(BankError, match="bank build"):
        share("uniform", [])
    with pytest.raises(BankError, match="fits this reset"):
        share(["seg/S1/success"], [], given={"stage"})
