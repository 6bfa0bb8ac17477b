"""A Stage Bank as one file: a tar in zstd, the same bytes for the same bank, read with distrust.

The tar holds ``index.json`` and then ``objects/<sha256>`` in order, and nothing else: the reader
knows no other kind of entry, name or order, so there is no link to follow and no path to leave by.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import zstandard

from bat_env.bank.blobs import MAX_BLOB
from bat_env.bank.index import Index
from bat_env.bank.rows import STATE_COLUMNS, demo_statement, state_statement
from bat_env.bank.state import Demonstration, StageState, canonical, check_path, digest_of
from bat_env.disk import named_if_full
from bat_env.errors import BankError

if TYPE_CHECKING:
    from bat_env.bank.store import Bank

ARCHIVE_VERSION: Final = 1
MAX_ARCHIVE: Final = 16 << 30
"""Bytes of contents that an archive may bring, unpacked, unless the caller allows more."""

_MAX_INDEX: Final = 256 << 20
_BLOCK: Final = 512
_LEVEL: Final = 9
_WINDOW: Final = 1 << 27
_KEYS: Final = ("schema_version", "kind", "states", "demonstrations", "jobs", "meta", "blobs")
_BROKEN: Final = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What an export wrote or an import brought.

    Attributes:
        states, demonstrations: Rows in the archive.
        blobs: Contents in it.
        content_bytes: Their bytes, unpacked.
        digest: Of the bank afterwards.
        added: Rows that the import added; the others were there already. Of an export: 0.
    """

    states: int
    demonstrations: int
    blobs: int
    content_bytes: int
    digest: str
    added: int = 0

    def to_json(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "schema_version": 1,
            "states": self.states,
            "demonstrations": self.demonstrations,
            "blobs": self.blobs,
            "content_bytes": self.content_bytes,
            "digest": self.digest,
            "added": self.added,
        }


# ----------------------------------------------------------------------------------------- export


def write_archive(bank: Bank, index: Index, file: Path) -> ArchiveReport:
    """Write a bank. See :meth:`bat_env.bank.Bank.export`."""
    rows = index.rows(f"SELECT {STATE_COLUMNS} FROM states ORDER BY id")
    states = [bank.get(row[0]) for row in rows]
    demos = index.rows("SELECT id, record, digest FROM demos ORDER BY id")
    records = []
    sizes: dict[str, int] = {}

    def note(digest: str) -> bytes:
        data = bank.blobs.get(digest)
        sizes[digest] = len(data)
        return data

    for state in states:
        note(state.transcript)
        for digest in json.loads(note(state.workspace))["files"].values():
            note(digest)
    for demo_id, record, digest in demos:
        if digest_of(record) != digest:
            raise BankError(f"Demonstration {demo_id} is corrupt; see `bat-env bank verify`.")
        records.append(json.loads(record))
        note(records[-1]["turns_blob"])
    head = {
        "schema_version": ARCHIVE_VERSION,
        "kind": "stage-bank",
        "states": [state.to_json() for state in states],
        "demonstrations": records,
        "jobs": {name: [status, detail] for name, (status, detail) in bank.jobs().items()},
        "meta": {
            key.removeprefix("x-"): json.loads(value)
            for key, value in index.rows("SELECT key, value FROM meta ORDER BY key")
            if key.startswith("x-")
        },
        "blobs": sorted(sizes.items()),
    }
    temp = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with named_if_full(file), temp.open("wb") as raw:
            packer = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
            with packer.stream_writer(raw, closefd=False) as out:
                _put(out, "index.json", canonical(head))
                for digest in sorted(sizes):
                    _put(out, f"objects/{digest}", bank.blobs.get(digest))
                out.write(bytes(2 * _BLOCK))
            raw.flush()
            os.fsync(raw.fileno())
        temp.replace(file)
    except OSError as error:
        raise BankError(f"Cannot write the archive {file}: {error}. Give another path.") from error
    finally:
        with contextlib.suppress(OSError):
            temp.unlink()
    return ArchiveReport(len(states), len(demos), len(sizes), sum(sizes.values()), bank.digest())


def _put(out: Any, name: str, data: bytes) -> None:
    out.write(_header(name, len(data)))
    out.write(data)
    out.write(bytes(-len(data) % _BLOCK))


def _header(name: str, size: int) -> bytes:
    """A ustar header of a regular file, the same on every machine."""
    fields = (
        name.encode().ljust(100, b"\0"),
        b"0000644\0" + b"0000000\0" * 2,
        b"%011o\0" % size,
        b"%011o\0" % 0,
        b" " * 8,
        b"0".ljust(101, b"\0"),
        b"ustar\x0000".ljust(72, b"\0"),
        b"0000000\0" * 2,
    )
    block = b"".join(fields).ljust(_BLOCK, b"\0")
    return block[:148] + b"%06o\0 " % sum(block) + block[156:]


# ----------------------------------------------------------------------------------------- import


def read_archive(bank: Bank, index: Index, file: Path, max_bytes: int) -> ArchiveReport:
    """Merge an archive into a bank. See :meth:`bat_env.bank.Bank.merge`."""
    try:
        with named_if_full(bank.path), file.open("rb") as raw:
            entries = _entries(raw)
            head = _head(entries, max_bytes)
            promised = dict(head["blobs"])
            for digest, data in entries:
                if hashlib.sha256(data).hexdigest() != digest:
                    raise ValueError(f"the content {digest[:12]} has another sha256")
                bank.blobs.put(data)
            statements, added = _statements(bank, index, head, promised)
    except OSError as error:
        raise BankError(f"Cannot read the archive {file}: {error}.") from error
    except (*_BROKEN, zstandard.ZstdError, RecursionError) as error:
        raise BankError(
            f"{file} is no archive of a Stage Bank that can be taken in: {error}. Nothing was "
            "added. Export it again with `bat-env bank export`."
        ) from error
    index.write_all(statements)
    return ArchiveReport(
        len(head["states"]),
        len(head["demonstrations"]),
        len(promised),
        sum(promised.values()),
        bank.digest(),
        added,
    )


