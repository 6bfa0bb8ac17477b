"""Visual questions with options: accuracy rescaled so that the best constant answer is 0.

The output is one table, ``case,answer``; an answer is the letter of an option.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bat_env.errors import TaskError
from bat_env.metrics.base import (
    TRUTH_JSON,
    Case,
    MetricParams,
    UnreadableError,
    class_names,
    parse_params,
    unreadable_facts,
    with_quantity,
)
from bat_env.metrics.records import truth_of
from bat_env.metrics.rule import (
    CaseScore,
    TaskScore,
    bootstrap_ci,
    clip,
    missing_case,
    rescale,
)
from bat_env.metrics.table import Table, read_each, read_table, row_of
from bat_env.tasks.spec import TaskSpec

CONFIDENCE_COLUMN: Final = "confidence"
ANSWER_COLUMN: Final = "answer"


class VqaParams(MetricParams):
    """The metric has no constants: the letters are ``output.labels``."""


def constant_accuracy(questions: Sequence[tuple[str, Mapping[str, str]]]) -> float:
    """Accuracy of the best answer that ignores the picture and the question.

    Args:
        questions: True letter and options (letter -> text) of every question.

    Returns:
        The larger of "always this letter" and "this text wherever it is an option"; texts count
        without case and outer blanks.
    """
    if not questions:
        return 0.0
    letters = Counter(letter for letter, _ in questions)
    texts = Counter(options[letter].strip().casefold() for letter, options in questions)
    return max(*letters.values(), *texts.values()) / len(questions)


def _confidence(table: Table) -> dict[str, float]:
    """Mean of the optional column ``confidence``, where every row has a number in [0, 1]."""
    try:
        shares = [float(row[CONFIDENCE_COLUMN]) for row in table.rows.values()]
    except (KeyError, ValueError):
        return {}
    usable = bool(shares) and all(0.0 <= share <= 1.0 for share in shares)
    return {"confidence": sum(shares) / len(shares)} if usable else {}


def _properties(spec: TaskSpec, table: Table) -> dict[str, Any]:
    said = Counter(row[ANSWER_COLUMN].upper() for row in table.rows.values())
    letters = class_names(spec)
    values: dict[str, float] = {f"{letter}_count": said[letter] for letter in letters}
    values |= {"rows": len(table.rows)} | _confidence(table)
    used = [letter for letter in letters if said[letter]]
    facts = {"shape": [len(table.rows)], "dtype": "text", "labels": used, "values": values}
    return with_quantity(spec, {"readable": True, "affine_ok": True, **facts})


def _answer(spec: TaskSpec, table: Table, case: str, options: Sequence[str]) -> str:
    answer = row_of(table, case)[ANSWER_COLUMN].upper()
    if answer not in options:
        raise UnreadableError(f"answers {case} with {answer!r:.40}, not with a letter of an option")
    return answer


class VqaAccuracy:
    """See the module."""

    name: Final = "vqa_accuracy"
    shared_output: Final = True
    needs_input: Final = False

    def truth_names(self, spec: TaskSpec) -> tuple[str, ...]:
        """``truth.json``: ``{"answer": letter, "options": {letter: text}}``."""
        return (TRUTH_JSON,)

    def check(self, spec: TaskSpec) -> None:
        """Raise if the parameters do not fit, or the letters are not upper case."""
        parse_params(VqaParams, spec)
        letters = class_names(spec)
        if len(letters) < 2 or any(letter != letter.strip().upper() for letter in letters):
            raise TaskError(f"Expected two or more upper-case letters in output.labels: {letters}.")

    def prepare(self, spec: TaskSpec, cases: Sequence[Case]) -> dict[str, Any]:
        """True letters, the options of every case, and the best constant's accuracy."""
        questions: dict[str, tuple[str, dict[str, str]]] = {}
        for case in cases:
            truth = truth_of(case)
            answer, options = truth.get("answer"), truth.get("options")
            if not isinstance(options, dict) or not (
                answer in options and set(options) <= set(class_names(spec))
            ):
                raise TaskError(
                    f"Expected options by letter and an answer among them in the truth of "
                    f"{case.id}, got {truth!r:.200}."
                )
            questions[case.id] = (str(answer), {str(k): str(v) for k, v in options.items()})
        return {
            "truth": {case: answer for case, (answer, _) in questions.items()},
            "options": {case: sorted(options) for case, (_, options) in questions.items()},
            "constant": constant_accuracy(list(questions.values())),
        }

    def score(
        self, spec: TaskSpec, cases: Sequence[Case], known: Mapping[str, Any]
    ) -> dict[str, CaseScore]:
        """1 for the right letter, 0 else."""
        table_of = read_each(cases, [ANSWER_COLUMN])
        rows: dict[str, CaseScore] = {}
        facts: dict[bytes, dict[str, Any]] = {}
        for case in cases:
            if case.output is None:
                rows[case.id] = missing_case()
                continue
            try:
                table = table_of(case)
                if case.output not in facts:
                    facts[case.output] = _properties(spec, table)
                answer = _answer(spec, table, case.id, known["options"][case.id])
            except UnreadableError as error:
                found = facts.get(case.output, {"readable": False})
                rows[case.id] = CaseScore(0.0, False, f"the file {error}", properties=found)
                continue
            right = float(answer == known["truth"][case.id])
            rows[case.id] = CaseScore(
                right,
                True,
                properties=facts[case.output],
                answer=answer + "\t" + row_of(table, case.id).get(CONFIDENCE_COLUMN, "")[:4],
            )
        return rows

    def total(
        self,
        spec: TaskSpec,
        rows: Mapping[str, CaseScore],
        known: Mapping[str, Any],
        *,
        seed: int = 0,
    ) -> TaskScore:
        """Accuracy over all cases of ``known``, rescaled; the best constant is held fixed."""
        table = {case: rows.get(case) or missing_case() for case in known["truth"]}
        per_case = {case: clip(row.score) for case, row in table.items()}
        constant = float(known["constant"])
        accuracy = sum(per_case.values()) / len(per_case) if per_case else 0.0
        low, high = bootstrap_ci(per_case.values(), seed=seed)
        return TaskScore(
            score=rescale(accuracy, constant, 1.0),
            per_case=per_case,
            valid={case: row.valid for case, row in table.items()},
            messages={case: row.message for case, row in table.items() if row.message},
            secondary={"accuracy": accuracy, "constant_accuracy": constant},
            ci95=(rescale(low, constant, 1.0), rescale(high, constant, 1.0)),
            properties={case: row.properties for case, row in table.items()},
        )

    def inspect(self, spec: TaskSpec, case: Case) -> dict[str, Any]:
        """Facts of the table; valid if it answers the case with a letter of the task."""
        facts: dict[str, Any] = {}
        try:
            table = read_table(case.output or b"", [ANSWER_COLUMN])
            facts = _properties(spec, table)
            _answer(spec, table, case.id, class_names(spec))
        except UnreadableError as error:
            return {**unreadable_facts(f"the file {error}"), **facts, "valid": False}
        return {**facts, "valid": True, "message": ""}

    def agreement(self, spec: TaskSpec, case: str, a: bytes, b: bytes) -> float:
        """1 if both tables give the case the same letter."""
        try:
            one, two = (
                _answer(spec, read_table(data, [ANSWER_COLUMN]), case, class_names(spec))
                for data in (a, b)
            )
        except UnreadableError:
            return 0.0
        return float(one == two)
