"""Reading an answer: one strict form, and a citation that the host finds again or no answer.

The reader never raises anything but :class:`~bat_env.errors.JudgeError`, whatever came back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bat_env.errors import JudgeError
from bat_env.judge.fence import Frozen, shown
from bat_env.judge.items import Question
from bat_env.judge.prompt import MAX_QUOTE_CHARS, MAX_REASON_CHARS

MIN_QUOTE_CHARS: Final = 12
"""A shorter quote must be the whole line: a single letter stands in every line."""
QUOTED_LINES: Final = 3
"""A quote begins in the cited line and may run on into the lines after it."""
MAX_ANSWER_CHARS: Final = 64 * 1024

FindingState: TypeAlias = Literal["met", "unmet", "null"]

_TYPOGRAPHIC: Final = str.maketrans("‘’‚“”„–—−‑", "'''\"\"\"----")
_BLOCK: Final = re.compile(r"\A```(?:json)?[ \t]*\n(?P<body>.*?)\n?```\Z", re.S)
_THOUGHT: Final = re.compile(r"\A<think>.*?</think>", re.S)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is known of one question.

    Attributes:
        item: Question id.
        state: ``null``: no answer that can be used, which counts neither for nor against.
        by: Who decided: the ``"judge"``, or the ``"host"`` where there was nothing to read.
        message: The judge's reason, or why there is no answer; inert and clipped.
        file, line, quote: The verified citation; empty where there is none.
    """

    item: str
    state: FindingState
    by: Literal["judge", "host"] = "judge"
    message: str = ""
    file: str = ""
    line: int = 0
    quote: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {name: getattr(self, name) for name in self.__slots__}


def null(item: str, why: str) -> Finding:
    """No usable answer."""
    return Finding(item, "null", message=shown(why))


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Item(_Strict):
    id: Annotated[str, Field(max_length=64)]
    met: bool
    file: Annotated[str, Field(max_length=200)]
    line: Annotated[int, Field(ge=1, le=10**7)]
    quote: Annotated[str, Field(min_length=1, max_length=MAX_QUOTE_CHARS)]
    reason: Annotated[str, Field(max_length=MAX_REASON_CHARS)]


class _Answer(_Strict):
    token: str
    items: Annotated[list[_Item], Field(min_length=1, max_length=32)]


def read_answer(
    text: str, token: str, asked: Sequence[Question], files: Mapping[str, Frozen]
) -> dict[str, Finding]:
    """The findings in an answer.

    Args:
        text: Content of the model's message.
        token: Of this request; an answer that was written before cannot hold it.
        asked: The questions.
        files: What was shown.

    Returns:
        Question id -> finding, for every question; ``null`` where the answer leaves one out or
        cites what does not stand there.

    Raises:
        JudgeError: If the answer as a whole has another form; asking again may help.
    """
    answer = _parsed(text)
    if answer.token != token:
        raise JudgeError("The answer does not hold the token of its request.")
    known = {question.id: question for question in asked}
    findings: dict[str, Finding] = {}
    for item in answer.items:
        if item.id not in known:
            raise JudgeError(f"The answer names an item that was not asked: {shown(item.id)}.")
        if item.id in findings:
            raise JudgeError(f"The answer holds {item.id} twice.")
        wrong = _wrong_citation(item, known[item.id], files)
        if wrong:
            findings[item.id] = null(item.id, wrong)
        else:
            findings[item.id] = Finding(
                item.id,
                "met" if item.met else "unmet",
                message=shown(item.reason),
                file=item.file,
                line=item.line,
                quote=shown(item.quote),
            )
    for name in known:
        findings.setdefault(name, null(name, "The answer leaves this item out."))
    return findings


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _parsed(text: str) -> _Answer:
    body = text.strip()
    if len(body) > MAX_ANSWER_CHARS:
        raise JudgeError(f"The answer has {len(body)} characters, at most {MAX_ANSWER_CHARS}.")
    body = _THOUGHT.sub("", body, count=1).strip()
    block = _BLOCK.match(body)
    if block:
        body = block["body"]
    try:
        value = json.loads(body, parse_constant=_no_constant, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise JudgeError(f"The answer is not one JSON object: {shown(str(error))}.") from None
    try:
        return _Answer.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise JudgeError(f"The answer has another form: {shown(where)}: {first['msg']}.") from None


def _plain(text: str) -> str:
    """Text without what models change when they copy: spaces, typographic quotes and dashes."""
    return " ".join(text.translate(_TYPOGRAPHIC).split())


def _wrong_citation(item: _Item, question: Question, files: Mapping[str, Frozen]) -> str:
    """Why a citation does not hold, or ``""``."""
    if item.file != question.subject or item.file not in files:
        return f"The answer cites {shown(item.file)} instead of {question.subject}."
    copy = files[item.file]
    if item.line not in copy.lines:
        return f"The answer cites line {item.line} of {item.file}, which was not shown."
    first = _plain(copy.lines[item.line])
    after = [copy.lines.get(item.line + step, "") for step in range(1, QUOTED_LINES)]
    stood = _plain(" ".join([first, *after]))
    # What is quoted in its raw form is compared in the form that was shown.
    quotes = {_plain(item.quote), _plain(shown(item.quote))}
    for quote in quotes:
        start = stood.find(quote)
        while quote and 0 <= start < max(1, len(first)):
            if len(quote) >= MIN_QUOTE_CHARS or quote == first:
                return ""
            start = stood.find(quote, start + 1)
    return f"The words that the answer quotes do not stand in line {item.line} of {item.file}."
