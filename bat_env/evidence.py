"""The evidence of an episode on disk: all that its score was made of, and the score made again.

Kept beside the steps of a trajectory. A score is a function of it alone: no sandbox, no grader and
no task folder is needed to compute every reward again, bit for bit. It holds private truth, like
the verdicts of a trajectory: it is for people and trainers, never for an agent.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from bat_env.episode import (
    CellRecord,
    Episode,
    Evidence,
    GradeResult,
    RerunResult,
    Turn,
    Violation,
)
from bat_env.errors import BatError
from bat_env.judge import judged_contract
from bat_env.rubric import RubricContract, compile_contract
from bat_env.rubric.base import Context, RubricResult
from bat_env.rubric.claims import MAX_JSON_BYTES
from bat_env.sandbox.base import CellResult, Delta, FileEntry, Manifest
from bat_env.stages import Stage, quantize
from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import TaskSpec

SCHEMA_VERSION: Final = 1
_ODD: Final = "$number"
"""Key of numbers that JSON has no word for: ``{"$number": "nan"}``."""


@dataclass(frozen=True, slots=True)
class Rescored:
    """An episode scored again from its evidence.

    Attributes:
        rewards: Of every step, the ending by the host included.
        score: Episode score.
        rubric: The last evaluation.
        episode: The record that it was made of.
        context: Contract and truth.
        digest: Of the rubric that scored it when it was played.
    """

    rewards: tuple[float, ...]
    score: float
    rubric: RubricResult
    episode: Episode
    context: Context
    digest: str

    @property
    def same_rubric(self) -> bool:
        """Whether today's rubric is the one that scored it when it was played."""
        return self.rubric.digest == self.digest


# ------------------------------------------------------------------------------------------ write


def freeze(
    episode: Episode, spec: TaskSpec, instance: Instance, digest: str, *, host_ended: bool
) -> dict[str, Any]:
    """Everything that the score of a finished episode rests on, JSON-able.

    Args:
        episode: The record at its end.
        spec: Its task.
        instance: Its instance; of its truth only the facts that predicates read are kept.
        digest: Of the rubric contract.
        host_ended: Whether the last step was no turn of the agent, but an ending by the host.
    """
    gone = {"initial", "current", "cells", "turns", "violations", "evidence", "focus"}
    names = [f.name for f in dataclasses.fields(Episode) if f.name not in gone]
    return {
        "schema_version": SCHEMA_VERSION,
        "rubric_digest": digest,
        "host_ended": host_ended,
        # No score hangs on worlds, and those of other splits have no business beside a rollout.
        "spec": {**spec.model_dump(mode="json"), "fiction": {}},
        "truth": _pack({"cases": list(instance.cases), "facts": dict(instance.facts)}),
        "canaries": list(instance.canaries),
        "episode": {
            **{name: _pack(getattr(episode, name)) for name in names},
            "focus": episode.focus.name,
            "initial": _manifest(episode.initial),
            "current": _manifest(episode.current),
            "cells": [_cell(cell) for cell in episode.cells],
            "valid": [turn.valid for turn in episode.turns],
            "violations": [[v.kind, v.turn, v.detail] for v in episode.violations],
        },
        "evidence": _evidence(episode.evidence),
    }


def _manifest(manifest: Manifest) -> dict[str, list[Any]]:
    return {path: [e.kind, e.size, e.sha256] for path, e in manifest.items()}


