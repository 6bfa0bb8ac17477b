"""Reset distributions: from which cells of the bank, and how often, an environment starts.

A distribution is JSON: ``"uniform"``; weights by stage, track, outcome or cell; or a list of cells.
A cell is written ``"seg/S3/recovery"``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from bat_env.errors import BankError, ConfigError, shown, unknown_name
from bat_env.stages import OUTCOMES, Stage

Cell: TypeAlias = tuple[str, str, str]
Distribution: TypeAlias = str | Mapping[str, float] | Sequence[str]
"""A checked distribution: ``"uniform"``, name or cell -> weight, or cells."""

UNIFORM: Final = "uniform"
_KINDS: Final = ("stage", "track", "outcome")
_PLACE: Final = {"track": 0, "stage": 1, "outcome": 2}


def cell_name(cell: Sequence[str]) -> str:
    """How a cell is written: ``track/stage/outcome``."""
    return "/".join(cell)


def check_distribution(value: object, tracks: Collection[str]) -> Distribution | None:
    """Check and normalise a distribution.

    Args:
        value: ``None``; ``"uniform"``; a mapping of weights whose keys are stages, tracks and
            outcomes in any mixture, or cells; a list of cells, as names or as triples.
        tracks: Tracks that exist.

    Returns:
        The distribution in normal spelling, ready for JSON; ``None`` for ``None``.

    Raises:
        ConfigError: If it is none of these, or no weight is above 0.
        UnknownNameError: For a name that is no stage, track, outcome or cell.
    """
    if value is None or value == UNIFORM:
        return None if value is None else UNIFORM
    if isinstance(value, Mapping) and value:
        return _weights(value, tracks)
    if isinstance(value, list | tuple) and value:
        cells = [_cell(item, tracks) for item in value]
        return list(dict.fromkeys(cell_name(cell) for cell in cells))
    raise ConfigError(
        'distribution must be "uniform", a mapping name -> weight over stages, tracks, outcomes or '
        f'cells ("seg/S3/recovery"), or a list of cells; got {shown(value)}.'
    )


def _weights(value: Mapping[Any, Any], tracks: Collection[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    kinds = set()
    for name, weight in value.items():
        number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
        if not number or not math.isfinite(weight) or weight < 0:
            raise ConfigError(
                f"distribution: weight of {shown(name)} must be a finite number >= 0, got "
                f"{shown(weight)}."
            )
        kind, spelled = _name(name, tracks)
        kinds.add(kind)
        weights[spelled] = float(weight)
    if "cell" in kinds and len(kinds) > 1:
        raise ConfigError(
            "distribution: weights are by cell, or by stage, track and outcome; not both at once."
        )
    for kind in kinds:
        if not sum(w for name, w in weights.items() if _name(name, tracks)[0] == kind) > 0:
            raise ConfigError(
                f"distribution: the weights by {kind} sum to 0; at least one must be above 0."
            )
    return weights


def _name(name: object, tracks: Collection[str]) -> tuple[str, str]:
    """The kind of a key of weights, and its normal spelling."""
    if isinstance(name, Stage):
        return "stage", name.name
    if isinstance(name, str):
        if "/" in name:
            return "cell", cell_name(_cell(name, tracks))
        if name in OUTCOMES:
            return "outcome", name
        if name in tracks:
            return "track", name
        if name.upper() in Stage.__members__:
            return "stage", name.upper()
    known = (*Stage.__members__, *OUTCOMES, *tracks)
    raise unknown_name("stage, track or outcome", name, known, "A cell is written seg/S3/recovery.")


def _cell(value: object, tracks: Collection[str]) -> Cell:
    parts = value.split("/") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or len(parts) != 3:
        raise ConfigError(
            f'distribution: a cell is "track/stage/outcome", for example "seg/S3/recovery"; got '
            f"{shown(value)}."
        )
    track, stage, outcome = parts
    if track not in tracks:
        raise unknown_name("track", track, tracks)
    if outcome not in OUTCOMES:
        raise unknown_name("outcome", outcome, OUTCOMES)
    return track, Stage.parse(stage).name, outcome


def chances(
    distribution: Distribution, held: Collection[Cell], given: Collection[str] = ()
) -> dict[Cell, float]:
    """Chance of each held cell.

    Weights by stage, track and outcome are drawn one after the other, in this order, each among
    what is left and held; the rest is uniform over cells. So weights by one of them hold exactly.

    Args:
        distribution: A checked one.
        held: Cells that have states and fit the reset.
        given: Kinds (``"stage"``, ``"track"``, ``"outcome"``) that the reset itself has decided.

    Returns:
        Cell -> chance above 0; they sum to 1.

    Raises:
        BankError: If a cell or name with weight has no state, or nothing is left to draw.
    """
    cells = sorted(held)
    if isinstance(distribution, str):
        chance = dict.fromkeys(cells, 1.0)
    elif not isinstance(distribution, Mapping):
        chance = _by_cell(dict.fromkeys(distribution, 1.0), cells, bool(given))
    elif any("/" in name for name in distribution):
        chance = _by_cell(distribution, cells, bool(given))
    else:
        chance = _by_names(distribution, cells, given)
    total = sum(chance.values())
    if not total > 0:
        raise BankError(
            "The Stage Bank holds no state in any cell of the distribution that fits this reset. "
            "`bat-env bank status` shows what it holds; `bat-env bank build` fills it."
        )
    return {cell: weight / total for cell, weight in chance.items() if weight > 0}


def _by_cell(
    weights: Mapping[str, float], held: Sequence[Cell], restricted: bool
) -> dict[Cell, float]:
    chance = {cell: weights.get(cell_name(cell), 0.0) for cell in held}
    names = {cell_name(cell) for cell in held}
    lacking = sorted(name for name, weight in weights.items() if weight > 0 and name not in names)
    if lacking and not restricted:
        raise _lack(lacking)
    return chance


def _by_names(
    weights: Mapping[str, float], held: Sequence[Cell], given: Collection[str]
) -> dict[Cell, float]:
    chance = dict.fromkeys(held, 1.0)
    for kind in _KINDS:
        place = _PLACE[kind]
        mine = {name: w for name, w in weights.items() if _kind(name) == kind}
        if not mine or kind in given:
            continue
        lacking = sorted(n for n, w in mine.items() if w > 0 and all(c[place] != n for c in held))
        if lacking and not given:
            raise _lack(lacking)
        # Among cells that agree in the kinds drawn before, this one is drawn by its own weight.
        before = [_PLACE[k] for k in _KINDS[: _KINDS.index(kind)]]
        before = [b for b in before if any(_PLACE[_kind(name)] == b for name in weights)]
        groups: dict[tuple[str, ...], dict[str, list[Cell]]] = {}
        for cell in held:
            key = tuple(cell[b] for b in before)
            groups.setdefault(key, {}).setdefault(cell[place], []).append(cell)
        for group in groups.values():
            mass = sum(chance[cell] for cells in group.values() for cell in cells)
            share = {name: mine.get(name, 0.0) for name in group}
            total = sum(share.values())
            for name, cells in group.items():
                part = mass * share[name] / total if total > 0 else 0.0
                for cell in cells:
                    chance[cell] = part / len(cells)
    return chance


def _kind(name: str) -> str:
    if name in Stage.__members__:
        return "stage"
    return "outcome" if name in OUTCOMES else "track"


def _lack(names: Sequence[str]) -> BankError:
    shown_names = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return BankError(
        f"The distribution asks for {shown_names}, of which the Stage Bank holds no state that "
        "fits this environment. `bat-env bank status` shows what it holds; `bat-env bank build` "
        "fills it."
    )


def draw(rng: np.random.Generator, chance: Mapping[Cell, float]) -> Cell:
    """Draw a cell. Equal generators and chances give equal cells."""
    cells = sorted(chance)
    return cells[int(rng.choice(len(cells), p=[chance[cell] for cell in cells]))]
