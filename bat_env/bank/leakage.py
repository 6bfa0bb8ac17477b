"""Leakage preflight: held-out material, private truth, machine paths and credentials, fail closed.

Runs at admission of every state and demonstration, and over the whole bank before training.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bat_env.bank.fingerprints import (
    MIN_NEEDLE,
    Fingerprint,
    content_hashes,
    inflate,
    of_suites,
    of_truth,
)
from bat_env.bank.state import Demonstration, StageState, Transcript
from bat_env.bank.store import Bank
from bat_env.errors import BankError, BatError, LeakageError
from bat_env.sandbox.base import MOUNTS, FileTree

if TYPE_CHECKING:
    from bat_env.tasks import Suite

_CREDENTIALS: Final = re.compile(
    rb"AKIA[0-9A-Z]{16}"
    rb"|-----BEGIN [A-Z ]{0,20}PRIVATE KEY-----"
    rb"|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_[A-Za-z0-9_]{30,}"
    rb"|\bsk-[A-Za-z0-9_-]{20,}|\bhf_[A-Za-z0-9]{30,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    rb"|[Aa]uthorization: *(?:Bearer|Basic) +[A-Za-z0-9+/=._-]{8,}"
    rb"|://[A-Za-z0-9._%-]{1,64}:[A-Za-z0-9._%-]{3,}@"
)
# The last directory of a POSIX home, the roots of macOS and Windows: never part of the sandbox.
_HOMES: Final = re.compile(
    rb"(?<![A-Za-z0-9_.~])/(?:home|Users)/[A-Za-z0-9._-]+|(?<![A-Za-z0-9_.])/root/[A-Za-z0-9._-]+"
    rb"|\b[A-Z]:\\{1,2}Users\\"
)
_NAMESPACE: Final = re.compile(rb"held[-_ ]?out", re.IGNORECASE)
_TEXT: Final = re.compile(rb"[\x09\x0a\x0d\x20-\x7e\x80-\xff]*\Z")
_SANDBOX_ROOTS: Final = (
    *("/usr", "/lib", "/bin", "/opt", "/etc", "/proc", "/dev", "/tmp"),
    *(f"/{mount}" for mount in MOUNTS),
)
_MAX_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Finding:
    """One leak.

    Attributes:
        row: ``"state <id>"`` or ``"demonstration <id>"``.
        place: Field or file in which it was found.
        what: What was found; held-out strings themselves are not repeated.
    """

    row: str
    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.row}, {self.place}: {self.what}"


@dataclass(frozen=True, slots=True)
class LeakageReport:
    """Outcome of a scan.

    Attributes:
        findings: Every leak; empty when the bank is clean.
        states, demonstrations: Rows read.
        unreadable: Corrupt rows; no reader of the bank is ever given one.
        fingerprint: Digest of the held-out traces compared with.
    """

    findings: tuple[Finding, ...]
    states: int
    demonstrations: int
    unreadable: int
    fingerprint: str

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


class Scanner:
    """Scans material against one fingerprint; remembers blobs that it has found clean.

    Args:
        fingerprint: Traces of the held-out suites.
    """

    def __init__(self, fingerprint: Fingerprint) -> None:
        self.fingerprint = fingerprint
        self._needles = [
            (text.encode(), what)
            for text, what in sorted(fingerprint.strings.items())
            if len(text) >= MIN_NEEDLE
        ]
        self._machine = [path.encode() for path in machine_paths()]
        self._clean: set[str] = set()

    def text(self, data: bytes) -> Iterator[str]:
        """What is wrong with a piece of text or binary data."""
        for needle, what in self._needles:
            if _holds(data, needle):
                yield what
        if _NAMESPACE.search(data) and _TEXT.match(data[:4096]):
            yield "names the held-out namespace"
        for path in self._machine:
            if _holds(data, path):
                yield "a path of this machine"
                break
        if _HOMES.search(data):
            yield "a home directory"
        if _CREDENTIALS.search(data):
            yield "a credential"

    def file(self, data: bytes, truth: Fingerprint | None = None) -> Iterator[str]:
        """What is wrong with a file: its hashes, its bytes, its inflated bytes."""
        hashes = content_hashes(data)
        for digest in hashes:
            for known in (self.fingerprint.hashes, {} if truth is None else truth.hashes):
                if digest in known:
                    yield f"equals the {known[digest]}"
        if hashes[0] in self._clean:
            return
        found = [*self.text(data), *self.text(inflate(data) or b"")]
        if not found:
            self._clean.add(hashes[0])
        yield from found

    def state(
        self, state: StageState, workspace: FileTree, transcript: Transcript
    ) -> Iterator[Finding]:
        """Leaks in a state, its workspace and the transcript that led to it."""
        row = f"state {state.state_id or 'candidate'}"
        truth = self._truth(state, row)
        if isinstance(truth, Finding):
            yield truth
            truth = Fingerprint()
        for what in self.text(_readable(state.to_json())):
            yield Finding(row, "row", what)
        for what in self.text(_readable(list(transcript))):
            yield Finding(row, "transcript", what)
        for path, data in workspace.items():
            for what in self.text(path.encode(errors="surrogatepass")):
                yield Finding(row, f"name of {path!r}", what)
            for what in self.file(data, truth):
                yield Finding(row, f"file {path!r}", what)

    def demonstration(self, demo: Demonstration) -> Iterator[Finding]:
        """Leaks in a demonstration: its row, every observation and every action."""
        row = f"demonstration {demo.demo_id or 'candidate'}"
        for what in dict.fromkeys(self.text(_readable(demo.to_json()))):
            yield Finding(row, "turns", what)

    @staticmethod
    def _truth(state: StageState, row: str) -> Fingerprint | Finding:
        try:
            return of_truth(state.task, state.task_digest, state.index, state.size)
        except BatError as error:
            return Finding(row, "truth", str(error))


def _readable(value: object) -> bytes:
    """All strings of a JSON value, unescaped, so that a needle is found as the reader sees it."""
    parts: list[str] = []

    def walk(node: object) -> None:
        if isinstance(node, Mapping):
            for key, inner in node.items():
                parts.append(str(key))
                walk(inner)
        elif isinstance(node, list | tuple):
            for inner in node:
                walk(inner)
        elif node is not None:
            parts.append(str(node))

    walk(value)
    return "\n".join(parts).encode(errors="surrogatepass")


def _holds(data: bytes, needle: bytes) -> bool:
    """Whether ``needle`` occurs as a whole word: with no letter or digit beside it."""
    start = data.find(needle)
    while start >= 0:
        end = start + len(needle)
        before, after = data[start - 1 : start] if start else b"", data[end : end + 1]
        if not before.isalnum() and not after.isalnum():
            return True
        start = data.find(needle, start + 1)
    return False


def machine_paths() -> tuple[str, ...]:
    """Folders of this machine that no training material may name, longest first."""
    here = Path(__file__).resolve().parents[2]
    candidates = {
        str(here),
        str(Path.cwd()),
        str(Path.home()),
        sys.prefix,
        os.environ.get("BAT_HOME", ""),
        os.environ.get("BAT_BANK", ""),
    }
    temp = tempfile.gettempdir()
    return tuple(
        sorted(
            (
                path
                for path in candidates
                if len(path) >= MIN_NEEDLE
                and path != temp
                and path not in _SANDBOX_ROOTS
                and not path.startswith("/usr")
            ),
            key=len,
            reverse=True,
        )
    )


def scan(bank: Bank, suites: Iterable[str | Suite]) -> LeakageReport:
    """Scan every state, transcript and demonstration of a bank; collects all findings.

    Held-out instances of the bank's own tasks are compared by all they hold; of other tasks, whose
    data no episode of the bank has seen, the names of their worlds are.

    Raises:
        LeakageError: If a suite cannot be fingerprinted.
    """
    rows = bank.query()
    tasks = {row.task for row in rows} | {row.task for row in bank.demonstrations()}
    scanner = Scanner(of_suites(suites, tasks or None))
    findings: list[Finding] = []
    states = demonstrations = unreadable = 0
    for state in rows:
        try:
            workspace = bank.workspace(state.state_id)
            transcript = bank.transcript(state.state_id)
        except BankError:
            unreadable += 1
            continue
        states += 1
        findings += scanner.state(state, workspace, transcript)
    for demo in bank.demonstrations():
        demonstrations += 1
        findings += scanner.demonstration(demo)
    return LeakageReport(
        tuple(findings), states, demonstrations, unreadable, scanner.fingerprint.digest
    )


def preflight(bank: Bank, suites: Iterable[str | Suite]) -> LeakageReport:
    """Prove a bank clean of held-out material before training reads it.

    Args:
        bank: The bank; all of its rows are read.
        suites: Held-out suites, by name or loaded; at least one.

    Returns:
        The report, when nothing was found.

    Raises:
        LeakageError: If anything was found or a suite cannot be fingerprinted. Do not train.
    """
    report = scan(bank, suites)
    if report.findings:
        shown = "; ".join(str(finding) for finding in report.findings[:_MAX_SHOWN])
        more = len(report.findings) - _MAX_SHOWN
        raise LeakageError(
            f"{len(report.findings)} leaks in the Stage Bank at {bank.path}: {shown}"
            + (f"; and {more} more" if more > 0 else "")
            + ". Training must not start: move the bank away and run `bat-env bank build`."
        )
    return report
