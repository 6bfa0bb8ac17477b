"""Clean runs: the agent's ``predict.py`` in a wiped sandbox, with nothing else of the agent's."""

from __future__ import annotations

import hashlib
import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, ClassVar, Final, Protocol

from bat_env.episode import RerunResult
from bat_env.errors import SandboxError
from bat_env.rubric import setup
from bat_env.sandbox.base import Cell, FileTree, Sandbox
from bat_env.tasks.instance import Instance
from bat_env.verifier.memo import Memo, key_of

MAX_OUTPUT_BYTES: Final[int] = 32 * 1024 * 1024
MAX_PIPELINE_BYTES: Final[int] = 256 * 1024
MAX_PIPELINE_FILES: Final[int] = 64
MAX_RECOVERY_CASES: Final[int] = 6
MAX_LOOK_CASES: Final[int] = 8
_MAX_KEPT_BYTES: Final[int] = 1024 * 1024
_ALPHABET: Final[str] = "ABCDEFGHJKMNPQRSTVWXYZ23456789"

_VERSIONS: Final[str] = """\
import json, platform
from importlib.metadata import PackageNotFoundError, version
found = {"python": platform.python_version()}
for name in NAMES:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = "absent"
print("VERSIONS" + json.dumps(found))
"""

_RERUN: Final[str] = """\
import runpy, sys
sys.path.insert(0, "/workspace/pipeline")
for name in NAMES:
    places = ["--input", "/data/" + name, "--output", "/workspace/outputs/" + name]
    sys.argv = ["/workspace/pipeline/predict.py", *places]
    try:
        runpy.run_path("/workspace/pipeline/predict.py", run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
"""


class Pool(Protocol):
    """Where clean sandboxes come from; ``bat_env.sandbox.SandboxPool`` is one."""

    def lease(self, *, fresh: bool = False) -> AbstractContextManager[Sandbox]:
        """A started, wiped sandbox."""


