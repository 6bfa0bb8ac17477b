"""Text of an agent as data: bounded, numbered, with nothing in it that a model reads as a command.

Every line gets its number in front, so none can start with a role marker or close a fence. Signs
that chat templates and tokenizers give a meaning are replaced by harmless ones; signs that people
do not see are left out. What the judge sees is also what its citations are compared with.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_FILE_CHARS: Final = 12_000
"""Characters of one file that are shown: two thirds from its head, one third from its tail."""
MAX_FILE_LINES: Final = 300
MAX_LINE_CHARS: Final = 400
MAX_MARKS: Final = 2
"""Combining marks in a row that are kept."""

_INVISIBLE: Final = frozenset({"Cc", "Cf", "Zl", "Zp"})
_NO_TEXT: Final = frozenset({"Cs", "Co", "Cn"})
_SIGNS: Final = frozenset("<>[]|`{}")
_HARMLESS: Final = {"<": "‹", ">": "›", "`": "'"}
_SELECTOR: Final = re.compile("[\u180b-\u180d\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_BRACKETED: Final = re.compile(r"\[(/?[A-Z][A-Z_]+)\]")


@dataclass(frozen=True, slots=True)
class Frozen:
    """The bounded copy of one file, as it is shown.

    Attributes:
        path: Workspace path.
        lines: Number in the file (from 1) -> shown text. Lines between may be missing.
        total: Lines of the whole file.
    """

    path: str
    lines: dict[int, str]
    total: int

    @property
    def digest(self) -> str:
        """sha256 of what is shown."""
        rows = "\n".join(f"{number} {text}" for number, text in self.lines.items())
        return hashlib.sha256(f"{self.path}\n{self.total}\n{rows}".encode()).hexdigest()

    @property
    def empty(self) -> bool:
        """Whether it says nothing: no letter and no digit."""
        return not any(c.isalnum() for text in self.lines.values() for c in text)


def _sign(char: str) -> str:
    """One character as it is shown: itself, something harmless, or nothing."""
    if " " <= char <= "~":
        return _HARMLESS.get(char, char)
    category = unicodedata.category(char)
    if char == "\t" or category == "Zs":
        return " "
    if category in _INVISIBLE or _SELECTOR.match(char):
        return ""
    if category in _NO_TEXT:
        return "\ufffd"
    normal = unicodedata.normalize("NFKC", char)
    # Some tokenizers bring text into this form before they look for their signs.
    return "".join(_HARMLESS.get(c, c) for c in normal) if _SIGNS & set(normal) else char


def shown(line: str) -> str:
    """One line of an agent's text as the judge sees it: printable, inert, clipped.

    What people do not see is left out, so that the rest can be quoted as it stands.

    Args:
        line: Any text.

    Returns:
        At most :data:`MAX_LINE_CHARS` characters, and a word about what was cut.
    """
    head, parts, marks = line[:MAX_LINE_CHARS], [], 0
    for char in head:
        marks = marks + 1 if unicodedata.combining(char) else 0
        parts.append(_sign(char) if marks <= MAX_MARKS else "")
    text = _BRACKETED.sub(r"(\1)", "".join(parts))
    cut = len(line) > len(head) or len(text) > MAX_LINE_CHARS
    return f"{text[:MAX_LINE_CHARS]} (line cut)" if cut else text


def frozen(path: str, data: bytes) -> Frozen:
    """The bounded copy of a file.

    Args:
        path: Workspace path.
        data: Its content; decoded as UTF-8 with replacement.
    """
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return frozen_lines(path, lines)


def frozen_lines(path: str, lines: Sequence[str]) -> Frozen:
    """The same for text that is lines already."""
    head = _within(lines, range(len(lines)), MAX_FILE_CHARS * 2 // 3, MAX_FILE_LINES * 2 // 3)
    rest = range(len(lines) - 1, len(head) - 1, -1)
    tail = _within(lines, rest, MAX_FILE_CHARS // 3, MAX_FILE_LINES // 3)
    kept = {**head, **dict(sorted(tail.items()))}
    return Frozen(path, kept, len(lines))


def _within(lines: Sequence[str], order: range, chars: int, count: int) -> dict[int, str]:
    """Lines in this order until one does not fit."""
    kept: dict[int, str] = {}
    for index in order:
        text = shown(lines[index])
        chars -= len(text) + 8
        if chars < 0 or len(kept) >= count:
            break
        kept[index + 1] = text
    return kept


def fenced(file: Frozen, token: str) -> str:
    """A file between two lines that only the host can have written.

    Args:
        file: What to show.
        token: Fresh and random in every request: no text from before can hold it.
    """
    rows = [f"BEGIN {token} data of {file.path}: {file.total} lines"]
    last = 0
    for number, text in file.lines.items():
        if number > last + 1:
            rows.append(f"      ({number - last - 1} lines cut by the host)")
        rows.append(f"{number:5d}| {text}")
        last = number
    if file.total > last:
        rows.append(f"      ({file.total - last} lines cut by the host)")
    return "\n".join([*rows, f"END {token}"])
