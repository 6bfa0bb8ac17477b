"""What one job of a build does: a state replayed, judged and stored, or a demonstration played."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from bat_env.bank.admission import Candidate, admit, play
from bat_env.bank.demos import DemoPlan
from bat_env.bank.jobs import BUILDER_VERSION, StateJob
from bat_env.bank.state import Demonstration, StageState, digest_of
from bat_env.bank.store import Bank
from bat_env.bank.styles import USUAL
from bat_env.bank.teacher import Teacher
from bat_env.bank.wording import PLAIN, TEACHER, VARIED, worded
from bat_env.bank.workers import Outcome, Station
from bat_env.rubric import compile_contract
from bat_env.stages import Stage
from bat_env.tasks import Task, load_task, render_brief
from bat_env.tasks.instance import Instance


class Clock:
    """Wall seconds of the phases of a build, summed over its workers. Thread-safe."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        began = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._seconds[name] += time.monotonic() - began

    @property
    def seconds(self) -> dict[str, float]:
        """Phase -> seconds."""
        with self._lock:
            return {name: round(spent, 2) for name, spent in sorted(self._seconds.items())}


class Factory:
    """Makes what jobs ask for. Thread-safe, as far as each worker brings its own station.

    Args:
        bank: Takes what is made.
        backend: Resolved sandbox backend, for provenance.
        teacher: Words briefs where a job asks for it.

    Attributes:
        clock: Time of each phase.
        refused: Why answers of the teacher were not used -> count.
    """

    def __init__(self, bank: Bank, backend: str, teacher: Teacher | None = None) -> None:
        self.bank = bank
        self.backend = backend
        self.teacher = teacher
        self.clock = Clock()
        self.refused: Counter[str] = Counter()
        self._lock = threading.Lock()

    # -------------------------------------------------------------------------------- states

    def make_state(self, station: Station, job: StateJob) -> Outcome:
        """Replay, judge, store."""
        task, past = load_task(job.task), job.past
        with self.clock.phase("generate"):
            replayer = station.replayer(task, job.size, job.tier, job.index)
        cells = past.cells(task, job.tier)
        with self.clock.phase("replay"):
            prefix = replayer.run(cells)
            workspace = replayer.leftover(past, job.tier)
        check = "" if past.fault is None else past.fault.check
        with self.clock.phase("check"):
            exposed = replayer.check(check, workspace) if past.outcome == "recovery" else ""
        candidate = Candidate(
            state=self._row(station, task, job, exposed, tuple(sorted(workspace))),
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
            phase=self.clock.phase,
        )
        name = job.job_id(task.digest)
        with self.clock.phase("store"):
            if verdict.state is None:
                record = {"reason": verdict.reason, "detail": verdict.detail}
                self.bank.finish_job(name, "rejected", {**record, "fault": past.fault_id})
                return Outcome(job, "rejected", verdict.reason, verdict.detail)
            row = self.bank.add(verdict.state, workspace, prefix.transcript)
            self.bank.finish_job(name, "admitted", {"state_id": row.state_id})
        return Outcome(job, "done", value=row)

    def _row(
        self, station: Station, task: Task, job: StateJob, exposed: str, files: tuple[str, ...]
    ) -> StageState:
        past = job.past
        instance = task.instance("train", job.index, job.size)
        contract = compile_contract(
            task.spec, tier=job.tier, focus=past.focus, outcome=past.outcome
        )
        skills = {} if past.focus is Stage.E2E else task.skills(job.tier, past.focus)
        plain = render_brief(
            task,
            instance,
            tier=job.tier,
            focus=past.focus,
            outcome=past.outcome,
            exposed=exposed,
            files=files,
        )
        with self.clock.phase("brief"):
            brief, told = self._brief(station, task, instance, job, plain)
        style = {} if past.style == USUAL else {"style": past.style}
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
            brief=brief,
            rubric_digest=contract.digest,
            evidence=tuple(sorted({path for item in contract.items for path in item.evidence})),
            skill=next(iter(skills), ""),
            provenance={
                "builder": BUILDER_VERSION,
                "job": job.job_id(task.digest),
                "fault_source": "" if past.fault is None else past.fault.source,
                "replayed_stages": [stage.name for stage in past.stages],
                "replayed_twice": job.replay_again,
                "backend": self.backend,
                **style,
                **told,
            },
            reduction=task.spec.reduction.model_dump() if job.size == "mini" else {},
        )

    def _brief(
        self, station: Station, task: Task, instance: Instance, job: StateJob, plain: str
    ) -> tuple[str, dict[str, Any]]:
        """The brief as the job wants it, and what provenance says of it."""
        if job.briefs == PLAIN:
            return plain, {}
        told: dict[str, Any] = {"writer": VARIED}
        if job.briefs == TEACHER and self.teacher is not None:
            asked = self.teacher.word(plain, task.spec, instance, station.scanner.text)
            with self._lock:
                self.refused.update(_kind(why) for why in asked.refused)
            if asked.text:
                return asked.text, {"writer": TEACHER, **self.teacher.name}
            told["teacher_refused"] = len(asked.refused)
        key = ["brief", job.seed, job.job_id(task.digest)]
        seed = int(digest_of(key)[:15], 16)
        return worded(plain, np.random.default_rng(seed)), {**told, "brief_seed": seed}

    # ------------------------------------------------------------------------ demonstrations

    def make_demo(self, station: Station, plan: DemoPlan) -> Outcome:
        """Execute, scan, store."""
        task = load_task(plan.task)
        if plan.state_id is None:
            options: dict[str, Any] = {"task": plan.task, "index": plan.index, "size": plan.size}
        else:
            station.desk.put(self.bank.get(plan.state_id), self.bank.workspace(plan.state_id))
            options = {"state_id": plan.state_id}
        with self.clock.phase("trajectories" if plan.teacher else "demonstrations"):
            played = play(station.env(plan.tier), plan.cells(task), seed=plan.seed, options=options)
        name = plan.job_id(task.digest)

        def refused(reason: str, detail: str) -> Outcome:
            self.bank.finish_job(name, "rejected", {"reason": reason, "detail": detail})
            return Outcome(plan, "rejected", reason, detail)

        if plan.teacher and (played.missed or played.status != "submitted"):
            detail = ", ".join(played.missed) or played.status
            return refused("teacher fails a stage check", detail)
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
            choices=plan.told(),
            score=played.score,
            turns=played.turns,
        )
        with self.clock.phase("scan"):
            leaks = "; ".join(str(leak) for leak in station.scanner.demonstration(demo))
        if leaks:
            return refused("leakage", leaks)
        with self.clock.phase("store"):
            row = self.bank.add_demonstration(demo)
            self.bank.finish_job(name, "stored", {"demo_id": row.demo_id})
        return Outcome(plan, "done", value=row.demo_id)


def _kind(why: str) -> str:
    """A refusal without what it quotes, to be counted."""
    first = why.split(";")[0].split(":")[0]
    return first.split("'")[0].strip()
