"""Fictional worlds for new tasks: institutions, studies and devices that no other task uses.

A name that one task holds out must not be another one's training name, so names are drawn from a
large space by the task's id and compared with those of every task found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FIRST: Final = _words(
    "Ash Bram Cald Dun Elder Fen Gar Hazel Ingle Kirk Lang Mar North Orchard Pem Raven Stan Thorn "
    "Under Wester Amber Beck Cran Dray Ever Farn Glen Holm Kes Lin Mill Nor Oak Pen Rush Sel Tarn "
    "Vale Wick Yew"
)
_SECOND: Final = _words(
    "wick ford ham field dale mere stead ton worth bury combe ley shaw thorpe gate"
)
_KIND: Final = ("Hospital", "Clinic", "Infirmary", "General", "Medical Centre", "Institute")
_STUDY: Final = "ABCDEFGHIKLMNOPRSTUVW"
_SIZES: Final[Mapping[str, int]] = {"train": 16, "dev": 2, "heldout": 4}


def _numbers(seed: str) -> Iterator[int]:
    count = 0
    while True:
        digest = hashlib.blake2b(f"{seed}\0{count}".encode(), digest_size=8).digest()
        yield int.from_bytes(digest, "big")
        count += 1


def make_fiction(
    task_id: str, taken: set[str], device: str = "scanner"
) -> dict[str, list[dict[str, str]]]:
    """Fictional parameters of train, dev and heldout; equal ids give equal ones.

    Args:
        task_id: The new task.
        taken: Values of all other tasks; none is used again.
        device: Key of the device, e.g. ``scanner`` or ``camera``.
    """
    numbers = _numbers(task_id)
    used = set(taken)

    def fresh(make: Any) -> str:
        while True:
            name = str(make(next(numbers)))
            if name not in used:
                used.add(name)
                return name

    def town(n: int) -> str:
        return _pick(_FIRST, n) + _pick(_SECOND, n // 1000)

    def letters(n: int, count: int) -> str:
        return "".join(_pick(_STUDY, n // 37**i) for i in range(count))

    return {
        split: [
            {
                "institution": fresh(lambda n: f"{town(n)} {_pick(_KIND, n // 10**6)}"),
                "prefix": fresh(lambda n: letters(n, 3)),
                "study": fresh(lambda n: letters(n, 6)),
                device: fresh(lambda n: f"{town(n)} {n % 90 + 10}"),
            }
            for _ in range(count)
        ]
        for split, count in _SIZES.items()
    }


def _pick(words: Sequence[str], number: int) -> str:
    return words[number % len(words)]


def all_fiction(specs: Sequence[Any]) -> set[str]:
    """Every fictional value of the given task contracts."""
    return {
        value
        for spec in specs
        for rows in spec.fiction.values()
        for row in rows
        for value in row.values()
    }
