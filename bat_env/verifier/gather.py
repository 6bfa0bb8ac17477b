"""Gathering: which evidence an episode's focus needs, and how each piece of it is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Final

from bat_env.episode import Episode, Evidence, GradeResult, RerunResult
from bat_env.errors import GraderError, SandboxError
from bat_env.grader import Grader
from bat_env.rubric import plan, setup, submit, validate
from bat_env.rubric.claims import MAX_JSON_BYTES, matching, own_paths
from bat_env.sandbox.base import FileTree, Sandbox
from bat_env.stages import Stage
from bat_env.tasks import Task
from bat_env.tasks.instance import Instance
from bat_env.verifier.clean import (
    MAX_OUTPUT_BYTES,
    MAX_PIPELINE_BYTES,
    MAX_PIPELINE_FILES,
    CleanRunner,
    Lease,
    Pool,
    drawn_cases,
    recovery_cases,
)
from bat_env.verifier.looks import Looks
from bat_env.verifier.memo import Memo, key_of

MAX_IMAGE_BYTES: Final[int] = 4 * 1024 * 1024
OF_STAGE: Final[Mapping[Stage, tuple[str, ...]]] = {
    Stage.S1: (plan.PLAN, plan.FACTS, plan.IMAGE),
    Stage.S2: (setup.SETUP, setup.PREDICT),
    Stage.E2E: (plan.PLAN, plan.FACTS, plan.IMAGE, setup.SETUP, setup.PREDICT),
}
"""Files of the plan and the set-up that a bank state may hand over to those who do them again."""
TABLE_RERUNS: Final[int] = 6
"""Rows of a table that are made again."""


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
        self.looks = Looks(
            verifier.runner, verifier.grader, verifier.memo, task, instance, episode.tier
        )

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
        found: GradeResult = self.memo.get(
            key_of("grade", self.looks.about, *parts),
            lambda: self.grader.grade(self.task, self.instance, files),
        )
        return found

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
            seen = dict(self.looks.inspected(case, self.evidence.files[path]))
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
        rerun = self.looks.rerun(lease, case, self.looks.public(case), files)
        if not rerun.ok:
            return {"agreement": 0.0, "rerun": f"its clean run failed: {rerun.message}"}
        found: dict[str, Any] = {"agreement": self.looks.agreement(case, rerun.output, files[path])}
        if self.spec.output.is_table and not self.looks.same_row(case, rerun.output, files[path]):
            found["agreement"] = 0.0
        if setup.PREDICT in own_paths(self.episode):
            said = self.looks.unseeing(lease, case, rerun.output, files)
            found |= {"trivial": said} if said else {}
        if not found.get("trivial") and (
            said := self.looks.worthless(lease, case, rerun.output, files)
        ):
            found["worthless"] = said
        return found

    def _recovery(
        self, lease: Lease, case: str, seen: Mapping[str, Any], initial: FileTree
    ) -> dict[str, float]:
        """Scores of the ill pipeline: on the pilot case, and where that proves nothing, on more.

        Runs of the ill pipeline are the same in every episode of a state, and remembered.
        """
        before = self.looks.score_of(lease, case, initial)
        found = {"score_before": before}
        score = float(seen.get("case_score", 0.0))
        if validate.cured(score, before, self.spec.pilot.cured_score):
            return found
        cases = recovery_cases(self.instance, case)
        now = [self.looks.score_of(lease, c, self.evidence.files) for c in cases]
        ill = [self.looks.score_of(lease, c, initial) for c in cases]
        return {**found, "rerun_score": sum(now) / len(now), "rerun_before": sum(ill) / len(ill)}

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
            sum(self.looks.score_of(lease, case, files) for case in cases) / len(cases)
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
        rerun = self.looks.rerun(lease, case, self.instance.probe_public, workspace)
        if rerun.ok:
            host = self.looks.inspected(case, rerun.output)
            if not host.get("valid"):
                rerun = RerunResult(False, f"its output is not valid: {host.get('message', '')}")
            elif said := self.looks.unseeing(lease, case, rerun.output, workspace):
                rerun = RerunResult(False, f"it gives {said}")
            elif said := self.looks.worthless(lease, case, rerun.output, workspace):
                rerun = RerunResult(False, said)
        return rerun

    def batch(self, lease: Lease) -> None:
        """Drawn cases of the batch again, and how far the submitted output agrees at worst.

        One image says much; a label may agree by luck, so several rows of a table are made again.
        """
        count = TABLE_RERUNS if self.spec.output.is_table else 1
        cases = drawn_cases(self.instance, self.episode.seed, self.done(), count)
        inputs = {case: self.looks.public(case) for case in cases}
        reruns = self.looks.reruns(lease, inputs, self.evidence.files)
        path = self.spec.output.path
        agreement = self.looks.agreements(
            {
                case: (self.evidence.files[path.format(case=case)], rerun.output)
                for case, rerun in reruns.items()
                if rerun.ok
            }
        )
        worst = min(reruns, key=lambda case: agreement.get(case, 0.0))
        self.evidence.batch_rerun_case, self.evidence.batch_rerun = worst, reruns[worst]
        self.evidence.batch_agreement = agreement.get(worst)
