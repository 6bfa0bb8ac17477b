"""Pictures of hostile outputs, and plain text read as tool calls."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence

from bat_env.env import AutoMedEnv
from bat_env.testing import play
from bat_env.tools import execute_call, submit_call
from bat_env.wrappers import parse_text

MakeEnv = Callable[..., AutoMedEnv]

HOSTILE = """
import os, struct, gzip
cases = sorted(os.listdir('/data'))
for case in cases:
    os.makedirs(f'outputs/{case}', exist_ok=True)
header = bytearray(352)
header[:4] = struct.pack('<i', 348)
header[40:56] = struct.pack('<8h', 3, 32767, 32767, 32767, 1, 1, 1, 1)
header[70:74] = struct.pack('<2h', 2, 8)
header[108:112] = struct.pack('<f', 352)
header[344:348] = b'n+1\\0'
open(f'outputs/{cases[0]}/dseg.nii.gz', 'wb').write(gzip.compress(bytes(header)))
open(f'outputs/{cases[1]}/dseg.nii.gz', 'wb').write(b'rubbish')
os.symlink('/etc/passwd', f'outputs/{cases[2]}/dseg.nii.gz')
"""


def test_hostile_outputs_are_drawn_as_unreadable(make_env: MakeEnv) -> None:
    env = make_env(render_mode="rgb_array")
    env.reset(seed=0)
    empty = env.render()
    info = env.step(execute_call("python", HOSTILE))[4]
    assert info["valid"]
    drawn = env.render()
    assert isinstance(drawn, np.ndarray) and isinstance(empty, np.ndarray)
    assert drawn.shape == empty.shape == (128 * len(env.instance.cases), 384, 3)
    middle = slice(20, 128)
    assert (drawn[middle] == empty[middle]).all(), "only the caption changes"
    *_, info = env.step(submit_call())
    assert info["result"]["task"] == 0.0


def test_environments_in_threads_do_not_mix(make_env: MakeEnv, oracle_actions: list[Any]) -> None:
    actions = [*oracle_actions[:3], submit_call()]
    alone = [play(make_env(), actions, seed=seed) for seed in range(2)]
    environments = [make_env() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        runs = pool.map(lambda s: play(environments[s], actions, seed=s), range(2))
        assert data_equivalence(list(runs), alone, exact=True)


@pytest.mark.parametrize(
    ("text", "language", "code"),
    [
        ("```python\nprint(1)\n```", "python", "print(1)\n"),
        ("Look:\n```\nx = 1\ny = 2\n```\nthen\n```bash\nls\n```", "python", "x = 1\ny = 2\n"),
        ("~~~sh\nls -l\n~~~", "bash", "ls -l\n"),
        ("````py\ns = '''\n```\n'''\n````", "python", "s = '''\n```\n'''\n"),
        ("  ```Bash title\nls\n  ```  ", "bash", "ls\n"),
        ("```python\n```", "python", ""),
    ],
)
def test_fenced_blocks_are_code(text: str, language: str, code: str) -> None:
    assert parse_text(text) == execute_call(language, code)


@pytest.mark.parametrize("text", ["SUBMIT", "I am done.\n  SUBMIT \n"])
def test_submit_hands_in(text: str) -> None:
    assert parse_text(text) == submit_call()


@pytest.mark.parametrize("text", ["", "submit", "please SUBMIT", "```python\nprint(1)"])
def test_other_text_is_no_call(text: str) -> None:
    assert parse_text(text) == text


def test_a_block_wins_over_submit() -> None:
    assert parse_text("SUBMIT\n```\n1\n```") == execute_call("python", "1\n")
