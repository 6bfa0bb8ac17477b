"""Doors: the environment over protocols of others.

A door gives an agent the brief, the tools and what they answer; never a reward, an item's state, a
truth, or a path of this machine. :mod:`~bat_env.serve.door` knows no protocol;
:mod:`~bat_env.serve.mcp` speaks the Model Context Protocol and needs the extra ``serve``.
"""

from __future__ import annotations

from bat_env.serve.door import Answer, Door, EnvDoor, EpisodePlan

__all__ = ["Answer", "Door", "EnvDoor", "EpisodePlan"]
