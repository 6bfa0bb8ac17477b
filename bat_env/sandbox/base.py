"""What every sandbox is: the protocol, its values and its limits.

The pool, the environment, the grader and the Stage Bank know only :class:`Sandbox`. Docker, local
namespaces and a plain process are launchers of the same worker behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

FileTree: TypeAlias = Mapping[str, bytes]
"""Regular files as ``{relative POSIX path: content}``. Directories are implied."""

MOUNTS: Final[tuple[str, ...]] = ("data", "models", "skills", "workspace")
"""First path component of every file given to :meth:`Sandbox.reset`; ``/data`` and so on inside.
All but ``workspace`` are read-only for the agent."""

Language: TypeAlias = Literal["python", "bash"]
LimitName: TypeAlias = Literal["timeout", "memory", "pids", "disk", "output"]
FileKind: TypeAlias = Literal["file", "dir", "symlink", "special", "unread"]


class Limits(BaseModel):
    """Limits of one sandbox. Each breach is a normal :class:`CellResult` that names the limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cell_timeout_s: float = Field(120.0, gt=0, description="Wall time of one cell, seconds.")
    memory_mb: int = Field(2048, ge=256, description="Memory of the cell's processes, MiB.")
    pids: int = Field(64, ge=4, description="Processes and threads of one cell.")
    workspace_mb: int = Field(256, ge=1, description="Bytes that /workspace may hold, MiB.")
    workspace_inodes: int = Field(8192, ge=64, description="Files and folders in /workspace.")
    tmp_mb: int = Field(64, ge=1, description="Bytes that /tmp may hold, MiB.")
    output_bytes: int = Field(32768, ge=256, description="Kept bytes of each output stream.")
    cpus: float = Field(1.0, gt=0, description="CPU cores that one cell may use (threads too).")


@dataclass(frozen=True, slots=True)
class Cell:
    """One piece of agent code, run in a fresh process with ``/workspace`` as its directory.

    Attributes:
        language: ``"python"`` or ``"bash"``.
        code: Source text, without NUL bytes.
        seed: Seeds ``random``, numpy and torch in the fresh process (0 <= seed < 2**32).
    """

    language: Language
    code: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One path of the workspace as the supervisor saw it.

    Attributes:
        kind: Links are never followed; devices, sockets and pipes are ``"special"``;
            what lies too deep or is too large to be hashed is ``"unread"``.
        size: Bytes for a regular file, else 0.
        sha256: Hex digest for a regular file, else ``""``.
    """

    kind: FileKind
    size: int = 0
    sha256: str = ""


Manifest: TypeAlias = Mapping[str, FileEntry]
"""Workspace-relative POSIX path -> entry, sorted by path; the root itself is not listed."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one cell did to the workspace, computed outside the cell. Paths are sorted."""

    created: Mapping[str, FileEntry] = field(default_factory=dict)
    changed: Mapping[str, FileEntry] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.created or self.changed or self.deleted)


@dataclass(frozen=True, slots=True)
class CellResult:
    """What the host saw of one cell.

    Attributes:
        exit_code: 0 for success; ``128 + n`` when signal *n* ended the cell.
        stdout, stderr: Decoded with replacement; head and tail kept within ``Limits.output_bytes``.
        stdout_dropped, stderr_dropped: Bytes cut out of the middle of each stream.
        limit: The limit that ended the cell, or ``None``.
        delta: Workspace changes.
        wall_s, cpu_s: Time used. For the trajectory only; never in observations.
    """

    exit_code: int
    stdout: str = ""
    stderr: str = ""
    stdout_dropped: int = 0
    stderr_dropped: int = 0
    limit: LimitName | None = None
    delta: Delta = field(default_factory=Delta)
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the cell ended by itself with exit code 0."""
        return self.exit_code == 0 and self.limit is None


@runtime_checkable
class Sandbox(Protocol):
    """A place where agent code runs. Not thread-safe: one caller at a time.

    Every method raises :class:`~bat_env.errors.SandboxError` when the sandbox itself failed; after
    that only :meth:`close` may be called.
    """

    backend: str
    limits: Limits

    def start(self) -> None:
        """Boot; returns when a cell could run. Idempotent."""

    def reset(self, files: FileTree) -> None:
        """Kill everything, wipe every writable place, then lay ``files`` down.

        Args:
            files: Keys start with one of :data:`MOUNTS`, for example ``data/c1/ct.nii.gz``.
        """

    def run(self, cell: Cell, timeout_s: float | None = None) -> CellResult:
        """Run one cell to its end; all its processes are gone when this returns."""

    def manifest(self) -> Manifest:
        """The workspace now."""

    def read(self, path: str, max_bytes: int) -> bytes:
        """Read a regular workspace file.

        Raises:
            FileNotFoundError: If ``path`` is absent.
            ValueError: If it is not a regular file, leaves the workspace (any component a link),
                or is larger than ``max_bytes``.
        """

    def snapshot(self) -> dict[str, bytes]:
        """All regular workspace files, workspace-relative, sorted by path."""

    def close(self) -> None:
        """Free everything. Idempotent; never raises."""
