"""When the loop goes back to the best retained checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

MAX_DROPS: Final = 3
MAX_KL: Final = 0.1
KL_PROMPTS: Final = 256


def consecutive_drops(changes: Sequence[float]) -> int:
    """Length of the run of negative Overall changes at the end of ``changes``."""
    count = 0
    for change in reversed(changes):
        if change >= 0.0:
            break
        count += 1
    return count


def fallback_reason(changes: Sequence[float], kl_to_best: float | None) -> str | None:
    """Why to fall back, or ``None``.

    Args:
        changes: Overall of each round's candidate minus that of the round's start, oldest first,
            counted since the last fallback.
        kl_to_best: Mean per-token KL(candidate || best) over held-out prompts, in nats; ``None``
            where the candidate is the best checkpoint.

    Returns:
        One sentence, or ``None`` to carry on.
    """
    drops = consecutive_drops(changes)
    if drops >= MAX_DROPS:
        return f"{drops} rounds in a row lowered Overall (limit {MAX_DROPS})."
    if kl_to_best is not None and (not math.isfinite(kl_to_best) or kl_to_best > MAX_KL):
        return f"KL to the best checkpoint is {kl_to_best:.3f} nats a token (limit {MAX_KL})."
    return None
