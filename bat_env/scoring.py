"""The score of one episode as it goes: what each step earned, and what is graded at its end."""

from __future__ import annotations

import contextlib
import functools
import threading

from bat_env.episode import Episode, Status, Violation
from bat_env.errors import BankError, GraderError, SandboxError
from bat_env.grader import shared_grader
from bat_env.judge import Judge
from bat_env.rubric import RubricContract, compile_contract
from bat_env.rubric.base import Context, RubricResult
from bat_env.sandbox.pool import Beside
from bat_env.stages import Stage, quantize
from bat_env.start import Start
from bat_env.turns import WARNINGS
from bat_env.verifier import Verifier
from bat_env.workbench import Workbench


@functools.lru_cache(maxsize=16)
def shared_verifier(pool: Beside) -> Verifier:
    """The verifier of a pool; it remembers what it graded of bank states."""
    return Verifier(pool, shared_grader())


def contract_of(start: Start, judge: Judge | None = None) -> RubricContract:
    """The rubric of a start.

    Args:
        start: What an episode is started from.
        judge: Adds its items, if there is one; bank states are admitted without.

    Raises:
        BankError: If its bank state was admitted under another one.
    """
    contract = compile_contract(
        start.task.spec, tier=start.tier, focus=start.focus, outcome=start.outcome
    )
    if start.state is not None and start.state.rubric_digest not in ("", contract.digest):
        raise BankError(
            f"State {start.state_id} was admitted under another rubric contract. Run "
            "`bat-env bank build`."
        )
    return contract if judge is None else judge.contract(contract, start.task.spec)


def prepare(start: Start) -> None:
    """Let the grader work out what it needs of the truth while the agent works.

    It is the same at every hand-in of an instance and kept, so nothing waits for it twice.
    """

    def ahead() -> None:
        with contextlib.suppress(GraderError, OSError):  # asked again, and told, at hand-in
            shared_grader().prepare(start.task, start.instance)

    threading.Thread(target=ahead, name="bat-prepare", daemon=True).start()


class Scoring:
    """Scores an episode. Rewards are changes of the score, so they sum to it exactly.

    Args:
        start: What the episode was started from.
        contract: Its rubric.
        episode: Its record.
        judge: Reads prose at hand-in, if there is one.

    Attributes:
        score: In [0, 1], a multiple of 2**-20.
        rubric: The last evaluation; ``None`` before the first.
    """

    def __init__(
        self,
        start: Start,
        contract: RubricContract,
        episode: Episode,
        judge: Judge | None = None,
    ) -> None:
        self._start, self._contract, self._episode = start, contract, episode
        self._judge = judge
        if judge is not None:
            episode.evidence.judge = judge.identity(contract)
        self.score = 0.0
        self.rubric: RubricResult | None = None
        if episode.focus in (Stage.S4, Stage.S5, Stage.E2E):
            prepare(start)

    def step(self) -> float:
        """Re-score what the record shows so far; returns the reward."""
        return self._gain(self._evaluate(final=False))

    def finish(self, status: Status, reason: str, bench: Workbench) -> float:
        """End the episode and grade it; returns the last reward.

        Raises:
            SandboxError: If evidence was lost through infrastructure: there is no score.
        """
        episode, start = self._episode, self._start
        if status != "disqualified" and (broken := bench.changed_inputs()):
            episode.violations.append(Violation("readonly_changed", len(episode.turns) - 1, broken))
            if len(episode.violations) > WARNINGS:
                status, reason = "disqualified", "violation"
        episode.status, episode.end_reason = status, reason
        if status == "disqualified":
            self._evaluate(final=False)
            return self._move_to(0.0)
        verifier = shared_verifier(bench.pool.beside)
        verifier.gather(episode, start.task, start.instance, bench.current, dict(start.workspace))
        if self._judge is not None:
            read = bench.current.read
            self._judge.gather(episode, start.task.spec, self._contract, read)
        rubric = self._evaluate(final=True)
        if rubric.score is None:
            lost = "; ".join(episode.evidence.lost.values()) or "no reason was recorded"
            raise SandboxError(f"Evidence was lost ({lost}): the episode has no score.")
        return self._gain(rubric)

    def _evaluate(self, *, final: bool) -> RubricResult:
        context = Context(self._start.task.spec, self._start.instance)
        self.rubric = self._contract.evaluate(self._episode, context, final)
        return self.rubric

    def _gain(self, rubric: RubricResult) -> float:
        """Take over a score; returns its change. Lost evidence leaves the score as it was."""
        return 0.0 if rubric.score is None else self._move_to(quantize(rubric.score))

    def _move_to(self, score: float) -> float:
        change, self.score = score - self.score, score
        return change
