"""The :class:`Grader`: task outputs in, scores and host-measured properties out."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from bat_env.episode import GradeResult
from bat_env.errors import GraderError
from bat_env.grader.client import ChildCrash, ServerProcess, shared_server
from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import TaskSpec

MAX_PREVIEW_SIDE: Final[int] = 2048


class HasSpec(Protocol):
    """A task, as far as grading is concerned."""

    @property
    def spec(self) -> TaskSpec:
        """The task's description."""


class Grader:
    """Grades outputs in confined children of one warm server. Thread-safe.

    Args:
        server: The server to use; the host process's own by default.
    """

    def __init__(self, server: ServerProcess | None = None) -> None:
        self._server = server or shared_server()

    def grade(self, task: HasSpec, instance: Instance, files: Mapping[str, bytes]) -> GradeResult:
        """Grade all cases of an instance.

        Args:
            task: The task.
            instance: The instance with its private truth.
            files: Workspace path -> bytes; other files than outputs are ignored.

        Returns:
            Score and per-case facts. A missing, unreadable, or wrong-geometry case scores 0.

        Raises:
            GraderError: If grading failed for a reason that is not in the files.
        """
        spec = task.spec
        outputs = {c: files.get(spec.output.path.format(case=c)) for c in instance.cases}
        try:
            rows, total = self._grade(spec, instance, outputs)
        except ChildCrash:
            # One hostile file must not cost the others: find it, one child a case.
            rows = {}
            for case, data in outputs.items():
                try:
                    rows |= self._grade(spec, instance, {case: data})[0]
                except ChildCrash as error:
                    rows |= self._grade(spec, instance, {case: None})[0]
                    rows[case]["message"] = f"unreadable: {error}"
            total = self._total(rows)
        return _result(total, rows)

    def inspect(self, task: HasSpec, instance: Instance, case: str, data: bytes) -> dict[str, Any]:
        """Properties of one output of a case (the probe case included), and its score.

        Returns:
            ``readable``, ``valid``, ``message``; where readable also ``shape``, ``affine_ok``
            (shape and affine), ``dtype``, ``labels``, ``volumes_ml``, ``quantity`` (the pilot's
            sanity value) and ``case_score``.

        Raises:
            GraderError: If the grader failed, or ``case`` is not a case of the instance.
        """
        try:
            row = self._grade(task.spec, instance, {case: data})[0][case]
        except ChildCrash as error:
            return {"readable": False, "valid": False, "message": f"unreadable: {error}"}
        return {
            **_table(row.get("properties")),
            "valid": row.get("valid") is True,
            "message": str(row.get("message", ""))[:300],
            "case_score": _unit(row.get("score")),
        }

    def agreement(self, task: HasSpec, a: bytes, b: bytes) -> float:
        """Agreement of two outputs of one case in [0, 1] (mean Dice over labels for seg).

        Args:
            task: The task.
            a: An output that was found valid; its size bounds what is read of ``b``.
            b: Any bytes.
        """
        try:
            reply, _ = self._server.request(_header("agreement", task.spec), [a, b])
        except ChildCrash:
            return 0.0
        return _unit(reply.get("agreement"))

    def image(self, data: bytes) -> dict[str, Any]:
        """Decode a PNG: ``readable``, ``message`` or ``width``, ``height``, ``colours``."""
        try:
            return self._server.request({"op": "image"}, [data])[0]
        except ChildCrash as error:
            return {"readable": False, "message": f"unreadable: {error}"}

    def preview(
        self, task: HasSpec, instance: Instance, case: str, data: bytes
    ) -> NDArray[np.uint8] | None:
        """Labels of an output for pictures.

        Returns:
            3-D uint8 array in file order (255 = a label outside 0..254), or ``None`` where the
            file is no 3-D label map.
        """
        reference, _ = _case_files(task.spec, instance, case)
        try:
            reply, blobs = self._server.request(_header("preview", task.spec), [reference, data])
        except ChildCrash:
            return None
        shape = reply.get("shape")
        if not isinstance(shape, list) or len(shape) != 3 or len(blobs) != 1:
            return None
        if not all(type(n) is int and 1 <= n <= MAX_PREVIEW_SIDE for n in shape):
            return None
        if math.prod(shape) != len(blobs[0]):
            return None
        return np.frombuffer(blobs[0], np.uint8).reshape(shape)

    def close(self) -> None:
        """End the server. Idempotent; a later call starts it again."""
        self._server.close()

    def _total(self, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        try:
            reply, _ = self._server.request({"op": "aggregate", "rows": rows}, [])
        except ChildCrash as error:
            raise GraderError(f"The grader crashed on the host's own numbers: {error}.") from error
        return _table(reply.get("total"))

    def _grade(
        self, spec: TaskSpec, instance: Instance, outputs: Mapping[str, bytes | None]
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        """Rows by case, and their total, from one child."""
        blobs: list[bytes] = []
        for case, data in outputs.items():
            blobs += [*_case_files(spec, instance, case), data or b""]
        present = {case: data is not None for case, data in outputs.items()}
        reply, _ = self._server.request({**_header("grade", spec), "cases": present}, blobs)
        rows = _table(reply.get("rows"))
        if set(rows) != set(outputs) or not all(isinstance(r, dict) for r in rows.values()):
            raise ChildCrash("the reply does not fit the request")
        return rows, _table(reply.get("total"))


def _header(op: str, spec: TaskSpec) -> dict[str, Any]:
    return {"op": op, "spec": spec.model_dump(mode="json")}


def _table(value: object) -> dict[str, Any]:
    """A JSON object from a child, or an empty one."""
    return value if isinstance(value, dict) else {}


def _case_files(spec: TaskSpec, instance: Instance, case: str) -> tuple[bytes, bytes]:
    """Input and truth of a case or of the probe case."""
    truth = PurePosixPath(spec.output.path).name
    try:
        if case == instance.probe_case:
            return instance.probe_public[spec.input_file], instance.probe_private[truth]
        return instance.public[f"{case}/{spec.input_file}"], instance.private[f"{case}/{truth}"]
    except KeyError as error:
        raise GraderError(
            f"Expected a case of this instance ({', '.join(instance.cases)}), got {case!r}: "
            f"no file {error}."
        ) from None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _unit(value: object) -> float:
    """A score from a child, clipped; anything that is not a finite number is 0."""
    return min(1.0, max(0.0, _number(value) or 0.0))


def _result(total: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> GradeResult:
    interval = total.get("ci95")
    low, high = interval if isinstance(interval, list) and len(interval) == 2 else (0.0, 0.0)
    return GradeResult(
        score=_unit(total.get("score")),
        per_case={case: _unit(row.get("score")) for case, row in rows.items()},
        valid={case: row.get("valid") is True for case, row in rows.items()},
        messages={
            case: str(row.get("message", ""))[:300]
            for case, row in rows.items()
            if row.get("valid") is not True
        },
        secondary={str(k): _number(v) for k, v in _table(total.get("secondary")).items()},
        ci95=(_unit(low), _unit(high)),
        properties={case: _table(row.get("properties")) for case, row in rows.items()},
    )


@functools.cache
def shared_grader() -> Grader:
    """The grader of this host process."""
    return Grader()
