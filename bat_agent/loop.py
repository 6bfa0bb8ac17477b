"""BiCuRL's outer loop as a state machine that can be killed anywhere.

A round is evaluate -> route -> materialise -> train -> evaluate -> gate -> promote or hold. Every
phase is a function of earlier files that writes one file of its own, whole or not at all; a phase
whose file is there is read, not done again. ``state.json`` moves on only when a round's record is
on disk, so a restart repeats at most the phase it was killed in, and training resumes inside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from bat_agent.curriculum.fallback import fallback_reason
from bat_agent.curriculum.gate import GateResult, TrainingHealth, gate
from bat_agent.curriculum.rounds import COMPOSITION, Pool, RoundPlan, StateRow, plan_round
from bat_agent.curriculum.router import Rule, route
from bat_agent.curriculum.scores import ControllerScores
from bat_agent.curriculum.teacher import (
    Spread,
    best_so_far,
    detect_shift,
    round_report,
    track_shares,
)
from bat_agent.evaluation import Evaluation
from bat_agent.files import read_json, sweep, write_json, write_text
from bat_agent.loop_state import Checkpoint, LoopState
from bat_env.errors import CheckpointError, ConfigError

ROUND_SCHEMA: Final = 1
PHASES: Final = ("preflight", "evaluate", "route", "train", "candidate", "gate")


@dataclass(frozen=True, slots=True)
class Trained:
    """What training of one round gave.

    Attributes:
        checkpoint: The candidate's folder.
        rewards: Mean reward of each update, in order.
        health: For the gate.
    """

    checkpoint: Path
    rewards: tuple[float, ...]
    health: TrainingHealth


class Engine(Protocol):
    """The work behind the phases. Each call must be safe to repeat after a kill."""

    def preflight(self) -> Mapping[str, Any]:
        """Leakage scan over all training material; raises ``LeakageError`` on any finding."""

    def digest(self, checkpoint: Path) -> str:
        """Digest of a checkpoint's weights; raises ``CheckpointError`` if it is not whole."""

    def evaluate(self, checkpoint: Path, label: str) -> Evaluation:
        """Controller evaluation: equal checkpoints give equal scores."""

    def states(self) -> list[StateRow]:
        """Reset states that the round may draw from."""

    def reward_version(self) -> str:
        """Digest of the rubric contracts that the rewards are made by."""

    def train(self, start: Path, plan: RoundPlan, out: Path) -> Trained:
        """One round of updates; continues what ``out`` holds."""

    def divergence(self, candidate: Path, best: Path) -> float:
        """Mean per-token KL(candidate || best), in nats, over held-out prompts."""


