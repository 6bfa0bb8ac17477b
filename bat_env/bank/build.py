"""The Data Factory: fills a Stage Bank with admitted states and demonstrations, for real.

The list of jobs follows from the arguments alone. A job is recorded as finished after what it made
is stored, so a build that was killed goes on where it stopped and makes nothing twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, get_args

from bat_env.bank.admission import Candidate, admit, play
from bat_env.bank.demos import DemoPlan, plan_demonstrations
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
from bat_env.bank.state import Demonstration, StageState
from bat_env.bank.state import Outcome as StateOutcome
from bat_env.bank.status import BuildReport
from bat_env.bank.store import Bank, default_bank_path
from bat_env.bank.workers import Crew, Outcome, Station
from bat_env.disk import named_if_full
from bat_env.errors import BankError, ConfigError
from bat_env.extras import require_for_cells
from bat_env.rubric import compile_contract
from bat_env.sandbox import resolve_backend
from bat_env.stages import Stage
from bat_env.tasks import Suite, Task, load_task, render_brief, task_ids
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

    def __init__(self, bank: Bank, crew: Crew) -> None:
        self.bank = bank
        self.crew = crew
        self.report = BuildReport()

    # -------------------------------------------------------------------------------- states

    def make_state(self, station: Station, job: StateJob) -> Outcome:
        """Replay, judge, store."""
        task, past = load_task(job.task), job.past
        replayer = station.replayer(task, job.size, job.tier, job.index)
        cells = past.cells(task, job.tier)
        prefix = replayer.run(cells)
        workspace = replayer.leftover(past, job.tier)
        check = "" if past.fault is None else past.fault.check
        exposed = replayer.check(check, workspace) if past.outcome == "recovery" else ""
        candidate = Candidate(
            state=self._row(task, job, exposed, tuple(sorted(workspace))),
            workspace=workspace,
            transcript=prefix.transcript,
            check=check,
            cells=cells,
            replayed=prefix.workspace,
        )
        verdict = admit(
            station.env(job.tier),
            station.desk,
            replayer,
            station.scanner,
            task,
            candidate,
            replay_again=job.replay_again,
        )
        name = job.job_id(task.digest)
        if verdict.state is None:
            record = {"reason": verdict.reason, "detail": verdict.detail, "fault": past.fault_id}
            self.bank.finish_job(name, "rejected", record)
            return Outcome(job, "rejected", verdict.reason, verdict.detail)
        row = self.bank.add(verdict.state, workspace, prefix.transcript)
        self.bank.finish_job(name, "admitted", {"state_id": row.state_id})
        return Outcome(job, "done", value=row)

    def _row(self, task: Task, job: StateJob, exposed: str, files: tuple[str, ...]) -> StageState:
        past = job.past
        instance = task.instance("train", job.index, job.size)
        contract = compile_contract(
            task.spec, tier=job.tier, focus=past.focus, outcome=past.outcome
        )
        skills = {} if past.focus is Stage.E2E else task.skills(job.tier, past.focus)
        return StageState(
            track=task.spec.track,
            task=task.spec.id,
            task_digest=task.digest,
            tier=job.tier,
            size=job.size,
            focus=past.focus,
            outcome=past.outcome,
            index=job.index,
            instance_digest=instance.digest,
            fault=past.fault_id,
            exposed=exposed,
            brief=render_brief(
                task,
                instance,
                tier=job.tier,
                focus=past.focus,
                outcome=past.outcome,
                exposed=exposed,
                files=files,
            ),
            rubric_digest=contract.digest,
            evidence=tuple(sorted({path for item in contract.items for path in item.evidence})),
            skill=next(iter(skills), ""),
            provenance={
                "builder": BUILDER_VERSION,
                "job": job.job_id(task.digest),
                "fault_source": "" if past.fault is None else past.fault.source,
                "replayed_stages": [stage.name for stage in past.stages],
                "replayed_twice": job.replay_again,
                "backend": self.crew.backend,
            },
            reduction=task.spec.reduction.model_dump() if job.size == "mini" else {},
        )

    def fill(self, cells: Sequence[list[StateJob]], per_cell: int) -> None:
        """Fill the cells: first candidates first, further ones where some were refused.

        Args:
            cells: Candidates of each cell, in order.
            per_cell: States wanted in each.
        """
        have: dict[tuple[str, ...], dict[str, StageState]] = {c[0].cell: {} for c in cells}
        tried = dict.fromkeys(have, 0)
        for number in range(ROUNDS):
            chosen: list[StateJob] = []
            for jobs in cells:
                cell = jobs[0].cell
                some = jobs[tried[cell] : tried[cell] + per_cell - len(have[cell])]
                tried[cell] += len(some)
                chosen += some
            title = "states" if number == 0 else f"states, round {number + 1}"
            for outcome in self._outcomes(title, chosen):
                if outcome.status == "done":
                    have[outcome.job.cell][outcome.value.state_id] = outcome.value
                else:
                    self._count(outcome, outcome.job.cell, outcome.job.past.fault_id)
        for cell, rows in have.items():
            self.report.states += [rows[key] for key in sorted(rows)]
            if len(rows) < per_cell:
                self.report.short[cell] = len(rows)

    def _outcomes(self, title: str, jobs: Sequence[StateJob]) -> Iterator[Outcome]:
        """Outcomes of jobs, those of earlier builds included."""
        known = self.bank.jobs()
        todo = []
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
            yield Outcome(job, "done", value=row)
        if todo:
            yield from self.crew.run(title, by_instance(todo), self.make_state)

    # ------------------------------------------------------------------------ demonstrations

    def make_demo(self, station: Station, plan: DemoPlan) -> Outcome:
        """Execute, scan, store."""
        task = load_task(plan.task)
        if plan.state_id is None:
            options: dict[str, Any] = {"task": plan.task, "index": plan.index, "size": plan.size}
        else:
            station.desk.put(self.bank.get(plan.state_id), self.bank.workspace(plan.state_id))
            options = {"state_id": plan.state_id}
        played = play(station.env(plan.tier), plan.cells(task), seed=plan.seed, options=options)
        demo = Demonstration(
            source_trajectory=plan.source_trajectory,
            track=task.spec.track,
            task=plan.task,
            task_digest=task.digest,
            tier=plan.tier,
            size=plan.size,
            focus=plan.focus,
            outcome=plan.outcome,
            state_id=plan.state_id,
            index=plan.index,
            seed=plan.seed,
            choices=dict(plan.choices),
            score=played.score,
            turns=played.turns,
        )
        name = plan.job_id(task.digest)
        leaks = "; ".join(str(leak) for leak in station.scanner.demonstration(demo))
        if leaks:
            self.bank.finish_job(name, "rejected", {"reason": "leakage", "detail": leaks})
            return Outcome(plan, "rejected", "leakage", leaks)
        row = self.bank.add_demonstration(demo)
        self.bank.finish_job(name, "stored", {"demo_id": row.demo_id})
        return Outcome(plan, "done", value=row.demo_id)

    def demonstrate(self, plans: Sequence[DemoPlan]) -> None:
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
        for outcome in self.crew.run("demonstrations", [[plan] for plan in todo], self.make_demo):
            if outcome.status == "done":
                self.report.demonstrations += 1
            else:
                self._count(outcome, outcome.job.cell)

    def _count(self, outcome: Outcome, cell: tuple[str, ...], fault: str = "") -> None:
        row = (cell, fault, outcome.reason, outcome.detail)
        (self.report.rejected if outcome.status == "rejected" else self.report.failed).append(row)


def build(
    path: str | Path | None = None,
    *,
    tasks: Sequence[str] | None = None,
    sizes: Sequence[Size] = ("mini",),
    tiers: Sequence[str] = ("lite",),
    per_cell: int = 3,
    demos: int = 240,
    p_good: float = 0.5,
    e2e_share: float = 0.25,
    instances: int = 8,
    seed: int = 0,
    backend: str = "auto",
    workers: int = 2,
    suites: Sequence[str | Suite] = DEFAULT_SUITES,
    progress: bool | ProgressFn | None = False,
) -> BuildReport:
    """Fill a Stage Bank. Safe to interrupt and to run again: it goes on where it stopped.

    Args:
        path: Folder of the bank; ``None`` for the default. It is made if it is not there.
        tasks: Task ids; ``None`` for every task found.
        sizes: ``"full"``, ``"mini"``.
        tiers: Tiers.
        per_cell: States wanted in each cell (focus x outcome) of each task, size and tier.
        demos: Demonstrations of each task, size and tier.
        p_good: Probability of the good option at each decision of a demonstration.
        e2e_share: Share of demonstrations that run the whole workflow from scratch.
        instances: Training instances that mistakes and demonstrations are spread over.
        seed: Source of all randomness; also picks the instances.
        backend: Sandbox backend.
        workers: Threads; each holds one sandbox.
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
        ("workers", workers, 1),
    ):
        if value < low:
            raise ConfigError(f"{name} must be at least {low}, got {value}.")
    if not 0.0 <= p_good <= 1.0 or not 0.0 <= e2e_share <= 1.0:
        raise ConfigError(f"p_good and e2e_share are shares, got {p_good} and {e2e_share}.")
    loaded = [load_task(name) for name in (task_ids() if tasks is None else tasks)]
    wanted = [(task, size, tier) for task in loaded for size in sizes for tier in tiers]
    indices = instance_indices(seed, instances)
    resolved = resolve_backend(backend)
    require_for_cells(resolved)
    with (
        named_if_full(path or default_bank_path()),
        Bank.open(path, create=True) as bank,
        reporter(progress) as show,
        Crew(resolved, of_suites(suites, {task.id for task in loaded}), workers, show) as crew,
    ):
        builder = _Builder(bank, crew)
        _retire_stale(bank, loaded)
        cells = []
        for task, size, tier in wanted if per_cell else ():
            for focus in Stage:
                for outcome in _OUTCOMES:
                    jobs = candidates(task, size, tier, focus, outcome, indices, per_cell, seed)
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
            builder.demonstrate(plans)
        report = builder.report
        report.digest = bank.digest()
        report.demonstrations_digest = bank.demonstrations_digest()
        bank.set_meta(
            "build",
            {
                "schema_version": 1,
                "builder": BUILDER_VERSION,
                "seed": seed,
                "per_cell": per_cell,
                "demos": demos,
                "p_good": p_good,
                "e2e_share": e2e_share,
                "instances": instances,
                "digest": report.digest,
                "demonstrations_digest": report.demonstrations_digest,
            },
        )
    return report


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
