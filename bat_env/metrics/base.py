"""What every track's metric offers: one protocol, whatever the shape of its outputs.

Grading has two steps, so that one hostile file cannot spoil the rest: ``score`` reads files, case
by case if need be; ``total`` pools the numbers of all cases and reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from bat_env.errors import TaskError, faults_of
from bat_env.metrics.rule import CaseScore, TaskScore
from bat_env.tasks.spec import TaskSpec

TRUTH_JSON = "truth.json"
"""Name of the private truth of a case where the truth is no image."""


class UnreadableError(ValueError):
    """An output that cannot be parsed; the message says why and follows "the file ..."."""


class MetricParams(BaseModel):
    """Base of the models that ``metric.params`` of a task must fit."""

    model_config = ConfigDict(frozen=True, extra="forbid")


ParamsT = TypeVar("ParamsT", bound=MetricParams)


def parse_params(model: type[ParamsT], spec: TaskSpec) -> ParamsT:
    """The task's ``metric.params``, checked.

    Raises:
        TaskError: If they do not fit the model.
    """
    try:
        return model.model_validate(spec.metric.params)
    except ValidationError as error:
        faults = faults_of(error, "metric", "params")
        raise TaskError(
            f"Expected parameters of the metric {spec.metric.name!r}, got {faults}. "
            f"Correct task.yaml of {spec.id}."
        ) from error


@dataclass(frozen=True)
class Case:
    """Files of one case.

    Attributes:
        id: Case id.
        truth: File name -> bytes of the private truth.
        inputs: File name -> bytes of the public inputs.
        output: The agent's file, or ``None`` if there is none. Where one file serves all cases,
            every case holds that file.
    """

    id: str
    truth: Mapping[str, bytes] = field(default_factory=dict)
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    output: bytes | None = None


class Metric(Protocol):
    """The metric of a track."""

    @property
    def name(self) -> str:
        """Name in ``metric.name`` of a task."""

    @property
    def shared_output(self) -> bool:
        """Whether one output file holds all cases."""

    @property
    def needs_input(self) -> bool:
        """Whether scores depend on the public input."""

    def truth_names(self, spec: TaskSpec) -> tuple[str, ...]:
        """File names of a case's truth that are read; those after the first may be absent."""

    def check(self, spec: TaskSpec) -> None:
        """Raise :class:`~bat_env.errors.TaskError` if the task's parameters do not fit."""

    def prepare(self, spec: TaskSpec, cases: Sequence[Case]) -> dict[str, Any]:
        """JSON-able numbers of truths and inputs alone, such as the scores of trivial outputs."""

    def score(
        self, spec: TaskSpec, cases: Sequence[Case], known: Mapping[str, Any]
    ) -> dict[str, CaseScore]:
        """Score files. ``known`` is what :meth:`prepare` gave for these cases or more."""

    def total(
        self,
        spec: TaskSpec,
        rows: Mapping[str, CaseScore],
        known: Mapping[str, Any],
        *,
        seed: int = 0,
    ) -> TaskScore:
        """The task score of an instance from the rows of all its cases."""

    def inspect(self, spec: TaskSpec, case: Case) -> dict[str, Any]:
        """Facts of an output without its truth.

        Returns:
            ``readable``, ``affine_ok`` (whether its geometry fits), ``valid``, ``message``, and
            of a readable file its properties, with ``quantity`` that of the pilot.
        """

    def agreement(self, spec: TaskSpec, case: str, a: bytes, b: bytes) -> float:
        """Agreement in [0, 1] of two outputs of a case; 0 if either cannot be read."""


def output_name(spec: TaskSpec) -> str:
    """File name of an output."""
    return PurePosixPath(spec.output.path).name


def class_names(spec: TaskSpec) -> tuple[str, ...]:
    """Names in ``output.labels`` in the order of their numbers: classes, or letters of answers."""
    return tuple(name for _, name in sorted(spec.output.labels.items()))


def unreadable_facts(message: str) -> dict[str, Any]:
    """What ``inspect`` says of a file that cannot be parsed."""
    return {"readable": False, "affine_ok": False, "valid": False, "message": message}


def with_quantity(spec: TaskSpec, facts: dict[str, Any]) -> dict[str, Any]:
    """Properties of an output, with the pilot's quantity picked from ``values``."""
    return {**facts, "quantity": facts["values"].get(spec.pilot.quantity)}