def _drawn(instance: Instance, *words: str | int) -> int:
    text = "\0".join(map(str, (*words, instance.seed, instance.index)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def drawn_cases(
    instance: Instance, seed: int, cases: Sequence[str], count: int = 1
) -> tuple[str, ...]:
    """The cases of a batch that are re-run in an episode of this seed, in the order drawn."""
    order = sorted(cases, key=lambda case: _drawn(instance, "case", seed, case))
    return tuple(order[:count])


def recovery_cases(instance: Instance, pilot: str) -> tuple[str, ...]:
    """Cases on which a recovered pipeline is compared with the ill one: the pilot's and others.

    The same for every episode of an instance and pilot case, so that runs can be remembered.
    """
    others = sorted(
        (case for case in instance.cases if case != pilot),
        key=lambda case: _drawn(instance, "recovery", case),
    )
    return (pilot, *others[: MAX_RECOVERY_CASES - 1])


def look_cases(instance: Instance) -> tuple[str, ...]:
    """Cases on which a pipeline is looked at beside the one that is asked about.

    The same for every episode of an instance, so that one run serves all who ask.
    """
    order = sorted(instance.cases, key=lambda case: _drawn(instance, "look", case))
    return tuple(order[:MAX_LOOK_CASES])


def alias(instance: Instance, case: str) -> str:
    """A name for a case that no pipeline has seen, in the style of the instance's own ids.

    It rests on the private 64-bit seed of the instance, and no agent is ever told of it.
    """
    known = {*instance.cases, instance.probe_case}
    prefix = instance.cases[0].rpartition("-")[0]
    attempt = 0
    while True:
        number = _drawn(instance, "alias", case, attempt)
        tail = "".join(_ALPHABET[(number >> (5 * n)) % len(_ALPHABET)] for n in range(4))
        name = f"{prefix}-{tail}" if prefix else tail
        if name not in known:
            return name
        attempt += 1


class Lease:
    """One clean sandbox for all runs of a hand-in, taken when first needed.

    Args:
        pool: Where it comes from.
        stack: Closes it.
    """

    def __init__(self, pool: Pool, stack: ExitStack) -> None:
        self._pool = pool
        self._stack = stack
        self._sandbox: Sandbox | None = None

    def sandbox(self) -> Sandbox:
        """The sandbox.

        Raises:
            SandboxError: If none could be had.
        """
        if self._sandbox is None:
            self._sandbox = self._stack.enter_context(self._pool.lease())
        return self._sandbox

    def renew(self) -> None:
        """Give a dead sandbox back; the next one is another."""
        self._sandbox = None
        self._stack.close()


class CleanRunner:
    """Runs ``predict.py`` clean, and asks the image for its versions. Thread-safe.

    Args:
        pool: Clean sandboxes of the kind that the agent had.
    """

    _image_versions: ClassVar[weakref.WeakKeyDictionary[Any, Mapping[str, str]]] = (
        weakref.WeakKeyDictionary()
    )
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._memo = Memo()

    def versions(self, lease: Lease) -> Mapping[str, str]:
        """Package versions inside the image; a sandbox of each pool is asked once.

        Raises:
            SandboxError: If the sandbox failed or the image cannot say.
        """
        with self._lock:
            known = self._image_versions.get(self.pool)
        if known is not None:
            return known
        names = [name for name in setup.PACKAGES if name != "python"]
        sandbox = lease.sandbox()
        sandbox.reset({})
        result = sandbox.run(Cell("python", _VERSIONS.replace("NAMES", repr(names))))
        line = next((t for t in result.stdout.splitlines() if t.startswith("VERSIONS")), None)
        if not result.ok or line is None:
            raise SandboxError(f"The image could not name its versions: {result.stderr[-300:]}")
        found: Mapping[str, str] = json.loads(line.removeprefix("VERSIONS"))
        with self._lock:
            self._image_versions[self.pool] = found
        return found

    def run(
        self,
        lease: Lease,
        pipeline: FileTree,
        models: FileTree,
        cases: Mapping[str, FileTree],
        output: str,
        timeout_s: float,
    ) -> dict[str, RerunResult]:
        """Run ``predict.py`` on one case or several, in one cell.

        Args:
            lease: Gives the sandbox, if it has to run at all: equal content gives equal results.
            pipeline: Workspace path -> content of everything under ``pipeline/``.
            models: ``models/...`` -> content.
            cases: Case id in the run -> file name -> content of the case.
            output: Name of the file to be written into ``--output``.
            timeout_s: Wall time of the run.

        Returns:
            What came of each; every failure of the agent's code is a result.

        Raises:
            SandboxError: If no sandbox could be had.
        """
        if setup.PREDICT not in pipeline:
            limit = MAX_PIPELINE_BYTES // 1024
            why = f"pipeline/predict.py is missing or pipeline/ > {limit} kB"
            return dict.fromkeys(cases, RerunResult(False, why))
        files = {f"workspace/{path}": data for path, data in pipeline.items()}
        for name, inputs in cases.items():
            files |= {f"data/{name}/{path}": data for path, data in inputs.items()}
        files |= models
        parts = [part for path in sorted(files) for part in (path, files[path])]
        key = key_of(*cases, output, *parts)
        cell = Cell("python", _RERUN.replace("NAMES", repr(list(cases))), int(key[:8], 16))
        found: dict[str, RerunResult] = self._memo.get(
            key, lambda: _run(lease, files, cell, list(cases), output, timeout_s), _repeatable
        )
        return found


def _repeatable(results: Mapping[str, RerunResult]) -> bool:
    """Limits may be met by chance on a busy machine; large outputs would crowd the memory."""
    by_chance = any(r.message.startswith(("it met", "its sandbox")) for r in results.values())
    return not by_chance and sum(len(r.output) for r in results.values()) <= _MAX_KEPT_BYTES


def _run(
    lease: Lease, files: FileTree, cell: Cell, names: Sequence[str], output: str, timeout_s: float
) -> dict[str, RerunResult]:
    for _ in range(2):
        sandbox = lease.sandbox()
        sandbox.reset(files)
        try:
            result = sandbox.run(cell, timeout_s)
            break
        except SandboxError:
            # A sandbox that dies again under the same code died of that code.
            lease.renew()
    else:
        return dict.fromkeys(names, RerunResult(False, "its sandbox died under it, twice"))
    if result.limit is not None:
        return dict.fromkeys(names, RerunResult(False, f"it met the limit on {result.limit}"))
    if result.exit_code != 0:
        lines = result.stderr.strip().splitlines() or [""]
        why = f"exit code {result.exit_code}: {lines[-1][:200]}"
        return dict.fromkeys(names, RerunResult(False, why))
    return {name: _read(sandbox, f"outputs/{name}/{output}") for name in names}


def _read(sandbox: Sandbox, path: str) -> RerunResult:
    try:
        return RerunResult(True, "", sandbox.read(path, MAX_OUTPUT_BYTES))
    except FileNotFoundError:
        return RerunResult(False, f"it wrote no {path.rpartition('/')[2]} into --output")
    except ValueError as error:
        return RerunResult(False, f"its output cannot be read: {str(error)[:200]}")
