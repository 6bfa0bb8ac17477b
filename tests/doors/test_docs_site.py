"""The documentation builds as a site without a warning; CITATION.cff is valid and up to date."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bat_env import __version__

REFERENCE = {
    "env": ("bat_env.env.AutoMedEnv.step", "bat_env.start.StateSource.files"),
    "sandbox": ("bat_env.sandbox.base.Sandbox.run", "bat_env.testing.sandbox_conformance"),
    "tasks": ("bat_env.tasks.spec.TaskSpec",),
    "doors": ("bat_env.serve.harbor.export_harbor", "bat_env.completions.EndpointConfig.api_key"),
    "agents": ("bat_agent.agents.base.Agent.act", "bat_agent.integrations.trl.BatSpec"),
    "training": ("bat_agent.rollout.waves.run_rows", "bat_agent.export.export_agent"),
}


def test_the_site_builds_without_a_warning(
    drive: Callable[..., Any], repo_root: Path, tmp_path: Path
) -> None:
    out = tmp_path / "site"
    made = drive("docs", "docs_driver.py", {"root": str(repo_root), "out": str(out)})
    assert made["warnings"] == []
    for page, names in REFERENCE.items():
        text = (out / "reference" / f"{page}.html").read_text()
        for name in names:
            assert f'id="{name}"' in text, f"{name} is not on the page reference/{page}"
    pages = {path.stem for path in (repo_root / "docs").glob("*.md")}
    assert pages <= {path.stem for path in out.glob("*.html")}
    cards = {p.parent.name for p in (repo_root / "envs").glob("*/*/README.md")}
    assert cards == {path.stem for path in (out / "tasks").glob("*/*.html")}
    # What the repository links to, the site links to.
    start = (out / "index.html").read_text()
    assert 'href="examples/custom_agent.html"' in start and 'href="rubric.html"' in start
    assert not re.search(r'href="[^"]*\.md[#"]', start)
    assert made["cff"]["version"] == __version__ and made["cff"]["license"] == "Apache-2.0"
