"""Every code block in README.md and docs/ runs, or is a command whose target exists.

Python blocks run as written, each in a fresh interpreter. In shell blocks, lines for our two
programs run as written; ``make`` lines must name a real target; lines that set up a machine
(``git clone``, ``pip install``, ...) are recognised by their first word. Anything else fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(?P<lang>[a-z]*)[^\n]*\n(?P<code>.*?)^```", re.M | re.S)
SETUP_WORDS = {"git", "cd", "python3", "pip", "sudo", "source", "export"}


def _blocks(*languages: str) -> list[tuple[str, str]]:
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for index, match in enumerate(FENCE.finditer(page.read_text())):
            if match["lang"] in languages:
                name = f"{page.relative_to(ROOT).as_posix()}#{index}"
                found.append((name, match["code"]))
    return found


def _lines(code: str) -> list[str]:
    joined = re.sub(r"\\\n\s*", " ", code)
    lines = [line.split("  #")[0].strip() for line in joined.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "TERM": "dumb"}


def _run(argv: list[str], cwd: Path, exported: dict[str, str] | None = None) -> None:
    env = {**_environment(), **(exported or {})}
    done = subprocess.run(
        argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, f"{argv}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def test_the_pages_have_blocks() -> None:
    assert any(name.startswith("README.md") for name, _ in _blocks("python"))
    assert any(name.startswith("README.md") for name, _ in _blocks("bash"))


@pytest.mark.parametrize(("name", "code"), [pytest.param(*b, id=b[0]) for b in _blocks("python")])
def test_python_block_runs(name: str, code: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(code)
    _run([sys.executable, str(script)], tmp_path)


@pytest.mark.parametrize(("name", "code"), [pytest.param(*b, id=b[0]) for b in _blocks("bash")])
def test_shell_block_holds(name: str, code: str, tmp_path: Path) -> None:
    exported: dict[str, str] = {}
    for line in _lines(code):
        word = line.split()[0]
        if word == "export":
            key, _, value = line.removeprefix("export ").partition("=")
            exported[key] = value
        elif word == "make":
            for target in [w for w in line.split()[1:] if "=" not in w]:
                _run(["make", "-n", "-C", str(ROOT), target], tmp_path)
        elif word in {"bat-env", "bat-agent"}:
            _run(["bash", "-euo", "pipefail", "-c", line], tmp_path, exported)
        else:
            assert word in SETUP_WORDS, f"{name}: nothing checks {line!r}"


def test_only_known_languages_are_used() -> None:
    known = {"python", "bash", "text", "yaml", "json", "toml", "mermaid"}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for match in FENCE.finditer(page.read_text()):
            assert match["lang"] in known, f"{page.name}: a block in {match['lang']!r}"
