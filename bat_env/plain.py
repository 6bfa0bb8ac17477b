"""Text of others made plain: signs that steer a terminal, or that nobody sees, become escapes."""

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


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
