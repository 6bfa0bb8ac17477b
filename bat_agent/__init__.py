"""Agents, rollouts, training and evaluation on the environments of :mod:`bat_env`.

>>> import bat_agent
>>> evaluation = bat_agent.evaluate(MyAgent, suite="lite-mini", repeats=1)  # doctest: +SKIP
>>> evaluation.overall  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bat_agent.agents import Agent
    from bat_agent.evaluate import evaluate
    from bat_agent.evaluation import Evaluation

__all__ = ["Agent", "Evaluation", "__version__", "evaluate"]


def _version() -> str:
    try:
        return metadata.version("automed-bat")
    except metadata.PackageNotFoundError:
        return "0.0.0+source"


__version__ = _version()


def __getattr__(name: str) -> Any:
    if name == "evaluate":
        # The module is callable: whoever imports it by name meets the same object.
        return importlib.import_module("bat_agent.evaluate")
    if name == "Agent":
        return importlib.import_module("bat_agent.agents").Agent
    if name == "Evaluation":
        return importlib.import_module("bat_agent.evaluation").Evaluation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
