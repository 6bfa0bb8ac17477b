"""Untrusted text made fit for a page: what an agent wrote must not act, hide or flood."""

from __future__ import annotations

import re
from typing import Final

LIMIT: Final = 12_000
"""Kept characters of one block; the head and the tail stay, the cut is announced."""

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_INVISIBLE: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\ud800-\udfff]"
)


def visible(text: object, limit: int = LIMIT) -> str:
    r"""Plain text of anything: no terminal codes, no invisible or direction-changing characters.

    Such characters appear as their escapes (``\u202e``), so that a reader sees what is there. The
    result is not HTML: the template escapes it.
    """
    string = text if isinstance(text, str) else repr(text)
    if len(string) > limit:
        cut = len(string) - limit
        half = limit // 2
        string = f"{string[:half]}\n[... {cut} characters not shown ...]\n{string[-half:]}"
    string = _ANSI.sub("", string.replace("\r\n", "\n").replace("\r", "\n"))
    return _INVISIBLE.sub(lambda match: _escaped(match.group()), string)


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
