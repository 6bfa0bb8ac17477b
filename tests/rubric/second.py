"""The score formulas a second time: tables and exact fractions, read off the specification.

Nothing here looks at the rubric's code. What a rule says of an episode is worked out from plain
values (sets of names, states, numbers), so that both can only agree where both are right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction as F

WEIGHT = {"S1": F(25, 100), "S2": F(15, 100), "S3": F(35, 100), "S4": F(15, 100), "S5": F(1, 10)}
TASK_SHARE, AGENTIC_SHARE = F(1, 2), F(1, 2)
STEP = F(1, 2**20)
MARGIN = F(5, 100)
FREE_FAILURES = 5

PILOT, BATCH = "<pilot>", "<batch>"
"""Names of the two required files whose path depends on the task."""

TABLE: tuple[tuple[str, F, bool, tuple[str, ...]], ...] = (
    # item, weight, decided at every step, required files
    ("S1.plan_first", F(1), True, ("plan/plan.md", "plan/facts.json")),
    ("S1.model_named", F(1), False, ()),
    ("S1.facts_counts", F(1), False, ()),
    ("S1.facts_ranges", F(1), False, ()),
    ("S1.processing_declared", F(1), False, ()),
    ("S1.output_declared", F(1), False, ()),
    ("S1.pilot_check", F(1), False, ()),
    ("S1.candidates", F(1), False, ()),
    ("S1.plan_image", F(1), False, ("plan/plan.png",)),
    ("S2.versions", F(1), False, ("setup/setup.json",)),
    ("S2.inputs", F(1), False, ()),
    ("S2.model_run", F(1), False, ()),
    ("S2.predict_runs", F(1), False, ("pipeline/predict.py",)),
    ("S2.few_failures", F(1), True, ()),
    ("S3.pilot_first", F(1), True, (PILOT,)),
    ("S3.recorded", F(1), False, ("validation/pilot.json",)),
    ("S3.geometry", F(1), False, ()),
    ("S3.sanity_value", F(1), False, ()),
    ("S3.plausible", F(1), False, ()),
    ("S3.fault_gone", F(1), False, ()),
    ("S4.completed", F(1, 2), False, (BATCH,)),
    ("S4.reproducible", F(1, 2), False, (BATCH,)),
    ("S5.task_margin", F(1, 2), False, ()),
    ("S5.manifest", F(1, 2), False, ("outputs/manifest.json",)),
)


def rows(tier: str, focus: str, outcome: str | None) -> list[tuple[str, F, bool, tuple[str, ...]]]:
    """The rows that one kind of episode is scored by."""

    def counts(item: str) -> bool:
        if item in ("S1.candidates", "S1.plan_image") and tier == "lite":
            return False
        if item == "S3.fault_gone" and (outcome, focus) != ("recovery", "S3"):
            return False
        return focus == "E2E" or item.startswith(focus)

    return [row for row in TABLE if counts(row[0])]


@dataclass
class Tale:
    """What happened, in plain values.

    Attributes:
        states: Item -> (``pass``, ``fail``, ``na`` or ``null``, value), before any rule over items.
        own: Required files that are regular and this episode's own work.
        worked: Whether a successful cell changed the workspace.
        out: Whether it was disqualified.
        handed_in: Whether it was handed in.
        task: Task score of own outputs, ``None`` where it was lost.
    """

    tier: str
    focus: str
    outcome: str | None
    states: Mapping[str, tuple[str, float]]
    own: frozenset[str]
    worked: bool
    out: bool
    handed_in: bool
    task: float | None


@dataclass
class Told:
    """Numbers of a tale; ``None`` is null."""

    eta: dict[str, F] = field(default_factory=dict)
    score: dict[str, F | None] = field(default_factory=dict)
    reward: dict[str, F | None] = field(default_factory=dict)
    agentic: F | None = None
    overall: F | None = None


def rounded(value: F) -> F:
    """To the nearest step; halves to even."""
    return F(round(min(F(1), max(F(0), value)) / STEP)) * STEP


def told(tale: Tale) -> Told:
    """Score a tale."""
    table = rows(tale.tier, tale.focus, tale.outcome)
    earning = tale.worked and not tale.out
    found = Told()
    for stage in WEIGHT:
        mine = [row for row in table if row[0].startswith(stage)]
        states = {row[0]: _state(row, tale) if earning else ("fail", 0.0) for row in mine}
        if earning and tale.handed_in:
            truths = [states[item][0] for item, _, order, _ in mine if not order]
            if truths and not {"pass", "null"} & set(truths):
                for item, _, order, _ in mine:
                    if order and states[item][0] == "pass":
                        states[item] = ("fail", 0.0)
        mine = [row for row in mine if states[row[0]][0] != "na"]
        if not mine:
            continue
        needed = {path for row in mine for path in row[3]}
        found.eta[stage] = F(len(needed & tale.own), len(needed)) if needed else F(1)
        if any(states[row[0]][0] == "null" for row in mine):
            found.score[stage] = found.reward[stage] = None
            continue
        total = sum(row[1] for row in mine)
        got = sum(row[1] * F(states[row[0]][1]) for row in mine if states[row[0]][0] == "pass")
        score = got / total
        found.score[stage] = score
        found.reward[stage] = found.eta[stage] * score
    rewards = found.reward
    if rewards and None not in rewards.values():
        weight = sum(WEIGHT[stage] for stage in rewards)
        found.agentic = sum(WEIGHT[s] * r for s, r in rewards.items() if r is not None) / weight
    found.overall = _overall(tale, found)
    return found


def _state(row: tuple[str, F, bool, tuple[str, ...]], tale: Tale) -> tuple[str, float]:
    state, value = tale.states[row[0]]
    pending = not row[2] and not tale.handed_in and state != "na"
    return ("pending", 0.0) if pending else (state, value)


def _overall(tale: Tale, found: Told) -> F | None:
    if tale.out or not tale.worked:
        return F(0)
    if tale.focus != "E2E":
        reward = found.reward.get(tale.focus, F(0))
        return None if reward is None else rounded(reward)
    task = F(0) if not tale.handed_in else None if tale.task is None else F(tale.task)
    if task is None or found.agentic is None:
        return None
    return rounded(TASK_SHARE * task + AGENTIC_SHARE * found.agentic)


# ------------------------------------------------------------------------- the order of the cells


def plan_first(cells: Sequence[frozenset[str]]) -> bool:
    """Plan and facts are there, and were last written in a cell before any prediction's."""
    written = [n for path in ("plan", "facts") for n, c in enumerate(cells) if path in c]
    there = all(any(path in c for c in cells) for path in ("plan", "facts"))
    predicted = [n for n, c in enumerate(cells) if any(p[:5] in ("pilot", "batch") for p in c)]
    return there and (not predicted or max(written) < predicted[0])


