"""Trajectories: one JSON file an episode, in the ATIF layout with the reward beside each step.

ATIF (Agent Trajectory Interchange Format) gives steps with a source, a message, tool calls, an
observation and token metrics. Rewards, item verdicts and wall times go into ``extra`` of a step;
this is the only place where wall-clock values are written. A trajectory holds private verdicts:
it is for people and trainers, never for an agent.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bat_env.disk import is_full
from bat_env.errors import BatError, ConfigError, DiskFullError

SCHEMA_VERSION: Final = "ATIF-v1.4"
BAT_SCHEMA_VERSION: Final = 1
"""Version of what this project puts into ``extra``."""

MAX_BYTES: Final = 1 << 30
"""Largest file that is read."""

_MAX_TEXT: Final = 1 << 20
_MAX_DEPTH: Final = 8
_MAX_ITEMS: Final = 4096


def plain(value: Any, depth: int = 0) -> Any:
    """A bounded JSON-able copy of any value, also of a hostile one; never raises.

    Unknown objects become ``"<type name>"``; numbers that JSON cannot hold become ``None``.
    """
    try:
        return _plain(value, depth)
    except Exception:  # the object's own methods raised
        return f"<{type(value).__name__}>"


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else str(value)[:80]
    if isinstance(value, float):
        number = float(value)
        return number if number == number and abs(number) != float("inf") else None
    if isinstance(value, str):
        text = str(value[:_MAX_TEXT])
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if depth >= _MAX_DEPTH:
        return f"<{type(value).__name__}>"
    if isinstance(value, Mapping):
        items = list(value.items())[:_MAX_ITEMS]
        return {str(_plain(str(k), depth)): plain(v, depth + 1) for k, v in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v, depth + 1) for v in list(value)[:_MAX_ITEMS]]
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return plain(value.tolist(), depth + 1)
    return f"<{type(value).__name__}>"


@dataclass(slots=True)
class TokenRecord:
    """What a policy says about the sampling of one action, token by token.

    Attributes:
        prompt_token_ids: Ids that the policy saw, or ``None``.
        completion_token_ids: Ids that it sampled, or ``None``.
        logprobs: Natural-log probability of each sampled id, or ``None``.
        mask: 1 for ids that the policy produced, 0 for others, or ``None``.
        message: Text of the answer besides the tool call.
        reasoning: Reasoning text, where the policy keeps it apart.
        extra: Anything else, JSON-able.
    """

    prompt_token_ids: Sequence[int] | None = None
    completion_token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] | None = None
    mask: Sequence[int] | None = None
    message: str = ""
    reasoning: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndOfEpisode:
    """Stands for the action where the host ended an episode, and says why."""

    reason: str


class Recorder:
    """Collects one episode and writes it.

    Args:
        directory: Folder of the files; made when the first one is written.
        agent: Name of the agent, for the file's ``agent`` block.
    """

    def __init__(self, directory: str | Path, agent: str = "unknown") -> None:
        self.directory = Path(directory)
        self.agent = agent
        self.path: Path | None = None
        self._steps: list[dict[str, Any]] = []
        self._extra: dict[str, Any] = {}
        self._tokens: TokenRecord | None = None
        self._open = False

    @property
    def recording(self) -> bool:
        """Whether an episode is open."""
        return self._open

    def start(self, observation: Mapping[str, Any], info: Mapping[str, Any]) -> None:
        """Open an episode with what ``reset`` returned; an open one is written as abandoned."""
        self.finish("abandoned")
        self._steps = [
            {"step_id": 1, "source": "user", "message": str(plain(observation.get("text", "")))}
        ]
        self._extra = {"reset": plain(dict(info))}
        self._tokens = None
        self._open = True

    def annotate(self, tokens: TokenRecord) -> None:
        """Attach the policy's record to the next step."""
        self._tokens = tokens

    def step(
        self,
        action: Any,
        observation: Mapping[str, Any],
        reward: float,
        info: Mapping[str, Any],
        wall_s: float,
    ) -> None:
        """Add one step; ``action`` may be anything that an agent can send."""
        if not self._open:
            return
        number = len(self._steps) + 1
        extra: dict[str, Any] = {"reward": float(reward), "wall_s": round(wall_s, 6)}
        kept = ("valid", "error", "score", "items", "components", "status")
        extra |= {key: plain(info[key]) for key in kept if key in info}
        step: dict[str, Any] = {"step_id": number, "source": "agent", "message": ""}
        if isinstance(action, EndOfEpisode):
            step |= {"source": "system", "message": f"The episode was ended: {action.reason}"}
            step |= {"observation": {"results": []}, "extra": extra}
            self._steps.append(step)
            return
        call = plain(action)
        result: dict[str, Any] = {"content": str(plain(observation.get("text", "")))}
        if isinstance(call, dict) and isinstance(call.get("name"), str):
            arguments = call.get("arguments")
            step["tool_calls"] = [
                {
                    "tool_call_id": f"call_{number}",
                    "function_name": call["name"],
                    "arguments": arguments if isinstance(arguments, dict) else {"raw": arguments},
                }
            ]
            result["source_call_id"] = f"call_{number}"
        else:
            step["message"] = call if isinstance(call, str) else json.dumps(call)
        step["observation"] = {"results": [result]}
        step["extra"] = extra
        self._add_tokens(step)
        self._steps.append(step)

    def finish(
        self,
        status: str,
        *,
        result: Mapping[str, Any] | None = None,
        evidence: Mapping[str, Any] | None = None,
    ) -> Path | None:
        """Write the open episode atomically and close it; nothing happens if none is open.

        Args:
            status: How the episode ended, or ``"abandoned"``.
            result: The final scores, if there are any.
            evidence: What they were made of (:func:`bat_env.evidence.freeze`).

        Returns:
            The file, or ``None``.

        Raises:
            BatError: If the file cannot be written.
        """
        if not self._open:
            return None
        self._open = False
        rewards = [float(step["extra"]["reward"]) for step in self._steps[1:]]
        session = uuid.uuid4().hex
        document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "session_id": session,
            "agent": {"name": self.agent, "version": "unknown"},
            "steps": self._steps,
            "final_metrics": {"total_steps": len(self._steps)},
            "extra": {
                "bat_schema_version": BAT_SCHEMA_VERSION,
                **self._extra,
                "status": status,
                "return": sum(rewards),
                "result": plain(result),
                "evidence": evidence,
            },
        }
        self.path = self.directory / f"{self._stem()}-{session[:12]}.json"
        write_json(self.path, document)
        return self.path

    def _stem(self) -> str:
        info = self._extra.get("reset", {})
        keys = ("task", "split", "size", "index", "stage", "outcome")
        parts = [str(info[k]).replace("/", "_") for k in keys if info.get(k) is not None]
        return "-".join("".join(c for c in part if c.isalnum() or c in "_.") for part in parts)

    def _add_tokens(self, step: dict[str, Any]) -> None:
        tokens, self._tokens = self._tokens, None
        if tokens is None:
            return
        metrics: dict[str, Any] = {}
        if tokens.prompt_token_ids is not None:
            metrics["prompt_tokens"] = len(tokens.prompt_token_ids)
            metrics["prompt_token_ids"] = [int(i) for i in tokens.prompt_token_ids]
        if tokens.completion_token_ids is not None:
            metrics["completion_tokens"] = len(tokens.completion_token_ids)
            metrics["completion_token_ids"] = [int(i) for i in tokens.completion_token_ids]
        if tokens.logprobs is not None:
            metrics["logprobs"] = [float(p) for p in tokens.logprobs]
        if metrics:
            step["metrics"] = metrics
        if tokens.mask is not None:
            step["extra"]["mask"] = [int(m) for m in tokens.mask]
        if tokens.extra:
            step["extra"]["policy"] = plain(tokens.extra)
        if tokens.message:
            step["message"] = str(plain(tokens.message))
        if tokens.reasoning:
            step["reasoning_content"] = str(plain(tokens.reasoning))


