"""Text that repeats held-out documents in other clothes: without ids, reformatted, in pieces.

Briefs of one task differ by their facts only, and answers are templated, so one shared phrase says
nothing. A document is recognised by how much of what only it has comes back in one text.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

_WORD: Final = re.compile(r"[a-z]+|\d+(?:\.\d+)?")
_NUMBER: Final = re.compile(r"(?<![\w.])-?\d+\.?\d*(?![\w.])|(?<![\w.])-?\d+\.\d+")
_PHRASE: Final = 3
_PASSAGE: Final = 10
_LONG_PASSAGE: Final = 16
_DIGITS: Final = 4


@dataclass(frozen=True)
class _Measure:
    """When a kind of document counts as found: least share of its own keys, and least number."""

    share: float
    least: int


_MEASURES: Final[Mapping[str, _Measure]] = {
    "brief": _Measure(0.3, 6),
    "answers": _Measure(0.6, 8),
    "prose": _Measure(0.6, 8),
    "facts": _Measure(0.6, 6),
}


def brief_keys(text: str) -> frozenset[str]:
    """Phrases of three words of a brief, whatever its line breaks, case and punctuation."""
    return frozenset(_grams("b", _words(text), _PHRASE))


def answer_keys(files: Iterable[bytes], names: Iterable[str]) -> frozenset[str]:
    """Passages of ten words of the answers of an instance, case after case, without case ids.

    Args:
        files: Truth files; those that are no JSON are left out.
        names: Case ids.
    """
    ids = frozenset(names)
    text = " ".join(json.dumps(_without(value, ids)) for value in _documents(files))
    return frozenset(_grams("a", _words(text), _PASSAGE))


def prose_keys(files: Iterable[bytes]) -> frozenset[str]:
    """Passages of sixteen words of the texts among the answers of an instance, case after case."""
    texts = [text for value in _documents(files) for text in _texts(value)]
    return frozenset(_grams("t", _words(" ".join(texts)), _LONG_PASSAGE))


def _documents(files: Iterable[bytes]) -> Iterator[Any]:
    for data in files:
        with contextlib.suppress(ValueError):
            yield json.loads(data)


def _without(value: Any, ids: frozenset[str]) -> Any:
    """A JSON value without the entries that say which case it is of."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not (isinstance(v, str) and v in ids)}
        return {k: _without(v, ids) for k, v in kept.items()}
    return [_without(v, ids) for v in value] if isinstance(value, list) else value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str) and len(_words(value)) >= _PASSAGE:
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def fact_keys(facts: Mapping[str, Any]) -> frozenset[str]:
    """Numbers of at least four digits among private facts, in any order."""
    return frozenset(_numbers(json.dumps(facts)))


@dataclass(frozen=True)
class Documents:
    """Held-out documents by what only they hold.

    Attributes:
        keys: ``"<kind>: <what>"`` -> keys, sorted; the kind is one of the measures.
    """

    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def merge(self, other: Documents) -> Documents:
        """Both sets."""
        return Documents({**self.keys, **other.keys})

    def found(self, text: str) -> Iterator[str]:
        """What a text repeats."""
        index = self._index
        if not index:
            return
        words = _words(text)
        held: set[str] = set()
        for kind, size in (("b", _PHRASE), ("a", _PASSAGE), ("t", _LONG_PASSAGE)):
            held.update(key for key in _grams(kind, words, size) if key in index)
        held.update(key for key in _numbers(text) if key in index)
        counts = Counter(name for key in held for name in index[key])
        for name, count in counts.most_common():
            measure = _MEASURES[name.partition(":")[0]]
            if count >= max(measure.least, measure.share * len(self.keys[name])):
                yield f"repeats the {name.partition(': ')[2]}"

    @functools.cached_property
    def _index(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for name, keys in self.keys.items():
            if len(keys) >= _MEASURES[name.partition(":")[0]].least:
                for key in keys:
                    found[key].append(name)
        return dict(found)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _grams(kind: str, words: list[str], size: int) -> Iterator[str]:
    for run in zip(*(words[shift:] for shift in range(size)), strict=False):
        yield f"{kind} {' '.join(run)}"


def _numbers(text: str) -> Iterator[str]:
    for number in _NUMBER.findall(text):
        if sum(character.isdigit() for character in number.lstrip("-0.")) >= _DIGITS:
            yield f"n {number.rstrip('0') if '.' in number else number}"


def _text(data: bytes) -> str | None:
    if b"\0" in data[:4096]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def text_of(data: bytes) -> str:
    """A file as text; empty if it is none."""
    return _text(data) or ""
