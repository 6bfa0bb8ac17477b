"""What the documentation site takes from elsewhere: README, changelog, task cards and examples.

They stay where people look for them in the repository. Here they become pages, and links between
files of the repository become links between pages.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s]+)(?=\))")


def _pages() -> dict[str, str]:
    """File of the repository -> page of the site."""
    pages = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
    pages["CONTRIBUTING.md"] = "contributing.md"
    for card in sorted(ROOT.glob("envs/*/*/README.md")):
        track, task = card.parts[-3:-1]
        pages[f"envs/{track}/{task}/README.md"] = f"tasks/{track}/{task}.md"
    for script in sorted(ROOT.glob("examples/*.py")):
        pages[f"examples/{script.name}"] = f"examples/{script.stem}.md"
    return pages


PAGES = _pages()
SOURCES = {page: source for source, page in PAGES.items()}


def _relinked(text: str, source: str, page: str) -> str:
    """Links of a file at ``source`` as they are on its page."""

    def moved(match: re.Match[str]) -> str:
        path, sign, anchor = match.group(1).partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if target == "examples":
            there = "examples/index.md"
        elif target.startswith("docs/"):
            there = target.removeprefix("docs/")
        else:
            there = PAGES.get(target, "")
        if not there:
            return match.group(1)
        return posixpath.relpath(there, posixpath.dirname(page) or ".") + sign + anchor

    return LINK.sub(moved, text)


def _content(source: str) -> str:
    text = (ROOT / source).read_text(encoding="utf-8")
    if source.endswith(".py"):
        return f"# {Path(source).name}\n\n```python\n{text}```\n"
    return text


def on_config(config: Any) -> Any:
    """Task cards and examples are listed as they are found."""
    tasks = [page for page in SOURCES if page.startswith("tasks/")]
    examples = [page for page in SOURCES if page.startswith("examples/")]
    config.nav += [
        {"Task cards": tasks},
        {"Examples": ["examples/index.md", *examples]},
        {"Project": ["changelog.md", "contributing.md"]},
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages whose sources lie elsewhere."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_content(source)))
    scripts = [s for s in PAGES if s.startswith("examples/")]
    rows = [f"- [{Path(s).name}]({Path(s).stem}.md)" for s in scripts]
    listing = "# Examples\n\nEach is run by a test.\n\n" + "\n".join(rows) + "\n"
    files.append(File.generated(config, "examples/index.md", content=listing))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links at pages, wherever their file lies."""
    here = page.file.src_uri
    return _relinked(markdown, SOURCES.get(here, f"docs/{here}"), here)
