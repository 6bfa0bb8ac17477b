"""The verifier: evidence that needs a sandbox or the grader, appended to the episode at hand-in.

It reads back what the agent wrote, has it graded, and re-runs ``pipeline/predict.py`` in a clean
sandbox: on an unseen case, and on one random case of the batch under another name. What the agent
broke is evidence against it; what infrastructure broke is noted as lost, and its items are null.
"""

from __future__ import annotations

import hashlib
import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import PurePosixPath
from typing import Any, ClassVar, Final, Protocol

from bat_env.episode import Episode, GradeResult, RerunResult
from bat_env.errors import GraderError, SandboxError
from bat_env.grader import Grader
from bat_env.rubric import plan, setup, submit, validate
from bat_env.rubric.claims import MAX_JSON_BYTES, matching, own_paths
from bat_env.sandbox.base import Cell, FileTree, Sandbox
from bat_env.stages import Stage
from bat_env.tasks import Task, stage_files
from bat_env.tasks.instance import Instance

MAX_OUTPUT_BYTES: Final[int] = 32 * 1024 * 1024
MAX_IMAGE_BYTES: Final[int] = 4 * 1024 * 1024
MAX_PIPELINE_BYTES: Final[int] = 256 * 1024
MAX_PIPELINE_FILES: Final[int] = 64
_KEPT_STATES: Final[int] = 128
_ALPHABET: Final[str] = "ABCDEFGHJKMNPQRSTVWXYZ23456789"

_VERSIONS = """\
import json, platform
from importlib.metadata import PackageNotFoundError, version
found = {"python": platform.python_version()}
for name in NAMES:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = "absent"
print("VERSIONS" + json.dumps(found))
"""

_RERUN = """\
import runpy, sys
sys.path.insert(0, "/workspace/pipeline")
sys.argv = ["/workspace/pipeline/predict.py", "--input", INPUT, "--output", OUTPUT]
runpy.run_path("/workspace/pipeline/predict.py", run_name="__main__")
"""


class Pool(Protocol):
    """Where clean sandboxes come from; ``bat_env.sandbox.SandboxPool`` is one."""

    def lease(self, *, fresh: bool = False) -> AbstractContextManager[Sandbox]:
        """A started, wiped sandbox."""


def _drawn(instance: Instance, seed: int, what: str) -> int:
    text = f"{what}\0{seed}\0{instance.seed}\0{instance.index}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def drawn_case(instance: Instance, seed: int) -> str:
    """The case of the batch that is re-run in an episode of this seed."""
    return instance.cases[_drawn(instance, seed, "case") % len(instance.cases)]


def alias(instance: Instance, seed: int, what: str) -> str:
    """A case id that no pipeline has seen, in the style of the instance's own ids."""
    known = {*instance.cases, instance.probe_case}
    prefix = instance.cases[0].rpartition("-")[0]
    for attempt in range(1000):
        number = _drawn(instance, seed, f"{what}{attempt}")
        tail = "".join(_ALPHABET[(number >> (5 * n)) % len(_ALPHABET)] for n in range(4))
        name = f"{prefix}-{tail}" if prefix else tail
        if name not in known:
            break
    return name


class Verifier:
    """Gathers evidence at hand-in. Thread-safe for different episodes.

    Args:
        pool: Clean sandboxes of the kind that the agent had.
        grader: Parses every file that the agent wrote.
    """

    _image_versions: ClassVar[weakref.WeakKeyDictionary[Any, Mapping[str, str]]] = (
        weakref.WeakKeyDictionary()
    )
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, pool: Pool, grader: Grader) -> None:
        self._pool = pool
        self._grader = grader
        self._inherited: OrderedDict[
            tuple[str, str], tuple[GradeResult | None, Mapping[str, Any] | None]
        ] = OrderedDict()

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
        if focus in (Stage.S4, Stage.S5, Stage.E2E):
            work.piece("grade", work.grade)
        if focus in (Stage.S3, Stage.E2E):
            work.piece("pilot", work.pilot)
        if focus in (Stage.S3, Stage.S4, Stage.S5, Stage.E2E):
            work.piece("inherited", lambda: work.inherited(initial))
        if focus in (Stage.S2, Stage.E2E):
            expected = {key: float(task.probe_expected[key]) for key in ("mean", "std")}
            episode.evidence.probe_expected = expected
        if focus in (Stage.S2, Stage.S4, Stage.E2E):
            work.reruns()

    def clean(self) -> AbstractContextManager[Sandbox]:
        """A clean sandbox from the pool."""
        return self._pool.lease()

    def versions(self, sandbox: Callable[[], Sandbox]) -> Mapping[str, str]:
        """Package versions inside the image; a sandbox of each pool is asked once."""
        with self._lock:
            known = self._image_versions.get(self._pool)
        if known is not None:
            return known
        names = [name for name in setup.PACKAGES if name != "python"]
        asked = sandbox()
        asked.reset({})
        result = asked.run(Cell("python", _VERSIONS.replace("NAMES", repr(names))))
        line = next((t for t in result.stdout.splitlines() if t.startswith("VERSIONS")), None)
        if not result.ok or line is None:
            raise SandboxError(f"The image could not name its versions: {result.stderr[-300:]}")
        found: Mapping[str, str] = json.loads(line.removeprefix("VERSIONS"))
        with self._lock:
            self._image_versions[self._pool] = found
        return found

    def known_state(
        self, key: tuple[str, str]
    ) -> tuple[GradeResult | None, Mapping[str, Any] | None] | None:
        """Grading of a bank state's own files, if it was made before."""
        with self._lock:
            return self._inherited.get(key)

    def keep_state(
        self, key: tuple[str, str], value: tuple[GradeResult | None, Mapping[str, Any] | None]
    ) -> None:
        """Remember the grading of a bank state's own files."""
        with self._lock:
            self._inherited[key] = value
            while len(self._inherited) > _KEPT_STATES:
                self._inherited.popitem(last=False)

    @property
    def grader(self) -> Grader:
        """The grader in use."""
        return self._grader


