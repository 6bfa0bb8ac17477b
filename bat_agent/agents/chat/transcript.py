"""The conversation with a model, kept below its context length by a stated rule.

The system message, the brief and the last two turns are always kept. When the rest does not fit:
first the results of the oldest turns are cut to one line each, then the oldest turns are left out
whole, then the middle of the last results is cut. Every cut is announced to the model in its
place, with what was cut. A cut goes down to three quarters of the room, so that it is rare and
prefix caches of servers hold.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

from bat_env.errors import ConfigError

KEPT_TURNS: Final = 2
_AFTER_CUT: Final = 0.75
_CHARS_PER_TOKEN: Final = 3.0
_SHORT: Final = 160
"""A result of fewer characters is not worth a cut."""

_CUT: Final = (
    "[{n} characters of this result were cut to fit the context; files are as you left them]"
)
_LEFT_OUT: Final = (
    "\n\n[The first {n} turns were left out to fit the context; files in /workspace are as you "
    "left them.]"
)
_MIDDLE: Final = "\n[... {n} characters were cut to fit the context ...]\n"

Message = dict[str, Any]


@dataclass(slots=True)
class Turn:
    """An answer of the model, and the results of its calls."""

    answer: Message
    results: list[Message] = field(default_factory=list)


class Transcript:
    """The messages of one episode.

    Args:
        system: System message.
        brief: First user message.
        room: Tokens that the messages may take.
    """

    def __init__(self, system: str, brief: str, room: int) -> None:
        self._system, self._brief, self.room = system, brief, room
        self._turns: list[Turn] = []
        self._left_out = 0
        self._ratio = _CHARS_PER_TOKEN

    @property
    def started(self) -> bool:
        """Whether the model has answered."""
        return bool(self._turns) or self._left_out > 0

    def begin(self, answer: Message) -> None:
        """Add an answer of the model."""
        self._turns.append(Turn(answer))

    def result(self, message: Message) -> None:
        """Add the result of a call of the last answer."""
        self._turns[-1].results.append(message)

    def tokens(self) -> int:
        """Estimated length."""
        return int(self._chars() / self._ratio) + 1

    def measured(self, tokens: int | None) -> None:
        """Learn from the server's own count how many characters make a token."""
        if tokens:
            self._ratio = min(6.0, max(1.0, self._chars() / tokens))

    def messages(self) -> list[Message]:
        """What is sent.

        Raises:
            ConfigError: If system message and brief alone do not fit.
        """
        if self.tokens() > self.room:
            self.cut(_AFTER_CUT * self.room)
        return self._built()

    def cut(self, target: float) -> None:
        """Cut until the estimate is at most ``target`` tokens, as far as the rule allows.

        Raises:
            ConfigError: If system message and brief alone take more than the room.
        """
        for turn in self._turns[:-KEPT_TURNS]:
            for message in turn.results:
                if self.tokens() <= target:
                    return
                text = str(message["content"])
                if len(text) > _SHORT:
                    message["content"] = _CUT.format(n=len(text))
        while self.tokens() > target and len(self._turns) > KEPT_TURNS:
            self._turns.pop(0)
            self._left_out += 1
        for turn in self._turns:
            for message in turn.results:
                over = int((self.tokens() - target) * self._ratio)
                if over > 0:
                    message["content"] = _shortened(str(message["content"]), over)
        if self.tokens() > self.room:
            raise ConfigError(
                f"The brief does not fit into {self.room} tokens of context. Give a higher "
                "context_tokens, or a lower max_tokens."
            )

    def _built(self) -> list[Message]:
        note = _LEFT_OUT.format(n=self._left_out) if self._left_out else ""
        built: list[Message] = [{"role": "system", "content": self._system}] if self._system else []
        built.append({"role": "user", "content": self._brief + note})
        for turn in self._turns:
            built += [turn.answer, *turn.results]
        return built

    def _chars(self) -> int:
        return sum(len(json.dumps(m, ensure_ascii=False)) for m in self._built())


def _shortened(text: str, over: int) -> str:
    keep = max(_SHORT, len(text) - over - len(_MIDDLE))
    if keep >= len(text):
        return text
    head = keep // 2
    return text[:head] + _MIDDLE.format(n=len(text) - keep) + text[len(text) - (keep - head) :]
