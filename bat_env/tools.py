"""The two tools of an agent, written once: schema, renderings, and the check of a call.

Agents get ``execute_code`` and ``submit_results``; only infrastructure gets reset and step. A bad
call is never an exception: :func:`validate_call` answers with the text that the agent reads.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

ToolName: TypeAlias = Literal["execute_code", "submit_results"]

EXECUTE: Final = "execute_code"
SUBMIT: Final = "submit_results"
LANGUAGES: Final[tuple[str, ...]] = ("python", "bash")
MAX_CODE_CHARS: Final = 65_536
"""Default limit of one cell's code; a task may set another one in its budgets."""

TOOLS: Final[dict[str, dict[str, Any]]] = {
    EXECUTE: {
        "description": (
            "Run code in a fresh process whose working directory is /workspace. State lives in "
            "files only: variables do not survive the call. Returns the exit code, the output and "
            "the files that were created, changed or deleted."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "language": {
                    "type": "string",
                    "enum": list(LANGUAGES),
                    "description": "Interpreter of the code.",
                },
                "code": {
                    "type": "string",
                    "maxLength": MAX_CODE_CHARS,
                    "description": "Source text to run.",
                },
            },
            "required": ["language", "code"],
            "additionalProperties": False,
        },
    },
    SUBMIT: {
        "description": "Hand in the work in /workspace for grading. This ends the episode.",
        "parameters": {
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": False,
        },
    },
}
"""Tool name -> description and JSON schema of its arguments. Every rendering is made from this."""


def openai_tools() -> list[dict[str, Any]]:
    """The tools for the ``tools`` field of an OpenAI-compatible chat request."""
    return [
        {"type": "function", "function": {"name": name, **copy.deepcopy(tool)}}
        for name, tool in TOOLS.items()
    ]


def mcp_tools() -> list[dict[str, Any]]:
    """The tools as a Model Context Protocol ``tools/list`` answer names them."""
    return [
        {
            "name": name,
            "description": tool["description"],
            "inputSchema": copy.deepcopy(tool["parameters"]),
        }
        for name, tool in TOOLS.items()
    ]


def hermes_tools() -> list[dict[str, Any]]:
    """The tools for the ``tools=`` argument of a Hermes-style chat template.

    Such templates print one JSON object a line between ``<tools>`` tags and expect calls as
    ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.
    """
    return openai_tools()


@dataclass(frozen=True, slots=True)
class ValidCall:
    """A call that passed :func:`validate_call`.

    Attributes:
        name: The tool.
        arguments: ``{"language", "code"}`` for ``execute_code``, empty for ``submit_results``.
    """

    name: ToolName
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def language(self) -> str:
        """Interpreter of an ``execute_code`` call."""
        return self.arguments["language"]

    @property
    def code(self) -> str:
        """Source text of an ``execute_code`` call."""
        return self.arguments["code"]

    def to_action(self) -> dict[str, Any]:
        """The call as an action of the environment."""
        return {"name": self.name, "arguments": dict(self.arguments)}


def execute_call(language: str, code: str) -> dict[str, Any]:
    """The action that runs ``code``."""
    return {"name": EXECUTE, "arguments": {"language": language, "code": code}}


def submit_call() -> dict[str, Any]:
    """The action that hands in."""
    return {"name": SUBMIT, "arguments": {}}


def text_problem(text: str) -> str | None:
    """Why ``text`` cannot travel as UTF-8 without NUL bytes, or ``None`` if it can."""
    position = text.find("\0")
    if position >= 0:
        return f"has a NUL byte at character {position}; remove it"
    if text.isascii():
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"has a lone surrogate at character {error.start}; send valid Unicode text"
    return None


