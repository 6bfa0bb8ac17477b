"""Whatever comes as an action, an option or a file: an observation, a BatError, or a score."""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bat_env.env import AutoMedEnv
from bat_env.errors import BatError
from bat_env.tools import LANGUAGES, MAX_CODE_CHARS, ValidCall, execute_call, validate_call

FUZZ = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
FEW = settings(FUZZ, max_examples=12)


class Trap:
    """An object whose every method is hostile."""

    def _spring(self, *_: object, **__: object) -> Any:
        raise MemoryError("trap")

    __eq__ = __hash__ = __str__ = __repr__ = __len__ = __iter__ = __getitem__ = _spring  # type: ignore[assignment]
    __bool__ = __contains__ = __lt__ = __index__ = __float__ = __getattr__ = _spring  # type: ignore[assignment]


class TrapDict(dict[Any, Any]):
    """A dictionary that lies about what it is."""

    def __iter__(self) -> Any:
        raise RuntimeError("trap")

    def items(self) -> Any:
        raise RuntimeError("trap")

    def get(self, *_: object) -> Any:
        raise RuntimeError("trap")


def _deep(levels: int) -> Any:
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


LEAF = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.binary(max_size=12)
    | st.just(6000).map(lambda digits: 10**digits)
    | st.sampled_from(
        ["execute_code", "submit", "python", "bash", "\0", "\ud800", "x" * 70_000, -0.0]
    )
)
VALUE = st.recursive(
    LEAF | st.builds(Trap) | st.just(TrapDict(name="execute_code", arguments={})),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6) | st.integers(), inner, max_size=4)
        | st.tuples(inner)
    ),
    max_leaves=8,
)
DEEP = st.sampled_from([50, 900, 20_000]).map(_deep)
NAME = st.sampled_from(["execute_code", "submit_results_", "Execute_Code"]) | VALUE
CODE = st.text(max_size=60) | st.sampled_from(
    ["", "\0", "\ud800", "pass\n" * 20_000, "print(1)", "raise SystemExit('x')", "'" * 200]
)
ARGUMENTS = (
    st.fixed_dictionaries({"language": st.sampled_from(LANGUAGES) | VALUE, "code": CODE | VALUE})
    | st.fixed_dictionaries({"code": VALUE, "language": VALUE, "extra": VALUE})
    | VALUE
)
ACTION = (
    st.fixed_dictionaries({"name": NAME, "arguments": ARGUMENTS})
    | st.fixed_dictionaries({"name": NAME, "arguments": ARGUMENTS, "more": VALUE})
    | VALUE
    | DEEP
    | DEEP.map(lambda deep: {"name": "execute_code", "arguments": deep})
)


@settings(FUZZ, max_examples=400)
@given(action=ACTION)
def test_validation_answers(action: Any) -> None:
    answer = validate_call(action)
    if isinstance(answer, str):
        assert answer and len(answer) < 1000
        answer.encode()
    else:
        assert isinstance(answer, ValidCall)
        json.dumps(answer.to_action())
        assert len(answer.arguments.get("code", "")) <= MAX_CODE_CHARS


@pytest.fixture(scope="module")
def env() -> Any:
    """One environment for all actions of this file."""
    import gymnasium as gym

    outer = gym.make("AutoMed-Seg-v0", sandbox="local", size="mini")
    yield outer.unwrapped
    outer.close()


def _running(env: AutoMedEnv) -> None:
    if env._episode is None or env.episode.status != "running":
        env.reset(seed=1)


def _checked(env: AutoMedEnv, outcome: Any) -> None:
    observation, reward, terminated, truncated, info = outcome
    assert env.observation_space.contains(observation)
    assert math.isfinite(reward)
    assert isinstance(terminated, bool) and isinstance(truncated, bool)
    observation["text"].encode()
    json.dumps(info)


@FUZZ
@given(action=ACTION)
def test_step_answers(env: AutoMedEnv, action: Any) -> None:
    _running(env)
    began = time.monotonic()
    _checked(env, env.step(action))
    assert time.monotonic() - began < 60


OPTION = st.sampled_from(["stage", "outcome", "state_id", "task", "index", "size", "tier", "x"])
PLAIN = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=4,
)


@FUZZ
@given(options=st.dictionaries(OPTION, PLAIN, min_size=1, max_size=3) | PLAIN)
def test_reset_refuses(env: AutoMedEnv, options: Any) -> None:
    try:
        observation, info = env.reset(seed=1, options=options)
    except BatError as error:
        assert 0 < len(str(error)) < 2000
    else:
        assert env.observation_space.contains(observation)
        json.dumps(info)


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
).map(lambda value: json.dumps(value).encode())
CONTENT = (
    st.binary(max_size=300)
    | JSONS
    | st.sampled_from(
        [
            b"[" * 100_000,
            b'{"files":[{"path":"../../../etc/passwd","sha256":1e999}],"format":"nifti-labels"}',
            b'{"case":"\\ud800","shape":[1e308,-1,null],"dtype":[],"labels":{},"x":' + b"9" * 5000,
            b"\x1f\x8b\x08\0" + b"\xff" * 64,
            b"\x5c\x01\0\0" + bytes(344),
        ]
    )
)
PATHS = (
    *("plan/plan.md", "plan/facts.json", "setup/setup.json", "pipeline/predict.py"),
    *("validation/pilot.json", "validation/pilot/{case}/dseg.nii.gz", "outputs/manifest.json"),
    *("outputs/{case}/dseg.nii.gz", "outputs/x\udcff", "task/spec.json"),
)


def _write(files: dict[str, bytes]) -> Callable[[str], dict[str, Any]]:
    packed = {path: base64.b64encode(data).decode() for path, data in files.items()}

    def call(case: str) -> dict[str, Any]:
        code = (
            "import base64, json, os\n"
            f"for path, data in json.loads({json.dumps(packed)!r}).items():\n"
            f"    path = path.replace('{{case}}', {case!r}).encode('utf-8', 'surrogateescape')\n"
            "    os.makedirs(os.path.dirname(path), exist_ok=True)\n"
            "    open(path, 'wb').write(base64.b64decode(data))\n"
        )
        return execute_call("python", code)

    return call


@FEW
@given(files=st.dictionaries(st.sampled_from(PATHS), CONTENT, min_size=3, max_size=9))
def test_hostile_files_are_graded(env: AutoMedEnv, files: dict[str, bytes]) -> None:
    env.reset(seed=2)
    write = _write(files)
    for case in env.instance.cases[:2]:
        outcome = env.step(write(case))
        _checked(env, outcome)
    outcome = env.step({"name": "submit_results", "arguments": {}})
    _checked(env, outcome)
    assert outcome[2] and 0.0 <= outcome[4]["score"] <= 1.0