@dataclass(frozen=True)
class Trajectory:
    """A trajectory read back.

    Attributes:
        path: Its file.
        document: The whole JSON document.
    """

    path: Path
    document: Mapping[str, Any]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """All steps; the first one is the brief."""
        return list(self.document["steps"])

    @property
    def rewards(self) -> list[float]:
        """Reward of each step, that of an ending by the host included."""
        return [step["extra"]["reward"] for step in self.steps[1:]]

    @property
    def result(self) -> Mapping[str, Any] | None:
        """The final scores, or ``None`` for an episode without any."""
        result: Mapping[str, Any] | None = self.document["extra"].get("result")
        return result

    @property
    def evidence(self) -> Mapping[str, Any]:
        """What the scores were made of, for :func:`bat_env.evidence.rescore`.

        Raises:
            BatError: If the episode ended without a score, or the file is older than that.
        """
        evidence: Mapping[str, Any] | None = self.document["extra"].get("evidence")
        if evidence is None:
            raise BatError(
                f"{self.path} holds no evidence: the episode ended as {self.status!r}, or it was "
                "written by an older version. Only scored episodes can be scored again."
            )
        return evidence

    @property
    def status(self) -> str:
        """How the episode ended."""
        return str(self.document["extra"]["status"])


def read_trajectory(path: str | Path) -> Trajectory:
    """Read one file.

    Raises:
        BatError: If it is no complete trajectory of a version this code reads; names the file.
    """
    file = Path(path)
    try:
        # Looked at before it is opened: a pipe would wait for ever, a device never end.
        there = file.stat()
        if not stat.S_ISREG(there.st_mode):
            raise BatError(f"Cannot read the trajectory {file}: it is no regular file.")
        if there.st_size > MAX_BYTES:
            raise BatError(
                f"Cannot read the trajectory {file}: it has {there.st_size >> 20} MiB, more than "
                f"{MAX_BYTES >> 20}."
            )
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BatError(f"Cannot read the trajectory {file}: {error}.") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if version != SCHEMA_VERSION:
        raise BatError(
            f"{file} has schema version {version!r}, expected {SCHEMA_VERSION!r}: it was written "
            "by another version of this project, or is no trajectory."
        )
    wrong = _misshapen(document)
    if wrong:
        raise BatError(f"{file} is no trajectory of this project, or a damaged one: {wrong}.")
    return Trajectory(file, document)


