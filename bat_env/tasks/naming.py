"""How an institution names its cases.

Most worlds write ``ABC-7K2Q``. A stretch of the training namespace plays at institutions with
naming schemes of their own, so that nobody learns one form of a name by heart. Only training
instances lie there: no committed digest and no held-out suite changes with a scheme.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

from bat_env.tasks.instance import Split

VARIED_FROM: Final = 3 << 29
"""Training instances from this index on are named in the scheme of their institution."""

USUAL: Final = "{prefix}-{tail}"
SCHEMES: Final[tuple[str, ...]] = (
    "sub-{prefix}{tail}",
    "{prefix}_{number}",
    "{number}-{prefix}",
    "{tail}_{prefix}",
    "case-{number}-{prefix}",
    "{prefix}{number}",
    USUAL,
)
"""``prefix`` is the institution's, ``tail`` and ``number`` are drawn for each case."""


def world_of(split: Split, index: int, fiction: Mapping[str, str]) -> dict[str, str]:
    """The fictional parameters that a generator draws an instance with.

    Args:
        split: Seed namespace.
        index: Position in it.
        fiction: A row of the task's fiction.

    Returns:
        The row; in the varied stretch its ``prefix`` is the institution's whole scheme, which
        :func:`~bat_env.tasks.drawing.case_names` fills in.
    """
    if split != "train" or index < VARIED_FROM or "prefix" not in fiction:
        return dict(fiction)
    key = "\0".join(value for _, value in sorted(fiction.items()))
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big")
    scheme = SCHEMES[number % len(SCHEMES)]
    return {**fiction, "prefix": scheme.replace("{prefix}", fiction["prefix"])}


def case_name(prefix: str, tail: str, number: int) -> str:
    """One case id.

    Args:
        prefix: An institution's prefix, or a scheme of :func:`world_of`.
        tail: Four letters or digits.
        number: The same as a number below 10**6; written with six digits.
    """
    if "{" not in prefix:
        return USUAL.format(prefix=prefix, tail=tail)
    return prefix.format(tail=tail, number=f"{number:06d}")
