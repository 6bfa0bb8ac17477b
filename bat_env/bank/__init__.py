"""Stage Bank: executable reset states in the middle of a workflow, and demonstrations from them.

Names load on first use. The builder is not among them, since it needs the environment, which needs
the store: ``from bat_env.bank.build import build``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bat_env.bank.leakage import LeakageReport as LeakageReport
    from bat_env.bank.leakage import preflight as preflight
    from bat_env.bank.sampler import balanced_order as balanced_order
    from bat_env.bank.state import Demonstration as Demonstration
    from bat_env.bank.state import StageState as StageState
    from bat_env.bank.store import Bank as Bank
    from bat_env.bank.store import default_bank_path as default_bank_path

_HOMES = {
    "Bank": "store",
    "default_bank_path": "store",
    "StageState": "state",
    "Demonstration": "state",
    "balanced_order": "sampler",
    "preflight": "leakage",
    "LeakageReport": "leakage",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