class _Lease:
    """One clean sandbox for all re-runs of a hand-in, taken when first needed."""

    def __init__(self, verifier: Verifier, stack: ExitStack) -> None:
        self._verifier = verifier
        self._stack = stack
        self._sandbox: Sandbox | None = None

    def sandbox(self) -> Sandbox:
        """The sandbox; raises SandboxError where none comes."""
        if self._sandbox is None:
            self._sandbox = self._stack.enter_context(self._verifier.clean())
        return self._sandbox

    def renew(self) -> None:
        """Give a dead sandbox back; the next one is another."""
        self._sandbox = None
        self._stack.close()


class _Work:
    """The pieces of one hand-in."""

    def __init__(
        self, verifier: Verifier, episode: Episode, task: Task, instance: Instance
    ) -> None:
        self.verifier = verifier
        self.grader = verifier.grader
        self.episode = episode
        self.evidence = episode.evidence
        self.task = task
        self.spec = task.spec
        self.instance = instance
        self.output_name = PurePosixPath(task.spec.output.path).name

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
        """Largest size at which a file is read back, 0 for files of no interest."""
        if path in (plan.PLAN, plan.FACTS, setup.SETUP, validate.RECORD, submit.MANIFEST):
            return MAX_JSON_BYTES
        if path == plan.IMAGE:
            return MAX_IMAGE_BYTES
        if path.startswith("pipeline/"):
            return MAX_PIPELINE_BYTES
        outputs = (validate.output_pattern(self.spec), validate.pilot_pattern(self.spec))
        return MAX_OUTPUT_BYTES if any(matching((path,), p) for p in outputs) else -1

    def plan_image(self) -> None:
        """Decode the plan's picture."""
        self.evidence.plan_image = self.grader.image(self.evidence.files[plan.IMAGE])

    def grade(self) -> None:
        """Grade what lies under outputs/."""
        self.evidence.grade = self.grader.grade(self.task, self.instance, self.evidence.files)

    def pilot(self) -> None:
        """Inspect the one own pilot output."""
        path = validate.pilot_path(self.episode, self.spec)
        if path is not None:
            self.evidence.pilot = self._inspect_pilot(path, self.evidence.files)

    def _inspect_pilot(self, path: str, files: FileTree) -> Mapping[str, Any]:
        case = path.split("/")[2]
        if case not in self.instance.cases:
            return {"readable": False, "message": "it belongs to no case of this task"}
        if path not in files:
            return {"readable": False, "message": "it is too large or no regular file"}
        return self.grader.inspect(self.task, self.instance, case, files[path])

    def inherited(self, initial: FileTree | None) -> None:
        """Grade the outputs and the pilot that were there at reset."""
        before = self.episode.initial
        outputs = matching(tuple(before), validate.output_pattern(self.spec))
        pilots = matching(tuple(before), validate.pilot_pattern(self.spec))
        wanted = [p for p in (*outputs, *pilots) if before[p].kind == "file"]
        if not wanted:
            return
        digests = "".join(f"{p}\0{before[p].sha256}\0" for p in wanted)
        key = (self.instance.digest, hashlib.sha256(digests.encode()).hexdigest())
        known = self.verifier.known_state(key) if initial is not None else None
        if known is None:
            source = initial if initial is not None else self._unchanged(wanted)
            files = {p: source[p] for p in wanted if p in source}
            grade = self.grader.grade(self.task, self.instance, files) if outputs else None
            pilot = self._inspect_pilot(pilots[0], files) if len(pilots) == 1 else None
            known = (grade, pilot)
            if initial is not None:
                self.verifier.keep_state(key, known)
        self.evidence.inherited, self.evidence.inherited_pilot = known

    def _unchanged(self, paths: list[str]) -> FileTree:
        now, before = self.episode.current, self.episode.initial
        return {
            p: self.evidence.files[p]
            for p in paths
            if p in self.evidence.files and p in now and now[p].sha256 == before[p].sha256
        }

    def reruns(self) -> None:
        """Everything that needs a clean sandbox, in one lease."""
        focus = self.episode.focus
        own = own_paths(self.episode)
        probe = focus in (Stage.S2, Stage.E2E)
        batch = focus in (Stage.S4, Stage.E2E) and self._batch_valid()
        asks_versions = probe and setup.SETUP in own and self.evidence.versions is None
        asks_probe = probe and setup.PREDICT in own and self.evidence.probe_rerun is None
        asks_batch = batch and self.evidence.batch_rerun is None
        with ExitStack() as stack:
            lease = _Lease(self.verifier, stack)
            if asks_versions:
                self.piece("versions", lambda: self._versions(lease))
            if asks_probe:
                self.piece("probe_rerun", lambda: self._probe(lease))
            if asks_batch:
                self.piece("batch_rerun", lambda: self._batch(lease))

    def _versions(self, lease: _Lease) -> None:
        self.evidence.versions = self.verifier.versions(lease.sandbox)

    def _batch_valid(self) -> bool:
        """Whether all outputs are valid: the re-run cannot earn anything otherwise."""
        grade = self.evidence.grade
        return grade is not None and all(grade.valid.get(c) for c in self.instance.cases)

    def _probe(self, lease: _Lease) -> None:
        probe = self.instance.probe_case
        name = alias(self.instance, self.episode.seed, "probe")
        rerun = self._rerun(lease, name, self.instance.probe_public)
        if rerun.ok:
            host = self.grader.inspect(self.task, self.instance, probe, rerun.output)
            if not host.get("valid"):
                rerun = RerunResult(False, f"its output is not valid: {host.get('message', '')}")
            elif not any(host.get("labels", ())):
                rerun = RerunResult(False, "its output is empty")
        self.evidence.probe_rerun = rerun

    def _batch(self, lease: _Lease) -> None:
        case = drawn_case(self.instance, self.episode.seed)
        public = {
            path.removeprefix(f"{case}/"): data
            for path, data in self.instance.public.items()
            if path.startswith(f"{case}/")
        }
        rerun = self._rerun(lease, alias(self.instance, self.episode.seed, "batch"), public)
        if rerun.ok:
            submitted = self.evidence.files[self.spec.output.path.format(case=case)]
            self.evidence.batch_agreement = self.grader.agreement(
                self.task, submitted, rerun.output
            )
        self.evidence.batch_rerun_case = case
        self.evidence.batch_rerun = rerun

    def _rerun(self, lease: _Lease, case: str, inputs: FileTree) -> RerunResult:
        """``predict.py`` on one case, with nothing of the agent's but ``pipeline/``."""
        pipeline = {p: d for p, d in self.evidence.files.items() if p.startswith("pipeline/")}
        if setup.PREDICT not in pipeline:
            limit = MAX_PIPELINE_BYTES // 1024
            return RerunResult(False, f"pipeline/predict.py is missing or pipeline/ > {limit} kB")
        files = {f"workspace/{p}": d for p, d in pipeline.items()}
        files |= {f"data/{case}/{name}": data for name, data in inputs.items()}
        staged = stage_files(self.task, self.instance, self.episode.tier, Stage.S4)
        files |= {p: d for p, d in staged.items() if p.startswith("models/")}
        code = _RERUN.replace("INPUT", repr(f"/data/{case}")).replace(
            "OUTPUT", repr(f"/workspace/outputs/{case}")
        )
        cell = Cell("python", code, self.episode.seed % 2**32)
        for _ in range(2):
            sandbox = lease.sandbox()
            sandbox.reset(files)
            try:
                result = sandbox.run(cell, self.spec.budgets.cell_timeout_s)
                break
            except SandboxError:
                # A sandbox that dies again under the same code died of that code.
                lease.renew()
        else:
            return RerunResult(False, "its sandbox died under it, twice")
        if result.limit is not None:
            return RerunResult(False, f"it met the limit on {result.limit}")
        if result.exit_code != 0:
            lines = result.stderr.strip().splitlines() or [""]
            return RerunResult(False, f"exit code {result.exit_code}: {lines[-1][:200]}")
        path = f"outputs/{case}/{self.output_name}"
        try:
            return RerunResult(True, "", sandbox.read(path, MAX_OUTPUT_BYTES))
        except FileNotFoundError:
            return RerunResult(False, f"it wrote no {self.output_name} into --output")
        except ValueError as error:
            return RerunResult(False, f"its output cannot be read: {str(error)[:200]}")
