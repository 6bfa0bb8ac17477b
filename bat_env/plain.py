"""Plain text for people: numbers with their nouns, and text of others that cannot act."""

from __future__ import annotations

import re
from typing import Final

_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Control characters but tab and line feed; what has no width or turns the direction of writing."""


def visible(text: str) -> str:
    r"""``text`` with escapes (``\x1b``, ``\u202e``) where a sign would act or hide.

    Nothing that an agent wrote can then move a cursor, change a title, or read as what it is not.
    """
    return _UNSEEN.sub(lambda found: _escaped(found.group()), text)


def counted(number: int, noun: str) -> str:
    """``1 episode``, ``2 episodes``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def sized(size: int) -> str:
    """Bytes as people read them: ``512 B``, ``3.4 KiB``, ``12.0 MiB``."""
    if size < 1024:
        return f"{size} B"
    return f"{size / 1024:.1f} KiB" if size < 2**20 else f"{size / 2**20:.1f} MiB"


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
