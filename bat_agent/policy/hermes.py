"""The codec of Qwen-like chat models: ChatML turns, Hermes tool calls.

The layout is written out here rather than rendered by a chat template: a template renders the whole
conversation anew each turn and may drop or reformat earlier turns, which breaks token-exactness.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bat_agent.policy.codec import Action, PlainText
from bat_env.errors import ConfigError

_SYSTEM: Final = """You are a careful medical-imaging engineer. You work in a sandbox by calling \
tools, one call per turn.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def hermes_system(tools: Sequence[Mapping[str, Any]]) -> str:
    """The system message that states the tools and the form of a call."""
    return _SYSTEM.format(tools="\n".join(json.dumps(t, ensure_ascii=False) for t in tools))


class HermesCodec:
    """ChatML with Hermes tool calls; a turn is one ``<tool_call>`` (prose before it is allowed).

    Args:
        tokenizer: A fast tokenizer with ``<|im_start|>`` and ``<|im_end|>`` as added tokens.
            ``<tool_call>`` is used as one token where the tokenizer has it.
        tools: Tool renderings, one JSON object each; default: the environment's own.

    Raises:
        ConfigError: If the tokenizer is not a ChatML one.
    """

    name = "hermes"

    def __init__(self, tokenizer: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> None:
        self.tokenizer = tokenizer
        self._ids = {t.content: i for i, t in tokenizer.added_tokens_decoder.items()}
        for token in ("<|im_start|>", "<|im_end|>"):
            if token not in self._ids:
                raise ConfigError(f"The hermes codec needs a ChatML tokenizer; {token} is missing.")
        self._plain = PlainText(tokenizer)
        end = self._ids["<|im_end|>"]
        self.stop_ids: tuple[int, ...] = (end,)
        pad = tokenizer.pad_token_id
        self.pad_id: int = end if pad is None else pad
        if tools is None:
            from bat_env.tools import hermes_tools

            tools = hermes_tools()
        self._head = self._trusted(
            f"<|im_start|>system\n{hermes_system(tools)}<|im_end|>\n<|im_start|>user\n"
        )
        # Thinking models expect their (empty) thought to be closed before a plain answer.
        thought = "<think>\n\n</think>\n\n" if "<think>" in self._ids else ""
        self._act = self._trusted(f"<|im_end|>\n<|im_start|>assistant\n{thought}")

    def _trusted(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def prompt_ids(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> list[int]:
        """System message with the tools, the brief as user message, assistant header."""
        return [*self._head, *self._plain(str(observation["text"])), *self._act]

    def action_ids(self, call: Mapping[str, Any]) -> list[int]:
        """One ``<tool_call>`` block and ``<|im_end|>``."""
        body = json.dumps(
            {"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False
        )
        return [
            *self._trusted("<tool_call>\n"),
            *self._plain(body),
            *self._trusted("\n</tool_call>"),
            *self.stop_ids,
        ]

    def observation_ids(self, text: str) -> list[int]:
        """The tool response as a user turn, and the next assistant header."""
        return [
            *self._trusted("\n<|im_start|>user\n<tool_response>\n"),
            *self._plain(text),
            *self._trusted("\n</tool_response>"),
            *self._act,
        ]

    def parse(self, ids: Sequence[int]) -> Action:
        """The tool call, or the raw text when there is not exactly one well-formed call."""
        ids = list(ids)
        ended = bool(ids) and ids[-1] in self.stop_ids
        text: str = self.tokenizer.decode(
            ids[:-1] if ended else ids,
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
        )
        start, end = text.find("<tool_call>"), text.rfind("</tool_call>")
        if not ended or start < 0 or end < start:
            return text
        try:
            call = json.loads(text[start + len("<tool_call>") : end])
        except (ValueError, RecursionError):
            return text
        if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
            return text
        if not isinstance(call["name"], str) or not isinstance(call["arguments"], dict):
            return text
        return call
