"""Clean runs of a pipeline: what their outputs are worth, and whether the pipeline looks at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from bat_env.episode import RerunResult
from bat_env.grader import Grader
from bat_env.rubric import infer
from bat_env.sandbox.base import FileTree
from bat_env.stages import Stage
from bat_env.tasks import Task, stage_files
from bat_env.tasks.instance import Instance
from bat_env.verifier.clean import CleanRunner, Lease, alias, look_cases
from bat_env.verifier.memo import Memo, key_of

SAME_NUMBER: Final[float] = 0.025
"""How far a probability of a pilot's row may lie from the clean run's."""
CHANCE: Final[Mapping[str, float]] = {"text": 0.3, "boxes-json": 0.1}
"""Mean score of single cases up to which reports or boxes could be drawn by lot."""


class Looks:
    """Runs pipelines on cases of one instance, and looks into what comes out of them.

    What was run or seen once is remembered.

    Args:
        runner: Clean sandboxes.
        grader: Parses every output.
        memo: What was run and seen before.
        task: The task.
        instance: Its instance.
        tier: Of the brief, which decides what lies beside the pipeline.

    Attributes:
        about: Names task and instance, for keys of the memory.
    """

    def __init__(
        self,
        runner: CleanRunner,
        grader: Grader,
        memo: Memo,
        task: Task,
        instance: Instance,
        tier: str,
    ) -> None:
        self.about = key_of(task.spec.model_dump_json(), instance.digest)
        self._runner, self._grader, self._memo = runner, grader, memo
        self._task, self._spec, self._instance, self._tier = task, task.spec, instance, tier

    def inspected(self, case: str, data: bytes) -> Mapping[str, Any]:
        """What the grader sees in one output; of table rows and reports an answer too."""
        return self.inspected_all({case: data})[case]

    def inspected_all(self, outputs: Mapping[str, bytes]) -> dict[str, dict[str, Any]]:
        """The same of outputs of several cases, by one request to the grader."""
        return self._memo.get_all(
            {case: key_of("inspect", self.about, case, data) for case, data in outputs.items()},
            lambda cases: self._grader.inspect_all(
                self._task, self._instance, {case: outputs[case] for case in cases}
            ),
        )

    def agreement(self, case: str, a: bytes, b: bytes) -> float:
        """How far two outputs of a case agree, in [0, 1]."""
        return self.agreements({case: (a, b)})[case]

    def agreements(self, pairs: Mapping[str, tuple[bytes, bytes]]) -> dict[str, float]:
        """The same of two outputs of each of several cases, by one request to the grader."""
        other = {case: pair for case, pair in pairs.items() if pair[0] != pair[1]}
        found = self._memo.get_all(
            {case: key_of("agreement", self.about, case, *pair) for case, pair in other.items()},
            lambda cases: self._grader.agreements(
                self._task, {case: other[case] for case in cases}
            ),
        )
        return {case: found.get(case, 1.0) for case in pairs}

    def same_row(self, case: str, a: bytes, b: bytes) -> bool:
        """Whether the numbers of two rows are the same: one label alone may agree by luck."""
        rows = []
        for data in (a, b):
            said = str(self.inspected(case, data).get("answer", "")).partition("\n")[0]
            rows.append(said.partition("\t")[2].split())
        return len(rows[0]) == len(rows[1]) and all(map(_same_number, *rows))

    def score_of(self, lease: Lease, case: str, workspace: FileTree) -> float:
        """Case score of a pipeline's clean run; 0 where it gives no output."""
        rerun = self.rerun(lease, case, self.public(case), workspace)
        return float(self.inspected(case, rerun.output).get("case_score", 0.0)) if rerun.ok else 0.0

    def looked(self, lease: Lease, workspace: FileTree) -> dict[str, Mapping[str, Any]]:
        """What is in the outputs of clean runs on several cases; nothing where there is none."""
        inputs = {case: self.public(case) for case in look_cases(self._instance)}
        runs = self.reruns(lease, inputs, workspace)
        if not any(rerun.ok for rerun in runs.values()):
            # One of them may have ended the run of all.
            runs = {c: self.rerun(lease, c, tree, workspace) for c, tree in inputs.items()}
        seen = self.inspected_all({c: rerun.output for c, rerun in runs.items() if rerun.ok})
        return {case: seen.get(case, {}) for case in runs}

    def worthless(self, lease: Lease, case: str, output: bytes, workspace: FileTree) -> str:
        """Whether the pipeline's outputs are worth no more than a trivial answer: how, or ``""``.

        One case may go wrong by chance, so others are run before anything is said. They are the
        same whoever asks: of one pipeline, set-up and pilot are told one thing.
        """
        bar = self._spec.floor
        first = float(self.inspected(case, output).get("case_score", 0.0))
        if not self.by_chance and first > bar:
            return ""
        looked = self.looked(lease, workspace)
        scores = [float(seen.get("case_score", 0.0)) for seen in looked.values()]
        if self._spec.output.is_table:
            # A row is right or wrong: by chance, and a deviation more, as answers can be drawn.
            chance = 1.0 / max(2, len(self._spec.output.labels))
            bar = chance + math.sqrt(chance * (1.0 - chance) / len(scores))
        elif self.by_chance:
            bar = CHANCE[self._spec.output.format]
        mean = sum(scores) / len(scores)
        if mean > bar:
            return ""
        return (
            f"clean runs on {len(scores)} cases are worth no more than trivial answers ({mean:.3f})"
        )

    @property
    def by_chance(self) -> bool:
        """Whether an answer drawn by lot is right now and then, so that one case says little."""
        return self._spec.output.is_table or self._spec.output.format in CHANCE

    def unseeing(self, lease: Lease, case: str, output: bytes, workspace: FileTree) -> str:
        """Whether the pipeline answers without a look at its input: how, or ``""``.

        Where cases may have the same answer, other cases are run until one has another.
        """
        seen = self.inspected(case, output)
        if seen.get("trivial") or not seen.get("answer"):
            return str(seen.get("trivial", ""))
        answers = [str(seen["answer"])]
        if self.by_chance:
            others = self.looked(lease, workspace)
            answers += [str(said.get("answer", "")) for c, said in others.items() if c != case]
            return "the same answer for every case" if infer.same_answer(answers, sure=True) else ""
        for other in (c for c in look_cases(self._instance) if c != case):
            rerun = self.rerun(lease, other, self.public(other), workspace)
            if not rerun.ok:
                return ""
            answers.append(str(self.inspected(other, rerun.output).get("answer", "")))
            if not infer.same_answer(answers, sure=True):
                return ""
        return "the same answer for every case"

    def public(self, case: str) -> FileTree:
        """File name -> content of a case's input."""
        public = self._instance.public.items()
        return {p.removeprefix(f"{case}/"): d for p, d in public if p.startswith(f"{case}/")}

    def rerun(self, lease: Lease, case: str, inputs: FileTree, workspace: FileTree) -> RerunResult:
        """``predict.py`` of a workspace on one case, in a clean sandbox."""
        return self.reruns(lease, {case: inputs}, workspace)[case]

    def reruns(
        self, lease: Lease, cases: Mapping[str, FileTree], workspace: FileTree
    ) -> dict[str, RerunResult]:
        """The same on several cases in one run: case -> what came of it."""
        staged = stage_files(self._task, self._instance, self._tier, Stage.S4)
        names = {case: alias(self._instance, case) for case in cases}
        results = self._runner.run(
            lease,
            {p: d for p, d in workspace.items() if p.startswith("pipeline/")},
            {p: d for p, d in staged.items() if p.startswith("models/")},
            {names[case]: inputs for case, inputs in cases.items()},
            self._spec.output.name,
            self._spec.budgets.cell_timeout_s,
        )
        found = {case: results[name] for case, name in names.items()}
        if self._spec.output.is_table:
            # A row names its case; the pipeline only knows the name that it was run under.
            for case, rerun in found.items():
                output = rerun.output.replace(names[case].encode(), case.encode())
                found[case] = RerunResult(rerun.ok, rerun.message, output)
        return found


def _same_number(a: str, b: str) -> bool:
    try:
        return a == b or abs(float(a) - float(b)) <= SAME_NUMBER
    except ValueError:
        return False
