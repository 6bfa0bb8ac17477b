"""The manifest of a staged folder: its files with checksums, their source and their licence."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bat_env.errors import DataError

MANIFEST: Final = "manifest.json"
PLAN: Final = "plan.json"
SCHEMA_VERSION: Final = 1
PART: Final = ".part-"
"""Beginning of the names of files that are being written."""
_CHUNK: Final = 1 << 20


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileSum(_Frozen):
    """Size and sha256 of a file."""

    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class CaseRow(_Frozen):
    """One staged case; its files lie in ``public/<key>`` and ``private/<key>``."""

    key: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    case: str = Field(description="Id in the data set; never shown to an agent.")
    group: str
    split: Literal["train", "dev", "heldout", ""] = ""
    public: dict[str, FileSum]
    private: dict[str, FileSum]
    content: str = Field(description="sha256 of the decoded input at its full size.")
    summary: dict[str, Any]


class Plan(_Frozen):
    """What a staging was begun with; another plan needs another folder."""

    schema_version: Literal[1] = 1
    layout: str
    options: dict[str, str]
    limit: int | None
    seed: int
    max_voxels: int
    max_side_px: int
    model: str = Field(description="Digest of the given bundle, or the phantom task's id.")
    cases: str = Field(description="Digest over the ids of all cases found, in staging order.")


class Manifest(_Frozen):
    """See the module."""

    schema_version: Literal[1] = 1
    name: str
    task: str
    plan: Plan
    title: str
    licence: str
    terms: str
    source: str
    made_by: str
    notes: tuple[str, ...] = ()
    skipped: dict[str, str] = Field(description="Case -> why it was left out.")
    cases: tuple[CaseRow, ...]
    task_files: dict[str, FileSum]
    digest: str = ""

    def sealed(self) -> Manifest:
        """The manifest with its own digest, which covers everything else in it."""
        bare = self.model_copy(update={"digest": ""})
        return self.model_copy(update={"digest": _digest(bare)})

    def files(self) -> Iterator[tuple[str, FileSum]]:
        """Paths within the staged folder, and what they must be."""
        for row in self.cases:
            for tree, sums in (("public", row.public), ("private", row.private)):
                for name, total in sums.items():
                    yield f"{tree}/{row.key}/{name}", total
        for name, total in self.task_files.items():
            yield f"task/{name}", total


def _digest(manifest: Manifest) -> str:
    text = json.dumps(manifest.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def sum_of(data: bytes) -> FileSum:
    """Size and sha256 of content."""
    return FileSum(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=PART, delete=False) as stream:
        try:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            Path(stream.name).replace(path)
        except BaseException:
            Path(stream.name).unlink(missing_ok=True)
            raise
    path.chmod(0o644)


def write_model(path: Path, model: BaseModel) -> None:
    """Write a model as JSON, whole or not at all."""
    write_whole(path, (json.dumps(model.model_dump(mode="json"), indent=1) + "\n").encode())


def read_plan(folder: Path) -> Plan | None:
    """The plan of a folder in which a staging was begun, or ``None``."""
    try:
        return Plan.model_validate_json((folder / PLAN).read_bytes())
    except (OSError, ValidationError):
        return None


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a staged folder.

    Raises:
        DataError: If there is none, the staging was not finished, or it was changed.
    """
    path = folder / MANIFEST
    if not path.is_file():
        if (folder / PLAN).is_file():
            raise DataError(
                f"Expected a finished staging in {folder}, this one was interrupted. Run the same "
                "`bat-env data stage` command again: it goes on where it stopped."
            )
        what = "holds no manifest.json" if folder.is_dir() else "does not exist"
        raise DataError(
            f"Expected a folder made by `bat-env data stage`, {folder} {what}. Stage the data "
            "set first: `bat-env data list` names them."
        )
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise DataError(
            f"Expected a manifest of schema {SCHEMA_VERSION} in {path}: {first}. Stage the data "
            "set again into a new folder."
        ) from error
    if manifest.sealed().digest != manifest.digest:
        raise DataError(
            f"{path} does not match its own digest: it was changed. Stage the data set again "
            "into a new folder."
        )
    return manifest


_VERIFIED: dict[tuple[str, str, int, int], str] = {}
"""Files of this process that were read before: (path, sha256, mtime, size)."""


def verify(folder: Path, manifest: Manifest) -> None:
    """Check every file against the manifest; a file that has not changed is read once a process.

    Raises:
        DataError: Names the files that are missing or changed.
    """
    wrong = []
    for name, total in manifest.files():
        path = folder / name
        try:
            stat = path.stat()
        except OSError:
            wrong.append(f"{name} is missing")
            continue
        if stat.st_size != total.bytes:
            wrong.append(f"{name} has {stat.st_size} bytes, not {total.bytes}")
            continue
        key = (str(path), total.sha256, stat.st_mtime_ns, stat.st_size)
        if _VERIFIED.get(key) != total.sha256:
            if file_digest(path) != total.sha256:
                wrong.append(f"{name} has another checksum")
                continue
            _VERIFIED[key] = total.sha256
    if wrong:
        raise DataError(
            f"Expected {folder} as it was staged: {'; '.join(wrong[:3])}"
            f"{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''}. Stage the data set again "
            "into a new folder."
        )


def file_digest(path: Path) -> str:
    """sha256 of a file, as hex."""
    h = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            h.update(chunk)
    return h.hexdigest()
