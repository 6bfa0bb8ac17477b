"""The rubric: item predicates over the episode record, compiled into a versioned contract."""

from __future__ import annotations

from bat_env.rubric.base import (
    CONTRACT_VERSION,
    Context,
    Item,
    ItemState,
    RubricResult,
    StageResult,
    Verdict,
)
from bat_env.rubric.contract import RubricContract, compile_contract

__all__ = [
    "CONTRACT_VERSION",
    "Context",
    "Item",
    "ItemState",
    "RubricContract",
    "RubricResult",
    "StageResult",
    "Verdict",
    "compile_contract",
]
