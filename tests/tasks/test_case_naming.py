"""Institutions with naming schemes of their own: other names, equal pictures, equal scores."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bat_env.bank.admission import MIN_ORACLE, MIN_SEPARATION, play
from bat_env.bank.fingerprints import of_suites
from bat_env.bank.jobs import instance_indices
from bat_env.bank.needles import Needles
from bat_env.bank.wording import VARIED, worded
from bat_env.env import AutoMedEnv
from bat_env.stages import Stage
from bat_env.tasks import load_task, render_brief, task_ids
from bat_env.tasks.drawing import case_names, generator
from bat_env.tasks.naming import SCHEMES, VARIED_FROM, case_name, world_of

LITE = [name for name in task_ids() if load_task(name).spec.lite]
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{5,31}\Z")


@given(
    st.sampled_from(("ALB", "Q", "ABCDEF")),
    st.sampled_from(SCHEMES),
    st.integers(0, 2**32),
    st.integers(1, 12),
)
def test_names_of_every_scheme_are_safe_distinct_and_drawn_alike(
    prefix: str, scheme: str, seed: int, count: int
) -> None:
    rng, plain = generator(seed), generator(seed)
    names = case_names(rng, scheme.replace("{prefix}", prefix), count)
    usual = case_names(plain, prefix, count)
    assert rng.bit_generator.state == plain.bit_generator.state
    assert len(set(names)) == count == len(usual)
    for name in names:
        assert SAFE.match(name) and not name.isdigit() and prefix in name
    assert all(re.fullmatch(rf"{prefix}-[A-Z2-9]{{4}}", name) for name in usual)


@given(
    st.sampled_from(("train", "dev", "heldout")),
    st.integers(0, 2**31 - 1),
    st.integers(0, 23),
)
def test_only_the_varied_stretch_of_training_has_schemes(split: Any, index: int, row: int) -> None:
    fiction = load_task("seg/kidney_tumor").spec.fiction["train"][row]
    world = world_of(split, index, fiction)
    assert {**world, "prefix": ""} == {**fiction, "prefix": ""}
    if split != "train" or index < VARIED_FROM:
        assert world == fiction
    else:
        name = case_name(world["prefix"], "7K2Q", 4711)
        assert fiction["prefix"] in name and ("7K2Q" in name or "004711" in name)
        assert world == world_of("train", VARIED_FROM, fiction)  # an institution has one scheme


def test_builds_with_worded_briefs_play_in_the_varied_stretch() -> None:
    for seed in range(20):
        plain, varied = instance_indices(seed, 300), instance_indices(seed, 300, VARIED)
        assert max(plain) < VARIED_FROM <= min(varied) and max(varied) < 2**31


@pytest.mark.parametrize("name", LITE)
def test_the_institutions_of_a_task_have_many_schemes(name: str) -> None:
    rows = load_task(name).spec.fiction["train"]
    worlds = [world_of("train", VARIED_FROM, row)["prefix"] for row in rows]
    forms = {world.replace(row["prefix"], "*") for world, row in zip(worlds, rows, strict=True)}
    assert len(forms) >= 4


@pytest.mark.parametrize("name", LITE)
def test_an_institution_mixes_nothing_but_names(name: str) -> None:
    """The whole instance carries the new names, and no trace of the usual ones."""
    task = load_task(name)
    needles = Needles(of_suites(["lite-mini"], {name}).strings)
    for index in range(VARIED_FROM + 10, VARIED_FROM + 12):
        made = task.instance("train", index, "mini")
        rows = [row for row in task.spec.fiction["train"] if row == dict(made.fiction)]
        assert len(rows) == 1, "the brief shows the world as task.yaml has it"
        plain = task._module("generate").generate(made.seed, "mini", rows[0])
        names = (*made.cases, made.probe_case)
        assert list(made.cases) == sorted(made.cases)
        assert {path.split("/")[0] for path in made.public} == set(made.cases)
        assert sorted(map(len, map(_plain, made.public.items()))) == sorted(
            map(len, map(_plain, plain.public.items()))
        )
        old = {*plain.cases, plain.probe_case} - set(names)
        whole = json.dumps([made.facts, made.cases]).encode() + b"".join(
            _plain(item)
            for tree in (made.public, made.private, made.probe_public, made.probe_private)
            for item in tree.items()
        )
        assert not [case for case in old if case.encode() in whole]
        brief = render_brief(task, made, tier="lite", focus=Stage.E2E)
        said = worded(brief, np.random.default_rng(index))
        assert all(case in brief and case in said for case in made.cases)
        assert not list(needles.found(said.encode()))


def _plain(item: tuple[str, bytes]) -> bytes:
    return gzip.decompress(item[1]) if item[0].endswith(".gz") else item[1]


@pytest.fixture(scope="module")
def env() -> Iterator[AutoMedEnv]:
    made = AutoMedEnv(track=None, sandbox="local")
    yield made
    made.close()


def _scores(env: AutoMedEnv, name: str, index: int) -> tuple[float, float]:
    task, options = load_task(name), {"task": name, "index": index, "size": "mini"}
    scripts = (task.script(), task.script(task.naive_choices))
    good, careless = (play(env, cells, seed=index, options=options) for cells in scripts)
    return good.score, careless.score


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        *((name, 1) for name in ("cls/skin_lesion", "seg/kidney_tumor")),
        *(pytest.param(n, s, marks=pytest.mark.slow) for n in LITE for s in (2, 3, 4)),
    ],
)
def test_the_host_scores_every_scheme_alike(env: AutoMedEnv, name: str, seed: int) -> None:
    oracle, naive = _scores(env, name, VARIED_FROM + 7919 * seed)
    assert oracle >= MIN_ORACLE
    assert naive <= oracle - MIN_SEPARATION
