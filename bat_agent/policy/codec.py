"""The codec: how an episode becomes tokens, and how sampled tokens become an action.

One codec serves SFT, GRPO and evaluation. It only ever appends: the tokens of earlier turns never
change when a turn is added, so what was sampled is exactly what is trained.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from bat_env.errors import unknown_name

ToolCall: TypeAlias = dict[str, Any]
"""``{"name": str, "arguments": dict}``."""

Action: TypeAlias = "ToolCall | str"
"""What is sent to the environment. A string is a malformed call: the environment answers it with an
observation that says so."""


@runtime_checkable
class Codec(Protocol):
    """Token rendering of one policy family.

    An episode is ``prompt_ids`` then, per turn, the sampled action (up to and including its end
    token) and ``observation_ids``. The terminal observation is never appended.

    Attributes:
        name: Registered name, recorded in checkpoints.
        tokenizer: A ``transformers`` tokenizer.
        stop_ids: Tokens that end an action; the first one is what ``action_ids`` ends with.
        pad_id: Padding token.
    """

    name: str
    tokenizer: Any
    stop_ids: tuple[int, ...]
    pad_id: int

    def prompt_ids(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> list[int]:
        """Tokens from the start of the episode up to where the first action begins."""

    def action_ids(self, call: Mapping[str, Any]) -> list[int]:
        """Tokens of one action, the end token included: the target of SFT."""

    def observation_ids(self, text: str) -> list[int]:
        """Tokens that follow an action: the observation, up to where the next action begins."""

    def parse(self, ids: Sequence[int]) -> Action:
        """Read sampled tokens. Total: what is not a well-formed call comes back as raw text."""


class PlainText:
    """Encodes text that nobody vouches for: no text can produce an added (special) token.

    Text is cut inside every occurrence of an added token's string before it is tokenised, so the
    pieces spell the same characters in ordinary tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        contents = sorted(
            (t.content for t in tokenizer.added_tokens_decoder.values() if len(t.content) > 1),
            key=lambda c: (-len(c), c),
        )
        self._added = frozenset(tokenizer.added_tokens_decoder)
        self._hit = (
            re.compile("(?=" + "|".join(re.escape(c) for c in contents) + ")", re.IGNORECASE)
            if contents
            else None
        )

    def __call__(self, text: str) -> list[int]:
        """Tokens of ``text``, none of them an added token."""
        # Lone surrogates cannot reach a tokenizer; they come back as the replacement character.
        text = text.encode("utf-8", "replace").decode("utf-8")
        cuts = [0, *(m.start() + 1 for m in self._hit.finditer(text))] if self._hit else [0]
        ids: list[int] = []
        for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True):
            piece = self._encode(text[start:end])
            if self._added.intersection(piece):
                piece = [i for c in text[start:end] for i in self._encode(c)]
                piece = [i for i in piece if i not in self._added]
            ids += piece
        return ids

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        encoded: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return encoded


def _line(tokenizer: Any) -> Codec:
    from bat_agent.policy.line_codec import LineCodec

    return LineCodec(tokenizer)


def _hermes(tokenizer: Any) -> Codec:
    from bat_agent.policy.hermes import HermesCodec

    return HermesCodec(tokenizer)


CODECS: Final[Mapping[str, Callable[[Any], Codec]]] = {"line": _line, "hermes": _hermes}
"""Name -> maker."""


def make_codec(name: str, tokenizer: Any) -> Codec:
    """Build the codec ``name`` over a tokenizer.

    Raises:
        UnknownNameError: If no codec has that name.
    """
    if name not in CODECS:
        raise unknown_name("codec", name, CODECS)
    return CODECS[name](tokenizer)
