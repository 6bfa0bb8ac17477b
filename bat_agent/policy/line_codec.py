"""The codec of policies whose tokenizer was trained on the spot: one special token per part.

``<|brief|>text<|stage:S3|><|act|>`` then per turn ``<|py|>code<|end|>`` (or ``<|sh|>``, or
``<|submit|>``) and ``<|obs|>text<|act|>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bat_agent.policy.codec import Action, PlainText
from bat_env.errors import ConfigError
from bat_env.stages import Stage

STAGE_TOKENS: Final[tuple[str, ...]] = tuple(f"<|stage:{s.name}|>" for s in Stage)
SPECIAL_TOKENS: Final[tuple[str, ...]] = (
    "<|pad|>",
    "<|end|>",
    "<|brief|>",
    "<|obs|>",
    "<|act|>",
    "<|py|>",
    "<|sh|>",
    "<|submit|>",
    *STAGE_TOKENS,
)
_LANGUAGES: Final[Mapping[str, str]] = {"python": "<|py|>", "bash": "<|sh|>"}


class LineCodec:
    """The codec ``"line"``.

    Code always ends with one newline inside, which ``parse`` takes off again, so that the last line
    of a cell is the same token as anywhere else.

    Args:
        tokenizer: Must hold :data:`SPECIAL_TOKENS`.

    Raises:
        ConfigError: If a special token is missing.
    """

    name = "line"

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        ids = {t.content: i for i, t in tokenizer.added_tokens_decoder.items()}
        missing = [t for t in SPECIAL_TOKENS if t not in ids]
        if missing:
            raise ConfigError(
                f"The line codec needs a tokenizer with its special tokens; missing: {missing}. "
                "Train one with bat_agent.policy.tiny.train_tokenizer."
            )
        self._ids = ids
        self._special = frozenset(ids.values())
        self._plain = PlainText(tokenizer)
        self._language = {ids[token]: language for language, token in _LANGUAGES.items()}
        self.pad_id: int = ids["<|pad|>"]
        self.stop_ids: tuple[int, ...] = (ids["<|end|>"],)

    def prompt_ids(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> list[int]:
        """``<|brief|>text<|stage:..|><|act|>``."""
        stage = self._ids[STAGE_TOKENS[int(observation["stage"])]]
        text = self._plain(str(observation["text"]))
        return [self._ids["<|brief|>"], *text, stage, self._ids["<|act|>"]]

    def action_ids(self, call: Mapping[str, Any]) -> list[int]:
        """``<|py|>code<|end|>``, ``<|sh|>code<|end|>`` or ``<|submit|><|end|>``."""
        if call["name"] == "submit_results":
            return [self._ids["<|submit|>"], *self.stop_ids]
        arguments = call["arguments"]
        language = self._ids[_LANGUAGES[arguments["language"]]]
        return [language, *self._plain(arguments["code"] + "\n"), *self.stop_ids]

    def observation_ids(self, text: str) -> list[int]:
        """``<|obs|>text<|act|>``."""
        return [self._ids["<|obs|>"], *self._plain(text), self._ids["<|act|>"]]

    def parse(self, ids: Sequence[int]) -> Action:
        """The call, or the raw text when the tokens are not ``head body <|end|>``."""
        ids = list(ids)
        if len(ids) >= 2 and ids[-1] == self.stop_ids[0]:
            head, body = ids[0], ids[1:-1]
            if head == self._ids["<|submit|>"] and not body:
                return {"name": "submit_results", "arguments": {}}
            if head in self._language and not self._special.intersection(body):
                code = self._decode(body).removesuffix("\n")
                arguments = {"language": self._language[head], "code": code}
                return {"name": "execute_code", "arguments": arguments}
        return self._decode(ids)

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text
