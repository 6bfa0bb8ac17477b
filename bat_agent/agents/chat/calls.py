"""Tool calls as models send them: function calls, or Hermes blocks in text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

_BLOCK: Final = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.DOTALL)
_THOUGHT: Final = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
MAX_CALLS: Final = 16
"""Calls of one answer that are played; more of them are no plan."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Attributes:
        action: For the environment; something that is no call is passed on as it came, and is
            answered by an observation.
        id: Of a function call; "" in text.
    """

    action: Any
    id: str = ""


def text_of(message: Mapping[str, Any]) -> str:
    """The text of an answer; parts of other kinds are left out."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [p.get("text") for p in content if isinstance(p, dict)]
        return "".join(p for p in parts if isinstance(p, str))
    return content if isinstance(content, str) else ""


def text_calls(text: str) -> list[Call]:
    """Calls in Hermes form; thoughts are no calls."""
    calls = []
    for body in _BLOCK.findall(_THOUGHT.sub("", text))[:MAX_CALLS]:
        try:
            value = json.loads(body, strict=False)
        except (ValueError, RecursionError):
            value = body
        calls.append(Call(value))
    return calls


def function_calls(message: Mapping[str, Any]) -> tuple[list[Call], list[dict[str, Any]]]:
    """Function calls of an answer, and the same in a form that any server takes back."""
    calls: list[Call] = []
    kept: list[dict[str, Any]] = []
    came = message.get("tool_calls")
    for number, item in enumerate((came if isinstance(came, list) else [])[:MAX_CALLS]):
        function = item.get("function") if isinstance(item, dict) else None
        if not isinstance(function, dict):
            function = {"name": "", "arguments": item}
        name, raw = function.get("name"), function.get("arguments")
        arguments = _arguments(raw)
        call_id = item.get("id") if isinstance(item, dict) else None
        if not isinstance(call_id, str) or not call_id:
            call_id = f"call_{number}"
        calls.append(Call({"name": name, "arguments": arguments}, call_id))
        # Templates of many servers read arguments as JSON and fail on anything else.
        whole = arguments if isinstance(arguments, dict) else {"raw": str(raw)[:2000]}
        shown = {"name": name if isinstance(name, str) else "", "arguments": json.dumps(whole)}
        kept.append({"id": call_id, "type": "function", "function": shown})
    return calls, kept


def _arguments(raw: Any) -> Any:
    if raw is None or raw == "":
        return {}
    if not isinstance(raw, str):
        return raw
    try:
        return json.loads(raw, strict=False)
    except (ValueError, RecursionError):
        return raw
