"""Answers on disk, each under a digest of all that it rests on: contract, prompt, files, model.

Only complete answers are kept. What is read back passes the same checks as an answer that has just
come, so a damaged or planted entry is at worst asked again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bat_env.errors import BatError
from bat_env.judge.answer import MAX_ANSWER_CHARS
from bat_env.trajectory import write_json

SCHEMA_VERSION: Final = 1


def default_folder() -> Path:
    """``$BAT_HOME/judge``, else ``~/.cache/automed-bat/judge``."""
    home = os.environ.get("BAT_HOME")
    return (Path(home) if home else Path.home() / ".cache" / "automed-bat") / "judge"


def key_of(parts: Mapping[str, Any]) -> str:
    """sha256 of what an answer rests on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Cache:
    """Answers by key. Safe for threads and processes: an entry is there whole or not at all.

    Args:
        folder: Made when the first answer is kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        """File of an entry."""
        return self.folder / key[:2] / f"{key}.json"

    def get(self, key: str) -> list[dict[str, Any]] | None:
        """The items of a kept answer, or ``None`` if there is none that can be read."""
        try:
            with self.path(key).open("rb") as stream:
                data = stream.read(4 * MAX_ANSWER_CHARS)
            entry = json.loads(data)
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(entry, dict) or entry.get("schema_version") != SCHEMA_VERSION:
            return None
        items = entry.get("items")
        return items if entry.get("key") == key and isinstance(items, list) else None

    def put(self, key: str, about: Mapping[str, Any], items: list[dict[str, Any]]) -> None:
        """Keep an answer. A disk that refuses costs nothing but the next request.

        Args:
            key: From :func:`key_of`.
            about: What it rests on; kept beside it for people.
            items: Its items, in the form of an answer.
        """
        entry = {"schema_version": SCHEMA_VERSION, "key": key, **about, "items": items}
        try:
            write_json(self.path(key), entry)
        except (BatError, ValueError):
            return
