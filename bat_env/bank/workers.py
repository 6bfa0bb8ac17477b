"""The crew of a build: threads that each own a sandboxed environment, and how they stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from bat_env.bank.admission import Desk
from bat_env.bank.fingerprints import Fingerprint
from bat_env.bank.leakage import Scanner
from bat_env.bank.progress import ProgressFn
from bat_env.bank.replay import Prefixes, Replayer
from bat_env.bank.throttle import Throttle
from bat_env.env import AutoMedEnv
from bat_env.errors import SandboxError, SandboxUnavailableError
from bat_env.sandbox import end_work, shared_pool
from bat_env.tasks import Task
from bat_env.tasks.instance import Size

_TRIES: Final = 3


@dataclass(frozen=True)
class Outcome:
    """What became of a job.

    Attributes:
        job: The job.
        status: ``"done"``, ``"rejected"``, or ``"failed"`` when the sandboxes failed.
        reason: Short and countable, for ``"rejected"``.
        detail: For people.
        value: What was made, for ``"done"``.
    """

    job: Any
    status: str
    reason: str = ""
    detail: str = ""
    value: Any = None


class Station:
    """What one worker thread owns: an environment over its own desk, and one replayer at a time.

    Args:
        backend: Resolved sandbox backend.
        fingerprint: Held-out traces to scan for.
        known: Replayed beginnings, shared with other stations; its own if omitted.
    """

    def __init__(
        self, backend: str, fingerprint: Fingerprint, known: Prefixes | None = None
    ) -> None:
        self.desk = Desk()
        self._known = known or Prefixes()
        self.scanner = Scanner(fingerprint)
        self.backend = backend
        self._env: tuple[str, AutoMedEnv] | None = None
        self._replayer: tuple[tuple[Any, ...], Replayer] | None = None

    def env(self, tier: str) -> AutoMedEnv:
        """The environment for a tier; the last one is kept."""
        if self._env is None or self._env[0] != tier:
            self.close()
            made = AutoMedEnv(track=None, tier=tier, sandbox=self.backend, bank=self.desk)
            self._env = (tier, made)
        return self._env[1]

    def close(self) -> None:
        """Close the environment. Idempotent."""
        if self._env is not None:
            self._env[1].close()
            self._env = None

    def replayer(self, task: Task, size: Size, tier: str, index: int) -> Replayer:
        """The replayer of an instance; the last one is kept."""
        key = (task.spec.id, size, tier, index)
        if self._replayer is None or self._replayer[0] != key:
            pool = shared_pool(self.backend, task.spec.limits).beside
            instance = task.instance("train", index, size)
            made = Replayer(pool, task, instance, tier, self._known)
            self._replayer = (key, made)
        return self._replayer[1]


Work: TypeAlias = Callable[[Station, Any], Outcome]


class Crew:
    """Worker threads. One station a thread, all over one backend.

    Args:
        backend: Resolved sandbox backend.
        fingerprint: Held-out traces that the stations scan for.
        workers: Threads.
        show: Told of progress.
        throttle: Asked before every job whether to wait, if there is one.
    """

    def __init__(
        self,
        backend: str,
        fingerprint: Fingerprint,
        workers: int,
        show: ProgressFn,
        throttle: Throttle | None = None,
    ) -> None:
        self.backend = backend
        self._throttle = throttle
        self._known = Prefixes()
        self._fingerprint = fingerprint
        self._show = show
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="bank")
        self._stop = threading.Event()
        self._local = threading.local()
        self._stations: list[Station] = []
        self._futures: set[Future[list[Outcome]]] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the environments.

        After an interrupt the cells of the jobs at work are ended: these jobs store nothing, and
        the next build does them. After anything else each worker ends its job.
        """
        self._halt()
        if kind is not None and not issubclass(kind, Exception):
            end_work(self._futures, "the jobs at work")
        self._executor.shutdown(cancel_futures=True)
        for station in self._stations:
            station.close()

    def _halt(self) -> None:
        """Start nothing new, and end every pause."""
        self._stop.set()
        if self._throttle is not None:
            self._throttle.stop()

    def run(
        self,
        what: str,
        groups: Sequence[Sequence[Any]],
        work: Work,
        count: tuple[int, int] | None = None,
    ) -> Iterator[Outcome]:
        """Run groups of jobs on the workers; a group's jobs run in order on one worker.

        Yields results as they come. After a failure or an interrupt nothing new is started.

        Args:
            what: Name of the work, for progress.
            groups: Jobs.
            work: Does one job.
            count: Jobs of this kind done before, and all of them; default: those in ``groups``.
        """
        before, total = count or (0, sum(len(group) for group in groups))
        finished: list[Any] = []
        done = 0
        self._show(what, before, total)

        def run_group(group: Sequence[Any]) -> list[Outcome]:
            results = []
            for job in group:
                if self._throttle is not None:
                    self._throttle.wait()
                if self._stop.is_set():
                    break
                results.append(self._retry(work, job))
                finished.append(job)
            return results

        try:
            pending = {self._executor.submit(run_group, group) for group in groups}
            self._futures = set(pending)
            while pending:
                over, pending = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                if len(finished) != done:
                    done = len(finished)
                    self._show(what, min(before + done, total), total)
                for future in over:
                    yield from future.result()
        except BaseException:
            self._halt()
            raise

    def _station(self) -> Station:
        """This thread's station."""
        station: Station | None = getattr(self._local, "station", None)
        if station is None:
            made = Station(self.backend, self._fingerprint, self._known)
            station = self._local.station = made
            with self._lock:
                self._stations.append(station)
        return station

    def _retry(self, work: Work, job: Any) -> Outcome:
        """A dead sandbox is no verdict: try again, then leave the job for the next build."""
        last: SandboxError | None = None
        for _ in range(_TRIES):
            try:
                return work(self._station(), job)
            except SandboxUnavailableError:
                raise
            except SandboxError as error:
                last = error
                if self._stop.is_set():
                    break
        return Outcome(job, "failed", "sandbox", str(last))
