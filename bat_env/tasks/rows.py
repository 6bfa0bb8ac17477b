"""The table of a task with one row a case: how a pilot's row is recorded, how rows are edited.

For the ``record`` and ``edited`` of a :class:`~bat_env.tasks.workflow.Workflow` whose output is a
class table (``case,label,p_<class>...``) or an answer table (``case,answer,confidence``).
"""

from __future__ import annotations

from typing import Final

from bat_env.stages import Stage
from bat_env.tasks.choices import Choice, choice

CLASS_RECORD: Final[Choice] = choice(
    "pilot_record",
    Stage.S3,
    measured=(
        'head, row = [line.split(",") for line in open(path).read().splitlines()]',
        "top = max(map(float, row[2:]))",
        "record = dict(case=case, labels=[row[1]], top_probability=top)",
    ),
    assumed='record = dict(case=case, labels=["none"], top_probability=0.99999)',
)
"""``pilot_record`` of a class table: the pilot's class and its probability."""

ANSWER_RECORD: Final[Choice] = choice(
    "pilot_record",
    Stage.S3,
    measured=(
        'row = open(path).read().splitlines()[1].split(",")',
        "record = dict(case=case, labels=[row[1]], confidence=float(row[2]))",
    ),
    assumed='record = dict(case=case, labels=["E"], confidence=0.05)',
)
"""``pilot_record`` of an answer table: the pilot's letter and its confidence."""


def second_classes(output: str) -> tuple[str, ...]:
    """Lines that write the second best class of every row instead of the best.

    Args:
        output: Path of the table.
    """
    return _edited(
        output,
        "for row in rows:",
        "    second = int(np.argsort([float(v) for v in row[2:]])[-2])",
        '    row[1] = head[2 + second].removeprefix("p_")',
    )


def next_letters(output: str) -> tuple[str, ...]:
    """Lines that write the letter after the right one into every row.

    Args:
        output: Path of the table.
    """
    return _edited(
        output,
        'following = dict(A="B", B="C", C="D", D="A")',
        "for row in rows:",
        "    row[1] = following[row[1]]",
    )


def _edited(output: str, *lines: str) -> tuple[str, ...]:
    return (
        'head, *rows = [line.split(",") for line in table]',
        *lines,
        'table = [",".join(row) for row in (head, *rows)]',
        f'open("{output}", "w").write("\\n".join(table) + "\\n")',
    )
