"""What an agent must not read in any message: names of verdicts, digests, seeds, scores, places."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

NAMES = ("items", "components", "agentic", "secondary", "taxonomy", "false_claims", "reward")
PLACES = (str(Path(__file__).parents[2]), sys.prefix)


def needles(info: Mapping[str, Any], result: Mapping[str, Any]) -> list[str]:
    """What is private of one episode, as text.

    Args:
        info: Of its reset.
        result: Its final scores.
    """
    digests = [str(value) for key, value in info.items() if key.endswith("_digest")]
    scores = [str(result["score"]), *map(str, result["stages"].values())]
    return [*digests, *(text for text in scores if len(text) > 6)]  # "0.0" is everywhere


def leaked(texts: Iterable[str], private: Iterable[str]) -> list[str]:
    """What is private and stands in a text."""
    words = [*(f'"{name}"' for name in NAMES), *PLACES, *private]
    return sorted({word for text in texts for word in words if word in text})