class Loop:
    """Runs the rounds of one run folder.

    Args:
        run: Folder of the run.
        engine: Does the work.
        config_digest: Digest of everything that the scores depend on.
        seed: Of the run.
        rounds: Rounds to run.
        steps_per_round: Updates of a round.
        start: The supervised checkpoint, inside ``run``.
        pools: Groups of a batch from each pool.
        router: How the target stage is chosen.
        tracks: How a pool's groups are spread over the tracks: ``"equal"`` (the reference), or
            ``"needed"``: half of them by what each track is missing.
        gate_doubt: Standard errors that the gate forgives a track.
        on_phase: Called with (round, phase) as each phase begins.
    """

    def __init__(
        self,
        run: Path,
        engine: Engine,
        *,
        config_digest: str,
        seed: int,
        rounds: int,
        steps_per_round: int,
        start: Path,
        pools: Mapping[Pool, int] = COMPOSITION,
        router: Rule = "lowest",
        tracks: Spread = "equal",
        gate_doubt: float = 0.0,
        on_phase: Callable[[int, str], None] | None = None,
    ) -> None:
        self.run_dir = run
        self.engine = engine
        self.config_digest = config_digest
        self.seed = seed
        self.rounds = rounds
        self.steps = steps_per_round
        self.start = start
        self.pools = pools
        self.router = router
        self.tracks = tracks
        self.gate_doubt = gate_doubt
        self.on_phase = on_phase

    @property
    def state_file(self) -> Path:
        """``state.json`` of the run."""
        return self.run_dir / "state.json"

    def run(self) -> LoopState:
        """Run until all rounds are complete; continues where an earlier call was killed.

        Raises:
            ConfigError: If the folder belongs to a run with other settings.
            LeakageError: If held-out material is found in training material.
            CheckpointError: If a checkpoint that the state names is not whole.
        """
        sweep(self.run_dir)
        state = self._state()
        while not state.done:
            state = self._round(state)
            write_json(self.state_file, state.to_json())
        return state

    # --------------------------------------------------------------------------------- one round

    def _round(self, state: LoopState) -> LoopState:
        folder = self.run_dir / "rounds" / f"{state.round:04d}"
        self._enter(state, "preflight")
        # Before every round and after every restart: the bank may have grown in between.
        write_json(folder / "preflight.json", {"schema_version": 1, **self.engine.preflight()})
        current = self._checkpoint(state.current)

        self._enter(state, "evaluate")
        before = self._evaluate(current, state.current.digest, "start")

        self._enter(state, "route")
        plan = self._plan(state, folder, before.scores())

        self._enter(state, "train")
        trained = self._train(folder, current, plan)
        candidate = self._reference(trained.checkpoint)

        self._enter(state, "candidate")
        after = self._evaluate(trained.checkpoint, candidate.digest, "candidate")

        self._enter(state, "gate")
        return self._decide(state, folder, plan, trained, candidate, before, after)

    def _plan(self, state: LoopState, folder: Path, scores: ControllerScores) -> RoundPlan:
        file = folder / "plan.json"
        if file.is_file():
            return RoundPlan.from_json(read_json(file, schema_version=1))
        held = None
        if state.held is not None:
            report = self.run_dir / "rounds" / f"{state.held:04d}" / "report.json"
            held = ControllerScores.from_json(read_json(report, schema_version=1)["after"])
        plan = plan_round(
            self.engine.states(),
            round_id=state.round,
            seed=self.seed,
            target=route(scores, held, self.router),
            steps=self.steps,
            composition=self.pools,
            tracks=track_shares(scores) if self.tracks == "needed" else None,
        )
        write_json(file, plan.to_json())
        return plan

    def _train(self, folder: Path, current: Path, plan: RoundPlan) -> Trained:
        file = folder / "training.json"
        if file.is_file():
            value = read_json(file, schema_version=ROUND_SCHEMA)
            checkpoint = self._checkpoint(Checkpoint(**value["candidate"]))
            return Trained(checkpoint, tuple(value["rewards"]), TrainingHealth(**value["health"]))
        trained = self.engine.train(current, plan, folder / "train")
        candidate = self._reference(trained.checkpoint)
        write_json(
            file,
            {
                "schema_version": ROUND_SCHEMA,
                "candidate": {"path": candidate.path, "digest": candidate.digest},
                "rewards": list(trained.rewards),
                "health": {
                    "finite": trained.health.finite,
                    "rollouts": trained.health.rollouts,
                    "aborted": trained.health.aborted,
                },
            },
        )
        return trained

    def _decide(
        self,
        state: LoopState,
        folder: Path,
        plan: RoundPlan,
        trained: Trained,
        candidate: Checkpoint,
        before: Evaluation,
        after: Evaluation,
    ) -> LoopState:
        old, new = before.scores(), after.scores()
        decision = gate(old, new, trained.health, self.gate_doubt)
        best, best_overall = state.best, state.best_overall
        if best_overall is None:
            best, best_overall = state.current, old.overall
        if decision.promoted and new.overall >= best_overall:
            best, best_overall = candidate, new.overall
        current = candidate if decision.promoted else state.current
        changes = (*state.changes, new.overall - old.overall)
        kl = None
        if current.digest != best.digest:
            kl = self.engine.divergence(self._checkpoint(current), self._checkpoint(best))
        fallback = fallback_reason(changes, kl)
        if fallback is not None:
            current, changes = best, ()
        self._record(state, folder, plan, trained, candidate, decision, before, after, kl, fallback)
        return replace(
            state,
            round=state.round + 1,
            phase="preflight" if state.round < state.rounds else "done",
            current=current,
            best=best,
            best_overall=best_overall,
            changes=changes,
            held=None if decision.promoted else state.round,
            promoted=(*state.promoted, state.round) if decision.promoted else state.promoted,
        )

    def _record(
        self,
        state: LoopState,
        folder: Path,
        plan: RoundPlan,
        trained: Trained,
        candidate: Checkpoint,
        decision: GateResult,
        before: Evaluation,
        after: Evaluation,
        kl: float | None,
        fallback: str | None,
    ) -> None:
        scores = after.scores()
        shift = detect_shift(plan, scores, self._best_before(state.round, before.scores()))
        value, text = round_report(
            plan, before.scores(), scores, shift, decision, fallback=fallback
        )
        write_json(folder / "report.json", value)
        write_text(folder / "report.md", text)
        intervals = {}
        for name, evaluation in (("before", before), ("after", after)):
            interval = evaluation.interval(lambda cell: cell.overall)
            intervals[name] = interval.to_json() if interval is not None else None
        write_json(
            folder / "record.json",
            {
                "schema_version": ROUND_SCHEMA,
                "round": state.round,
                "target": plan.target,
                "plan_digest": plan.digest,
                "reward_version": self.engine.reward_version(),
                "start": {"path": state.current.path, "digest": state.current.digest},
                "candidate": {"path": candidate.path, "digest": candidate.digest},
                "promoted": decision.promoted,
                "reasons": list(decision.reasons),
                "kl_to_best": kl,
                "fallback": fallback,
                "rewards": list(trained.rewards),
                **intervals,
            },
        )

    # --------------------------------------------------------------------------------- the folder

    def _state(self) -> LoopState:
        if self.state_file.is_file():
            state = LoopState.load(self.state_file)
            if state.config_digest != self.config_digest:
                raise ConfigError(
                    f"{self.run_dir} belongs to a run with other settings. Use another folder, or "
                    "the settings in its config.json."
                )
            return replace(state, rounds=self.rounds)
        start = self._reference(self.start)
        state = LoopState(self.config_digest, self.rounds, start, start)
        write_json(self.state_file, state.to_json())
        return state

    def _enter(self, state: LoopState, phase: str) -> None:
        write_json(self.state_file, replace(state, phase=phase).to_json())
        if self.on_phase is not None:
            self.on_phase(state.round, phase)

    def _evaluate(self, checkpoint: Path, digest: str, label: str) -> Evaluation:
        # By weights: a promoted candidate is the next round's start, and a held round's start
        # comes again; neither is played twice.
        file = self.run_dir / "controller" / f"{digest[:16]}.json"
        if file.is_file():
            return Evaluation.load(file)
        evaluation = self.engine.evaluate(checkpoint, label)
        evaluation.scores()  # Refuses cells without a score before anything is kept.
        evaluation.save(file)
        return evaluation

    def _best_before(self, round_id: int, start: ControllerScores) -> ControllerScores:
        best = best_so_far(None, start)
        for earlier in range(1, round_id):
            file = self.run_dir / "rounds" / f"{earlier:04d}" / "report.json"
            value = read_json(file, schema_version=1)
            for key in ("before", "after"):
                best = best_so_far(best, ControllerScores.from_json(value[key]))
        return best

    def _reference(self, checkpoint: Path) -> Checkpoint:
        path = checkpoint.resolve().relative_to(self.run_dir.resolve()).as_posix()
        return Checkpoint(path, self.engine.digest(checkpoint))

    def _checkpoint(self, reference: Checkpoint) -> Path:
        path = self.run_dir / reference.path
        came = self.engine.digest(path)
        if came != reference.digest:
            raise CheckpointError(
                f"Expected weights {reference.digest[:16]} in {path}, came {came[:16]}. The "
                "checkpoint was changed after the run recorded it; start a new run folder."
            )
        return path
