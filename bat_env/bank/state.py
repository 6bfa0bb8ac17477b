"""What the Stage Bank holds: reset states and demonstrations, as immutable values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

from bat_env.errors import BankError
from bat_env.sandbox.base import FileTree
from bat_env.stages import Stage

SCHEMA_VERSION: Final = 1

StageName = Annotated[
    Stage,
    BeforeValidator(Stage.parse),
    PlainSerializer(lambda stage: stage.name, return_type=str),
]
"""A :class:`Stage` that is written by name, so that files stay readable."""

Outcome = Literal["success", "recovery", "failure"]


def canonical(value: Any) -> bytes:
    """Canonical JSON: sorted keys, no spaces, ASCII. Equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest_of(value: Any) -> str:
    """sha256 of :func:`canonical`, as hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def workspace_manifest(workspace: FileTree) -> bytes:
    """The manifest blob of a workspace: path -> sha256. Its sha256 names the whole workspace.

    Raises:
        BankError: If a path is not a plain relative POSIX path.
    """
    files = {}
    for path in sorted(workspace):
        check_path(path)
        files[path] = hashlib.sha256(workspace[path]).hexdigest()
    return canonical({"schema_version": SCHEMA_VERSION, "files": files})


def workspace_digest(workspace: FileTree) -> str:
    """sha256 over paths and contents of a workspace, as hex."""
    return hashlib.sha256(workspace_manifest(workspace)).hexdigest()


def check_path(path: str) -> None:
    """Refuse a path that could leave the workspace.

    Raises:
        BankError: If ``path`` is empty, absolute, holds NUL, or an empty, ``.`` or ``..`` part.
    """
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise BankError(
            f"A workspace path must be relative, POSIX, without '.' or '..' parts; got {path!r}. "
            "Snapshots made by a sandbox never hold such a path: build the state again."
        )


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StageState(_Frozen):
    """One reset state: where an episode that practises one stage begins.

    The workspace and the transcript are blobs of the store; the transcript serves provenance and
    supervised slices, and no agent ever observes it.
    """

    schema_version: Literal[1] = 1
    state_id: str = Field("", description="Content hash; the group key of rollouts. Set by add().")
    track: str
    task: str = Field(description="Task id, <track>/<name>.")
    task_digest: str = Field(description="Digest of the task folder that made the state.")
    tier: str = "lite"
    size: Literal["full", "mini"] = "mini"
    focus: StageName
    outcome: Outcome
    split: Literal["train"] = "train"
    index: int = Field(ge=0, description="Instance index in the training namespace.")
    instance_digest: str = Field(description="Digest of the instance's public and private content.")
    fault: str = Field("", description="Mistake that made a recovery or failure state, or empty.")
    exposed: str = Field("", description="Output of the check that exposes it (recovery).")
    brief: str = Field("", description="The reset observation's text as it was at admission.")
    rubric_digest: str = Field("", description="Digest of the rubric contract of (focus, outcome).")
    evidence: tuple[str, ...] = Field((), description="Workspace files that the stage must make.")
    skill: str = Field("", description="Stage skill granted: name of the file under /skills.")
    workspace: str = Field("", description="sha256 of the workspace manifest blob. Set by add().")
    transcript: str = Field("", description="sha256 of the transcript blob. Set by add().")
    provenance: dict[str, Any] = Field(default_factory=dict)
    reduction: dict[str, Any] = Field(
        default_factory=dict, description="R(lambda) of a surrogate: cases, input_fraction, passes."
    )
    admission: dict[str, float] = Field(
        default_factory=dict, description="Scores at admission: start, oracle, naive."
    )

    @property
    def cell(self) -> tuple[str, str, str]:
        """The grid cell: (track, focus name, outcome)."""
        return (self.track, self.focus.name, self.outcome)

    @property
    def admitted(self) -> bool:
        """Whether it has been played and let in: it then has the scores that it was let in with."""
        return {"start", "oracle", "naive"} <= self.admission.keys()

    def content_id(self) -> str:
        """The id that this content has: 32 hex digits of a sha256."""
        key = [
            self.task,
            self.task_digest,
            self.split,
            self.index,
            self.instance_digest,
            self.size,
            self.tier,
            self.focus.name,
            self.outcome,
            self.fault,
            self.workspace,
        ]
        return digest_of(["stage-state", SCHEMA_VERSION, *key])[:32]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; :meth:`from_json` reads it back."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> StageState:
        """Read :meth:`to_json`. Raises pydantic's ``ValidationError`` on anything else."""
        return cls.model_validate(value)


class DemoTurn(_Frozen):
    """One turn: what the agent saw, then what it did."""

    observation: str
    action: dict[str, Any] = Field(description="The tool call: name and arguments.")


class Demonstration(_Frozen):
    """A scripted episode that was executed for real, with the score that the rubric gave it.

    Its choices are a per-decision mixture of careful and careless options, so that imitation alone
    stays mediocre.
    """

    schema_version: Literal[1] = 1
    demo_id: str = Field("", description="Content hash. Set by add_demonstration().")
    source_trajectory: str = Field(description="Groups slices of one trajectory for data splits.")
    track: str
    task: str
    task_digest: str
    tier: str = "lite"
    size: Literal["full", "mini"] = "mini"
    focus: StageName
    outcome: Outcome | None = None
    state_id: str | None = None
    split: Literal["train"] = "train"
    index: int = Field(ge=0)
    seed: int = Field(ge=0, description="Episode seed.")
    choices: dict[str, str] = Field(description="Decision id -> option taken.")
    score: float = Field(ge=0, le=1, description="Final episode score.")
    turns: tuple[DemoTurn, ...]

    def content_id(self) -> str:
        """The id that this content has: 32 hex digits of a sha256."""
        value = self.to_json()
        del value["demo_id"]
        return digest_of(["demonstration", value])[:32]

    def to_json(self) -> dict[str, Any]:
        """JSON-able form; :meth:`from_json` reads it back."""
        return self.model_dump(mode="json")

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Demonstration:
        """Read :meth:`to_json`. Raises pydantic's ``ValidationError`` on anything else."""
        return cls.model_validate(value)


Transcript = Sequence[Mapping[str, Any]]
"""JSON-able records of the cells that led to a state, in order."""
