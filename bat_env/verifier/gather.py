"""Gathering: which evidence an episode's focus needs, and how each piece of it is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

from bat_env.episode import Episode, Evidence, GradeResult, RerunResult
from bat_env.errors import GraderError, SandboxError
from bat_env.grader import Grader
from bat_env.rubric import infer, plan, setup, submit, validate
from bat_env.rubric.claims import MAX_JSON_BYTES, matching, own_paths
from bat_env.sandbox.base import FileTree, Sandbox
from bat_env.stages import Stage
from bat_env.tasks import Task, stage_files
from bat_env.tasks.instance import Instance
from bat_env.verifier.clean import (
    MAX_OUTPUT_BYTES,
    MAX_PIPELINE_BYTES,
    MAX_PIPELINE_FILES,
    CleanRunner,
    Lease,
    Pool,
    alias,
    drawn_cases,
    look_cases,
    recovery_cases,
)
from bat_env.verifier.memo import Memo, key_of

MAX_IMAGE_BYTES: Final[int] = 4 * 1024 * 1024
SAME_NUMBER: Final[float] = 0.025
"""How far a probability of a pilot's row may lie from the clean run's."""
OF_STAGE: Final[Mapping[Stage, tuple[str, ...]]] = {
    Stage.S1: (plan.PLAN, plan.FACTS, plan.IMAGE),
    Stage.S2: (setup.SETUP, setup.PREDICT),
    Stage.E2E: (plan.PLAN, plan.FACTS, plan.IMAGE, setup.SETUP, setup.PREDICT),
}
"""Files of the plan and the set-up that a bank state may hand over to those who do them again."""
TABLE_RERUNS: Final[int] = 6
"""Rows of a table that are made again."""
CHANCE: Final[Mapping[str, float]] = {"text": 0.3, "boxes-json": 0.1}
"""Mean score of single cases up to which reports or boxes could be drawn by lot."""


class Verifier:
    """Gathers evidence at hand-in. Thread-safe for different episodes.

    Args:
        pool: Clean sandboxes of the kind that the agent had.
        grader: Parses every file that the agent wrote.
    """

    def __init__(self, pool: Pool, grader: Grader) -> None:
        self.runner = CleanRunner(pool)
        self.grader = grader
        self.memo = Memo()

    def gather(
        self,
        episode: Episode,
        task: Task,
        instance: Instance,
        sandbox: Sandbox,
        initial: FileTree | None = None,
    ) -> None:
        """Fill ``episode.evidence`` with what the episode's focus needs.

        Never raises for what an agent did or for infrastructure that failed: the latter is named
        in ``evidence.lost``. A second call repeats only what was lost.

        Args:
            episode: The record at hand-in.
            task: Its task.
            instance: Its instance.
            sandbox: The agent's sandbox, to read files back from.
            initial: Workspace of the bank state at reset (workspace-relative paths), if any.
                Without it, inherited files that were changed since count as missing at reset.
        """
        if not episode.worked or episode.status == "disqualified":
            return
        work = _Work(self, episode, task, instance)
        work.piece("files", lambda: work.read_back(sandbox))
        if "files" in episode.evidence.lost:
            return
        focus = episode.focus
        if focus in (Stage.S1, Stage.E2E) and plan.IMAGE in episode.evidence.files:
            work.piece("plan_image", work.plan_image)
        if focus in (Stage.S2, Stage.E2E):
            expected = {key: float(task.probe_expected[key]) for key in ("mean", "std")}
            episode.evidence.probe_expected = expected
        # The grader is a process of its own: it works while clean runs go on.
        with ThreadPoolExecutor(1, "bat-grade") as beside, ExitStack() as stack:
            grading = beside.submit(work.grading, initial)
            lease = Lease(self.runner.pool, stack)
            if focus in (Stage.S3, Stage.E2E):
                work.piece("pilot", lambda: work.pilot(lease, initial))
            if focus in (Stage.S2, Stage.E2E):
                work.setup(lease)
            if initial and any(path in initial for path in OF_STAGE.get(focus, ())):
                work.piece("handed", lambda: work.handed(lease, initial))
            grading.result()
            if focus in (Stage.S4, Stage.E2E) and work.done():
                work.piece("batch_rerun", lambda: work.batch(lease))


class _Work:
    """The pieces of one hand-in."""

    def __init__(
        self, verifier: Verifier, episode: Episode, task: Task, instance: Instance
    ) -> None:
        self.runner = verifier.runner
        self.grader = verifier.grader
        self.memo = verifier.memo
        self.episode = episode
        self.evidence = episode.evidence
        self.task = task
        self.spec = task.spec
        self.instance = instance
        self.about = key_of(task.spec.model_dump_json(), instance.digest)

    def piece(self, name: str, make: Callable[[], None]) -> None:
        """Make one piece of evidence unless it is there; note how infrastructure lost it."""
        if getattr(self.evidence, name):
            return
        try:
            make()
        except (SandboxError, GraderError, OSError) as error:
            self.evidence.lost[name] = f"{type(error).__name__}: {str(error)[:300]}"
        else:
            self.evidence.lost.pop(name, None)

    # ------------------------------------------------------------------------------------- files

    def read_back(self, sandbox: Sandbox) -> None:
        """Read the files that the rubric looks at; too large or special ones stay out."""
        files: dict[str, bytes] = {}
        room = MAX_PIPELINE_BYTES
        count = 0
        for path, entry in self.episode.current.items():
            if entry.kind != "file":
                continue
            bound = self._bound(path)
            if path.startswith("pipeline/"):
                room -= entry.size
                count += 1
            if entry.size > bound:
                continue
            try:
                files[path] = sandbox.read(path, bound)
            except (FileNotFoundError, ValueError):
                continue
        if room < 0 or count > MAX_PIPELINE_FILES:
            # The whole folder is refused, never a part of it that the agent could steer.
            files = {p: d for p, d in files.items() if not p.startswith("pipeline/")}
        self.evidence.files = files

    def _bound(self, path: str) -> int:
        """Largest size at which a file is read back; negative for files of no interest."""
        if path in (plan.PLAN, plan.FACTS, setup.SETUP, validate.RECORD, submit.MANIFEST):
            return MAX_JSON_BYTES
        if path == plan.IMAGE:
            return MAX_IMAGE_BYTES
        if path.startswith("pipeline/"):
            return MAX_PIPELINE_BYTES
        outputs = (validate.output_pattern(self.spec), validate.pilot_pattern(self.spec))
        return MAX_OUTPUT_BYTES if any(matching((path,), p) for p in outputs) else -1

    # ----------------------------------------------------------------------------------- grading

    def plan_image(self) -> None:
        """Decode the plan's picture."""
        self.evidence.plan_image = self._picture(self.evidence.files[plan.IMAGE])

    def _picture(self, data: bytes) -> dict[str, Any]:
        seen = self.grader.image(data)
        source = next((path for path, other in self.instance.public.items() if other == data), "")
        return {**seen, "copied": f"/data/{source}"} if source else seen

    def grading(self, initial: FileTree | None) -> None:
        """Grade what lies under outputs/, and what lay there at reset."""
        if self.episode.focus in (Stage.S4, Stage.S5, Stage.E2E):
            self.piece("grade", self.grade)
            self.piece("inherited", lambda: self.inherited(initial))

    def grade(self) -> None:
        """Grade what lies under outputs/."""
        files = self.evidence.files
        self.evidence.grade = self._graded(files)
        own = own_paths(self.episode)
        outputs = matching(tuple(files), validate.output_pattern(self.spec))
        if self.episode.focus is Stage.E2E and not set(outputs) <= set(own):
            self.evidence.grade_own = self._graded({p: d for p, d in files.items() if p in own})

    def _graded(self, files: FileTree) -> GradeResult:
        every = (self.spec.output.path.format(case=c) for c in self.instance.cases)
        paths = list(dict.fromkeys(every))
        parts = [p for path in paths if path in files for p in (path, files[path])]
        return self.memo.get(
            key_of("grade", self.about, *parts),
            lambda: self.grader.grade(self.task, self.instance, files),
        )

    def _inspected(self, case: str, data: bytes) -> Mapping[str, Any]:
        return self.memo.get(
            key_of("inspect", self.about, case, data),
            lambda: self.grader.inspect(self.task, self.instance, case, data),
        )

    def done(self) -> list[str]:
        """Cases with a valid output of this episode's own: only they can earn anything."""
        grade, own = self.evidence.grade, own_paths(self.episode)
        path = self.spec.output.path
        return [
            case
            for case in self.instance.cases
            if grade is not None and grade.valid.get(case) and path.format(case=case) in own
        ]

    def pilot(self, lease: Lease, initial: FileTree | None) -> None:
        """Inspect the one own pilot output, in recovery states beside the ill pipeline's."""
        path = validate.pilot_path(self.episode, self.spec)
        if path is None:
            return
        case = path.split("/")[2]
        if case not in self.instance.cases:
            why = "it belongs to no case of this task"
        elif path not in self.evidence.files:
            why = "it is too large or no regular file"
        else:
            seen = dict(self._inspected(case, self.evidence.files[path]))
            if seen.get("readable"):
                seen |= self._made_by_pipeline(lease, case, path)
            if self.episode.focus is Stage.S3 and self.episode.outcome == "recovery":
                seen |= self._recovery(lease, case, seen, initial or {})
            self.evidence.pilot = seen
            return
        self.evidence.pilot = {"readable": False, "valid": False, "message": why}

    def _made_by_pipeline(self, lease: Lease, case: str, path: str) -> dict[str, Any]:
        """How far the pilot output agrees with a clean run, and whether the pipeline looks."""
        files = self.evidence.files
        rerun = self._rerun(lease, case, self._public(case), files)
        if not rerun.ok:
            return {"agreement": 0.0, "rerun": f"its clean run failed: {rerun.message}"}
        found: dict[str, Any] = {"agreement": self._agreement(case, rerun.output, files[path])}
        if self.spec.output.is_table and not self._same_row(case, rerun.output, files[path]):
            found["agreement"] = 0.0
        if setup.PREDICT in own_paths(self.episode):
            said = self._unseeing(lease, case, rerun.output, files)
            found |= {"trivial": said} if said else {}
        if not found.get("trivial") and (said := self._worthless(lease, case, rerun.output, files)):
            found["worthless"] = said
        return found

    def _same_row(self, case: str, a: bytes, b: bytes) -> bool:
        """Whether the numbers of two rows are the same: one label alone may agree by luck."""
        rows = []
        for data in (a, b):
            said = str(self._inspected(case, data).get("answer", "")).partition("\n")[0]
            rows.append(said.partition("\t")[2].split())
        return len(rows[0]) == len(rows[1]) and all(map(_same_number, *rows))

    def _worthless(self, lease: Lease, case: str, output: bytes, workspace: FileTree) -> str:
        """Whether the pipeline's outputs are worth no more than a trivial answer: how, or ``""``.

        One case may go wrong by chance, so others are run before anything is said. They are the
        same whoever asks: of one pipeline, set-up and pilot are told one thing.
        """
        bar = self.spec.floor
        first = float(self._inspected(case, output).get("case_score", 0.0))
        if not self._by_chance and first > bar:
            return ""
        looked = self._looked(lease, workspace)
        scores = [float(seen.get("case_score", 0.0)) for seen in looked.values()]
        if self.spec.output.is_table:
            # A row is right or wrong: by chance, and a deviation more, as answers can be drawn.
            chance = 1.0 / max(2, len(self.spec.output.labels))
            bar = chance + math.sqrt(chance * (1.0 - chance) / len(scores))
        elif self._by_chance:
            bar = CHANCE[self.spec.output.format]
        mean = sum(scores) / len(scores)
        if mean > bar:
            return ""
        return (
            f"clean runs on {len(scores)} cases are worth no more than trivial answers ({mean:.3f})"
        )

    @property
    def _by_chance(self) -> bool:
        """Whether an answer drawn by lot is right now and then, so that one case says little."""
        return self.spec.output.is_table or self.spec.output.format in CHANCE

    def _looked(self, lease: Lease, workspace: FileTree) -> dict[str, Mapping[str, Any]]:
        """What is in the outputs of clean runs on several cases; nothing where there is none."""
        inputs = {case: self._public(case) for case in look_cases(self.instance)}
        runs = self._reruns(lease, inputs, workspace)
        if not any(rerun.ok for rerun in runs.values()):
            # One of them may have ended the run of all.
            runs = {c: self._rerun(lease, c, tree, workspace) for c, tree in inputs.items()}
        return {c: self._inspected(c, r.output) if r.ok else {} for c, r in runs.items()}

    def _unseeing(self, lease: Lease, case: str, output: bytes, workspace: FileTree) -> str:
        """Whether the pipeline answers without a look at its input: how, or ``""``.

        Where cases may have the same answer, other cases are run until one has another.
        """
        seen = self._inspected(case, output)
        if seen.get("trivial") or not seen.get("answer"):
            return str(seen.get("trivial", ""))
        answers = [str(seen["answer"])]
        if self._by_chance:
            others = self._looked(lease, workspace)
            answers += [str(said.get("answer", "")) for c, said in others.items() if c != case]
            return "the same answer for every case" if infer.same_answer(answers, sure=True) else ""
        for other in (c for c in look_cases(self.instance) if c != case):
            rerun = self._rerun(lease, other, self._public(other), workspace)
            if not rerun.ok:
                return ""
            answers.append(str(self._inspected(other, rerun.output).get("answer", "")))
            if not infer.same_answer(answers, sure=True):
                return ""
        return "the same answer for every case"

    def _agreement(self, case: str, a: bytes, b: bytes) -> float:
        if a == b:
            return 1.0
        return self.memo.get(
            key_of("agreement", self.about, case, a, b),
            lambda: self.grader.agreement(self.task, a, b, case),
        )

    def _recovery(
        self, lease: Lease, case: str, seen: Mapping[str, Any], initial: FileTree
    ) -> dict[str, float]:
        """Scores of the ill pipeline: on the pilot case, and where that proves nothing, on more.

        Runs of the ill pipeline are the same in every episode of a state, and remembered.
        """
        before = self._score_of(lease, case, initial)
        found = {"score_before": before}
        score = float(seen.get("case_score", 0.0))
        if validate.cured(score, before, self.spec.pilot.cured_score):
            return found
        cases = recovery_cases(self.instance, case)
        now = [self._score_of(lease, c, self.evidence.files) for c in cases]
        ill = [self._score_of(lease, c, initial) for c in cases]
        return {**found, "rerun_score": sum(now) / len(now), "rerun_before": sum(ill) / len(ill)}

    def _score_of(self, lease: Lease, case: str, workspace: FileTree) -> float:
        """Case score of a pipeline's clean run; 0 where it gives no output."""
        rerun = self._rerun(lease, case, self._public(case), workspace)
        return (
            float(self._inspected(case, rerun.output).get("case_score", 0.0)) if rerun.ok else 0.0
        )

    def inherited(self, initial: FileTree | None) -> None:
        """Grade the outputs that were there at reset."""
        before = [path for path, entry in self.episode.initial.items() if entry.kind == "file"]
        outputs = matching(before, validate.output_pattern(self.spec))
        if outputs:
            source = initial if initial is not None else self._unchanged(outputs)
            self.evidence.inherited = self._graded({p: source[p] for p in outputs if p in source})

    def _unchanged(self, paths: list[str]) -> FileTree:
        now, before = self.episode.current, self.episode.initial
        return {
            p: self.evidence.files[p]
            for p in paths
            if p in self.evidence.files and p in now and now[p].sha256 == before[p].sha256
        }

    # -------------------------------------------------------------------------------- clean runs

    def setup(self, lease: Lease) -> None:
        """The image's versions, and ``predict.py`` on the unseen case: of own work only."""
        own = own_paths(self.episode)
        if setup.SETUP in own:
            self.piece("versions", lambda: self._versions(lease))
        if setup.PREDICT in own:
            self.piece("probe_rerun", lambda: self._probe(lease))

    def handed(self, lease: Lease, initial: FileTree) -> None:
        """What a bank state handed over of S1's and S2's own files, as the same checks see it."""
        found = Evidence(
            files={path: data for path, data in initial.items() if len(data) <= self._bound(path)}
        )
        if plan.IMAGE in found.files:
            found.plan_image = self._picture(found.files[plan.IMAGE])
        if self.episode.focus is not Stage.S1 and setup.SETUP in found.files:
            self.piece("versions", lambda: self._versions(lease))
        if self.episode.focus is not Stage.S1 and setup.PREDICT in found.files:
            found.probe_rerun = self._on_probe(lease, found.files)
            now = self.evidence.probe_rerun
            if found.probe_rerun.ok and now is not None and now.ok:
                self.evidence.cured = self._cured(lease, found.files)
        self.evidence.handed = found

    def _cured(self, lease: Lease, before: FileTree) -> bool:
        """Whether clean runs on several cases are as much better as those of a cured pipeline."""
        cases = recovery_cases(self.instance, self.instance.cases[0])
        now, ill = (
            sum(self._score_of(lease, case, files) for case in cases) / len(cases)
            for files in (self.evidence.files, before)
        )
        return validate.cured(now, ill, self.spec.pilot.cured_score)

    def _versions(self, lease: Lease) -> None:
        self.evidence.versions = self.runner.versions(lease)

    def _probe(self, lease: Lease) -> None:
        self.evidence.probe_rerun = self._on_probe(lease, self.evidence.files)

    def _on_probe(self, lease: Lease, workspace: FileTree) -> RerunResult:
        """``predict.py`` of a workspace on the unseen case, and whether its output is any."""
        case = self.instance.probe_case
        rerun = self._rerun(lease, case, self.instance.probe_public, workspace)
        if rerun.ok:
            host = self._inspected(case, rerun.output)
            if not host.get("valid"):
                rerun = RerunResult(False, f"its output is not valid: {host.get('message', '')}")
            elif said := self._unseeing(lease, case, rerun.output, workspace):
                rerun = RerunResult(False, f"it gives {said}")
            elif said := self._worthless(lease, case, rerun.output, workspace):
                rerun = RerunResult(False, said)
        return rerun

    def batch(self, lease: Lease) -> None:
        """Drawn cases of the batch again, and how far the submitted output agrees at worst.

        One image says much; a label may agree by luck, so several rows of a table are made again.
        """
        count = TABLE_RERUNS if self.spec.output.is_table else 1
        cases = drawn_cases(self.instance, self.episode.seed, self.done(), count)
        inputs = {case: self._public(case) for case in cases}
        worst: tuple[float, str, RerunResult] | None = None
        for case, rerun in self._reruns(lease, inputs, self.evidence.files).items():
            agreement = 0.0
            if rerun.ok:
                submitted = self.evidence.files[self.spec.output.path.format(case=case)]
                agreement = self._agreement(case, submitted, rerun.output)
            if worst is None or agreement < worst[0]:
                worst = agreement, case, rerun
        assert worst is not None
        agreement, self.evidence.batch_rerun_case, self.evidence.batch_rerun = worst
        self.evidence.batch_agreement = agreement if worst[2].ok else None

    def _public(self, case: str) -> FileTree:
        """File name -> content of a case's input."""
        public = self.instance.public.items()
        return {p.removeprefix(f"{case}/"): d for p, d in public if p.startswith(f"{case}/")}

    def _rerun(self, lease: Lease, case: str, inputs: FileTree, workspace: FileTree) -> RerunResult:
        return self._reruns(lease, {case: inputs}, workspace)[case]

    def _reruns(
        self, lease: Lease, cases: Mapping[str, FileTree], workspace: FileTree
    ) -> dict[str, RerunResult]:
        staged = stage_files(self.task, self.instance, self.episode.tier, Stage.S4)
        names = {case: alias(self.instance, case) for case in cases}
        results = self.runner.run(
            lease,
            {p: d for p, d in workspace.items() if p.startswith("pipeline/")},
            {p: d for p, d in staged.items() if p.startswith("models/")},
            {names[case]: inputs for case, inputs in cases.items()},
            self.spec.output.name,
            self.spec.budgets.cell_timeout_s,
        )
        found = {case: results[name] for case, name in names.items()}
        if self.spec.output.is_table:
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
