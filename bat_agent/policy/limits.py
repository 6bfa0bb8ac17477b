"""Token budgets, which a checkpoint carries and rollouts enforce."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Token budgets of one row.

    Attributes:
        turn: Most tokens of one action; a longer one is cut and sent as malformed text.
        completion: Most tokens after the prompt, observations included.
        prompt: Most tokens of the prompt.
    """

    turn: int
    completion: int
    prompt: int
