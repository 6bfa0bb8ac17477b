"""Nothing private is staged or briefed."""

from __future__ import annotations

import json

from bat_env.stages import Stage
from bat_env.tasks import Task, public_spec, render_brief, stage_files


def privacy(task: Task) -> None:
    """Nothing private is staged or briefed."""
    drawn = task.instance("heldout", 0, "mini")
    truths = {*drawn.private.values(), *drawn.probe_private.values(), *drawn.probe_public.values()}
    secrets = [f"{task.probe_expected['std']:.6g}"[:7], str(drawn.seed), drawn.probe_case]
    for tier in task.spec.tiers:
        for focus in (Stage.E2E, Stage.S1):
            for path, data in stage_files(task, drawn, tier, focus).items():
                assert data not in truths, f"{path} holds private truth."
                text = data.decode("latin-1")
                assert not any(s in text for s in secrets), f"{path} holds a private value."
            brief = render_brief(task, drawn, tier=tier, focus=focus)
            assert not any(s in brief for s in secrets), "The brief holds a private value."
    public = json.dumps(public_spec(task.spec))
    assert "floor" not in public and "fiction" not in public, "spec.json shows private keys."
