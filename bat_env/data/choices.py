"""Open questions as multiple choice: options are answers that others gave to the same kind.

What a question is offered depends on its own id alone, so a larger download changes no question
but through the answers that exist.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bat_env.data.records import Question

LETTERS: Final = "ABCD"
MAX_WORDS: Final = 6
"""Longer answers are descriptions: told from the others by their length."""
_PAIRS: Final = (("yes", "no"),)


@dataclass(frozen=True)
class Asked:
    """A question as its data set has it.

    Attributes:
        qid: Unique id.
        group: The picture: its questions are not split.
        image: Its file.
        question, answer: Texts.
        kind: Questions of one kind may lend each other their answers.
    """

    qid: str
    group: str
    image: Path
    question: str
    answer: str
    kind: str


def multiple_choice(asked: Sequence[Asked]) -> tuple[list[Question], int]:
    """Questions with options.

    Returns:
        The questions, by id, and how many were left out: their answer is long, or their kind has
        too few other answers.
    """
    pools: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for one in asked:
        if _fits(one.answer):
            pools[one.kind].setdefault(_key(one.answer), one.answer.strip())
    made = []
    for one in sorted(asked, key=lambda q: q.qid):
        options = _options(one, pools[one.kind])
        if options is not None:
            right = next(k for k, text in options.items() if _key(text) == _key(one.answer))
            made.append(
                Question(one.qid, one.group, one.image, one.question.strip(), options, right)
            )
    return made, len(asked) - len(made)


def _options(one: Asked, pool: dict[str, str]) -> dict[str, str] | None:
    """Letter -> text with the right one among them, or ``None``."""
    if not _fits(one.answer) or not one.question.strip():
        return None
    right = _key(one.answer)
    rng = np.random.default_rng(
        int.from_bytes(hashlib.blake2b(one.qid.encode(), digest_size=8).digest(), "big")
    )
    pair = next((pair for pair in _PAIRS if right in pair), None)
    if pair is not None:
        texts: list[str] = list(pair)
    else:
        others = sorted(key for key in pool if key != right and not _closed(key))
        if len(others) < len(LETTERS) - 1:
            return None
        drawn = rng.choice(len(others), len(LETTERS) - 1, replace=False)
        texts = [one.answer.strip(), *(pool[others[int(n)]] for n in drawn)]
    shuffled = [texts[int(n)] for n in rng.permutation(len(texts))]
    return dict(zip(LETTERS, shuffled, strict=False))


def _key(answer: str) -> str:
    return " ".join(answer.casefold().split()).strip(" .")


def _fits(answer: str) -> bool:
    return 0 < len(answer.split()) <= MAX_WORDS and bool(_key(answer))


def _closed(key: str) -> bool:
    return any(key in pair for pair in _PAIRS)


def letters(questions: Iterable[Question]) -> dict[int, str]:
    """The letters as labels of a task."""
    most = max((len(question.options) for question in questions), default=2)
    return dict(enumerate(LETTERS[:most]))
