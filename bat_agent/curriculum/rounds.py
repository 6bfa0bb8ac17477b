"""A round's reset states: which, in which order, from which pool.

Every batch of 8 groups holds 4 states of the target stage (``target``), 2 of the other four
stages (``mix``) and 2 end-to-end states (``e2e``). Inside a pool the draw is balanced over tracks
and outcomes (and, for ``mix``, over stages), without replacement, in an order that follows from
(round id, seed) alone.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from bat_env.errors import BankError, ConfigError
from bat_env.stages import WORK_STAGES, Stage

SCHEMA_VERSION: Final = 1
Pool: TypeAlias = Literal["target", "mix", "e2e"]
POOLS: Final[tuple[Pool, ...]] = ("target", "mix", "e2e")
COMPOSITION: Final[Mapping[Pool, int]] = {"target": 4, "mix": 2, "e2e": 2}


@dataclass(frozen=True, slots=True, order=True)
class StateRow:
    """What the curriculum knows of a Stage Bank state.

    Attributes:
        state_id: Its id; links the rollouts of one group.
        digest: Digest of its content.
        track: For example ``"seg"``.
        focus: ``"S1"`` .. ``"S5"`` or ``"E2E"``.
        outcome: ``"success"``, ``"recovery"`` or ``"failure"``.
    """

    state_id: str
    digest: str
    track: str
    focus: str
    outcome: str


@dataclass(frozen=True, slots=True)
class Draw:
    """One group of the round.

    Attributes:
        step, slot: Its batch, and its place in it.
        pool: Where it was drawn from.
        state: The reset state.
        use: Which pass over the pool this is; 0 unless the pool was smaller than the round.
    """

    step: int
    slot: int
    pool: Pool
    state: StateRow
    use: int = 0


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """The record of a round's states, in order.

    Attributes:
        round_id: 1-based number of the round.
        seed: Seed of the run.
        target: Target stage.
        steps: Batches.
        draws: ``steps`` x 8 draws, batch after batch.
    """

    round_id: int
    seed: int
    target: str
    steps: int
    draws: tuple[Draw, ...]

    @property
    def mixture(self) -> dict[str, int]:
        """``pool/track/focus/outcome`` -> number of groups."""
        counts = Counter(
            f"{d.pool}/{d.state.track}/{d.state.focus}/{d.state.outcome}" for d in self.draws
        )
        return dict(sorted(counts.items()))

    @property
    def reused(self) -> int:
        """Groups whose state had already been drawn in this round (pool smaller than needed)."""
        return sum(d.use > 0 for d in self.draws)

    @property
    def digest(self) -> str:
        """sha256 over all of it, as hex."""
        text = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def batches(self) -> list[list[Draw]]:
        """Draws by batch."""
        return [[d for d in self.draws if d.step == step] for step in range(self.steps)]

    def _content(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "round_id": self.round_id,
            "seed": self.seed,
            "target": self.target,
            "steps": self.steps,
            "draws": [asdict(draw) for draw in self.draws],
        }

    def to_json(self) -> dict[str, Any]:
        """Everything, with mixture and digest beside it."""
        return {
            **self._content(),
            "mixture": self.mixture,
            "reused": self.reused,
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RoundPlan:
        """Read a plan back.

        Raises:
            ConfigError: If its content does not match its digest.
        """
        try:
            plan = cls(
                round_id=value["round_id"],
                seed=value["seed"],
                target=value["target"],
                steps=value["steps"],
                draws=tuple(
                    Draw(d["step"], d["slot"], d["pool"], StateRow(**d["state"]), d["use"])
                    for d in value["draws"]
                ),
            )
        except (KeyError, TypeError) as error:
            raise ConfigError(f"Not a round plan: {error!r}.") from None
        if plan.digest != value.get("digest"):
            raise ConfigError(
                f"Expected a round plan with digest {value.get('digest')}, came {plan.digest}. "
                "The file was changed; delete it and rerun the round."
            )
        return plan


def plan_round(
    rows: Iterable[StateRow],
    *,
    round_id: int,
    seed: int,
    target: Stage | str,
    steps: int,
    composition: Mapping[Pool, int] = COMPOSITION,
    tracks: Mapping[str, float] | None = None,
) -> RoundPlan:
    """Draw the states of one round.

    Args:
        rows: States of the bank, in any order; only their set matters.
        round_id: 1-based.
        seed: Of the run.
        target: Target stage, S1 .. S5.
        steps: Batches of the round.
        composition: Groups per batch from each pool; the other mixes are the baselines' recipes.
        tracks: Track -> share of its groups within each pool, > 0; ``None``: equal shares.

    Returns:
        The plan. A pool that is smaller than the round needs is passed over again in a new order,
        and the plan counts it in ``reused``.

    Raises:
        BankError: If a needed pool is empty.
        ConfigError: If ``target`` or ``steps`` cannot work, or a track has no share.
    """
    stage = Stage.parse(target)
    if stage not in WORK_STAGES or steps < 1:
        raise ConfigError(f"Expected a target S1-S5 and steps >= 1, came {stage.name}, {steps!r}.")
    key = hashlib.blake2b(f"round\x1f{round_id}\x1f{seed}".encode(), digest_size=8).digest()
    rng = np.random.default_rng(int.from_bytes(key, "big"))
    unique = sorted(set(rows))
    pools: dict[Pool, list[StateRow]] = {
        "target": [r for r in unique if r.focus == stage.name],
        "mix": [r for r in unique if r.focus not in (stage.name, Stage.E2E.name)],
        "e2e": [r for r in unique if r.focus == Stage.E2E.name],
    }
    ordered: dict[Pool, list[tuple[StateRow, int]]] = {}
    for pool in POOLS:
        needed = composition.get(pool, 0) * steps
        if needed and not pools[pool]:
            raise BankError(
                f"Expected Stage Bank states for the pool {pool!r} of target {stage.name}, came "
                "none. Run `bat-env bank build`."
            )
        ordered[pool] = (
            _balanced_order(pools[pool], needed, rng)
            if tracks is None
            else _shared_order(pools[pool], needed, rng, tracks)
        )
    draws: list[Draw] = []
    for step in range(steps):
        slot = 0
        for pool in POOLS:
            count = composition.get(pool, 0)
            for row, use in ordered[pool][step * count : (step + 1) * count]:
                draws.append(Draw(step, slot, pool, row, use))
                slot += 1
    return RoundPlan(round_id, seed, stage.name, steps, tuple(draws))


def _balanced_order(
    rows: Sequence[StateRow], count: int, rng: np.random.Generator
) -> list[tuple[StateRow, int]]:
    """``count`` rows: always from a least-drawn track, then stage, then outcome with rows left."""
    order: list[tuple[StateRow, int]] = []
    use = 0
    drawn: Counter[tuple[str, ...]] = Counter()
    while len(order) < count:
        left = [rows[i] for i in rng.permutation(len(rows))]
        while left and len(order) < count:
            # min() keeps the first of equals, and `left` is shuffled: ties fall at random.
            best = min(
                range(len(left)),
                key=lambda i: (
                    drawn[("track", left[i].track)],
                    drawn[("focus", left[i].track, left[i].focus)],
                    drawn[("outcome", left[i].track, left[i].outcome)],
                    drawn[("cell", left[i].track, left[i].focus, left[i].outcome)],
                ),
            )
            row = left.pop(best)
            drawn.update(
                [
                    ("track", row.track),
                    ("focus", row.track, row.focus),
                    ("outcome", row.track, row.outcome),
                    ("cell", row.track, row.focus, row.outcome),
                ]
            )
            order.append((row, use))
        use += 1
    return order


def _shared_order(
    rows: Sequence[StateRow], count: int, rng: np.random.Generator, shares: Mapping[str, float]
) -> list[tuple[StateRow, int]]:
    """``count`` rows: always from the track that is furthest behind its share, balanced within it.

    Each track is passed over on its own: a weak one comes around again before a strong one.
    """
    tracks = sorted({row.track for row in rows})
    if not all(shares.get(track, 0.0) > 0.0 for track in tracks):
        raise ConfigError(f"Expected a share > 0 for each of {tracks}, came {dict(shares)}.")
    turns: list[str] = []
    drawn = Counter[str]()
    for _ in range(count):
        turns.append(min(tracks, key=lambda track: ((drawn[track] + 1) / shares[track], track)))
        drawn[turns[-1]] += 1
    queues = {
        track: iter(_balanced_order([r for r in rows if r.track == track], drawn[track], rng))
        for track in tracks
    }
    return [next(queues[track]) for track in turns]