def _entries(raw: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """(name, content) of the entries: first ``("", index)``, then the promised contents by digest.

    Nothing is read that the header before it, or the index, has not allowed.
    """
    unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
    with unpacker.stream_reader(raw, read_across_frames=False, closefd=False) as stream:
        text = _take(stream, "index.json", None, _MAX_INDEX)
        yield "", text
        for digest, size in json.loads(text)["blobs"]:
            yield digest, _take(stream, f"objects/{digest}", size, MAX_BLOB)
        if _exactly(stream, 2 * _BLOCK) != bytes(2 * _BLOCK) or stream.read(1) or raw.read(1):
            raise ValueError("something follows its last entry")


def _take(stream: Any, name: str, size: int | None, most: int) -> bytes:
    block = _exactly(stream, _BLOCK)
    try:
        claimed = int(block[124:135], 8)
    except ValueError:
        raise ValueError(f"expected the entry {name}, found no header") from None
    if claimed > most or size not in (None, claimed):
        raise ValueError(f"the entry {name} claims {claimed} bytes")
    if block != _header(name, claimed):
        found = block[:100].rstrip(b"\0").decode("ascii", "replace")
        raise ValueError(f"expected the plain entry {name}, found {found!r}")
    data = _exactly(stream, claimed)
    if _exactly(stream, -claimed % _BLOCK).strip(b"\0"):
        raise ValueError(f"the padding of {name} is not empty")
    return data


def _exactly(stream: Any, size: int) -> bytes:
    parts = []
    while size:
        part = stream.read(min(size, 1 << 20))
        if not part:
            raise ValueError("it ends too early")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _head(entries: Iterator[tuple[str, bytes]], max_bytes: int) -> dict[str, Any]:
    _, text = next(entries)
    head = json.loads(text)
    if not isinstance(head, dict) or head.get("kind") != "stage-bank":
        raise ValueError("its index is not that of a bank")
    if head.get("schema_version") != ARCHIVE_VERSION:
        raise ValueError(f"it has schema version {head.get('schema_version')!r}, expected 1")
    if sorted(head) != sorted(_KEYS):
        raise ValueError("its index has other keys than version 1")
    blobs = head["blobs"]
    for digest, size in blobs:
        if not (isinstance(size, int) and 0 <= size <= MAX_BLOB and len(digest) == 64):
            raise ValueError(f"a content of {size!r} bytes")
        int(digest, 16)
    if [digest for digest, _ in blobs] != sorted({digest for digest, _ in blobs}):
        raise ValueError("its contents are not in order, or come twice")
    total = sum(size for _, size in blobs)
    if total > max_bytes:
        raise ValueError(f"it holds {total} bytes of contents, and {max_bytes} are allowed")
    return head


def _statements(
    bank: Bank, index: Index, head: Mapping[str, Any], promised: Mapping[str, int]
) -> tuple[list[tuple[str, tuple[Any, ...]]], int]:
    """What is to be written: whole rows that are not here yet."""
    statements: list[tuple[str, tuple[Any, ...]]] = []
    for record in head["states"]:
        state = StageState.from_json(record)
        if state.content_id() != state.state_id:
            raise ValueError(f"state {state.state_id} does not match its id")
        _promised(promised, state.workspace, state.transcript)
        manifest = json.loads(bank.blobs.get(state.workspace))
        if sorted(manifest) != ["files", "schema_version"] or manifest["schema_version"] != 1:
            raise ValueError(f"the manifest of state {state.state_id} is of another version")
        for path, digest in manifest["files"].items():
            check_path(path)
            _promised(promised, digest)
        if not isinstance(json.loads(bank.blobs.get(state.transcript)), list):
            raise ValueError(f"the transcript of state {state.state_id} is no list")
        if not _has(lambda state=state: bank.get(state.state_id)):
            statements.append(state_statement(state))
    here = {row[0] for row in index.rows("SELECT id FROM demos")}
    whole = {demo.demo_id for demo in bank.demonstrations()} if here else set()
    for record in head["demonstrations"]:
        digest = record["turns_blob"]
        _promised(promised, digest)
        turns = json.loads(bank.blobs.get(digest))
        value = {key: inner for key, inner in record.items() if key != "turns_blob"}
        demo = Demonstration.from_json({**value, "turns": turns})
        if demo.content_id() != demo.demo_id:
            raise ValueError(f"demonstration {demo.demo_id} does not match its id")
        if demo.demo_id not in whole:
            statements.append(demo_statement(demo, canonical(record).decode()))
    added = len(statements)
    for name, (status, detail) in sorted(head["jobs"].items()):
        values = (str(name), str(status), canonical(dict(detail)).decode())
        statements.append(("INSERT OR IGNORE INTO jobs VALUES (?,?,?)", values))
    for key, value in sorted(head["meta"].items()):
        pair = (f"x-{key}", canonical(value).decode())
        statements.append(("INSERT OR IGNORE INTO meta VALUES (?,?)", pair))
    return statements, added


def _promised(promised: Mapping[str, int], *digests: str) -> None:
    for digest in digests:
        if digest not in promised:
            raise ValueError(f"a row names the content {str(digest)[:12]}, which is not in it")


def _has(look: Any) -> bool:
    try:
        look()
    except BankError:
        return False
    return True
