"""ROUGE-L: the longest common subsequence of words, as an F-measure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAX_WORDS: Final = 2000


def words_of(text: str) -> list[str]:
    """Lower-case words and numbers, at most 2000."""
    return re.findall(r"[a-z0-9]+", text.lower())[:MAX_WORDS]


def common_length(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common subsequence, with one bit of an integer per word of ``a``."""
    places: dict[str, int] = {}
    for n, word in enumerate(a):
        places[word] = places.get(word, 0) | 1 << n
    full = (1 << len(a)) - 1
    # A zero bit marks a word of a at which the common length grows.
    row = full
    for word in b:
        hit = row & places.get(word, 0)
        row = ((row + hit) | (row - hit)) & full
    return len(a) - row.bit_count()


def rouge_l(a: Sequence[str], b: Sequence[str]) -> float:
    """Harmonic mean of the shares of both texts that the common subsequence covers."""
    return 2.0 * common_length(a, b) / (len(a) + len(b)) if a and b else 0.0
