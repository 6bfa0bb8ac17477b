"""The study's arms, and what rows come to; playing them is a part of the pipeline's test."""

from __future__ import annotations

import io
import json
import random
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from rich.console import Console

from bat_agent.cli import _print_study
from bat_agent.curriculum.rounds import COMPOSITION
from bat_agent.demo import demo_config
from bat_agent.stats import bootstrap_interval, seeds_interval
from bat_agent.study import ARMS, HEADLINE, MIXES, audit, parse_arms, study_config
from bat_agent.study.figures import figures
from bat_agent.study.results import results_of, tables
from bat_env.errors import BatError, ConfigError, UnknownNameError
from bat_env.tools import execute_call, submit_call

LEVELS = {"base": 0.02, "sft": 0.3, "sft-good": 0.36, "grpo-final": 0.45, "bicurl": 0.62}


def rows(seeds: int = 3, tracks: tuple[str, ...] = ("seg", "cls")) -> list[dict[str, Any]]:
    made = []
    for seed in range(seeds):
        for arm, level in LEVELS.items():
            rng = random.Random(f"{seed}/{arm}")
            keys = [f"{track}/t#{i}" for track in tracks for i in range(12)]
            values = {key: min(1.0, max(0.0, rng.gauss(level, 0.08))) for key in keys}
            score = {
                "stages": {f"S{n}": level for n in range(1, 6)},
                "instances": dict.fromkeys(("overall", "agentic", "task"), values),
            }
            trains = ARMS[arm].pools is not None
            first = {"before": 0.3, "after": level, "promoted": True}
            last = {"before": level, "after": 0.1, "promoted": False}
            made.append(
                {
                    "arm": arm,
                    "seed": seed,
                    "rollouts": 1152 if trains else 0,
                    "rounds": [first, last] if trains else [],
                    "scores": {"sampled": score} | ({} if arm == "base" else {"greedy": score}),
                    "audit": {"episodes": 20, "false_claims": 3, "paid": 0, "changed": 0},
                    "cost": {"wall_s": 100.0, "cpu_s": 90.0},
                }
            )
    return made


def test_the_arms_are_the_papers_and_spend_alike() -> None:
    assert set(HEADLINE) | set(MIXES) == set(ARMS) and len(MIXES) == 7
    mixes = [ARMS[name].pools for name in MIXES]
    assert ARMS["bicurl"].pools == COMPOSITION
    assert len({frozenset(pools or ()) for pools in mixes}) == 7
    config = demo_config(rounds=2, backend="local")
    for arm in ARMS.values():
        applied = arm.apply(config)
        if arm.pools is None:
            assert applied.rounds == 0
            continue
        assert sum(arm.pools.values()) == config.preset.grpo.groups_per_batch == 8
        assert applied.rounds == 2 and applied.pools == dict(arm.pools)
    assert ARMS["bicurl"].apply(config).digest == config.digest
    assert len({arm.apply(config).digest for arm in ARMS.values()}) == len(ARMS) - 2
    final = ARMS["grpo-final"].apply(config)
    assert final.preset.grpo.reward == "task" and final.pools == {"e2e": 8}
    assert ARMS["sft-good"].apply(config).preset.sft.best_share == 0.25


def test_arms_are_named() -> None:
    assert [arm.name for arm in parse_arms("headline")] == list(HEADLINE)
    assert [arm.name for arm in parse_arms("bicurl, sft")] == ["sft", "bicurl"]
    assert len(parse_arms("all")) == len(ARMS)
    with pytest.raises(UnknownNameError, match="bicurl"):
        parse_arms("bicurll")
    with pytest.raises(ConfigError, match="at least one"):
        parse_arms(" ,")
    with pytest.raises(UnknownNameError, match="lite"):
        study_config("lit", rounds=1, backend="local")


