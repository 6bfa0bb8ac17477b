"""Who may enter the bank: real episodes decide, and every refusal has a reason."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from bat_env.bank.leakage import Scanner
from bat_env.bank.memory import States
from bat_env.bank.replay import Replayer
from bat_env.bank.state import DemoTurn, StageState, workspace_digest
from bat_env.env import AutoMedEnv
from bat_env.errors import SandboxError
from bat_env.sandbox.base import FileTree
from bat_env.stages import Stage
from bat_env.tasks import Task
from bat_env.tasks.scripts import ScriptCell
from bat_env.tools import execute_call, submit_call

MIN_ORACLE: Final = 0.8
MIN_SEPARATION: Final = 0.2

Phase: TypeAlias = Callable[[str], contextlib.AbstractContextManager[None]]
"""Times what happens inside, by name."""


class Desk(States):
    """A bank of candidates in memory: the environment starts from them before they are admitted."""

    def put(self, state: StageState, workspace: FileTree) -> StageState:
        """Lay a candidate on the desk, alone; returns it with the id that it would have."""
        named = state.model_copy(update={"workspace": workspace_digest(workspace)})
        named = named.model_copy(update={"state_id": named.content_id()})
        self._states.clear()
        self.add(named, workspace)
        return named


@dataclass(frozen=True)
class Played:
    """A finished scripted episode.

    Attributes:
        score: Final score in [0, 1].
        status: Of the episode: ``"submitted"`` unless a budget ran out or it was disqualified.
        turns: What was seen and done.
        workspace: The workspace just before hand-in; empty unless asked for.
        missed: Items that were not met, those of lost claims included.
        pilots: Cells that wrote below validation/pilot.
    """

    score: float
    status: str
    turns: tuple[DemoTurn, ...]
    workspace: dict[str, bytes]
    missed: tuple[str, ...] = ()
    pilots: int = 0


def play(
    env: AutoMedEnv,
    cells: Iterable[ScriptCell],
    *,
    seed: int,
    options: Mapping[str, Any],
    keep_workspace: bool = False,
) -> Played:
    """Play a script to its hand-in.

    Raises:
        SandboxError: If the episode is invalid: nothing may be concluded from it.
    """
    observation, info = env.reset(seed=seed, options=dict(options))
    actions = [execute_call(cell.language, cell.code) for cell in cells] + [submit_call()]
    turns: list[DemoTurn] = []
    workspace: dict[str, bytes] = {}
    for action in actions:
        if keep_workspace and action is actions[-1]:
            workspace = env.workspace()
        turns.append(DemoTurn(observation=observation["text"], action=action))
        observation, _, terminated, truncated, info = env.step(action)
        if terminated or truncated:
            break
    result = info.get("result")
    score = info["score"] if result is None else result["score"]
    if score is None or info["status"] == "invalid":
        raise SandboxError(f"The episode is invalid: {info.get('error')}. Run it again.")
    missed = tuple(sorted(item for item, (state, _) in info["items"].items() if state == "fail"))
    pilots = sum(
        any(
            path.startswith("validation/pilot/")
            for path in (*cell.result.delta.created, *cell.result.delta.changed)
        )
        for cell in env.episode.cells
    )
    return Played(float(score), str(info["status"]), tuple(turns), workspace, missed, pilots)


@dataclass(frozen=True)
class Candidate:
    """A state that wants to enter.

    Attributes:
        state: Its row, without admission scores.
        workspace: Its files.
        transcript: How they came about.
        check: Code of the check that must print something else once the fault is cured, or "".
        cells: The replayed prefix, to be replayed again where that is asked.
        replayed: Everything that the prefix left, of which ``workspace`` is what was kept.
    """

    state: StageState
    workspace: dict[str, bytes]
    transcript: tuple[Mapping[str, Any], ...]
    check: str = ""
    cells: Sequence[ScriptCell] = ()
    replayed: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """Admitted with scores, or refused for a reason (short, countable) with a detail."""

    state: StageState | None
    reason: str = ""
    detail: str = ""


def admit(
    env: AutoMedEnv,
    desk: Desk,
    replayer: Replayer,
    scanner: Scanner,
    task: Task,
    candidate: Candidate,
    *,
    replay_again: bool,
    phase: Phase = lambda name: contextlib.nullcontext(),
) -> Verdict:
    """Judge a candidate by playing it.

    Args:
        env: Reads ``desk`` as its bank.
        desk: Takes the candidate.
        replayer: Of the candidate's instance.
        scanner: Of held-out material.
        task: The candidate's task.
        candidate: The state.
        replay_again: Also replay the whole prefix and compare bytes.
        phase: Times what happens inside, by name.

    Raises:
        SandboxError: If the sandbox failed: no verdict, try again.
    """
    state = desk.put(candidate.state, candidate.workspace)
    with phase("scan"):
        leaks = list(scanner.state(state, candidate.workspace, candidate.transcript))
    if leaks:
        return Verdict(None, "leakage", "; ".join(str(leak) for leak in leaks[:4]))
    if replay_again:
        with phase("replay again"):
            second = replayer.run(candidate.cells, fresh=True).workspace
        if workspace_digest(second) != workspace_digest(candidate.replayed):
            return Verdict(None, "replay differs", _difference(second, candidate.replayed))
    if state.outcome == "recovery" and not state.exposed:
        return Verdict(None, "check exposes nothing", state.fault)
    options = {"state_id": state.state_id}
    seed = int(state.state_id[:8], 16)

    try:
        with phase("start"):
            start = play(env, (), seed=seed, options=options)
    except SandboxError as error:
        if not _boots(env, state):
            raise
        return Verdict(None, "does not boot", str(error))
    if start.score != 0.0:
        return Verdict(None, "score at start is not 0", f"{start.score:.3f}")
    careful = task.script(focus=state.focus, tier=state.tier, outcome=state.outcome)
    cured = bool(candidate.check) and state.outcome == "recovery"
    with phase("oracle"):
        oracle = play(env, careful, seed=seed, options=options, keep_workspace=cured)
    if oracle.status != "submitted":
        return Verdict(None, "oracle does not finish", oracle.status)
    if oracle.score < MIN_ORACLE:
        return Verdict(None, "oracle below .8", f"{oracle.score:.3f}: {_named(oracle.missed)}")
    if state.reduction and state.focus is Stage.E2E:
        if oracle.missed:
            return Verdict(None, "surrogate fails a stage check", _named(oracle.missed))
        if oracle.pilots > state.reduction["validation_passes"]:
            return Verdict(None, "surrogate validates too often", str(oracle.pilots))
    if cured:
        with phase("check"):
            after = replayer.check(candidate.check, oracle.workspace)
        if after == state.exposed:
            return Verdict(None, "oracle does not cure", after)
    careless = task.script(
        task.naive_choices, focus=state.focus, tier=state.tier, outcome=state.outcome
    )
    with phase("naive"):
        naive = play(env, careless, seed=seed, options=options)
    if naive.score > oracle.score - MIN_SEPARATION:
        return Verdict(
            None, "naive does not separate", f"oracle {oracle.score:.3f}, naive {naive.score:.3f}"
        )
    scores = {"start": start.score, "oracle": oracle.score, "naive": naive.score}
    return Verdict(state.model_copy(update={"admission": scores}))


def _boots(env: AutoMedEnv, state: StageState) -> bool:
    """Whether a sandbox starts on the same instance without the state's files: then they did it."""
    options = {"task": state.task, "index": state.index, "size": state.size}
    try:
        env.reset(seed=1, options=options)
    except SandboxError:
        return False
    return True


def _named(items: Sequence[str]) -> str:
    return ", ".join(items[:6])


def _difference(one: FileTree, two: FileTree) -> str:
    paths = sorted({*one, *two})
    return ", ".join([p for p in paths if one.get(p) != two.get(p)][:6])