def _misshapen(document: Mapping[str, Any]) -> str:
    """What readers of a trajectory rely on and do not find, or nothing."""
    extra, steps = document.get("extra"), document.get("steps")
    if not isinstance(extra, dict) or "bat_schema_version" not in extra:
        return "expected extra.bat_schema_version"
    if not isinstance(steps, list) or not steps:
        return f"expected a list of steps, came {type(steps).__name__}"
    for number, step in enumerate(steps):
        told = step.get("extra") if isinstance(step, dict) else None
        if not isinstance(step, dict) or (number and not isinstance(told, dict)):
            return f"expected an object with extra as step {number}"
        reward = told.get("reward") if isinstance(told, dict) else None
        # A bool is an int for Python.
        if number and (isinstance(reward, bool) or not isinstance(reward, int | float)):
            return f"expected a number as reward of step {number}, came {type(reward).__name__}"
    for key, kinds in (("status", str), ("result", dict), ("evidence", dict)):
        value = extra.get(key)
        if not isinstance(value, kinds) and (value is not None or key == "status"):
            return f"expected extra.{key} to be of type {kinds.__name__}, came {value!r:.60}"
    return ""


def write_json(path: Path, document: Any) -> None:
    """Write JSON so that a reader sees the whole file or none.

    Raises:
        BatError: If the disk refuses.
    """
    text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".writing")
        temporary = Path(name)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        temporary.replace(path)
    except OSError as error:
        if is_full(error):
            raise DiskFullError(path) from error
        raise BatError(f"Cannot write {path}: {error.strerror or error}.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def check_directory(path: str | Path) -> Path:
    """The folder of trajectories, checked before any work starts.

    It is made, and a file is written into it and removed: an episode's record must not be lost at
    its end.

    Raises:
        ConfigError: If it is no path, is a file, or cannot be made or written.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(
            f"trajectory_dir must be a folder path or None, got {path!r}. Leave it out to write "
            "no trajectories."
        )
    try:
        directory = Path(path).expanduser()
        if directory.exists() and not directory.is_dir():
            raise ConfigError(f"trajectory_dir must be a folder, but {directory} is a file.")
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"trajectory_dir must be a folder that can be written, got {path!r}: {reason}. Name "
            "another folder."
        ) from error
    return directory
