"""Trivial outputs: what a submission reaches without looking at a picture.

Their scores are measured on dev instances, stored as ``floors`` in task.yaml, and must stay at or
below 0.10.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from bat_env.tasks.instance import Instance

LETTERS = "ABCD"
FAVOURITES = ("pleural effusion", "left lung", "consolidation", "cardiomegaly")


def _table(answers: Mapping[str, str]) -> bytes:
    rows = ["case,answer", *(f"{case},{letter}" for case, letter in answers.items())]
    return ("\n".join(rows) + "\n").encode()


def _favourite(options: Mapping[str, str]) -> str:
    """The letter of the first favourite text among the options, else the first letter."""
    of = {text: letter for letter, text in options.items()}
    return next((of[text] for text in FAVOURITES if text in of), LETTERS[0])


def outputs(instance: Instance) -> Mapping[str, dict[str, bytes]]:
    """Method -> {workspace path: file}, for every case of an instance."""
    options = {
        case: json.loads(instance.public[f"{case}/question.json"])["options"]
        for case in instance.cases
    }
    made = {f"all_{letter}": dict.fromkeys(instance.cases, letter) for letter in LETTERS}
    made["longest"] = {
        case: max(sorted(texts), key=lambda letter: len(texts[letter]))
        for case, texts in options.items()
    }
    made["favourite"] = {case: _favourite(texts) for case, texts in options.items()}
    made["by_name"] = {
        case: LETTERS[hashlib.sha256(case.encode()).digest()[0] % 4] for case in instance.cases
    }
    return {name: {"outputs/answers.csv": _table(rows)} for name, rows in made.items()}
