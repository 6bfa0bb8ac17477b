"""Replaying admitted states on any backend, to see that a bank does not hang on one machine.

On the backend that a state was made on, one image gives the same bytes. On another the same work
gives the same verdicts, and arrays that differ by rounding alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from bat_env.bank.admission import MIN_ORACLE, MIN_SEPARATION, Played, play
from bat_env.bank.faults import Past
from bat_env.bank.fingerprints import Fingerprint
from bat_env.bank.sampler import balanced_order
from bat_env.bank.state import StageState
from bat_env.bank.store import Bank
from bat_env.bank.styles import USUAL
from bat_env.bank.workers import Station
from bat_env.errors import BankError, SandboxError
from bat_env.grader import shared_grader
from bat_env.sandbox import resolve_backend
from bat_env.stages import Stage
from bat_env.tasks import Task, load_task

MAX_APART: Final = 1e-5
"""Largest difference of arrays between backends, relative to their size."""
_SCORE_APART: Final = 1e-3
_SHOWN_FILES: Final = 4


@dataclass
class ReplayReport:
    """Outcome of replaying states.

    Attributes:
        backend: Where they were replayed.
        states: States replayed.
        identical: States whose workspace came out byte for byte.
        close: States with other bytes and the same values, arrays up to rounding.
        largest: Largest difference of values met in a file, relative.
        differing: Files of these states that have other bytes -> in how many states.
        problems: ``"state <id>: ..."`` of every state that does not hold.
    """

    backend: str
    states: int = 0
    identical: int = 0
    close: int = 0
    largest: float = 0.0
    differing: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every replayed state holds."""
        return not self.problems

    def told(self) -> str:
        """What came out, in a line."""
        said = f"{self.states} states replayed on {self.backend}: {self.identical} to the byte"
        if not self.close:
            return said
        most = sorted(self.differing, key=lambda path: (-self.differing[path], path))
        files = ", ".join(f"{path} in {self.differing[path]}" for path in most[:_SHOWN_FILES])
        more = f" and {len(most) - _SHOWN_FILES} more files" if len(most) > _SHOWN_FILES else ""
        return (
            f"{said}, {self.close} with other bytes and the same values (largest difference "
            f"{self.largest:.1e}; {files}{more})"
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "schema_version": 1,
            "backend": self.backend,
            "states": self.states,
            "identical": self.identical,
            "close": self.close,
            "largest": self.largest,
            "differing": dict(sorted(self.differing.items())),
            "problems": self.problems,
        }


def past_of(task: Task, state: StageState) -> Past:
    """How the workspace of an admitted state came about.

    Raises:
        BankError: If the task does not know the state's mistake any more.
    """
    known = {mistake.id: mistake for mistake in task.mistakes}
    if state.fault and state.fault not in known:
        raise BankError(f"{task.id} lists no mistake {state.fault!r}: build the bank again.")
    names = state.provenance.get("replayed_stages", [])
    return Past(
        state.focus,
        state.outcome,
        tuple(Stage.parse(name) for name in names),
        known.get(state.fault),
        str(state.provenance.get("style", USUAL)),
    )


def replay_states(
    bank: Bank,
    *,
    backend: str = "auto",
    sample: int | None = None,
    seed: int = 0,
    verdicts: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
    **query: Any,
) -> ReplayReport:
    """Make states of a bank again and compare.

    Args:
        bank: Any bank.
        backend: Sandbox backend.
        sample: Only so many, spread over the cells; ``None`` for all.
        seed: Picks the sample.
        verdicts: Also play start, oracle and naive again and compare their verdicts.
        progress: Told ``(done, total)``.
        query: Which states, as :meth:`Bank.query`.

    Raises:
        SandboxUnavailableError: If the backend cannot run here.
        SandboxError: If its sandboxes keep failing.
    """
    station = Station(resolve_backend(backend), Fingerprint())
    states = balanced_order(np.random.default_rng([seed, 0xBA11]), bank.query(**query))[:sample]
    report = ReplayReport(station.backend)
    try:
        # States of one instance share their beginnings.
        for done, state in enumerate(sorted(states, key=lambda s: (s.task, s.index, s.fault))):
            progress(done, len(states))
            wrong = list(_wrong(station, bank, state, report, verdicts))
            report.problems += [f"state {state.state_id}: {why}" for why in wrong]
            report.states += 1
        progress(len(states), len(states))
    finally:
        station.close()
    return report


def _wrong(
    station: Station, bank: Bank, state: StageState, report: ReplayReport, verdicts: bool
) -> Iterator[str]:
    task = load_task(state.task)
    if task.digest != state.task_digest:
        yield "made by another version of its task"
        return
    past = past_of(task, state)
    kept = bank.workspace(state.state_id)
    replayer = station.replayer(task, state.size, state.tier, state.index)
    made = _twice(lambda: replayer.leftover(past, state.tier))
    same_place = state.provenance.get("backend") == station.backend
    if made == kept:
        report.identical += 1
    elif same_place:
        paths = sorted(path for path in {*made, *kept} if made.get(path) != kept.get(path))
        yield f"replays differently: {', '.join(paths[:6])}"
        return
    else:
        apart, why = _apart(kept, made)
        report.largest = max(report.largest, apart)
        if apart > MAX_APART:
            yield why
            return
        report.close += 1
        for path in sorted(path for path in kept if kept[path] != made[path]):
            report.differing[path] = report.differing.get(path, 0) + 1
    if verdicts:
        yield from _other_verdicts(station, bank, task, state)


def _apart(kept: Mapping[str, bytes], made: Mapping[str, bytes]) -> tuple[float, str]:
    """The largest difference between two workspaces, and where it is."""
    if kept.keys() != made.keys():
        others = sorted(kept.keys() ^ made.keys())
        return float("inf"), f"has other files: {', '.join(others[:6])}"
    grader, worst, where = shared_grader(), 0.0, ""
    for path in sorted(kept):
        apart, message = grader.difference(path.rsplit("/", 1)[-1], kept[path], made[path])
        if not apart <= worst:
            worst, where = apart, f"{path} {message} (by {apart:.3g})"
    return worst, where


def _other_verdicts(station: Station, bank: Bank, task: Task, state: StageState) -> Iterator[str]:
    """What playing the state tells otherwise than at its admission."""
    station.desk.put(state, bank.workspace(state.state_id))
    env, seed = station.env(state.tier), int(state.state_id[:8], 16)
    options = {"state_id": state.state_id}
    scripts: Sequence[tuple[str, Any]] = (
        ("start", ()),
        ("oracle", task.script(focus=state.focus, tier=state.tier, outcome=state.outcome)),
        (
            "naive",
            task.script(
                task.naive_choices, focus=state.focus, tier=state.tier, outcome=state.outcome
            ),
        ),
    )
    played: dict[str, Played] = {}
    for name, cells in scripts:
        work = functools.partial(play, env, cells, seed=seed, options=options)
        played[name] = _twice(work)
        before = state.admission.get(name)
        if before is not None and abs(played[name].score - before) > _SCORE_APART:
            yield f"{name} scores {played[name].score:.4f}, at admission {before:.4f}"
    oracle, naive = played["oracle"].score, played["naive"].score
    if played["start"].score != 0.0 or oracle < MIN_ORACLE or naive > oracle - MIN_SEPARATION:
        yield f"would not be admitted (oracle {oracle:.3f}, naive {naive:.3f})"


def _twice(work: Callable[[], Any]) -> Any:
    """A dead sandbox is no verdict: try once more."""
    try:
        return work()
    except SandboxError:
        return work()
