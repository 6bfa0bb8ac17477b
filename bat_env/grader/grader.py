"""The :class:`Grader`: task outputs in, scores and host-measured properties out."""

from __future__ import annotations

import functools
import math
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Protocol

from bat_env.episode import GradeResult
from bat_env.errors import GraderError
from bat_env.grader.client import ChildCrash, ServerProcess, shared_server
from bat_env.grader.packing import PackedCase, pack_cases
from bat_env.grader.preview import Preview, unpack
from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import TaskSpec

_ANSWER_CHARS: Final[int] = 2000
_KEPT_INSTANCES: Final[int] = 64
"""Instances whose truth-side numbers are kept."""


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
        self._prepared: OrderedDict[tuple[Any, ...], dict[str, Any]] = OrderedDict()
        self._begin()
        _graders.add(self)

    def _begin(self) -> None:
        self._making: dict[tuple[Any, ...], threading.Lock] = {}
        self._lock = threading.Lock()

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
        known = self._known(spec, instance, instance.cases)
        outputs = {c: files.get(spec.output.path.format(case=c)) for c in instance.cases}
        try:
            rows = self._rows(spec, instance, outputs, known)
        except ChildCrash as crash:
            rows = self._one_by_one(spec, instance, outputs, known, crash)
        return _result(self._total(spec, rows, known), rows)

    def inspect(self, task: HasSpec, instance: Instance, case: str, data: bytes) -> dict[str, Any]:
        """Properties of one output of a case (the probe case included), and its score.

        Returns:
            ``readable``, ``valid``, ``message``; where readable also what the metric measures of
            the file (``shape``, ``affine_ok``, ``dtype``, ``labels``, ``values``), ``quantity``
            (the pilot's sanity value) and ``case_score``; ``answer`` and ``trivial`` as in
            :class:`~bat_env.metrics.CaseScore`.

        Raises:
            GraderError: If the grader failed, or ``case`` is not a case of the instance.
        """
        return self.inspect_all(task, instance, {case: data})[case]

    def inspect_all(
        self, task: HasSpec, instance: Instance, outputs: Mapping[str, bytes]
    ) -> dict[str, dict[str, Any]]:
        """:meth:`inspect` of outputs of several cases, each a file of its own, in one child."""
        spec = task.spec
        probe = instance.probe_case in outputs
        known = self._known(spec, instance, tuple(outputs) if probe else instance.cases)
        try:
            rows = self._rows(spec, instance, dict(outputs), known)
        except ChildCrash as error:
            if len(outputs) == 1:
                why = {"readable": False, "valid": False, "message": f"unreadable: {error}"}
                return dict.fromkeys(outputs, why)
            each = (self.inspect_all(task, instance, {c: d}) for c, d in outputs.items())
            return {case: seen for one in each for case, seen in one.items()}
        return {
            case: {
                **_table(row.get("properties")),
                "valid": row.get("valid") is True,
                "message": str(row.get("message", ""))[:300],
                "case_score": _unit(row.get("score")),
                "answer": str(row.get("answer", ""))[:_ANSWER_CHARS],
                "trivial": str(row.get("trivial", ""))[:_ANSWER_CHARS],
            }
            for case, row in rows.items()
        }

    def prepare(self, task: HasSpec, instance: Instance) -> None:
        """Work out what grading needs of truths and inputs, before there are outputs.

        Raises:
            GraderError: If the grader failed.
        """
        self._known(task.spec, instance, instance.cases)
        self._known(task.spec, instance, (instance.probe_case,))

    def agreement(self, task: HasSpec, a: bytes, b: bytes, case: str = "") -> float:
        """Agreement of two outputs of one case in [0, 1], as the task's metric defines it.

        Args:
            task: The task.
            a: An output that was found valid; its size bounds what is read of ``b``.
            b: Any bytes.
            case: The case; where one table holds all cases, the row that is compared.
        """
        return self.agreements(task, {case: (a, b)})[case]

    def agreements(
        self, task: HasSpec, pairs: Mapping[str, tuple[bytes, bytes]]
    ) -> dict[str, float]:
        """:meth:`agreement` of two outputs of each of several cases, in one child."""
        header = {**_header("agreement", task.spec), "cases": list(pairs)}
        try:
            reply, _ = self._server.request(
                header, [data for pair in pairs.values() for data in pair]
            )
        except ChildCrash:
            if len(pairs) == 1:
                return dict.fromkeys(pairs, 0.0)
            return {case: self.agreement(task, *pair, case) for case, pair in pairs.items()}
        found = _table(reply.get("agreements"))
        return {case: _unit(found.get(case)) for case in pairs}

    def image(self, data: bytes) -> dict[str, Any]:
        """Decode a PNG: ``readable``, ``message`` or ``width``, ``height``, ``colours``."""
        try:
            return self._server.request({"op": "image"}, [data])[0]
        except ChildCrash as error:
            return {"readable": False, "message": f"unreadable: {error}"}

    def difference(self, name: str, a: bytes, b: bytes) -> tuple[float, str]:
        """How far two files of one name lie apart: images, JSON and CSV number by number.

        Returns:
            The largest difference, relative to the size of what is compared and infinite where no
            number can tell; and what differs.
        """
        try:
            reply, _ = self._server.request({"op": "difference", "name": name}, [a, b])
        except ChildCrash as error:
            return float("inf"), f"unreadable: {error}"
        apart = _number(reply.get("apart"))
        return float("inf") if apart is None else apart, str(reply.get("message", ""))[:300]

    def preview(self, task: HasSpec, instance: Instance, case: str, data: bytes) -> Preview | None:
        """What an output looks like, for pictures.

        Returns:
            An array, boxes or lines of text, by the task's output format; ``None`` where the file
            cannot be shown.
        """
        tree = _case_tree(instance, case)[1]
        header = {**_header("preview", task.spec), "case": case}
        reference = tree.get(task.spec.input_file, b"")
        try:
            reply, blobs = self._server.request(header, [reference, data])
        except ChildCrash:
            return None
        return unpack(reply, blobs)

    def close(self) -> None:
        """End the server. Idempotent; a later call starts it again."""
        self._server.close()

    def _known(self, spec: TaskSpec, instance: Instance, cases: tuple[str, ...]) -> dict[str, Any]:
        """What the metric works out from truths and inputs alone; no agent bytes are near it."""
        key = (spec.model_dump_json(), instance.seed, instance.size, cases)
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        try:
            with making:  # whoever asks meanwhile waits, and finds it made
                return self._prepared_once(key, spec, instance, cases)
        finally:
            with self._lock:
                self._making.pop(key, None)

    def _prepared_once(
        self, key: tuple[Any, ...], spec: TaskSpec, instance: Instance, cases: tuple[str, ...]
    ) -> dict[str, Any]:
        with self._lock:
            if key in self._prepared:
                self._prepared.move_to_end(key)
                return self._prepared[key]
        rows, blobs = pack_cases(_cases(instance, dict.fromkeys(cases)))
        try:
            reply, _ = self._server.request({**_header("prepare", spec), "cases": rows}, blobs)
        except ChildCrash as error:
            raise GraderError(f"The grader crashed on the truth of {spec.id}: {error}.") from error
        known = _table(reply.get("known"))
        with self._lock:
            self._prepared[key] = known
            while len(self._prepared) > _KEPT_INSTANCES:
                self._prepared.popitem(last=False)
        return known

    def _one_by_one(
        self,
        spec: TaskSpec,
        instance: Instance,
        outputs: Mapping[str, bytes | None],
        known: Mapping[str, Any],
        crash: ChildCrash,
    ) -> dict[str, dict[str, Any]]:
        """One hostile file must not cost the others: find it, one child a case.

        A table that crashed the child is one file; nothing of it is asked for again.
        """
        rows: dict[str, dict[str, Any]] = {}
        for case, data in outputs.items():
            error = crash
            if not spec.output.is_table:
                try:
                    rows |= self._rows(spec, instance, {case: data}, known)
                    continue
                except ChildCrash as again:
                    error = again
            rows |= self._rows(spec, instance, {case: None}, known)
            rows[case]["message"] = f"unreadable: {error}"
        return rows

    def _total(
        self, spec: TaskSpec, rows: Mapping[str, Mapping[str, Any]], known: Mapping[str, Any]
    ) -> dict[str, Any]:
        header = {**_header("total", spec), "rows": rows, "known": known}
        try:
            reply, _ = self._server.request(header, [])
        except ChildCrash as error:
            raise GraderError(f"The grader crashed on the host's own numbers: {error}.") from error
        return _table(reply.get("total"))

    def _rows(
        self,
        spec: TaskSpec,
        instance: Instance,
        outputs: Mapping[str, bytes | None],
        known: Mapping[str, Any],
    ) -> dict[str, dict[str, Any]]:
        """Rows by case from one child."""
        cases, blobs = pack_cases(_cases(instance, outputs))
        header = {**_header("score", spec), "cases": cases, "known": known}
        reply, _ = self._server.request(header, blobs)
        rows = _table(reply.get("rows"))
        if set(rows) != set(outputs) or not all(isinstance(r, dict) for r in rows.values()):
            raise ChildCrash("the reply does not fit the request")
        return rows


