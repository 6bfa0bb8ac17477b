"""The generated parts of docs/security.md: known exceptions and attack classes, from their data.

``python tests/docs/security_page.py`` writes them into the page; a test compares.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "security.md"
EXCEPTIONS = ROOT / "bat_env" / "sandbox" / "exceptions.yaml"
ATTACKS = ROOT / "tests" / "redteam" / "attacks"


def _row(*cells: object) -> str:
    return "| " + " | ".join(" ".join(str(c).split()).replace("|", "\\|") for c in cells) + " |"


def _load(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def exceptions() -> str:
    """A table of what a backend does not hold, or one sentence that there is nothing."""
    rows = _load(EXCEPTIONS)["exceptions"] or []
    if not rows:
        return "None is known."
    lines = [_row("backend", "what does not hold", "why", "attack"), "|---|---|---|---|"]
    for row in rows:
        lines.append(_row(row["backend"], row["promise"], row["reason"], f"`{row['attack']}`"))
    return "\n".join(lines)


def classes() -> str:
    """A table of the attack classes."""
    lines = [_row("class", "about"), "|---|---|"]
    for path in sorted(ATTACKS.glob("*.yaml")):
        lines.append(_row(f"`{path.stem}`", _load(path)["about"]))
    return "\n".join(lines)


def rendered(page: str) -> str:
    """``page`` with its generated parts made anew."""
    for name, text in (("exceptions", exceptions()), ("classes", classes())):
        start = re.search(rf"<!-- {name}: [^\n]*-->\n", page)
        end = page.find(f"<!-- end of {name} -->")
        assert start and start.end() <= end, f"docs/security.md lost the place of its {name}"
        page = f"{page[: start.end()]}\n{text}\n\n{page[end:]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
