"""A person plays an episode in the terminal: cells are typed, the answers are those of an agent.

Lines are collected until a line that is only ``.``; then they run. ``/bash`` and ``/python``
switch the interpreter, ``/brief`` shows the brief again, ``/submit`` hands in, ``/quit`` leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.text import Text

from bat_env.env import AutoMedEnv
from bat_env.tools import LANGUAGES, execute_call, submit_call

HELP: Final = (
    "Type a cell and end it with a line that is only a dot. /python and /bash choose the "
    "interpreter, /brief shows the brief, /submit hands in, /quit leaves."
)
_END: Final = "."


class Player:
    """One episode with a person at the keys.

    Args:
        env: Reset already.
        brief: Text of the reset observation.
        console: Where it is shown.
        read: Gives the next line; raises EOFError at the end of the input.
    """

    def __init__(
        self, env: AutoMedEnv, brief: str, console: Console, read: Callable[[str], str]
    ) -> None:
        self._env, self._brief, self._console, self._read = env, brief, console, read
        self._language = "python"

    def play(self) -> dict[str, Any] | None:
        """Play until the episode is over or the person leaves.

        Returns:
            The final result, or ``None`` where there is none.
        """
        self._show(self._brief, "Brief")
        self._console.print(escape(HELP), style="dim")
        info: dict[str, Any] = {}
        over = False
        while not over:
            action = self._next_action()
            if action is None:
                _, _, _, _, info = self._env.truncate("the player left")
                break
            observation, _, terminated, truncated, info = self._env.step(action)
            self._show(str(observation["text"]), action["name"])
            over = terminated or truncated
        result: dict[str, Any] | None = info.get("result")
        return result

    def _next_action(self) -> dict[str, Any] | None:
        """The next call; ``None`` to leave."""
        lines: list[str] = []
        while True:
            try:
                line = self._read("... " if lines else f"{self._language}> ")
            except EOFError:
                # What was typed without its dot still counts: pipes end like this.
                return execute_call(self._language, "\n".join(lines)) if lines else None
            if lines or not line.startswith("/"):
                if line == _END:
                    if lines:
                        return execute_call(self._language, "\n".join(lines))
                    continue
                if lines or line.strip():
                    lines.append(line)
                continue
            word = line[1:].strip().lower()
            if word == "submit":
                return submit_call()
            if word in ("quit", "exit"):
                return None
            if word in LANGUAGES:
                self._language = word
            elif word == "brief":
                self._show(self._brief, "Brief")
            else:
                self._console.print(escape(HELP), style="dim")

    def _show(self, text: str, title: str) -> None:
        if self._console.is_terminal:
            self._console.print(Panel(Text(text), title=escape(title), title_align="left"))
        else:
            self._console.print(Text(text), soft_wrap=True)


def scores_of(result: dict[str, Any]) -> str:
    """The final scores in one line."""
    stages = "  ".join(f"{name} {value:.2f}" for name, value in result["stages"].items())
    task = "-" if result["task"] is None else f"{result['task']:.3f}"
    return f"score {result['score']:.3f}  task {task}  {stages}"
