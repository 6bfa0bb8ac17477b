"""How far a judge agrees with the rules, on the items that both can decide.

Cohen's kappa for each item, with counts. Its interval comes from the posterior of the four cells
under Jeffreys' prior: it stays wide where there are few episodes, also where all of them agree.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

SCHEMA_VERSION: Final = 1
ALL: Final = "all"
"""Name of the row over all items."""
DRAWS: Final = 4000
_PRIOR: Final = 0.5


@dataclass(frozen=True, slots=True)
class Read:
    """What one episode says: the judge's findings and the rules' verdicts.

    Attributes:
        model: Name of the judge.
        prompt_digest: Of what it was asked.
        judged: Item -> ``"met"``, ``"unmet"`` or ``"null"``, of shared items.
        ruled: Item -> whether the rules found it met; items that they did not decide are absent.
        prose: The findings on scored items, which the rules do not decide.
    """

    model: str
    prompt_digest: str
    judged: Mapping[str, str]
    ruled: Mapping[str, bool]
    prose: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One item.

    Attributes:
        item: Rubric item, or ``"all"``.
        both, judge_only, rules_only, neither: Episodes by who found the item met.
        null: Episodes in which the judge gave no usable answer; outside of everything else.
        agreed: Share of decided episodes in which both say the same, or ``None`` without any.
        kappa: Cohen's kappa; ``None`` where one verdict is all that was ever given.
        ci95: 95 % interval of kappa, or ``None`` without episodes.
    """

    item: str
    both: int = 0
    judge_only: int = 0
    rules_only: int = 0
    neither: int = 0
    null: int = 0
    agreed: float | None = None
    kappa: float | None = None
    ci95: tuple[float, float] | None = None

    @property
    def decided(self) -> int:
        """Episodes with a verdict of both."""
        return self.both + self.judge_only + self.rules_only + self.neither


@dataclass(frozen=True, slots=True)
class Report:
    """Agreement of one judge.

    Attributes:
        model, prompt_digest: Which judge.
        episodes: How many were read.
        rows: Shared items in order of their names, then all together.
        prose: Scored item -> how often the judge said what.
    """

    model: str
    prompt_digest: str
    episodes: int
    rows: tuple[Row, ...]
    prose: Mapping[str, Mapping[str, int]]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        rows = [{**dataclasses.asdict(row), "decided": row.decided} for row in self.rows]
        return {
            "model": self.model,
            "prompt_digest": self.prompt_digest,
            "episodes": self.episodes,
            "items": rows,
            "prose": {item: dict(counts) for item, counts in self.prose.items()},
        }


def cohen_kappa(both: int, first_only: int, second_only: int, neither: int) -> float | None:
    """Cohen's kappa of two yes-or-no raters from the counts of their table.

    Returns:
        A value in [-1, 1]; ``None`` where chance alone would always agree, or there is nothing.

        >>> cohen_kappa(20, 5, 10, 15)
        0.4
        >>> cohen_kappa(7, 0, 0, 0) is None
        True
    """
    total = both + first_only + second_only + neither
    if total == 0:
        return None
    first, second = both + first_only, both + second_only
    # In whole numbers as long as possible: total^2 times the usual terms.
    chance = first * second + (total - first) * (total - second)
    if chance == total * total:
        return None
    return (total * (both + neither) - chance) / (total * total - chance)


def kappa_interval(
    both: int, first_only: int, second_only: int, neither: int, *, seed: int = 0
) -> tuple[float, float] | None:
    """95 % credible interval of kappa under Jeffreys' prior on the four cells.

    Args:
        both: Times that both said yes.
        first_only: Times that only the first did.
        second_only: Times that only the second did.
        neither: Times that neither did.
        seed: Of the draws; equal counts and seed give equal intervals.
    """
    counts = np.array([both, first_only, second_only, neither], float)
    if counts.sum() == 0:
        return None
    cells = np.random.default_rng(seed).dirichlet(counts + _PRIOR, DRAWS)
    first, second = cells[:, 0] + cells[:, 1], cells[:, 0] + cells[:, 2]
    chance = first * second + (1 - first) * (1 - second)
    kappa = (cells[:, 0] + cells[:, 3] - chance) / np.maximum(1 - chance, 1e-12)
    low, high = np.quantile(kappa, (0.025, 0.975))
    return float(low), float(high)


def reports(episodes: Iterable[Read], *, seed: int = 0) -> list[Report]:
    """One report for each judge among the episodes, in order of names.

    Args:
        episodes: What was read of each.
        seed: Of the intervals.
    """
    judges: defaultdict[tuple[str, str], list[Read]] = defaultdict(list)
    for read in episodes:
        judges[read.model, read.prompt_digest].append(read)
    return [_report(*judge, reads, seed) for judge, reads in sorted(judges.items())]


def _report(model: str, prompt: str, reads: list[Read], seed: int) -> Report:
    tables: defaultdict[str, Counter[str]] = defaultdict(Counter)
    prose: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for read in reads:
        for item, state in read.prose.items():
            prose[item][state] += 1
        for item, state in read.judged.items():
            if item not in read.ruled:
                continue
            cell = "null" if state not in ("met", "unmet") else _cell(state, read.ruled[item])
            tables[item][cell] += 1
            tables[ALL][cell] += 1
    names = sorted(tables, key=lambda item: (item == ALL, item))
    rows = tuple(_row(item, tables[item], seed) for item in names)
    return Report(model, prompt, len(reads), rows, dict(sorted(prose.items())))


def _cell(judged: str, ruled: bool) -> str:
    if judged == "met":
        return "both" if ruled else "judge_only"
    return "rules_only" if ruled else "neither"


def _row(item: str, table: Counter[str], seed: int) -> Row:
    cells = (table["both"], table["judge_only"], table["rules_only"], table["neither"])
    total = sum(cells)
    both, judge_only, rules_only, neither = cells
    return Row(
        item,
        both,
        judge_only,
        rules_only,
        neither,
        null=table["null"],
        agreed=(both + neither) / total if total else None,
        kappa=cohen_kappa(*cells),
        ci95=kappa_interval(*cells, seed=seed),
    )