def _cell(cell: CellRecord) -> dict[str, Any]:
    result = cell.result
    return {
        "turn": cell.turn,
        "language": cell.language,
        "exit_code": result.exit_code,
        "limit": result.limit,
        "created": _manifest(result.delta.created),
        "changed": _manifest(result.delta.changed),
        "deleted": list(result.delta.deleted),
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for field in dataclasses.fields(Evidence):
        value = getattr(evidence, field.name)
        if field.name == "files":
            # Predictions and pictures are not read by predicates: what was found in them is here.
            value = {
                path: _bytes(data)
                for path, data in value.items()
                if len(data) <= MAX_JSON_BYTES and path.endswith((".json", ".md"))
            }
        elif isinstance(value, RerunResult):
            value = {"ok": value.ok, "message": value.message}
        elif isinstance(value, Evidence):
            value = _evidence(value)
        elif isinstance(value, GradeResult):
            value = {f.name: _pack(getattr(value, f.name)) for f in dataclasses.fields(value)}
        else:
            value = _pack(value)
        kept[field.name] = value
    return kept


def _bytes(data: bytes) -> dict[str, str]:
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _pack(value: Any) -> Any:
    """The same value in JSON's words; floats survive exactly."""
    if isinstance(value, Mapping):
        return {str(key): _pack(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_pack(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {_ODD: str(value)}
    return value


# ------------------------------------------------------------------------------------------- read


def _unpack(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ODD}:
            return float(value[_ODD])
        return {key: _unpack(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_unpack(item) for item in value]
    return value


def _entries(stored: Mapping[str, Any]) -> dict[str, FileEntry]:
    return {path: FileEntry(*entry) for path, entry in stored.items()}


def _thawed(stored: Mapping[str, Any]) -> Evidence:
    evidence = Evidence()
    for name, value in stored.items():
        if name == "files":
            value = {
                path: d["text"].encode() if "text" in d else base64.b64decode(d["base64"])
                for path, d in value.items()
            }
        elif name in ("probe_rerun", "batch_rerun") and value is not None:
            value = RerunResult(**value)
        elif name == "handed" and value is not None:
            value = _thawed(value)
        elif name in ("grade", "grade_own", "inherited") and value is not None:
            value = _unpack(value)
            value = GradeResult(**{**value, "ci95": tuple(value["ci95"])})
        else:
            value = _unpack(value)
        setattr(evidence, name, value)
    return evidence


def thaw(record: Mapping[str, Any]) -> tuple[Episode, Context]:
    """The episode and the truth that a record holds.

    Args:
        record: What :func:`freeze` made.

    Raises:
        BatError: If it is no such record, or of another version.
    """
    version = record.get("schema_version") if isinstance(record, Mapping) else None
    if version != SCHEMA_VERSION:
        raise BatError(
            f"Expected evidence of schema version {SCHEMA_VERSION}, got {version!r}: it was "
            "written by another version of this project."
        )
    try:
        bool(record["host_ended"])
        return _episode(record), _context(json.dumps(record["spec"]), record["truth"])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise _damaged(error) from error


def _episode(record: Mapping[str, Any]) -> Episode:
    stored = dict(record["episode"])
    cells, valid = stored.pop("cells"), stored.pop("valid")
    violations = stored.pop("violations")
    initial, current = _entries(stored.pop("initial")), _entries(stored.pop("current"))
    stored["cases"] = tuple(stored["cases"])
    return Episode(
        **{**stored, "focus": Stage[stored["focus"]]},
        initial=initial,
        current=current,
        cells=[_thawed_cell(number, cell) for number, cell in enumerate(cells)],
        turns=[Turn(number, None, ok, "") for number, ok in enumerate(valid)],
        violations=[Violation(*v) for v in violations],
        evidence=_thawed(record["evidence"]),
    )


def _thawed_cell(number: int, stored: Mapping[str, Any]) -> CellRecord:
    delta = Delta(
        _entries(stored["created"]), _entries(stored["changed"]), tuple(stored["deleted"])
    )
    result = CellResult(stored["exit_code"], limit=stored["limit"], delta=delta)
    return CellRecord(stored["turn"], number, stored["language"], "", result)


@functools.lru_cache(maxsize=32)
def _spec(text: str) -> TaskSpec:
    return TaskSpec.model_validate_json(text)


def _context(spec: str, truth: Mapping[str, Any]) -> Context:
    known = _unpack(truth)
    nothing: Mapping[str, bytes] = MappingProxyType({})
    instance = Instance(
        cases=tuple(known["cases"]),
        public=nothing,
        private=nothing,
        facts=known["facts"],
        probe_case="",
        probe_public=nothing,
        probe_private=nothing,
    )
    return Context(_spec(spec), instance)


# ---------------------------------------------------------------------------------------- rescore


def rescore(record: Mapping[str, Any]) -> Rescored:
    """Score an episode again, step by step, from its evidence alone.

    Raises:
        BatError: If the record cannot be read, or holds what no episode can have left.
    """
    episode, context = thaw(record)
    try:
        return _rescored(record, episode, context)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> BatError:
    return BatError(f"The evidence of this episode is damaged ({type(error).__name__}: {error}).")


def _rescored(record: Mapping[str, Any], episode: Episode, context: Context) -> Rescored:
    rules = _contract(context.spec, episode.tier, episode.focus, episode.outcome)
    contract = judged_contract(rules, context.spec, episode.evidence.judge)
    rewards: list[float] = []
    score = 0.0
    current = dict(episode.initial)
    done = 0
    # An ending by the host is a step of its own, without a turn.
    last = len(episode.turns) - (0 if record["host_ended"] else 1)
    for number in range(last):
        while done < len(episode.cells) and episode.cells[done].turn <= number:
            _apply(current, episode.cells[done].result.delta)
            done += 1
        seen = _prefix(episode, number, done, current)
        score = _gain(rewards, score, contract.evaluate(seen, context, final=False).score)
    out = episode.status == "disqualified"
    rubric = contract.evaluate(episode, context, final=not out)
    _gain(rewards, score, 0.0 if out else rubric.score)
    digest = str(record["rubric_digest"])
    return Rescored(tuple(rewards), sum(rewards), rubric, episode, context, digest)


@functools.lru_cache(maxsize=128)
def _compiled(spec: str, tier: str, focus: Stage, outcome: str | None) -> RubricContract:
    return compile_contract(_spec(spec), tier=tier, focus=focus, outcome=outcome)


def _contract(spec: TaskSpec, tier: str, focus: Stage, outcome: str | None) -> RubricContract:
    return _compiled(spec.model_dump_json(), tier, focus, outcome)


def _apply(current: dict[str, FileEntry], delta: Delta) -> None:
    current.update(delta.created)
    current.update(delta.changed)
    for path in delta.deleted:
        current.pop(path, None)


def _prefix(episode: Episode, turn: int, cells: int, current: Mapping[str, FileEntry]) -> Episode:
    """The record as it was after a turn."""
    return dataclasses.replace(
        episode,
        current=dict(sorted(current.items())),
        cells=episode.cells[:cells],
        turns=episode.turns[: turn + 1],
        violations=[v for v in episode.violations if v.turn <= turn],
        status="running",
        end_reason="",
        evidence=Evidence(),
    )


def _gain(rewards: list[float], score: float, new: float | None) -> float:
    """Note the reward of a step; returns the score after it."""
    now = score if new is None else quantize(new)
    rewards.append(now - score)
    return now