def validate_call(action: object, code_chars: int = MAX_CODE_CHARS) -> ValidCall | str:
    """Check one action.

    Args:
        action: Whatever the agent sent.
        code_chars: Most characters that one cell's code may have.

    Returns:
        The checked call, or one sentence saying what was expected, what came and what to do. Never
        raises, whatever came.
    """
    try:
        return _validate(action, code_chars)
    except Exception as error:  # a hostile object may raise from any of its methods
        return f"The action could not be read ({type(error).__name__}); send a plain JSON object."


def _validate(action: object, code_chars: int) -> ValidCall | str:
    if not isinstance(action, dict):
        return (
            'The action must be an object like {"name": "execute_code", "arguments": {...}}, '
            f"got {_kind(action)}."
        )
    for key in ("name", "arguments"):
        if key not in action:
            return f'The action lacks the key "{key}"; it needs "name" and "arguments".'
    extra = [_show(key) for key in action if key not in ("name", "arguments")]
    if extra:
        return f'Unknown key {extra[0]} in the action; it has only "name" and "arguments".'
    name, arguments = action["name"], action["arguments"]
    if not isinstance(name, str):
        return f'"name" must be a string, got {_kind(name)}. Tools: {", ".join(TOOLS)}.'
    if name not in TOOLS:
        close = difflib.get_close_matches(name[:64], TOOLS, n=1, cutoff=0.4)
        hint = f' Did you mean "{close[0]}"?' if close else ""
        return f"Unknown tool {_show(name)}.{hint} Tools: {', '.join(TOOLS)}."
    if not isinstance(arguments, dict):
        return f'"arguments" of {name} must be an object, got {_kind(arguments)}.'
    return _validate_arguments(name, arguments, code_chars)


def _validate_arguments(name: str, arguments: dict[Any, Any], code_chars: int) -> ValidCall | str:
    schema = TOOLS[name]["parameters"]
    properties: dict[str, dict[str, Any]] = schema["properties"]
    for key in arguments:
        if key not in properties:
            takes = ", ".join(f'"{p}"' for p in properties) or "no arguments"
            close = difflib.get_close_matches(str(key)[:64], properties, n=1, cutoff=0.5)
            hint = f' Did you mean "{close[0]}"?' if close else ""
            return f"Unknown argument {_show(key)} of {name}.{hint} It takes {takes}."
    for key in schema["required"]:
        if key not in arguments:
            return f'{name} lacks the argument "{key}".'
    for key, value in arguments.items():
        if not isinstance(value, str):
            return f'Argument "{key}" of {name} must be a string, got {_kind(value)}.'
        allowed = properties[key].get("enum")
        if allowed and value not in allowed:
            return (
                f'Argument "{key}" of {name} must be one of {", ".join(allowed)}, '
                f"got {_show(value)}."
            )
    if name == SUBMIT:
        return ValidCall(SUBMIT)
    code = arguments["code"]
    if len(code) > code_chars:
        return (
            f"The code has {len(code)} characters; at most {code_chars} are allowed. Write long "
            "files in several calls."
        )
    problem = text_problem(code)
    if problem:
        return f"The code {problem}."
    return ValidCall(EXECUTE, {"language": str(arguments["language"]), "code": str(code)})


_JSON_KINDS: Final[tuple[tuple[type, str], ...]] = (
    (type(None), "null"),
    (bool, "a boolean"),
    (int, "a number"),
    (float, "a number"),
    (str, "a string"),
    (bytes, "bytes"),
    (list, "a list"),
    (tuple, "a list"),
    (dict, "an object"),
)


def _kind(value: object) -> str:
    """The JSON kind of a value, for messages; never calls the value's own methods."""
    for kind, name in _JSON_KINDS:
        if issubclass(type(value), kind):
            return name
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in tuple('aeio') else 'a'} {name}"[:80]


def _show(value: object) -> str:
    """A short, printable rendering of a name that came."""
    if not isinstance(value, str):
        return _kind(value)
    text = value if len(value) <= 48 else value[:45] + "..."
    return '"' + text.encode("unicode_escape").decode("ascii").replace('"', '\\"') + '"'
