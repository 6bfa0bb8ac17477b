"""From a check to an :class:`~bat_env.rubric.base.Item`: the one place that maps outcomes.

A check returns a message (the item is met) or a ``(value, message)`` pair, and raises
:class:`~bat_env.rubric.claims.Fail`, :class:`~bat_env.rubric.claims.NotApplicable` or
:class:`~bat_env.rubric.claims.Lost` for everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from bat_env.episode import Episode
from bat_env.rubric.base import Context, Item, Verdict
from bat_env.rubric.claims import Fail, Lost, NotApplicable
from bat_env.stages import Stage

Check: TypeAlias = Callable[[Episode, Context], "str | tuple[float, str]"]


@dataclass(frozen=True, slots=True)
class CheckPredicate:
    """A check as a :data:`~bat_env.rubric.base.Predicate`."""

    item: str
    check: Check
    at_hand_in: bool

    def __call__(self, episode: Episode, ctx: Context, final: bool) -> Verdict:
        """Decide the item; never raises."""
        try:
            # Applicability is known from the start, so that a stage's weights do not move at the
            # end; a check looks at applicability before it looks at evidence.
            outcome = self.check(episode, ctx)
        except NotApplicable as reason:
            return Verdict(self.item, "na", message=str(reason))
        except Exception as error:
            if self.at_hand_in and not final:
                return Verdict(self.item, "pending", message="Scored at hand-in.")
            if isinstance(error, Fail):
                return Verdict(
                    self.item, "fail", message=error.message, false_claim=error.false_claim
                )
            if isinstance(error, Lost):
                return Verdict(self.item, "null", message=str(error))
            # Content must never be able to turn a bad episode into an invalid one.
            return Verdict(self.item, "fail", message=f"Unreadable: {type(error).__name__}.")
        if self.at_hand_in and not final:
            return Verdict(self.item, "pending", message="Scored at hand-in.")
        value, message = (1.0, outcome) if isinstance(outcome, str) else outcome
        value = min(1.0, max(0.0, value))
        return Verdict(self.item, "pass" if value > 0.0 else "fail", value, message)


def make_item(
    name: str,
    title: str,
    check: Check,
    *,
    evidence: tuple[str, ...] = (),
    weight: float = 1.0,
    at_hand_in: bool = True,
) -> Item:
    """An item from its id (``"S1.plan_first"``) and its check."""
    return Item(
        id=name,
        stage=Stage.parse(name.split(".", 1)[0]),
        title=title,
        predicate=CheckPredicate(name, check, at_hand_in),
        evidence=evidence,
        weight=weight,
        at_hand_in=at_hand_in,
    )
