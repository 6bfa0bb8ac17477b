"""The attacks as data: one file per class, read and checked here."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from vocabulary import CHECKS

FOLDER = Path(__file__).parent / "attacks"
_KEYS = {"id", "holds", "python", "bash", "cells", "files", "timeout_s", "checks", "heavy"}
_CONTROL_KEYS = _KEYS | {"fires", "leak"}


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        id: Unique over all classes.
        group: Its class: the name of its file.
        holds: What must hold, for people.
        cells: ``(language, code)`` in order; placeholders such as ``@CANARY@`` are filled in.
        checks: Check name -> argument.
        files: Files of the reset before it.
        timeout_s: Wall time of each cell.
        heavy: Too slow or too large for a sample; only in the whole run.
        fires: For a control: the check that must object.
        leak: For a control: what the host itself gives away.
    """

    id: str
    group: str
    holds: str
    cells: tuple[tuple[str, str], ...]
    checks: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)
    timeout_s: float = 10.0
    heavy: bool = False
    fires: str = ""
    leak: str = ""


def _attack(
    row: Mapping[str, Any], group: str, shared: Mapping[str, str], keys: set[str]
) -> Attack:
    unknown = set(row) - keys
    assert not unknown, f"{group}/{row.get('id')}: unknown keys {sorted(unknown)}"
    listed = row.get("cells") or [{k: row[k]} for k in ("python", "bash") if k in row]
    cells = tuple(next(iter(cell.items())) for cell in listed)
    assert cells and all(k in ("python", "bash") for k, _ in cells), row["id"]
    checks = row.get("checks", {})
    for name in checks:
        assert name in CHECKS, f"{row['id']}: no check is called {name!r}"
    files = {path: text.encode() for path, text in {**shared, **row.get("files", {})}.items()}
    return Attack(
        id=row["id"],
        group=group,
        holds=row["holds"],
        cells=cells,
        checks=checks,
        files=files,
        timeout_s=float(row.get("timeout_s", 10)),
        heavy=bool(row.get("heavy", False)),
        fires=row.get("fires", ""),
        leak=row.get("leak", ""),
    )


def _load() -> tuple[tuple[Attack, ...], tuple[Attack, ...]]:
    attacks: list[Attack] = []
    controls: list[Attack] = []
    for path in sorted(FOLDER.glob("*.yaml")):
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert set(table) <= {"about", "files", "controls", "attacks"}, path.name
        shared = table.get("files", {})
        attacks += [_attack(row, path.stem, shared, _KEYS) for row in table["attacks"]]
        controls += [_attack(row, path.stem, shared, _CONTROL_KEYS) for row in table["controls"]]
    return tuple(attacks), tuple(controls)


ATTACKS, CONTROLS = _load()


def sample(count: int, seed: int) -> frozenset[str]:
    """Ids of ``count`` attacks, every class in proportion (at least one each)."""
    groups: dict[str, list[str]] = {}
    for attack in ATTACKS:
        if not attack.heavy:
            groups.setdefault(attack.group, []).append(attack.id)
    draw = random.Random(seed)
    chosen: set[str] = set()
    for ids in groups.values():
        share = max(1, round(count * len(ids) / len(ATTACKS)))
        chosen.update(draw.sample(ids, min(share, len(ids))))
    return frozenset(chosen)
