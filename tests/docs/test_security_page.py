"""docs/security.md says what the data say: every exception, every class of attack."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).resolve().parent


def _page_module() -> object:
    spec = importlib.util.spec_from_file_location("security_page", FOLDER / "security_page.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date(repo_root: Path) -> None:
    page = (repo_root / "docs" / "security.md").read_text(encoding="utf-8")
    made = _page_module().rendered(page)  # type: ignore[attr-defined]
    assert page == made, "run: python tests/docs/security_page.py"


def test_the_page_names_every_exception(repo_root: Path) -> None:
    page = (repo_root / "docs" / "security.md").read_text(encoding="utf-8")
    listed = yaml.safe_load(
        (repo_root / "bat_env" / "sandbox" / "exceptions.yaml").read_text(encoding="utf-8")
    )
    for row in listed["exceptions"] or []:
        assert f"`{row['attack']}`" in page


@pytest.mark.parametrize("page", ["README.md", "docs/sandbox.md"])
def test_the_page_is_found(page: str, repo_root: Path) -> None:
    assert re.search(r"\]\((docs/)?security\.md\)", (repo_root / page).read_text(encoding="utf-8"))


def test_named_files_exist(repo_root: Path) -> None:
    page = (repo_root / "docs" / "security.md").read_text(encoding="utf-8")
    for path in re.findall(r"`(tests/[\w/.]+)`", page):
        assert (repo_root / path).exists(), path
