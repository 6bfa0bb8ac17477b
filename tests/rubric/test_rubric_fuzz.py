"""Whatever an agent writes, the rubric gives a score in [0, 1] and never raises."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bat_env.stages import Stage

PATHS = (
    "plan/plan.md",
    "plan/facts.json",
    "plan/plan.png",
    "setup/setup.json",
    "pipeline/predict.py",
    "validation/pilot.json",
    "validation/pilot/x/dseg.nii.gz",
    "validation/pilot",
    "outputs/manifest.json",
    "outputs/x/dseg.nii.gz",
    "outputs",
)

HUGE = 10**400
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([HUGE, -HUGE, 2**63, 1e308, -0.0])
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
TEXTS = (
    st.binary(max_size=200)
    | JSON.map(lambda v: json.dumps(v).encode())
    | st.sampled_from(
        [b"[" * 5000, b'{"a":' * 5000, b"1" * 5000, b'{"case_count": 1e999}', b'"\\ud800"']
    )
)
SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def check(done: Any) -> None:
    for final in (False, True):
        result = done.result(final)
        assert result.score is None or (math.isfinite(result.score) and 0 <= result.score <= 1)
        json.dumps(result.components)
        for verdict in result.verdicts:
            assert 0.0 <= verdict.value <= 1.0
            assert not verdict.message.startswith("Unreadable"), verdict


@SETTINGS
@given(cells=st.lists(st.dictionaries(st.sampled_from(PATHS), TEXTS, max_size=5), max_size=5))
def test_random_workspaces_never_raise(story, cells):
    start = story(tier="standard")
    for files in cells:
        start.cell(files)
    check(start)


def mutate(draw: Any, value: Any) -> Any:
    """The value with one random part replaced or removed."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.integers(0, 3)) == 0:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: mutate(draw, value[key])}
    if isinstance(value, list) and value and draw(st.booleans()):
        n = draw(st.integers(0, len(value) - 1))
        return [*value[:n], mutate(draw, value[n]), *value[n + 1 :]]
    return draw(JSON)


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        ("plan/facts.json", Stage.S1),
        ("setup/setup.json", Stage.S2),
        ("validation/pilot.json", Stage.S3),
        ("outputs/manifest.json", Stage.S5),
    ],
)
@SETTINGS
@given(data=st.data())
def test_a_broken_record_never_raises_nor_earns_more(story, path, stage, data):
    done = story(tier="standard").oracle()
    best = done.result()
    value = mutate(data.draw, json.loads(done.files[path]))
    done.cell({path: json.dumps(value).encode()})
    check(done)
    after = done.result()
    assert after.stages[stage].reward <= best.stages[stage].reward
    for other in best.stages:
        # Rewriting the facts late also costs nothing but S1.
        if other is not stage:
            assert after.stages[other] == best.stages[other]


@SETTINGS
@given(host=st.dictionaries(st.sampled_from(["shape", "labels", "dtype", "quantity"]), JSON))
def test_odd_host_properties_never_raise(story, host):
    done = story().oracle()
    done.episode.evidence.pilot = done.host(**host)
    result = done.result()
    assert result.score is not None and 0 <= result.score <= 1
