"""The page about the rubric is what the contract says."""

from __future__ import annotations

from bat_env.rubric import compile_contract
from bat_env.rubric.docs import rubric_page
from bat_env.stages import Stage


def test_the_page_is_up_to_date(task, repo_root):
    page = (repo_root / "docs" / "rubric.md").read_text(encoding="utf-8")
    assert page == rubric_page(task.spec), "run: python -m bat_env.rubric.docs > docs/rubric.md"


def test_the_page_names_every_item(task):
    page = rubric_page(task.spec)
    for tier in task.spec.tiers:
        for focus in Stage:
            for outcome in (None, "recovery"):
                contract = compile_contract(task.spec, tier=tier, focus=focus, outcome=outcome)
                assert all(f"`{item.id}`" in page for item in contract.items)
