"""Scripted agents: the floor (nop), a careless worker (naive) and an expert (oracle).

They are deterministic and read nothing but the public ``info``: the scripts come from the task
folder, so that a new task brings its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from bat_agent.agents.base import ToolCall
from bat_env.errors import ConfigError
from bat_env.stages import Stage
from bat_env.tools import execute_call, submit_call


class NopAgent:
    """Hands in at once; what it scores, nobody has earned."""

    def reset(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Nothing to prepare."""

    def act(self, observation: Mapping[str, Any]) -> ToolCall:
        """Submit."""
        return submit_call()


class ScriptAgent:
    """Plays the task's script cell by cell, then hands in.

    Args:
        choices: Decision id -> option; every other decision takes its good option.
    """

    def __init__(self, choices: Mapping[str, str] | None = None) -> None:
        self._choices = dict(choices or {})
        self._calls: list[ToolCall] = []

    def reset(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Load the script for the task, tier, focus and outcome that ``info`` names.

        Raises:
            ConfigError: If ``info`` names no task.
        """
        # Task folders bring numpy and nibabel; looking up an agent must not.
        from bat_env.tasks import load_task

        if "task" not in info:
            raise ConfigError("Expected info['task'] at reset, came none; scripts need a task.")
        task = load_task(info["task"])
        cells = task.script(
            {**self._defaults(task), **self._choices},
            focus=Stage.parse(info["stage"]),
            tier=info["tier"],
            outcome=info.get("outcome"),
        )
        self._calls = [execute_call(cell.language, cell.code) for cell in cells]

    def act(self, observation: Mapping[str, Any]) -> ToolCall:
        """The next cell, whatever came back from the last one."""
        return self._calls.pop(0) if self._calls else submit_call()

    def _defaults(self, task: Any) -> Mapping[str, str]:
        return {}


class OracleAgent(ScriptAgent):
    """The expert: the good option at every decision."""

    name: ClassVar[str] = "oracle"


class NaiveAgent(ScriptAgent):
    """The careless worker: the task's fixed set of listed mistakes."""

    name: ClassVar[str] = "naive"

    def _defaults(self, task: Any) -> Mapping[str, str]:
        choices: Mapping[str, str] = task.naive_choices
        return choices
