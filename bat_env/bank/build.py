"""The Data Factory: fills a Stage Bank with admitted states and demonstrations, for real.

The list of jobs follows from the arguments alone. A job is recorded as finished after what it made
is stored, so a build that was killed goes on where it stopped and makes nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from bat_env.bank.demos import DemoPlan, plan_demonstrations, plan_trajectories
from bat_env.bank.factory import Factory
from bat_env.bank.fingerprints import of_suites
from bat_env.bank.jobs import (
    BUILDER_VERSION,
    ROUNDS,
    StateJob,
    by_instance,
    candidates,
    instance_indices,
)
from bat_env.bank.progress import ProgressFn, reporter
from bat_env.bank.slices import count_slices
from bat_env.bank.state import Outcome as StateOutcome
from bat_env.bank.state import StageState
from bat_env.bank.status import BuildReport
from bat_env.bank.store import Bank, default_bank_path
from bat_env.bank.styles import STYLES, USUAL
from bat_env.bank.teacher import Teacher, TeacherConfig
from bat_env.bank.throttle import Throttle, be_nice
from bat_env.bank.wording import BRIEFS, PLAIN, TEACHER
from bat_env.bank.workers import Crew, Outcome
from bat_env.disk import named_if_full
from bat_env.errors import BankError, ConfigError, unknown_name
from bat_env.extras import require_for_cells
from bat_env.rubric import compile_contract
from bat_env.sandbox import resolve_backend
from bat_env.stages import Stage
from bat_env.tasks import Suite, Task, load_task, task_ids
from bat_env.tasks.instance import Size

_OUTCOMES: Final[tuple[StateOutcome, ...]] = get_args(StateOutcome)
DEFAULT_SUITES: Final = (
    "lite-mini",
    "lite-mini-controller",
    "seg-mini",
    "seg-mini-controller",
)


class _Builder:
    """One build: what it makes goes to the bank, what it learns to the report."""

    def __init__(self, bank: Bank, crew: Crew, teacher: Teacher | None) -> None:
        self.bank = bank
        self.crew = crew
        self.factory = Factory(bank, crew.backend, teacher)
        self.report = BuildReport()

    # -------------------------------------------------------------------------------- states

    def fill(self, cells: Sequence[list[StateJob]], per_cell: int) -> None:
        """Fill the cells, the emptiest first; further candidates come where some were refused.

        Args:
            cells: Candidates of each cell, in order.
            per_cell: States wanted in each.
        """
        have: dict[tuple[str, ...], dict[str, StageState]] = {c[0].cell: {} for c in cells}
        tried = dict.fromkeys(have, 0)
        known = self.bank.jobs()
        for _ in range(ROUNDS * per_cell):
            chosen: list[StateJob] = []
            left = [jobs for jobs in cells if tried[jobs[0].cell] < len(jobs)]
            lacking = [jobs for jobs in left if len(have[jobs[0].cell]) < per_cell]
            fewest = min((len(have[jobs[0].cell]) for jobs in lacking), default=per_cell)
            for jobs in lacking:
                cell = jobs[0].cell
                if len(have[cell]) == fewest:
                    chosen.append(jobs[tried[cell]])
                    tried[cell] += 1
            if not chosen:
                break
            count = (sum(map(len, have.values())), per_cell * len(cells))
            for outcome in self._outcomes(chosen, known, count):
                if outcome.status == "done":
                    have[outcome.job.cell][outcome.value.state_id] = outcome.value
                else:
                    self._count(outcome, outcome.job.cell, outcome.job.past.fault_id)
        for cell, rows in have.items():
            self.report.states += [rows[key] for key in sorted(rows)]
            if len(rows) < per_cell:
                self.report.short[cell] = len(rows)

    def _outcomes(
        self,
        jobs: Sequence[StateJob],
        known: Mapping[str, tuple[str, Mapping[str, Any]]],
        count: tuple[int, int],
    ) -> Iterator[Outcome]:
        """Outcomes of jobs, those of earlier builds included."""
        todo = []
        have, wanted = count
        for job in jobs:
            status, detail = known.get(job.job_id(load_task(job.task).digest), ("", {}))
            if status == "rejected":
                self.report.resumed += 1
                yield Outcome(job, "rejected", detail["reason"], detail["detail"])
                continue
            try:
                row = self.bank.get(detail["state_id"]) if status == "admitted" else None
            except BankError:  # corrupted since: make it again
                row = None
            if row is None:
                todo.append(job)
                continue
            self.report.resumed += 1
            have += 1
            yield Outcome(job, "done", value=row)
        if todo:
            counted = (have, wanted)
            yield from self.crew.run("states", by_instance(todo), self.factory.make_state, counted)

    # ------------------------------------------------------------------------ demonstrations

    def demonstrate(self, what: str, plans: Sequence[DemoPlan]) -> None:
        """Execute the demonstrations that are not there yet."""
        known = self.bank.jobs()
        there = {demo.demo_id for demo in self.bank.demonstrations()}
        todo = []
        for plan in plans:
            status, detail = known.get(plan.job_id(load_task(plan.task).digest), ("", {}))
            if status == "stored" and detail["demo_id"] in there:
                self.report.resumed += 1
                self.report.demonstrations += 1
            elif status == "rejected":
                self.report.resumed += 1
                self._count(Outcome(plan, status, detail["reason"], detail["detail"]), plan.cell)
            else:
                todo.append(plan)
        if not todo:
            return
        todo.sort(key=lambda plan: plan.index)  # instances in memory are few
        for outcome in self.crew.run(what, [[plan] for plan in todo], self.factory.make_demo):
            if outcome.status == "done":
                self.report.demonstrations += 1
            else:
                self._count(outcome, outcome.job.cell)

    def _count(self, outcome: Outcome, cell: tuple[str, ...], fault: str = "") -> None:
        row = (cell, fault, outcome.reason, outcome.detail)
        (self.report.rejected if outcome.status == "rejected" else self.report.failed).append(row)

    # ------------------------------------------------------------------------------ the report

    def finish(self) -> BuildReport:
        """The report, when all is made."""
        report = self.report
        rows = count_slices(self.bank.demonstrations())
        report.rows, report.rows_refused = rows.rows, dict(rows.refused)
        report.seconds = self.factory.clock.seconds
        report.teacher_refused = dict(self.factory.refused)
        report.digest = self.bank.digest()
        report.demonstrations_digest = self.bank.demonstrations_digest()
        return report


def build(
    path: str | Path | None = None,
    *,
    tasks: Sequence[str] | None = None,
    sizes: Sequence[Size] = ("mini",),
    tiers: Sequence[str] = ("lite",),
    stages: Sequence[str | Stage] | None = None,
    per_cell: int = 3,
    demos: int = 240,
    p_good: float = 0.5,
    e2e_share: float = 0.25,
    instances: int = 8,
    trajectories: int = 0,
    styles: Sequence[str] = (USUAL,),
    briefs: str = PLAIN,
    teacher: Teacher | TeacherConfig | Mapping[str, Any] | None = None,
    seed: int = 0,
    backend: str = "auto",
    workers: int = 2,
    background: bool = False,
    suites: Sequence[str | Suite] = DEFAULT_SUITES,
    progress: bool | ProgressFn | None = False,
) -> BuildReport:
    """Fill a Stage Bank. Safe to interrupt and to run again: it goes on where it stopped.

    Args:
        path: Folder of the bank; ``None`` for the default. It is made if it is not there.
        tasks: Task ids; ``None`` for every task found.
        sizes: ``"full"``, ``"mini"``.
        tiers: Tiers.
        stages: Focus of states, for example ``["S3"]``; ``None`` for all six.
        per_cell: States wanted in each cell (focus x outcome) of each task, size and tier.
        demos: Demonstrations of each task, size and tier: mixtures of good and bad options.
        p_good: Probability of the good option at each decision of a demonstration.
        e2e_share: Share of demonstrations that run the whole workflow from scratch.
        instances: Training instances that mistakes and demonstrations are spread over.
        trajectories: Teacher trajectories of each task, size, tier and style: careful throughout.
        styles: Styles of the teacher, one or more of :data:`~bat_env.bank.styles.STYLES`; states
            begin in them too.
        briefs: ``"plain"``, ``"varied"`` (worded by rule) or ``"teacher"`` (by ``teacher``); with
            the last two, institutions also name cases in schemes of their own.
        teacher: An OpenAI-compatible endpoint, for example ``{"base_url":
            "http://127.0.0.1:8000/v1", "model": "my-model"}``.
        seed: Source of all randomness; also picks the instances.
        backend: Sandbox backend.
        workers: Threads; each holds one sandbox.
        background: Lower the priority of this whole process, and wait while others want the cores:
            for a build beside training, which is another process.
        suites: Held-out suites that nothing in the bank may resemble.
        progress: ``True`` for a bar on stderr, or a function ``(what, done, total)``.

    Returns:
        What was made, what was refused and why.

    Raises:
        ConfigError: On an argument out of range, or if cells cannot import what tasks need.
        BankError: If the bank cannot be written, or another process writes to it.
        DiskFullError: If the disk is full; what was finished stays, and the next build goes on.
        LeakageError: If a held-out suite cannot be fingerprinted.
        SandboxUnavailableError: If no sandbox can run here.
    """
    for name, value, low in (
        ("per_cell", per_cell, 0),
        ("demos", demos, 0),
        ("instances", instances, 1),
        ("trajectories", trajectories, 0),
        ("workers", workers, 1),
    ):
        if value < low:
            raise ConfigError(f"{name} must be at least {low}, got {value}.")
    if not 0.0 <= p_good <= 1.0 or not 0.0 <= e2e_share <= 1.0:
        raise ConfigError(f"p_good and e2e_share are shares, got {p_good} and {e2e_share}.")
    foci = tuple(Stage) if stages is None else sorted({Stage.parse(name) for name in stages})
    asked = _teacher(briefs, teacher)
    _check_styles(styles)
    loaded = [load_task(name) for name in (task_ids() if tasks is None else tasks)]
    wanted = [(task, size, tier) for task in loaded for size in sizes for tier in tiers]
    indices = instance_indices(seed, instances, briefs)
    resolved = resolve_backend(backend)
    require_for_cells(resolved)
    throttle = Throttle() if background else None
    if background:
        be_nice()
    with (
        named_if_full(path or default_bank_path()),
        Bank.open(path, create=True) as bank,
        reporter(progress) as show,
        Crew(
            resolved, of_suites(suites, {task.id for task in loaded}), workers, show, throttle
        ) as crew,
    ):
        builder = _Builder(bank, crew, asked)
        _retire_stale(bank, loaded)
        cells = []
        for task, size, tier in wanted if per_cell else ():
            for focus in foci:
                for outcome in _OUTCOMES:
                    jobs = candidates(
                        task, size, tier, focus, outcome, indices, per_cell, seed, styles, briefs
                    )
                    if jobs:
                        cells.append(jobs)
                    else:
                        builder.report.short[task.spec.id, size, tier, focus.name, outcome] = 0
        builder.fill(cells, per_cell)
        for task, size, tier in wanted:
            where = (task.spec.id, size, tier)
            plans = plan_demonstrations(
                task,
                [s for s in builder.report.states if (s.task, s.size, s.tier) == where],
                tier=tier,
                size=size,
                indices=indices,
                count=demos,
                p_good=p_good,
                e2e_share=e2e_share,
                seed=seed,
            )
            builder.demonstrate("demonstrations", plans)
        lessons = [
            plan
            for task, size, tier in wanted
            for plan in plan_trajectories(
                task,
                tier=tier,
                size=size,
                indices=indices,
                styles=styles,
                count=trajectories,
                seed=seed,
            )
        ]
        builder.demonstrate("trajectories", lessons)
        report = builder.finish()
        bank.set_meta(
            "build",
            {
                "schema_version": 1,
                "builder": BUILDER_VERSION,
                "seed": seed,
                "stages": [focus.name for focus in foci],
                "per_cell": per_cell,
                "demos": demos,
                "p_good": p_good,
                "e2e_share": e2e_share,
                "instances": instances,
                "trajectories": trajectories,
                "styles": list(styles),
                "briefs": briefs,
                "digest": report.digest,
                "demonstrations_digest": report.demonstrations_digest,
            },
        )
    return report


def _teacher(
    briefs: str, teacher: Teacher | TeacherConfig | Mapping[str, Any] | None
) -> Teacher | None:
    """The teacher that words briefs, if any.

    Raises:
        ConfigError: If one is asked for and none is given, or the other way round.
        UnknownNameError: If there is no such kind of brief.
    """
    if briefs not in BRIEFS:
        raise unknown_name("kind of briefs", briefs, BRIEFS)
    if (briefs == TEACHER) != (teacher is not None):
        raise ConfigError(
            'Expected briefs="teacher" together with a teacher (base_url and model), got '
            f"briefs={briefs!r} {'without one' if teacher is None else 'with one'}."
        )
    return teacher if teacher is None or isinstance(teacher, Teacher) else Teacher(teacher)


def _check_styles(styles: Sequence[str]) -> None:
    for style in styles:
        if style not in STYLES:
            raise unknown_name("teacher style", style, STYLES)
    if not styles or len(set(styles)) != len(styles):
        raise ConfigError(f"styles must be different ones of {', '.join(STYLES)}, got {styles}.")


def _retire_stale(bank: Bank, tasks: Sequence[Task]) -> None:
    """Take rows out that another version of a task, or of its rubric, has made."""
    for task in tasks:
        for state in bank.query(task=task.spec.id):
            contract = compile_contract(
                task.spec, tier=state.tier, focus=state.focus, outcome=state.outcome
            )
            if (state.task_digest, state.rubric_digest) != (task.digest, contract.digest):
                bank.retire(state.state_id)
        for demo in bank.demonstrations(task=task.spec.id):
            if demo.task_digest != task.digest:
                bank.retire(demo.demo_id)
