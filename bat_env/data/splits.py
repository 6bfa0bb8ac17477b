"""Which cases are staged, in which order, and which split each belongs to. Seeded."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from bat_env.data.records import AnyRecord, LabelledPicture, Question
from bat_env.errors import DataError

SHARES: Final[Mapping[str, float]] = {"dev": 0.2, "heldout": 0.2}
"""Shares of the groups; the rest is for training."""
LEAST: Final = 2
"""Cases of a split that can be played: one to do, and one that nobody sees."""
SPLIT_FROM: Final = 8
"""With fewer cases, all of them train."""

T = TypeVar("T")


def drawn(seed: int, text: str) -> int:
    """A number of 64 bits that a seed gives to a text."""
    return int.from_bytes(
        hashlib.blake2b(f"{seed}\0{text}".encode(), digest_size=8).digest(), "big"
    )


def staging_order(records: Sequence[AnyRecord], seed: int) -> list[AnyRecord]:
    """Records in the order in which they are staged, so that a limit takes a fair part.

    Classes and answers take turns; all else is drawn.

    Raises:
        DataError: If two cases have one id.
    """
    ids = [record.case for record in records]
    twice = (
        sorted({case for case in ids if ids.count(case) > 1}) if len(set(ids)) < len(ids) else []
    )
    if twice:
        raise DataError(
            f"Expected distinct case ids, {', '.join(twice[:5])} are there twice. Remove one of "
            "each, or give the folder of one release."
        )
    ordered = sorted(records, key=lambda record: drawn(seed, record.case))
    return in_turns(ordered, kind_of)


def kind_of(record: AnyRecord) -> str:
    """What cases take turns by: class, or text of the answer."""
    if isinstance(record, LabelledPicture):
        return record.label
    return record.options[record.answer].casefold() if isinstance(record, Question) else ""


def in_turns(items: Iterable[T], kind: Callable[[T], Hashable]) -> list[T]:
    """Items so that their kinds take turns, in the order in which kinds first come."""
    piles: defaultdict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        piles[kind(item)].append(item)
    turns = []
    for turn in range(max(map(len, piles.values()), default=0)):
        turns += [pile[turn] for pile in piles.values() if turn < len(pile)]
    return turns


def assign(groups: Mapping[str, str], seed: int) -> dict[str, str]:
    """Split of every case; cases of one group stay together.

    Args:
        groups: Case -> group.
        seed: Of the staging.

    Returns:
        Case -> ``train``, ``dev`` or ``heldout``. A split that would have fewer than two cases
        gets none: its cases train.
    """
    members: defaultdict[str, list[str]] = defaultdict(list)
    for case, group in groups.items():
        members[group].append(case)
    order = sorted(members, key=lambda group: drawn(seed, f"split\0{group}"))
    total = len(groups)
    split = dict.fromkeys(groups, "train")
    for name, share in SHARES.items():
        wanted = max(LEAST, round(share * total))
        if total < SPLIT_FROM:
            break
        taken: list[str] = []
        while order and len(taken) < wanted:
            left = sum(len(members[group]) for group in order[1:])
            if left < LEAST:
                break
            taken += members[order.pop(0)]
        if len(taken) >= LEAST:
            split.update(dict.fromkeys(taken, name))
    return split
