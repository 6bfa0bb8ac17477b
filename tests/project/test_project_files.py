"""The Makefile, the CI script, the pins and what must never be committed."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

TARGETS = ("demo", "test", "test-all", "lint", "learn", "bench", "image", "clean")
IMPORT_NAMES = {
    "pil": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
MAX_LINES = 500


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[\w.-]+", line) for line in requirements)
    return {_normal(match[0]) for match in found if match} - {"automed-bat"}


def _pins(path: Path) -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    pairs = (line.split("==") for line in lines if "==" in line)
    return {_normal(name): version for name, version in pairs}


@pytest.fixture(scope="module")
def project(repo_root: Path) -> dict[str, object]:
    with (repo_root / "pyproject.toml").open("rb") as stream:
        return dict(tomllib.load(stream)["project"])


def _tracked_files(repo_root: Path) -> list[Path]:
    if not (repo_root / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"],
        cwd=repo_root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    paths = (repo_root / name for name in listed.split("\0") if name)
    return [path for path in paths if path.is_file()]


@pytest.mark.parametrize("target", TARGETS)
def test_make_target_exists(target: str, repo_root: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run(
        ["make", "--dry-run", target],
        cwd=repo_root,
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr


def test_ci_script_is_executable_and_parses(repo_root: Path) -> None:
    script = repo_root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_no_tracked_file_names_this_machine(repo_root: Path) -> None:
    places = {repo_root, repo_root.parent, Path.home(), Path(sys.prefix)}
    common = {Path(name) for name in ("/", "/tmp", "/usr", "/home", "/opt", "/workspace")}
    pattern = re.compile(
        "|".join(re.escape(str(place)) + r"/[\w.-]" for place in sorted(places - common))
    )
    guilty = [
        path.relative_to(repo_root).as_posix()
        for path in _tracked_files(repo_root)
        if pattern.search(path.read_bytes().decode("utf-8", "replace"))
    ]
    assert not guilty


def test_no_source_file_is_two_concepts(repo_root: Path) -> None:
    long = {
        path.relative_to(repo_root).as_posix(): lines
        for folder in ("bat_env", "bat_agent", "sandbox_images")
        for path in (repo_root / folder).rglob("*.py")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert not long


def test_every_direct_dependency_has_a_tested_pin(
    repo_root: Path, project: dict[str, dict[str, list[str]]]
) -> None:
    extras = project["optional-dependencies"]
    folder = repo_root / "requirements"
    core, sandbox, data, train, dev = (
        _pins(folder / f"{name}.txt") for name in ("core", "sandbox", "data", "train", "dev")
    )
    assert set(core) == _names(list(project["dependencies"]))
    assert set(sandbox) == _names(extras["sandbox-local"])
    assert set(train) | set(sandbox) == _names(
        extras["train"] + extras["sandbox-local"] + extras["report"]
    )
    assert set(data) == _names(extras["data"])
    assert set(dev) == _names(extras["dev"])
    constraints = _pins(folder / "constraints.txt")
    for pins in (core, sandbox, data, train, dev):
        assert pins.items() <= constraints.items()


def test_sandbox_image_pins_are_the_tested_ones(repo_root: Path) -> None:
    image = _pins(repo_root / "sandbox_images" / "requirements.txt")
    assert image.items() <= _pins(repo_root / "requirements" / "constraints.txt").items()
    assert image["torch"] == _pins(repo_root / "requirements" / "sandbox.txt")["torch"]


def _imported(package: Path) -> Iterator[tuple[str, str]]:
    """Pairs of (distribution-like top name, file) of every absolute third-party import."""
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                modules = [node.module]
            for top in {module.split(".")[0] for module in modules}:
                if top not in sys.stdlib_module_names and top not in ("bat_env", "bat_agent"):
                    name = _normal(top)
                    yield IMPORT_NAMES.get(name, name), path.name


@pytest.mark.parametrize("package", ["bat_env", "bat_agent"])
def test_every_import_is_a_declared_dependency(
    package: str, repo_root: Path, project: dict[str, dict[str, list[str]]]
) -> None:
    allowed = _names(list(project["dependencies"]))
    extras = project["optional-dependencies"]
    if package == "bat_agent":
        allowed |= _names(extras["train"] + extras["sandbox-local"] + extras["report"])
    undeclared = {pair for pair in _imported(repo_root / package) if pair[0] not in allowed}
    # Only the reader of DICOM may know that extra.
    undeclared -= {(name, "dicom.py") for name in _names(extras["data"])}
    # Only a door may know its own.
    for door in ("openenv", "verifiers"):
        undeclared -= {
            p for p in undeclared if p[1].startswith(door) and p[0] in _names(extras[door])
        }
    # The rooms of the MCP door also use what the MCP library itself is made of.
    rooms = {path.name for path in (repo_root / package / "serve").glob("*.py")}
    made_of = _names(extras["serve"]) | {"anyio", "httpx2", "mcp-types", "starlette"}
    undeclared -= {(name, file) for name, file in undeclared if name in made_of and file in rooms}
    assert not undeclared
