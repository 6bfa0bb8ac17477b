"""A small rule-based labeler: which findings a radiology report claims, on which side.

Made for short English reports over a vocabulary that the task gives. It knows cues that negate or
weaken what follows or precedes them, where their scope ends, sides before, behind and shared by
findings in a list, and sections that describe no finding. Statements that contradict each other
claim a finding without being right about it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pydantic import Field

from bat_env.metrics.base import MetricParams
from bat_env.metrics.cues import (
    BREAKS,
    COPULAS,
    DENIALS,
    DIVIDERS,
    JOINS,
    LIMITS,
    MAYBE_AFTER,
    MAYBE_BEFORE,
    NO_CUE,
    NOT_AFTER,
    NOT_BEFORE,
    SECTIONS,
    SIDES,
    SILENT,
    STARTS,
    VERDICTS,
)

Key: TypeAlias = tuple[str, str]
"""Finding and side: ``left``, ``right``, or ``""`` where it has none or none was given."""

PRESENT, UNCERTAIN, ABSENT, CONTRADICTED = "present", "uncertain", "absent", "contradicted"


class FindingSpec(MetricParams):
    """How a finding is written."""

    terms: tuple[str, ...] = Field(min_length=1, description="Phrases, singular, lower case.")
    lateral: bool = Field(False, description="Whether it has a side.")


# --------------------------------------------------------------------------------------- reading


def _sections(text: str) -> Iterator[str]:
    """The parts of a report that describe it, without headings such as ``INDICATION:``."""
    names = "|".join(sorted(SECTIONS))
    pieces = re.split(rf"(?im)^[ \t]*({names})\b([^:\n.]{{0,40}}):", text)
    yield pieces[0]
    for name, body in zip(pieces[1::3], pieces[3::3], strict=True):
        if name.lower() not in SILENT:
            yield body


def _sentences(text: str) -> Iterator[list[str]]:
    """Sentences as lower-case words and commas."""
    for section in _sections(text):
        plain = re.sub(r"(?<=[a-z])['’](?=[a-z])", "", section.lower())
        plain = re.sub(r"\b(left|right)[- ]?sided\b", r"\1sided", plain)
        for part in re.split(r"(?<!\d)\.|\.(?!\d)|[;!?]|\n\s*\n|\n\s*(?:[-*•]|\d+[.)])\s", plain):
            words = re.findall(r"[a-z0-9]+|,", part)
            if words:
                yield words


@dataclass
class _Mention:
    """A term that was found: words ``start`` to ``stop`` of a sentence."""

    finding: str
    start: int
    stop: int


def _same(word: str, term: str) -> bool:
    return word in (term, term + "s", term + "es")


def _mentions(words: Sequence[str], vocabulary: Mapping[str, FindingSpec]) -> list[_Mention]:
    """Terms in a sentence, longest first, without overlap, in reading order."""
    terms = sorted(
        ((re.findall(r"[a-z0-9]+", term.lower()), name) for name, spec in vocabulary.items()
         for term in spec.terms),
        key=lambda entry: -len(entry[0]),
    )  # fmt: skip
    taken = [False] * len(words)
    found = []
    for term, name in terms:
        for start in range(len(words) - len(term) + 1):
            stop = start + len(term)
            if any(taken[start:stop]):
                continue
            if all(_same(w, t) for w, t in zip(words[start:stop], term, strict=True)):
                taken[start:stop] = [True] * len(term)
                found.append(_Mention(name, start, stop))
    return sorted(found, key=lambda mention: mention.start)


def _at(words: Sequence[str], place: int, phrases: Iterable[tuple[str, ...]]) -> int:
    """Length of the longest phrase that begins at a place, or 0."""
    for phrase in phrases:
        if tuple(words[place : place + len(phrase)]) == phrase:
            return len(phrase)
    return 0


def _breaks(words: Sequence[str], place: int) -> bool:
    """Whether a clause ends before this word: ``but``, or ``, there`` and the like."""
    if words[place] in BREAKS:
        return True
    return place > 0 and words[place] in STARTS and words[place - 1] in JOINS


def _clauses(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    start = 0
    for place in range(1, len(words)):
        if _breaks(words, place):
            yield start, place
            start = place
    yield start, len(words)


# ---------------------------------------------------------------------------------------- status


@dataclass(frozen=True)
class _Status:
    state: str
    limited: bool = False


def _statuses(words: Sequence[str], mentions: Sequence[_Mention]) -> list[_Status]:
    """State of every mention of one clause.

    A cue before mentions reaches to the end of the clause; one behind a mention reaches back over
    a list of mentions that nothing but joining words and sides divides.
    """
    inside = {place for m in mentions for place in range(m.start, m.stop)}
    states = [_Status(PRESENT)] * len(mentions)
    place = 0
    while place < len(words):
        if place in inside:
            place += 1
            continue
        if skip := _at(words, place, NO_CUE):
            place += skip
            continue
        maybe = _at(words, place, MAYBE_BEFORE)
        after_maybe = _at(words, place, MAYBE_AFTER)
        negated = _at(words, place, NOT_BEFORE)
        # "pneumothorax: no"
        closing = words[place] == "no" and place == len(words) - 1
        after_negated = _at(words, place, NOT_AFTER) or int(closing)
        length = max(maybe, after_maybe, negated, after_negated)
        if not length:
            place += 1
            continue
        stop = place + length
        behind = [n for n, m in enumerate(mentions) if m.stop <= place]
        ahead = [n for n, m in enumerate(mentions) if m.start >= stop]
        # The longest cue decides: "not ruled out" is doubt, "ruled out" is none.
        forward = max(maybe, negated) == length and ahead
        backward = max(after_maybe, after_negated) == length and behind
        if backward and _predicates(words, mentions, behind[-1], place):
            state = UNCERTAIN if after_maybe >= after_negated else ABSENT
            for n in _listed(words, mentions, behind[-1]):
                states[n] = _weaker(states[n], _Status(state))
        elif forward:
            state = UNCERTAIN if maybe >= negated else ABSENT
            limited = stop < len(words) and words[stop] in LIMITS
            for n in ahead:
                states[n] = _weaker(states[n], _Status(state, limited))
        place = stop
    return states


def _weaker(old: _Status, new: _Status) -> _Status:
    """Negation beats doubt, doubt beats presence."""
    rank = (PRESENT, UNCERTAIN, ABSENT)
    return new if rank.index(new.state) > rank.index(old.state) else old


def _predicates(words: Sequence[str], mentions: Sequence[_Mention], last: int, place: int) -> bool:
    """Whether a cue behind a mention speaks of it: ``effusion is absent``, ``effusion: none``."""
    between = words[mentions[last].stop : place]
    if any(word in JOINS for word in between):
        return False
    return not between or any(word in COPULAS for word in between)


def _listed(words: Sequence[str], mentions: Sequence[_Mention], last: int) -> list[int]:
    """The mention and those before it in the same list."""
    chosen = [last]
    while chosen[-1] > 0:
        before, after = mentions[chosen[-1] - 1], mentions[chosen[-1]]
        between = words[before.stop : after.start]
        if not any(word in JOINS for word in between) or any(w in VERDICTS for w in between):
            break
        chosen.append(chosen[-1] - 1)
    return chosen


# ----------------------------------------------------------------------------------------- sides


def _sides_in(words: Sequence[str]) -> frozenset[str]:
    return frozenset().union(*(SIDES.get(word, frozenset()) for word in words))


def _nearest(words: Sequence[str], *, backward: bool) -> frozenset[str]:
    """Sides next to a mention, within its own phrase.

    Args:
        words: The words between the mention and its neighbour, in reading order.
        backward: Whether the mention stands behind these words.
    """
    ordered = list(reversed(words)) if backward else list(words)
    found: frozenset[str] = frozenset()
    for n, word in enumerate(ordered):
        if word in DIVIDERS or (word == "with" and not backward):
            if found and word in ("and", "or"):
                # "left and right effusion", "left upper and right lower lobe consolidation"
                rest = ordered[n + 1 : n + 5]
                if not any(w in DIVIDERS | COPULAS for w in rest):
                    found |= _sides_in(rest)
            elif word == "," and not backward and not found:
                found = _apposition(ordered[n + 1 :])
            break
        sides = SIDES.get(word, frozenset())
        if sides and found:
            break
        found |= sides
    return found


def _apposition(words: Sequence[str]) -> frozenset[str]:
    """Sides of a bare addition: ``effusion, left side``."""
    stop = next((n for n, word in enumerate(words) if word in DIVIDERS), len(words))
    bare = words[:stop]
    if len(bare) > 3 or any(word in COPULAS or word == "clear" for word in bare):
        return frozenset()
    return _sides_in(bare)


def _sides(words: Sequence[str], mentions: Sequence[_Mention]) -> list[frozenset[str]]:
    """Sides of every mention of one clause: before it, behind it, or shared in a list."""
    own: list[frozenset[str]] = []
    for n, mention in enumerate(mentions):
        low = mentions[n - 1].stop if n else 0
        high = mentions[n + 1].start if n + 1 < len(mentions) else len(words)
        before = _nearest(words[low : mention.start], backward=True)
        own.append(before or _nearest(words[mention.stop : high], backward=False))
    shared = list(own)
    for n in range(1, len(mentions)):
        if not shared[n] and _joined(words, mentions[n - 1], mentions[n]):
            shared[n] = shared[n - 1]
    for n in range(len(mentions) - 2, -1, -1):
        if not shared[n] and _joined(words, mentions[n], mentions[n + 1]):
            shared[n] = shared[n + 1]
    return shared


def _joined(words: Sequence[str], one: _Mention, two: _Mention) -> bool:
    between = words[one.stop : two.start]
    return bool(between) and not any(w in COPULAS or w in DENIALS for w in between)


# ---------------------------------------------------------------------------------------- claims


def claims(text: str, vocabulary: Mapping[str, FindingSpec]) -> dict[Key, str]:
    """What a report says of the findings of a vocabulary.

    Args:
        text: The report.
        vocabulary: Finding name -> how it is written.

    Returns:
        (finding, side) -> ``"present"``, ``"uncertain"``, ``"absent"`` or ``"contradicted"``. A
        finding on both sides has two keys; ``absent`` without a side speaks of both.
    """
    said: dict[Key, set[str]] = {}
    denied: set[Key] = set()
    for words in _sentences(text):
        for start, stop in _clauses(words):
            clause = words[start:stop]
            mentions = _mentions(clause, vocabulary)
            sides = _sides(clause, mentions)
            for mention, status, both in zip(
                mentions, _statuses(clause, mentions), sides, strict=True
            ):
                lateral = vocabulary[mention.finding].lateral
                for side in sorted(both) if lateral and both else [""]:
                    key = (mention.finding, side)
                    said.setdefault(key, set()).add(status.state)
                    if status.state == ABSENT and not status.limited:
                        denied.add(key)
    return {key: _resolved(key, states, denied) for key, states in said.items()}


def _resolved(key: Key, states: set[str], denied: set[Key]) -> str:
    claimed = states - {ABSENT}
    if not claimed:
        return ABSENT
    if key in denied or (key[0], "") in denied:
        return CONTRADICTED
    return PRESENT if PRESENT in claimed else UNCERTAIN


def claimed(statements: Mapping[Key, str]) -> dict[Key, float]:
    """Claims that a report makes -> what each is worth where it is right.

    Present 1, uncertain .5, contradicted 0. A claim without a side is not repeated beside one
    of the same finding with a side: reports name the side once.
    """
    worth = {PRESENT: 1.0, UNCERTAIN: 0.5, CONTRADICTED: 0.0}
    found = {key: worth[state] for key, state in statements.items() if state in worth}
    sided = {name for name, side in found if side}
    return {key: value for key, value in found.items() if key[1] or key[0] not in sided}


def f1(said: Mapping[Key, float], real: Iterable[Key]) -> float | None:
    """F1 of claims against true findings with their sides; ``None`` if there are neither."""
    truth = set(real)
    if not said and not truth:
        return None
    return 2.0 * sum(said[key] for key in said if key in truth) / (len(said) + len(truth))