def test_rows_become_tables_and_figures() -> None:
    config = demo_config(rounds=2, backend="local")
    document = results_of(rows(), command="bat-agent learn", config=config)
    assert list(document["arms"]) == list(HEADLINE)
    bicurl = document["arms"]["bicurl"]
    assert bicurl["seeds"] == 3 and 0.55 < bicurl["sampled"]["overall"]["mean"] < 0.69
    # A round that was held leaves the score where it was.
    assert bicurl["curve"] == pytest.approx([0.3, 0.62, 0.62])
    assert document["arms"]["base"]["greedy"]["overall"] is None
    found = {(d["candidate"], d["baseline"], d["which"]): d for d in document["differences"]}
    best = found["bicurl", "grpo-final", "sampled"]
    assert best["seeds_above_zero"] == 3 and 0.1 < best["all"]["low"] < best["all"]["high"] < 0.3
    assert ("sft", "base", "greedy") not in found
    text = tables(document, ["a.svg"])
    assert "| BiCuRL - GRPO, one final reward | sampled | +0." in text and "3 of 3" in text
    shown = Console(width=120, file=io.StringIO())
    _print_study(document, shown)
    printed = shown.file.getvalue()
    assert "BiCuRL" in printed and "bicurl - grpo-final, sampled: +0." in printed
    drawn = figures(document)
    assert set(drawn) == {"overall", "stages", "rounds"}
    for svg in drawn.values():
        assert ET.fromstring(svg).tag.endswith("svg") and "href" not in svg


def test_intervals_over_seeds() -> None:
    grid = {s: {"seg": {f"{i}": 0.1 * s + 0.01 * i for i in range(10)}} for s in range(4)}
    made = seeds_interval(grid)
    assert made is not None and made == seeds_interval(grid) != seeds_interval(grid, seed=1)
    assert made.mean == pytest.approx(0.195) and made.n == 40
    # Seeds differ by more than instances: wider than what instances alone would say.
    pooled = bootstrap_interval({"seg": [v for s in grid.values() for v in s["seg"].values()]})
    assert pooled is not None and made.high - made.low > 1.5 * (pooled.high - pooled.low)
    one = seeds_interval({0: grid[0]})
    alone = bootstrap_interval({"seg": list(grid[0]["seg"].values())})
    assert one is not None and alone is not None
    assert (one.low, one.high) == pytest.approx((alone.low, alone.high), abs=0.004)
    assert seeds_interval({}) is None
    with pytest.raises(ConfigError, match="same tracks"):
        seeds_interval({0: grid[0], 1: {"seg": {"0": 1.0}}})


def _careless(folder: Path) -> Path:
    """One recorded episode that claims what is not so."""
    names = ("python", "torch", "monai", "nibabel", "numpy")
    record = {"versions": dict.fromkeys(names, "0.0.1")}
    code = "import json, os; os.makedirs('setup', exist_ok=True); "
    code += f"json.dump({record}, open('setup/setup.json', 'w'))"
    actions = [execute_call("python", code), submit_call()]
    env = gym.make("AutoMed-Seg-v0", sandbox="local", size="mini", trajectory_dir=folder)
    try:
        env.reset(seed=5)
        for action in actions:
            env.step(action)
    finally:
        env.close()
    return folder


def test_an_audit_sees_claims_that_are_paid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rubric that pays a false claim, and a record of another score, are both counted."""
    with pytest.raises(BatError, match="recorded episodes"):
        audit.audit(tmp_path)
    folder = _careless(tmp_path)
    assert audit.audit(folder) == {"episodes": 1, "false_claims": 1, "paid": 0, "changed": 0}
    told = audit.explained

    def bribed(*arguments: Any) -> dict[str, Any]:
        facts = told(*arguments)
        return {**facts, "items": [{**item, "value": 1.0} for item in facts["items"]]}

    monkeypatch.setattr(audit, "explained", bribed)
    assert audit.audit(folder)["paid"] == 1
    (file,) = folder.glob("*.json")
    record = json.loads(file.read_text())
    record["steps"][-1]["extra"]["reward"] = 0.5
    file.write_text(json.dumps(record))
    assert audit.audit(folder)["changed"] == 1


def test_audited_episodes_are_spread() -> None:
    files = [Path(str(i)) for i in range(70)]
    assert len(set(audit.spread(files, 20))) == 20
    assert audit.spread(files, 20)[-1] == Path("66")
    assert audit.spread(files[:3], 20) == files[:3]
