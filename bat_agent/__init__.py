"""Agents, rollouts, training and evaluation on the environments of :mod:`bat_env`."""

from __future__ import annotations

from importlib import metadata

__all__ = ["__version__"]


def _version() -> str:
    try:
        return metadata.version("automed-bat")
    except metadata.PackageNotFoundError:
        return "0.0.0+source"


__version__ = _version()
