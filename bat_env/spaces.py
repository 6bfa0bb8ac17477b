"""Gymnasium spaces of the suite: any text, and tool calls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from gymnasium.spaces import Space

from bat_env.tools import MAX_CODE_CHARS, ValidCall, execute_call, text_problem, validate_call

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789 .,:-_/\n\tµ°é漢🧠"

PROBES: Final[tuple[tuple[str, str], ...]] = (
    ("bash", "ls /data"),
    ("bash", "ls -R /workspace"),
    ("bash", "ls /models /skills"),
    ("bash", "cat task/spec.json"),
    ("bash", "nproc"),
    ("python", "print(1)"),
    ("python", "import os\nprint(sorted(os.listdir('/data')))"),
    ("python", "import json\nprint(sorted(json.load(open('task/spec.json'))))"),
    ("python", "import numpy\nprint(numpy.__version__)"),
)
"""Read-only cells that :meth:`ToolCall.sample` draws from."""


class Unicode(Space[str]):
    r"""Any Unicode text, newlines included; contains no lone surrogates.

    Unlike :class:`gymnasium.spaces.Text` it has no charset, so membership of a megabyte is checked
    in well under a millisecond.

        >>> "two\nlines" in Unicode()
        True
        >>> "\ud800" in Unicode()
        False

    Args:
        max_length: Most characters, or ``None`` for no limit.
        seed: Seed of :meth:`sample`.
    """

    def __init__(
        self, max_length: int | None = None, seed: int | np.random.Generator | None = None
    ) -> None:
        if max_length is not None and max_length < 0:
            raise ValueError(f"max_length must be >= 0 or None, got {max_length}.")
        self.max_length = max_length
        super().__init__(dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Text has no fixed-size array form."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A short random text; neither ``mask`` nor ``probability`` is supported."""
        _refuse(mask, probability)
        limit = 32 if self.max_length is None else min(32, self.max_length)
        length = int(self.np_random.integers(limit + 1))
        return "".join(
            _ALPHABET[int(i)] for i in self.np_random.integers(len(_ALPHABET), size=length)
        )

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a text of valid Unicode within the limit."""
        if not isinstance(x, str) or (self.max_length is not None and len(x) > self.max_length):
            return False
        if x.isascii():
            return True
        try:
            x.encode("utf-8")
        except UnicodeEncodeError:
            return False
        return True

    def to_jsonable(self, sample_n: Iterable[str]) -> list[str]:
        """A batch as JSON strings."""
        return list(sample_n)

    def from_jsonable(self, sample_n: list[Any]) -> list[str]:
        """The inverse of :meth:`to_jsonable`."""
        return [str(text) for text in sample_n]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode) and self.max_length == other.max_length

    def __hash__(self) -> int:
        return hash((Unicode, self.max_length))

    def __repr__(self) -> str:
        return f"Unicode({'' if self.max_length is None else self.max_length})"


class ToolCall(Space[dict[str, Any]]):
    """Calls of the agent's tools, ``{"name": str, "arguments": dict}``.

    :meth:`sample` draws harmless probes: read-only cells that look around. It never submits, so a
    random agent ends by its budget.

        >>> {"name": "submit_results", "arguments": {}} in ToolCall()
        True
        >>> {"name": "submit_results"} in ToolCall()
        False

    Args:
        code_chars: Most characters of one cell's code.
        seed: Seed of :meth:`sample`.
    """

    def __init__(
        self, code_chars: int = MAX_CODE_CHARS, seed: int | np.random.Generator | None = None
    ) -> None:
        self.code_chars = code_chars
        super().__init__(seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Calls have no fixed-size array form."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> dict[str, Any]:
        """One probe; neither ``mask`` nor ``probability`` is supported."""
        _refuse(mask, probability)
        language, code = PROBES[int(self.np_random.integers(len(PROBES)))]
        return execute_call(language, code)

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a valid call; never raises."""
        return isinstance(validate_call(x, self.code_chars), ValidCall)

    def to_jsonable(self, sample_n: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """A batch as JSON objects."""
        return [{"name": c["name"], "arguments": dict(c["arguments"])} for c in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[dict[str, Any]]:
        """The inverse of :meth:`to_jsonable`."""
        return self.to_jsonable(sample_n)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolCall) and self.code_chars == other.code_chars

    def __hash__(self) -> int:
        return hash((ToolCall, self.code_chars))

    def __repr__(self) -> str:
        return f"ToolCall({self.code_chars})"


def clean_text(text: str) -> str:
    """``text`` made a member of :class:`Unicode`: lone surrogates and controls become U+FFFD."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)
    if text_problem(text) is None:
        return text
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


_CONTROLS: Final = {
    code: "\N{REPLACEMENT CHARACTER}"
    for code in (*range(0x20), *range(0x7F, 0xA0))
    if chr(code) not in "\n\t"
}


def _refuse(mask: Any | None, probability: Any | None) -> None:
    if mask is not None or probability is not None:
        raise ValueError("This space samples without mask and probability; leave both None.")