def pilot_first(cells: Sequence[frozenset[str]]) -> bool:
    """One pilot case, alone in its cell, in a cell before the first of the batch, not redone."""
    pilots = [{p for p in c if p.startswith("pilot")} for c in cells]
    batches = [n for n, c in enumerate(cells) if any(p.startswith("batch") for p in c)]
    if len(set().union(*pilots)) != 1:
        return False
    at = [n for n, p in enumerate(pilots) if p]
    last = {p: n for n, c in enumerate(cells) for p in c if p.startswith("batch")}
    return (not batches or at[0] < batches[0]) and all(n > at[-1] for n in last.values())


def few_failures(cells: Sequence[frozenset[str]], ok: Sequence[bool]) -> bool:
    """At most five failed cells before the pilot's."""
    alone = [len({p for p in c if p.startswith("pilot")}) == 1 for c in cells]
    until = alone.index(True) if True in alone else len(cells)
    return sum(not good for good in ok[:until]) <= FREE_FAILURES


# ---------------------------------------------------------------------------------- S4 and S5


@dataclass
class Batch:
    """Outputs at reset and at hand-in.

    Attributes:
        cases: All cases.
        at_reset: Valid at reset; ``None`` where there were no outputs.
        valid: Valid now.
        own: With an output of this episode's own.
        task, task_at_reset: Task scores.
        floor: Of the best trivial answer.
        luck: Standard deviation of the task score where outputs are drawn by lot.
        rerun: Agreement of the clean re-run, ``None`` where it failed.
        needed: Least agreement.
        all_trivial, some_trivial: Whether all, or some, outputs are those of a trivial method.
        listed, true_digests, right_format: What the manifest says.
    """

    cases: frozenset[str]
    at_reset: frozenset[str] | None
    valid: frozenset[str]
    own: frozenset[str]
    task: F
    task_at_reset: F
    floor: F
    luck: F
    rerun: F | None
    needed: F
    trivial: frozenset[str]
    listed: bool
    true_digests: bool
    right_format: bool


def batch_states(batch: Batch, focus: str) -> dict[str, tuple[str, F]]:
    """The four items."""
    opened = batch.cases - (batch.at_reset or frozenset())
    gained, share = batch.task, F(1)
    if batch.at_reset is not None and opened:
        gained = batch.task - batch.task_at_reset
        share = F(len(opened), len(batch.cases))
    worth = gained > (batch.floor + batch.luck) * share
    again = bool(batch.own) and batch.rerun is not None and batch.rerun >= batch.needed
    done = opened & batch.valid & batch.own
    real = done - batch.trivial
    inferred = bool(real) and worth and again
    found = {}
    if opened:
        value = F(len(real), len(opened)) if inferred else F(0)
        found["S4.completed"] = ("pass" if value else "fail", value)
    else:
        found["S4.completed"] = ("na", F(0))
    whole = batch.valid == batch.cases and worth and again and not batch.trivial
    found["S4.reproducible"] = ("pass", F(1)) if whole else ("fail", F(0))

    def enough(task: F) -> bool:
        return task >= batch.floor + MARGIN and task > batch.floor + batch.luck

    result = worth and batch.trivial != batch.cases
    if focus == "S5" and batch.at_reset is not None and enough(batch.task_at_reset):
        found["S5.task_margin"] = ("na", F(0))
    else:
        submitted = result and enough(batch.task)
        found["S5.task_margin"] = ("pass", F(1)) if submitted else ("fail", F(0))
    good = batch.listed and batch.true_digests and batch.right_format and result
    found["S5.manifest"] = ("pass", F(1)) if good else ("fail", F(0))
    return found
