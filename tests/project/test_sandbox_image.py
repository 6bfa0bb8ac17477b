"""The sandbox image: inputs and digest without Docker; content and rebuild with it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from bat_env import image
from bat_env.errors import ConfigError, SandboxUnavailableError

LOCKED_DOWN = ("docker", "run", "--rm", "--network", "none", "--read-only", "--cap-drop", "ALL")


def _run(*command: str) -> str:
    done = subprocess.run(
        [*LOCKED_DOWN, "--user", "1000:1000", image.default_tag(), *command],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "sandbox_images"
    shutil.copytree(image.source_folder(), folder)
    return folder


def test_digest_follows_every_input(inputs: Path) -> None:
    before = image.input_digest(inputs)
    assert before == image.input_digest(inputs)
    assert before != image.input_digest(inputs, "python:3.12-slim")
    for name in ("Dockerfile", "requirements.txt", "bootstrap_base.py"):
        path = inputs / name
        original = path.read_bytes()
        path.write_bytes(original + b"\n")
        assert image.input_digest(inputs) != before, name
        path.write_bytes(original)
    (inputs / "seccomp.json").write_text("{}")
    assert image.input_digest(inputs) == before


def test_empty_wheelhouse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.whl"):
        image.build(wheelhouse=tmp_path)


def test_no_daemon_is_a_typed_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    with pytest.raises(SandboxUnavailableError, match="Install Docker"):
        image.build()
    with pytest.raises(SandboxUnavailableError):
        image.image_exists()


REPORT = """
import getpass, json, sys
from importlib.metadata import version
import matplotlib.pyplot, monai, nibabel, numpy, scipy, SimpleITK, skimage, sklearn, torch

print(json.dumps([getpass.getuser(), {name: version(name) for name in sys.argv[1:]}]))
"""


@pytest.mark.docker
def test_image_has_the_imaging_stack_as_pinned() -> None:
    lines = (image.source_folder() / "requirements.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    user, versions = json.loads(_run("python3", "-c", REPORT, *pins))
    assert user == "agent"
    # A local part such as +cpu names the build, not another version.
    assert {name: version.split("+")[0] for name, version in versions.items()} == pins


@pytest.mark.docker
def test_image_contains_nothing_of_the_suite() -> None:
    patterns = ("-name", "bat_env*", "-o", "-name", "bat_agent*", "-o", "-iname", "*automed*")
    # What the agent cannot open cannot leak to it.
    found = _run("bash", "-c", 'find / -xdev "$@" 2>/dev/null || true', "find", *patterns)
    assert found == ""
    where = _run("python3", "-c", "import os; print(os.getuid(), os.getcwd())")
    assert where == "1000 /workspace\n"


@pytest.mark.docker
def test_rebuild_with_equal_inputs_is_a_no_op() -> None:
    image.build()
    start = time.monotonic()
    assert image.build() == image.default_tag()
    assert time.monotonic() - start < 10


@pytest.mark.docker
@pytest.mark.slow
def test_forced_build_leaves_only_its_tag(capfd: pytest.CaptureFixture[str]) -> None:
    def dangling() -> set[str]:
        command = ["docker", "images", "--quiet", "--no-trunc", "--filter", "dangling=true"]
        return set(subprocess.check_output(command, text=True).split())

    tag = "automed-bat/sandbox-build-test:latest"
    before = dangling()
    try:
        assert image.build(tag=tag, force=True) == tag
        assert image.image_exists(tag)
        assert dangling() <= before
    finally:
        subprocess.run(["docker", "rmi", tag], check=False, capture_output=True)
