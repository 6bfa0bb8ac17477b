"""The promises of a sandbox, each as a probe: agent code that tries to break it, seen by the host.

A probe takes a :class:`~bat_env.sandbox.probes.probe.Probe` and gives whether the promise holds and
what was seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from . import cells, limits, walls
from .probe import Probe

Check: TypeAlias = Callable[[Probe], tuple[bool, str]]

CHECKS: Final[Mapping[str, Check]] = {**cells.CHECKS, **walls.CHECKS, **limits.CHECKS}
"""Promise -> probe, in the order of the report."""

NEED_WALLS: Final[frozenset[str]] = walls.NEED_WALLS | limits.NEED_WALLS
"""What would hurt the machine itself where nothing keeps the cell from it (in a plain process of
root, ``kill -9 -1`` ends every process there is): tried only behind walls that stand."""


def walls_stand(probe: Probe) -> bool:
    """Whether agent code is kept from the host, as far as harmless looks can tell."""
    return walls.host_invisible(probe)[0] and walls.signals(probe)[0]


__all__ = ["CHECKS", "NEED_WALLS", "Check", "Probe", "walls_stand"]
