"""What happens in an environment that lacks an extra: named at once, in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
import time
import tomllib
import venv
from importlib import metadata
from pathlib import Path

import pytest

from bat_env.extras import EXTRAS, NEEDS, install, missing

HIDDEN = {"torch", "monai", "trl", "transformers", "SimpleITK"}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    """The interpreter of a real environment with everything but torch and what needs it."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, symlinks=True, with_pip=False)
    site = next(folder.glob("lib/python*/site-packages"))
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.suffix != ".pth" and path.name.split("-")[0] not in HIDDEN:
            (site / path.name).symlink_to(path)
    (site / "project.pth").write_text(f"{repo_root}\n")
    return folder / "bin" / "python"


def run(python: Path, module: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(python), "-m", module, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "BAT_BANK": str(cwd / "none")},
        timeout=120,
    )


@pytest.mark.parametrize(
    ("module", "arguments", "extra"),
    [
        ("bat_agent.cli", "demo --out run", "train"),
        ("bat_agent.cli", "train --out run", "train"),
        ("bat_agent.cli", "eval --agent naive --suite seg-mini --sandbox local", "sandbox-local"),
        ("bat_env.cli", "bank build --backend local --path run", "sandbox-local"),
    ],
)
def test_what_is_missing_is_named_before_any_work(
    module: str, arguments: str, extra: str, bare: Path, tmp_path: Path
) -> None:
    began = time.monotonic()
    done = run(bare, module, *arguments.split(), cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    assert "torch" in done.stderr and install(extra) in done.stderr
    assert not (tmp_path / "run").exists() and time.monotonic() - began < 60


def test_doctor_says_that_cells_lack_imaging_packages(bare: Path, tmp_path: Path) -> None:
    done = run(bare, "bat_env.cli", "doctor", "--json", cwd=tmp_path)
    rows = {row["name"]: row for row in json.loads(done.stdout)["checks"]}
    local = rows["sandbox local"]
    assert not local["ok"] and "lack imaging packages" in local["found"]
    assert {"torch", "monai"} <= set(local["found"].split())
    assert local["advice"] == install("sandbox-local")
    assert rows["package trl"]["advice"] == install("train")


def test_nothing_is_missing_here() -> None:
    assert missing("train") == []


def test_the_modules_are_those_of_the_projects_extras(repo_root: Path) -> None:
    with (repo_root / "pyproject.toml").open("rb") as stream:
        extras = tomllib.load(stream)["project"]["optional-dependencies"]
    by_module = metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        named = {re.split(r"[\[<>=]", line)[0].lower() for line in extras[extra]} - {"automed-bat"}
        # What only `make doors` installs is named like its module.
        dists = [by_module.get(module, [module])[0] for module in modules]
        brought = {name.lower().replace("_", "-") for name in dists}
        assert brought == named
        included = {f"automed-bat[{other}]" for other in NEEDS.get(extra, ())}
        assert included == {line for line in extras[extra] if line.startswith("automed-bat")}


def test_no_advice_names_the_project_to_a_package_index(repo_root: Path) -> None:
    pages = [*repo_root.glob("*.md"), *repo_root.glob("docs/*.md"), repo_root / "Makefile"]
    code = [p for name in ("bat_env", "bat_agent") for p in (repo_root / name).rglob("*.py")]
    for path in [*pages, *code]:
        assert not re.search(r"pip install\s+\S*automed-bat\b", path.read_text()), path
