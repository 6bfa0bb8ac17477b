"""Every layout, written small as it is published, stages into what its track needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bat_env.data import Staged, layout_names, load_layout, open_staged
from bat_env.stages import Stage
from bat_env.tasks import render_brief, stage_files


@pytest.mark.parametrize("name", layout_names())
def test_a_layout_stages_and_draws(name: str, staged: Callable[[str], Staged]) -> None:
    done = staged(name)
    layout, manifest = load_layout(name), done.manifest
    assert manifest.licence.startswith(layout.licence) and manifest.terms == layout.terms
    task = open_staged(done.folder)
    spec = task.spec
    for split in ("train", "dev", "heldout"):
        drawn = task.instance(split, 0, "mini")
        assert len(set(drawn.cases)) == drawn.facts["case_count"] >= 1
        assert drawn.probe_case not in drawn.cases
        inputs = {path.split("/")[1] for path in drawn.public}
        assert spec.input_file in inputs
        for key in spec.facts:
            assert key in drawn.facts, key
        assert set(drawn.facts["inputs"]) == set(spec.inputs)
        assert set(drawn.facts["pilot_truth"]) == set(drawn.cases)
        laid = stage_files(task, drawn, "lite", Stage.E2E)
        secrets = set(drawn.private.values()) - set(drawn.public.values())
        assert secrets and not secrets & set(laid.values())
        brief = render_brief(task, drawn, tier="lite", focus=Stage.E2E)
        assert all(case in brief for case in drawn.cases) and "of real patients" in brief
    ids = {row.case for row in manifest.cases}
    public = [p for p in (done.folder / "public").rglob("*") if p.is_file()]
    assert public and not [p for p in public if b"Real^Name" in p.read_bytes()]
    assert len(ids) == len(manifest.cases)


@pytest.mark.parametrize("name", layout_names())
def test_groups_stay_in_one_split(name: str, staged: Callable[[str], Staged]) -> None:
    of: dict[str, set[str]] = {}
    for row in staged(name).manifest.cases:
        of.setdefault(row.group, set()).add(row.split)
    assert all(len(splits) == 1 for splits in of.values())
    assert {s for splits in of.values() for s in splits} == {"train", "dev", "heldout"}
