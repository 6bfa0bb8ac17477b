"""The sandbox of one environment: its lease, a clean start, cells, and who is to blame for a death.

A sandbox that dies during a cell is replayed: the same cells in a fresh sandbox. If that one dies
at the same cell too, the cell did it, and the agent bears it; anything else is infrastructure.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import warnings
from dataclasses import dataclass, field
from typing import Final

from bat_env.episode import ViolationKind
from bat_env.errors import ConfigError, SandboxError, SandboxInterruptedError
from bat_env.extras import require_for_cells
from bat_env.sandbox import SandboxPool, resolve_backend, shared_pool
from bat_env.sandbox.base import Cell, CellResult, Delta, FileTree, Limits, Manifest, Sandbox

_START_TRIES: Final = 3
_KILLED: Final = 128 + 9


@functools.cache
def _warn_of_missing(backend: str) -> None:
    """Agent code that fails for want of a package looks like a bad agent: say it once."""
    try:
        require_for_cells(backend)
    except ConfigError as error:
        warnings.warn(str(error), stacklevel=2)


def cell_seed(episode_seed: int, call: int) -> int:
    """Seed of the ``call``-th cell of an episode, below 2**32."""
    digest = hashlib.blake2b(f"cell {episode_seed} {call}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big")


def manifest_digest(manifest: Manifest) -> str:
    """sha256 over paths, kinds and contents of a workspace, as hex."""
    rows = [[path, entry.kind, entry.sha256] for path, entry in sorted(manifest.items())]
    return hashlib.sha256(json.dumps(rows).encode("ascii")).hexdigest()


def apply_delta(manifest: Manifest, delta: Delta) -> Manifest:
    """The manifest after ``delta``, sorted by path."""
    deleted = frozenset(delta.deleted)
    after = {path: entry for path, entry in manifest.items() if path not in deleted}
    after.update(delta.created)
    after.update(delta.changed)
    return dict(sorted(after.items()))


@dataclass(frozen=True)
class Ran:
    """What running one cell gave.

    Attributes:
        result: What the host saw.
        manifest: The workspace now.
        violations: Host-proven violations of this cell, with a sentence each.
    """

    result: CellResult
    manifest: Manifest
    violations: tuple[tuple[ViolationKind, str], ...] = ()


@dataclass
class Workbench:
    """Holds at most one leased sandbox.

    Args:
        sandbox: Backend name, or a sandbox of the caller, which is neither replaced nor closed.
        pool_size: Warm sandboxes of the shared pool, or ``None``.
    """

    sandbox: str | Sandbox
    pool_size: int | None = None
    _pool: SandboxPool | None = field(default=None, init=False)
    _lease: Sandbox | None = field(default=None, init=False)
    _limits: Limits | None = field(default=None, init=False)
    _files: FileTree = field(default_factory=dict, init=False)
    _manifest: Manifest = field(default_factory=dict, init=False)
    _history: list[tuple[Cell, float]] = field(default_factory=list, init=False)

    @property
    def current(self) -> Sandbox:
        """The sandbox of the running episode.

        Raises:
            SandboxError: If there is none, because it was closed or died.
        """
        if self._lease is None:
            raise SandboxError("This environment holds no sandbox; call reset().")
        return self._lease

    @property
    def pool(self) -> SandboxPool:
        """Where clean sandboxes for verification come from.

        Raises:
            SandboxError: Before the first :meth:`begin`.
        """
        if self._pool is None:
            raise SandboxError("This environment has no sandbox pool yet; call reset().")
        return self._pool

    @property
    def places(self) -> int | None:
        """Episodes like this one that memory allows at once; ``None`` without a pool."""
        pooled = self._pool is not None and isinstance(self.sandbox, str)
        return self.pool.places if pooled else None

    def begin(self, limits: Limits, files: FileTree) -> Manifest:
        """Start an episode: a wiped sandbox with ``files`` in it.

        A sandbox that fails here is replaced: nothing of the episode can be lost yet.

        Returns:
            The workspace as the host sees it.

        Raises:
            SandboxUnavailableError: If no backend can run here; says what to install.
            SandboxError: If several sandboxes in a row could not be made ready.
        """
        if limits != self._limits:
            self.release()
            self._limits = limits
            given = self.sandbox
            backend = resolve_backend(given) if isinstance(given, str) else given.backend
            _warn_of_missing(backend)
            self._pool = shared_pool(backend, limits, self.pool_size)
        self._files, self._history = files, []
        for last in (False,) * (_START_TRIES - 1) + (True,):
            try:
                sandbox = self._take()
                sandbox.reset(files)
                self._manifest = sandbox.manifest()
                return self._manifest
            except SandboxError as error:
                self.drop()
                asked = isinstance(error, SandboxInterruptedError)
                if last or asked or not isinstance(self.sandbox, str):
                    raise
        raise AssertionError("unreachable")

    def run(self, cell: Cell, timeout_s: float) -> Ran:
        """Run one cell.

        Raises:
            SandboxError: If the sandbox died and the cell is not to blame. The sandbox is gone.
        """
        try:
            result = self.current.run(cell, timeout_s)
        except SandboxInterruptedError:
            self.drop()
            raise
        except SandboxError as error:
            result = self._after_death(cell, timeout_s, error)
            babble = getattr(error, "evidence", "") == "frame"
            kind: ViolationKind = "malformed_frame" if babble else "worker_killed"
            return Ran(result, self._manifest, ((kind, str(error)),))
        self._history.append((cell, timeout_s))
        self._manifest = apply_delta(self._manifest, result.delta)
        return Ran(result, self._manifest, violations_of(result))

    def changed_inputs(self) -> str:
        """How the read-only places differ from what the host laid there; empty if they do not.

        A backend that cannot tell (it has no ``inputs()``) counts as unchanged.

        Raises:
            SandboxError: If the sandbox failed.
        """
        look = getattr(self.current, "inputs", None)
        if look is None:
            return ""
        laid = {
            path: hashlib.sha256(self._files[path]).hexdigest()
            for path in self._files
            if not path.startswith("workspace/")
        }
        seen = {path: entry for path, entry in look().items() if entry.kind != "dir"}
        changed = sorted(
            path
            for path in laid.keys() | seen.keys()
            if path not in seen or seen[path].sha256 != laid.get(path)
        )
        return f"changed read-only files: {', '.join(changed[:5])}" if changed else ""

    def read(self, path: str, max_bytes: int) -> bytes | None:
        """A workspace file, or ``None`` if it cannot be read for any reason."""
        try:
            return self.current.read(path, max_bytes)
        except (SandboxError, OSError, ValueError):
            return None

    def drop(self) -> None:
        """Give up the sandbox because it failed: it never goes back to the pool. Idempotent."""
        lease, self._lease = self._lease, None
        if lease is not None and lease is not self.sandbox:
            lease.close()
            if self._pool is not None:
                with contextlib.suppress(SandboxError):
                    self._pool.release(lease)

    def release(self) -> None:
        """Give the sandbox back. Idempotent; never raises."""
        lease, self._lease = self._lease, None
        if lease is not None and lease is not self.sandbox and self._pool is not None:
            with contextlib.suppress(SandboxError):
                self._pool.release(lease)

    def _take(self) -> Sandbox:
        if self._lease is None:
            if isinstance(self.sandbox, str):
                self._lease = self.pool.acquire()
            else:
                self.sandbox.start()
                self._lease = self.sandbox
        return self._lease

    def _after_death(self, cell: Cell, timeout_s: float, error: SandboxError) -> CellResult:
        """Find out who killed the sandbox; returns the verdict if it was the cell.

        Raises:
            SandboxError: The first death, if the replay outlives the cell or dies before it.
        """
        self.drop()
        if not isinstance(self.sandbox, str):
            raise error
        self._replay(error)
        evidence = getattr(error, "evidence", "")
        if evidence == "oom":  # proven already; the episode goes on before the deadly cell
            return CellResult(
                exit_code=_KILLED, stderr="the cell took the sandbox's memory", limit="memory"
            )
        if evidence == "frame":
            return CellResult(exit_code=_KILLED, stderr="the cell forged the sandbox's replies")
        try:
            self.current.run(cell, timeout_s)
        except SandboxError:
            self.drop()
        else:
            self.drop()
            raise SandboxError(
                f"{error} The same actions in a fresh sandbox went well, so the cause is the "
                "infrastructure: the episode is invalid, run it again."
            ) from error
        # The episode goes on in the state before the deadly cell.
        self._replay(error)
        return CellResult(exit_code=_KILLED, stderr="the cell killed its sandbox", limit="memory")

    def _replay(self, error: SandboxError) -> None:
        try:
            sandbox = self._take()
            sandbox.reset(self._files)
            for cell, timeout_s in self._history:
                sandbox.run(cell, timeout_s)
            self._manifest = sandbox.manifest()
        except SandboxError as second:
            self.drop()
            raise SandboxError(
                f"{error} Replaying the earlier cells failed as well ({second}): the episode is "
                "invalid, run it again."
            ) from second


def violations_of(result: CellResult) -> tuple[tuple[ViolationKind, str], ...]:
    """Violations that the host can prove from one result."""
    found: list[tuple[ViolationKind, str]] = []
    touched = {**result.delta.created, **result.delta.changed}
    special = [path for path, entry in touched.items() if entry.kind == "special"]
    if special:
        found.append(("special_file", f"planted a device, socket or pipe: {special[0]!r}"))
    return tuple(found)