_graders: weakref.WeakSet[Grader] = weakref.WeakSet()


def _after_fork() -> None:
    """Locks that a thread of the parent held are held by nobody here."""
    for grader in _graders:
        grader._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _header(op: str, spec: TaskSpec) -> dict[str, Any]:
    return {"op": op, "spec": spec.model_dump(mode="json")}


def _table(value: object) -> dict[str, Any]:
    """A JSON object from a child, or an empty one."""
    return value if isinstance(value, dict) else {}


def _case_tree(instance: Instance, case: str) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Truth and inputs of a case or of the probe case, by file name."""
    if case == instance.probe_case:
        return dict(instance.probe_private), dict(instance.probe_public)
    if case not in instance.cases:
        raise GraderError(
            f"Expected a case of this instance ({', '.join(instance.cases)}), got {case!r}."
        )
    truth, inputs = (
        {p.removeprefix(f"{case}/"): d for p, d in tree.items() if p.startswith(f"{case}/")}
        for tree in (instance.private, instance.public)
    )
    return truth, inputs


def _cases(instance: Instance, outputs: Mapping[str, bytes | None]) -> list[PackedCase]:
    return [(case, *_case_tree(instance, case), data) for case, data in outputs.items()]


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
        answers=_words(rows, "answer"),
        trivial=_words(rows, "trivial"),
    )


def _words(rows: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, str]:
    said = {case: str(row.get(key) or "")[:_ANSWER_CHARS] for case, row in rows.items()}
    return {case: word for case, word in said.items() if word}


@functools.cache
def shared_grader() -> Grader:
    """The grader of this host process."""
    return Grader()
