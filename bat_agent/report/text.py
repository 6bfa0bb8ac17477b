"""Untrusted text made fit for a page: what an agent wrote must not act, hide or flood."""

from __future__ import annotations

import re
from typing import Final

from bat_env import plain

LIMIT: Final = 12_000
"""Kept characters of one block; the head and the tail stay, the cut is announced."""

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")


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
    return plain.visible(string)
