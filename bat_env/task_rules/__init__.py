"""The rules that every task folder must keep, one function each, with and without episodes.

A rule raises ``AssertionError`` with a sentence that says what is broken. ``FOLDER_RULES`` need no
sandbox; the rules of :mod:`bat_env.task_rules.episodes` play whole episodes.
"""

from __future__ import annotations

from bat_env.task_rules.playing import INDEX, Played, Player
from bat_env.task_rules.run import DEPTHS, FOLDER_RULES, Depth, FolderRule, OnCost, run_rules

__all__ = [
    "DEPTHS",
    "FOLDER_RULES",
    "INDEX",
    "Depth",
    "FolderRule",
    "OnCost",
    "Played",
    "Player",
    "run_rules",
]
