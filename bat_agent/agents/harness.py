"""Agents that own their loop: a command that plays one episode over MCP.

The command is started for every episode and finds the episode's MCP server in its environment.
It is the environment's loop turned inside out: a tool call that comes in is the agent's action, and
the observation is what the call returns.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bat_agent.agents import guard
from bat_agent.agents.base import AgentSource, ToolCall
from bat_agent.agents.failures import EndEpisode, StopEvaluation
from bat_agent.files import digest_of
from bat_env.completions import checked_url
from bat_env.errors import BatError, ConfigError
from bat_env.extras import require
from bat_env.serve.door import FAILED, OVER, Answer
from bat_env.stages import Stage
from bat_env.tasks import load_task

GRACE_S: Final = 30.0
"""Seconds that a command gets to end after its episode is over."""

_PRIVATE: Final = re.compile(r"BAT_(\w+_API_KEY|SERVE_TOKEN)")
_POLL_S: Final = 0.05
_TAIL: Final = 2000


class HarnessError(BatError):
    """The command never played: it is broken, and there is nothing to score."""


@dataclass(frozen=True, slots=True)
class HarnessConfig:
    """What is run, and what it may take.

    Attributes:
        command: For the shell.
        timeout_s: Wall time of an episode, seconds.
        memory_mb: Of all its processes together, MiB.
        environment: Variables beside those of this process.
    """

    command: str
    timeout_s: float = 3600.0
    memory_mb: int = 8192
    environment: Mapping[str, str] | None = None


class _Inbox:
    """The door of an episode whose loop is elsewhere: calls wait here for their answers."""

    def __init__(self, brief: str, skills: Mapping[str, str]) -> None:
        self._brief, self._skills = brief, dict(skills)
        self.calls: queue.Queue[ToolCall] = queue.Queue()
        self._answers: queue.Queue[Answer] = queue.Queue()
        self._over = False

    def brief(self) -> str:
        return self._brief

    def skills(self) -> Mapping[str, str]:
        return self._skills

    def call(self, name: str, arguments: Mapping[str, Any]) -> Answer:
        if self._over:
            return Answer(OVER, ok=False, over=True)
        self.calls.put({"name": name, "arguments": dict(arguments)})
        return self._answers.get()

    def answer(self, text: str, *, over: bool = False) -> None:
        self._over = over
        self._answers.put(Answer(text, ok=not text.startswith("Invalid action"), over=over))

    def leave(self, reason: str) -> None:
        self._over = True
        self._answers.put(Answer(FAILED, ok=False, over=True))

    def introduce(self, name: str) -> None:
        pass


class HarnessAgent:
    """Plays what a command does over MCP.

    Args:
        config: What is run.
    """

    def __init__(self, config: HarnessConfig) -> None:
        self._config = config
        self._stack = contextlib.ExitStack()
        self._inbox: _Inbox | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log = Path()
        self._deadline = 0.0
        self._asked = self._played = self._interrupted = False

    def reset(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Open the door and start the command."""
        from bat_env.serve.http import HttpThread, http_app

        brief, config = str(observation["text"]), self._config
        files = load_task(info["task"]).skills(info["tier"], Stage.parse(info["stage"]))
        skills = {name: data.decode("utf-8", "replace") for name, data in sorted(files.items())}
        self._inbox = inbox = _Inbox(brief, skills)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="harness-")))
        # The path is a secret: no other process of this machine finds the episode.
        path = f"/{secrets.token_urlsafe(18)}/mcp"
        app = http_app(lambda _: inbox, path=path, shared=True, max_sessions=64)
        address = self._stack.enter_context(HttpThread(app))
        self._stack.callback(inbox.leave, "closed")
        work = folder / "work"
        work.mkdir()
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", guard.__file__),
                    *(str(os.getpid()), str(config.memory_mb), config.command),
                ],
                cwd=work,
                env=_environment(folder, address + path, brief, config),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._stack.callback(self._stop)
        self._deadline = time.monotonic() + config.timeout_s

    def act(self, observation: Mapping[str, Any]) -> ToolCall:
        """The command's next tool call.

        Raises:
            EndEpisode: If it ended, or was ended, without handing in.
        StopEvaluation: If it was interrupted.
            HarnessError: If it failed before it called anything.
        """
        assert self._inbox is not None and self._process is not None
        if self._asked:
            self._inbox.answer(str(observation["text"]))
            self._asked = False
        while True:
            if self._interrupted:
                raise StopEvaluation("The harness was interrupted.")
            ended = self._process.poll() is not None
            try:
                call = self._inbox.calls.get(timeout=0 if ended else _POLL_S)
            except queue.Empty:
                if ended:
                    self._explain(self._process.returncode)
                if time.monotonic() > self._deadline:
                    raise EndEpisode("the harness ran out of time") from None
                continue
            self._asked = self._played = True
            return call

    def interrupt(self) -> None:
        """Wait for no further call; from any thread."""
        self._interrupted = True

    def ended(self, observation: Mapping[str, Any]) -> None:
        """Tell the command how its last call ended, and let it finish."""
        assert self._inbox is not None and self._process is not None
        if self._asked:
            self._asked = False
            self._inbox.answer(str(observation["text"]), over=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(min(GRACE_S, max(0.0, self._deadline - time.monotonic())))

    def close(self) -> None:
        """End the command with all its processes, and close the door."""
        self._stack.close()

    def _stop(self) -> None:
        process = self._process
        if process is not None:
            process.terminate()
            process.wait()

    def _explain(self, code: int) -> None:
        if code == guard.OUT_OF_MEMORY:
            raise EndEpisode("the harness ran out of memory")
        if not self._played and code != 0:
            said = self._log.read_bytes()[-_TAIL:].decode("utf-8", "replace")
            raise HarnessError(
                f"the command ended with status {code} before it called a tool; it said: "
                f"{' '.join(said.split())[-400:]}"
            )
        raise EndEpisode(f"the harness ended with status {code} and did not hand in")


def _environment(folder: Path, url: str, brief: str, config: HarnessConfig) -> dict[str, str]:
    stdio = [sys.executable, "-m", "bat_env.cli", "serve", "mcp", "--connect", url]
    servers = {"mcpServers": {"automed-bat": {"type": "http", "url": url}}}
    (folder / "mcp.json").write_text(json.dumps(servers), encoding="utf-8")
    (folder / "brief.md").write_text(brief, encoding="utf-8")
    kept = {key: value for key, value in os.environ.items() if not _PRIVATE.fullmatch(key)}
    return {
        **kept,
        **(config.environment or {}),
        "BAT_MCP_URL": url,
        "BAT_MCP_COMMAND": shlex.join(stdio),
        "BAT_MCP_CONFIG": str(folder / "mcp.json"),
        "BAT_BRIEF_FILE": str(folder / "brief.md"),
    }


def harness_source(
    command: str,
    *,
    timeout_s: float = 3600.0,
    memory_mb: int = 8192,
    model: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
) -> AgentSource:
    """The source of a command that plays.

    Args:
        command: For the shell; started once an episode, in an empty folder.
        timeout_s: Wall time of an episode, seconds.
        memory_mb: Of all its processes together, MiB.
        model: Name of the model that it shall use, or ``None``.
        base_url: OpenAI-compatible endpoint that it shall use, or ``None``.
        api_key_env: Variable of this process with the key of that endpoint.

    Raises:
        ConfigError: If the command is empty or the platform cannot hold it.
    """
    require("serve", "`bat-agent eval --harness`")
    if not command.strip():
        raise ConfigError("Expected a command for --harness, came an empty one.")
    if sys.platform != "linux":
        raise ConfigError("--harness needs Linux: nothing else ends all processes of a command.")
    environment: dict[str, str] = {}
    if base_url is not None:
        try:
            environment["OPENAI_BASE_URL"] = checked_url(base_url)
        except ValueError as error:
            raise ConfigError(f"--base-url {error}.") from None
        key = os.environ.get(api_key_env or "", "")
        environment["OPENAI_API_KEY"] = key or "none"
    if model is not None:
        environment["OPENAI_MODEL"] = model
    config = HarnessConfig(command, timeout_s, memory_mb, environment)
    words = shlex.split(command, posix=True)
    name = next((Path(w).name for w in words if "=" not in w), "command")
    return AgentSource(
        f"harness:{name}",
        make=lambda: HarnessAgent(config),
        # A command may hold a key: what it was is known by its digest.
        settings={
            "command_digest": digest_of(command),
            "timeout_s": timeout_s,
            "memory_mb": memory_mb,
            "model": model,
        },
    )
