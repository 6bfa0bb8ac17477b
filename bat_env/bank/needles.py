"""Finding thousands of forbidden words in a text at once, and patterns that no row may hold."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from bat_env.sandbox.base import MOUNTS

MIN_NEEDLE: Final = 5
"""Shorter strings occur by chance in any text; ids of that length are not searched for."""

_TOKEN: Final = re.compile(rb"[A-Za-z0-9]+")
_CREDENTIALS: Final = re.compile(
    rb"AKIA[0-9A-Z]{16}"
    rb"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----"
    rb"|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}"
    rb"|\bsk-[A-Za-z0-9_-]{20,}|\bhf_[A-Za-z0-9]{30,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    rb"|[Aa]uthorization: *(?:Bearer|Basic) +[A-Za-z0-9+/=._-]{8,}"
    rb"|://[A-Za-z0-9._%-]{1,64}:[A-Za-z0-9._%-]{3,}@"
)
# The last directory of a POSIX home, the roots of macOS and Windows: never part of the sandbox.
_HOMES: Final = re.compile(
    rb"(?<![A-Za-z0-9_.~])/(?:home|Users)/[A-Za-z0-9._-]+|(?<![A-Za-z0-9_.])/root/[A-Za-z0-9._-]+"
    rb"|\b[A-Z]:\\{1,2}Users\\"
)
_NAMESPACE: Final = re.compile(rb"held[-_ ]?out", re.IGNORECASE)
_ASSISTANT: Final = re.compile(
    rb"<\|im_start\|>|<\|assistant\|>|<\|start_header_id\|>|\[/INST\]|<tool_call>"
    rb"|\"role\"\s*:\s*\"assistant\"|\"tool_calls\"\s*:"
)
_TEXT: Final = re.compile(rb"[\x09\x0a\x0d\x20-\x7e\x80-\xff]*\Z")
_SANDBOX_ROOTS: Final = (
    *("/usr", "/lib", "/bin", "/opt", "/etc", "/proc", "/dev", "/tmp"),
    *(f"/{mount}" for mount in MOUNTS),
)


class Needles:
    """Strings that must not occur as whole words: with no letter or digit beside them.

    A text is cut into words once; only strings whose first word is among them are looked for.

    Args:
        strings: String -> what it is.
    """

    def __init__(self, strings: Mapping[str, str]) -> None:
        self._by_word: defaultdict[bytes, list[tuple[bytes, str]]] = defaultdict(list)
        self._others: list[tuple[bytes, str]] = []
        for text, what in sorted(strings.items()):
            needle = text.encode(errors="surrogatepass")
            first = _TOKEN.match(needle)
            if len(text) < MIN_NEEDLE:
                continue
            if first is None:
                self._others.append((needle, what))
            else:
                self._by_word[first[0]].append((needle, what))

    def found(self, data: bytes) -> Iterator[str]:
        """What of them occurs."""
        words = set(_TOKEN.findall(data)) & self._by_word.keys()
        near = [pair for word in sorted(words) for pair in self._by_word[word]]
        for needle, what in (*near, *self._others):
            if holds(data, needle):
                yield what


def patterns(data: bytes, machine: tuple[bytes, ...]) -> Iterator[str]:
    """What no material may hold: the held-out namespace, paths of a machine, credentials.

    Args:
        data: Text or binary data.
        machine: :func:`machine_paths`, encoded.
    """
    if _NAMESPACE.search(data) and _TEXT.match(data[:4096]):
        yield "names the held-out namespace"
    if any(holds(data, path) for path in machine):
        yield "a path of this machine"
    if _HOMES.search(data):
        yield "a home directory"
    if _CREDENTIALS.search(data):
        yield "a credential"


def assistant_turn(data: bytes) -> bool:
    """Whether there is the mark of an assistant's turn in a chat format."""
    return _ASSISTANT.search(data) is not None


def holds(data: bytes, needle: bytes) -> bool:
    """Whether ``needle`` occurs as a whole word: with no letter or digit beside it."""
    start = data.find(needle)
    while start >= 0:
        end = start + len(needle)
        before, after = data[start - 1 : start] if start else b"", data[end : end + 1]
        if not before.isalnum() and not after.isalnum():
            return True
        start = data.find(needle, start + 1)
    return False


def machine_paths() -> tuple[str, ...]:
    """Folders of this machine that no training material may name, longest first."""
    here = Path(__file__).resolve().parents[2]
    candidates = {
        str(here),
        str(Path.cwd()),
        str(Path.home()),
        sys.prefix,
        os.environ.get("BAT_HOME", ""),
        os.environ.get("BAT_BANK", ""),
    }
    temp = tempfile.gettempdir()
    return tuple(
        sorted(
            (
                path
                for path in candidates
                if len(path) >= MIN_NEEDLE
                and path != temp
                and path not in _SANDBOX_ROOTS
                and not path.startswith("/usr")
            ),
            key=len,
            reverse=True,
        )
    )
