"""The Episode: a pure record of what the host saw. No I/O happens here.

A rubric is a function from this record (and the private truth) to item scores. Nothing in it is
believed because the agent said so: every field was written by the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from bat_env.sandbox.base import CellResult, Language, Manifest
from bat_env.stages import Stage

Status: TypeAlias = Literal["running", "submitted", "truncated", "disqualified", "invalid"]
ViolationKind: TypeAlias = Literal[
    "worker_killed", "malformed_frame", "readonly_changed", "special_file"
]


@dataclass(frozen=True, slots=True)
class CellRecord:
    """One executed cell.

    Attributes:
        turn: Index of the environment step (0-based) that ran it.
        call: Index among executed cells (0-based).
        language, code: What the agent asked for.
        result: What the host saw, the workspace delta included.
    """

    turn: int
    call: int
    language: Language
    code: str
    result: CellResult


@dataclass(frozen=True, slots=True)
class Turn:
    """One environment step: the raw action, whether it was valid, and the text that came back."""

    index: int
    action: Any
    valid: bool
    observation: str
    reward: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Violation:
    """A host-proven violation. The first warns, the second disqualifies."""

    kind: ViolationKind
    turn: int
    detail: str


@dataclass(frozen=True, slots=True)
class RerunResult:
    """One clean re-run of ``predict.py`` by the verifier.

    Attributes:
        ok: The script exited with 0 and wrote the output of the contract.
        message: For people: what failed.
        output: Bytes of the output file, empty if none.
    """

    ok: bool
    message: str = ""
    output: bytes = b""


@dataclass(frozen=True, slots=True)
class GradeResult:
    """What the grader process said of the outputs.

    Attributes:
        score: Task score in [0, 1].
        per_case: Case id -> score in [0, 1]; a missing, unreadable or wrong-geometry case is 0.
        valid: Case id -> whether the output is present, readable, and of the right geometry,
            dtype and labels.
        messages: Case id -> why it is not valid.
        secondary: Metric name -> value (``None`` where undefined).
        ci95: Bootstrap interval of ``score`` over cases.
        properties: Case id -> host-measured facts of the file (shape, dtype, labels, volumes).
        answers: Case id -> what was answered without what belongs to the case, where two cases may
            have the same answer.
        trivial: Case id -> name of the trivial method whose output this is.
    """

    score: float
    per_case: Mapping[str, float] = field(default_factory=dict)
    valid: Mapping[str, bool] = field(default_factory=dict)
    messages: Mapping[str, str] = field(default_factory=dict)
    secondary: Mapping[str, float | None] = field(default_factory=dict)
    ci95: tuple[float, float] = (0.0, 0.0)
    properties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)
    trivial: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Evidence:
    """What the verifier gathered, in addition to the cells. Absent evidence is ``None``.

    Attributes:
        files: Workspace path -> bytes, read back by the host at hand-in (bounded, regular).
        grade: Grading of ``outputs/`` against the truth.
        grade_own: The same of this episode's own outputs alone, where others lie beside them.
        pilot: Host-measured properties of the pilot output (shape, affine, dtype, labels, volumes),
            and its agreement with a clean run of ``predict.py`` on that case; in recovery states
            also the score of the inherited pipeline on that case, and where that proves nothing,
            mean scores of clean runs before and now on several cases.
        probe_rerun: ``predict.py`` on the unseen probe case, and whether its output is valid.
        batch_rerun: ``predict.py`` on one random case of the batch.
        batch_rerun_case: That case.
        batch_agreement: Agreement in [0, 1] between the re-run and the submitted output.
        inherited: Grading of the outputs that were there at reset (bank states).
        plan_image: What decoding ``plan/plan.png`` in the grader process gave.
        versions: Package name -> version inside the sandbox image.
        probe_expected: Private expected ``{"mean", "std"}`` of the network on the probe input.
        handed: The same of what a bank state handed over of the focused stage's own files (S1, S2).
        cured: Whether clean runs on several cases show the pipeline cured of what was handed over.
        judge: Where a judge is on: its model, the digests of prompt and contract, and its findings
            by item, JSON-able (see :mod:`bat_env.judge`).
        lost: Kind of evidence (a field name above) -> how infrastructure lost it. Items that rest
            on it become null, never 0.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    grade: GradeResult | None = None
    grade_own: GradeResult | None = None
    pilot: Mapping[str, Any] | None = None
    probe_rerun: RerunResult | None = None
    batch_rerun: RerunResult | None = None
    batch_rerun_case: str = ""
    batch_agreement: float | None = None
    inherited: GradeResult | None = None
    plan_image: Mapping[str, Any] | None = None
    versions: Mapping[str, str] | None = None
    probe_expected: Mapping[str, float] | None = None
    handed: Evidence | None = None
    cured: bool = False
    judge: dict[str, Any] | None = None
    lost: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Episode:
    """Everything the host knows of one episode, in order.

    Attributes:
        task, tier, split, size: Which instance this is.
        instance_seed: 64-bit generator seed of the instance.
        seed: Episode seed; cell *i* runs with a seed derived from (seed, i).
        focus: The focused stage, or E2E.
        outcome: Bank outcome label, or ``None`` outside the bank.
        state_id: Bank state, or ``None``.
        cases: Case ids of the instance.
        initial: Workspace manifest at reset.
        current: Workspace manifest now.
        cells, turns, violations: What happened.
        status: ``running`` until it ends.
        end_reason: ``submit``, ``turns``, ``calls``, ``tokens``, ``violation``, ...
        evidence: Filled at hand-in.
    """

    task: str
    tier: str
    split: str
    size: str
    instance_seed: int
    seed: int
    focus: Stage
    outcome: str | None = None
    state_id: str | None = None
    cases: tuple[str, ...] = ()
    initial: Manifest = field(default_factory=dict)
    current: Manifest = field(default_factory=dict)
    cells: list[CellRecord] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    status: Status = "running"
    end_reason: str = ""
    evidence: Evidence = field(default_factory=Evidence)

    @property
    def worked(self) -> bool:
        """Whether at least one successful cell changed the workspace (no credit before that)."""
        return any(c.result.ok and bool(c.result.delta) for c in self.cells)

    def written(self) -> dict[str, int]:
        """Path -> index of the last call of this episode that created or changed it.

        Paths that only exist from a bank state are absent: they are not this episode's work.
        """
        last: dict[str, int] = {}
        for cell in self.cells:
            for path in (*cell.result.delta.created, *cell.result.delta.changed):
                last[path] = cell.call
            for path in cell.result.delta.deleted:
                last.pop(path, None)
        return last
