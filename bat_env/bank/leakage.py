"""Leakage preflight: held-out material, private truth, machine paths and credentials, fail closed.

Runs at admission of every state and demonstration, and over the whole bank before training.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bat_env.bank.fingerprints import Fingerprint, content_hashes, of_suites, of_truth
from bat_env.bank.inflating import inflate
from bat_env.bank.needles import Needles, assistant_turn, machine_paths, patterns
from bat_env.bank.overlap import text_of
from bat_env.bank.remembering import ScanMemory
from bat_env.bank.state import Demonstration, StageState, Transcript, canonical
from bat_env.bank.store import Bank
from bat_env.errors import BankError, BatError, LeakageError
from bat_env.sandbox.base import FileTree
from bat_env.tasks import load_task

if TYPE_CHECKING:
    from bat_env.tasks import Suite

_SPACE: Final = re.compile(r"\s+|\\n|\\")
_MIN_TARGET: Final = 60
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
    """Scans material against one fingerprint; remembers contents that it has found clean.

    Args:
        fingerprint: Traces of the held-out suites.
        memory: What an earlier scan has found clean, or ``None``.
    """

    def __init__(self, fingerprint: Fingerprint, memory: ScanMemory | None = None) -> None:
        self.fingerprint = fingerprint
        self.memory = ScanMemory() if memory is None else memory
        self._needles = Needles(fingerprint.strings)
        self._machine = tuple(path.encode() for path in machine_paths())

    def text(self, data: bytes) -> Iterator[str]:
        """What is wrong with a piece of text or binary data."""
        yield from self._needles.found(data)
        yield from patterns(data, self._machine)

    def file(self, data: bytes, truth: Fingerprint | None = None) -> Iterator[str]:
        """What is wrong with a file: its hashes, its bytes, its inflated bytes, its pictures."""
        hashes = content_hashes(data)
        for digest in hashes:
            for known in (self.fingerprint.hashes, {} if truth is None else truth.hashes):
                if digest in known:
                    yield f"equals the {known[digest]}"
        if self.memory.clean(hashes[0]):
            return
        found = [*self.text(data), *self.text(inflate(data) or b"")]
        shown = self.fingerprint.gallery.recognise(data)
        if shown is not None:
            found.append(f"nearly shows the {shown}")
        if not found:
            self.memory.add(hashes[0])
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
        said = _readable(state.to_json())
        cells = _readable(list(transcript))
        for place, data in (("row", said), ("transcript", cells)):
            for what in (*self.text(data), *self.repeats(data)):
                yield Finding(row, place, what)
        for path, data in workspace.items():
            for what in self.text(path.encode(errors="surrogatepass")):
                yield Finding(row, f"name of {path!r}", what)
            for what in self.file(data, truth):
                yield Finding(row, f"file {path!r}", what)
        texts = {path: text_of(data) for path, data in sorted(workspace.items())}
        together = "\n".join(texts.values()).encode()
        for what in self.repeats(together):
            yield Finding(row, "workspace", what)
        yield from _targets(row, state, said, texts)

    def demonstration(self, demo: Demonstration) -> Iterator[Finding]:
        """Leaks in a demonstration: its row, every observation and every action."""
        row = f"demonstration {demo.demo_id or 'candidate'}"
        data = _readable(demo.to_json())
        for what in dict.fromkeys((*self.text(data), *self.repeats(data))):
            yield Finding(row, "turns", what)

    def repeats(self, data: bytes) -> Iterator[str]:
        """Held-out documents that a text repeats: briefs, answers, facts."""
        name = hashlib.sha256(b"text\0" + data).hexdigest()
        if self.memory.clean(name):
            return
        found = list(self.fingerprint.documents.found(data.decode(errors="replace")))
        if not found:
            self.memory.add(name)
        yield from found

    @staticmethod
    def _truth(state: StageState, row: str) -> Fingerprint | Finding:
        try:
            return of_truth(state.task, state.task_digest, state.index, state.size)
        except BatError as error:
            return Finding(row, "truth", str(error))


def _targets(
    row: str, state: StageState, said: bytes, texts: Mapping[str, str]
) -> Iterator[Finding]:
    """Completions in what a policy is given: a reset point shows no one's next turn.

    The transcript is not looked at: it is never given.
    """
    places = {"row": said.decode(errors="replace")}
    places |= {f"file {path!r}": text for path, text in texts.items()}
    for place, text in places.items():
        if assistant_turn(text.encode()):
            yield Finding(row, place, "an assistant's turn in a chat format")
    try:
        cells = load_task(state.task).script(
            focus=state.focus, tier=state.tier, outcome=state.outcome
        )
    except BatError as error:
        yield Finding(row, "targets", str(error))
        return
    for cell in cells:
        code = _squeezed(cell.code)
        for place, text in places.items():
            if len(code) >= _MIN_TARGET and code in _squeezed(text):
                yield Finding(row, place, f"the expert's cell of {cell.stage.name}, a completion")


def _squeezed(text: str) -> str:
    """Code without its white space and quoting, so that a copy in JSON is one too."""
    return _SPACE.sub("", text)


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


def scan(bank: Bank, suites: Iterable[str | Suite]) -> LeakageReport:
    """Scan every state, transcript and demonstration of a bank; collects all findings.

    Held-out instances of the bank's own tasks are compared by all they hold; of other tasks, whose
    data no episode of the bank has seen, the names of their worlds are.

    Raises:
        LeakageError: If a suite cannot be fingerprinted.
    """
    rows = bank.query()
    demos = bank.demonstration_rows()
    tasks = {row.task for row in rows} | {task for _, _, task in demos}
    fingerprint = of_suites(suites, tasks or None)
    memory = ScanMemory.of(fingerprint)
    scanner = Scanner(fingerprint, memory)
    findings: list[Finding] = []
    states = demonstrations = unreadable = 0
    for state in rows:
        name = hashlib.sha256(b"state\0" + canonical(state.to_json())).hexdigest()
        try:
            if memory.clean(name) and _truth_known(state):
                bank.get(state.state_id)
                states += 1
                continue
            workspace = bank.workspace(state.state_id)
            transcript = bank.transcript(state.state_id)
        except BankError:
            unreadable += 1
            continue
        states += 1
        found = list(scanner.state(state, workspace, transcript))
        findings += found
        if not found:
            memory.add(name)
    fresh = {demo_id for demo_id, name, _ in demos if not memory.clean(f"demo {name}")}
    known = {demo_id: name for demo_id, name, _ in demos}
    demonstrations = len(demos) - len(fresh)
    for demo in bank.demonstrations(ids=fresh) if fresh else ():
        demonstrations += 1
        found = list(scanner.demonstration(demo))
        findings += found
        if not found:
            memory.add(f"demo {known[demo.demo_id]}")
    memory.save()
    return LeakageReport(
        tuple(findings), states, demonstrations, unreadable, scanner.fingerprint.digest
    )


def scan_files(files: Iterable[Path], fingerprint: Fingerprint) -> list[Finding]:
    """Scan files of any kind, for example everything that a training run has written.

    Args:
        files: Regular files.
        fingerprint: Traces of the held-out suites.

    Raises:
        LeakageError: If a file cannot be read: then nothing is proven.
    """
    scanner = Scanner(fingerprint)
    findings = []
    for path in files:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise LeakageError(
                f"Cannot read {path} ({error}), so it is not proven clean."
            ) from error
        found = [*scanner.file(data), *scanner.repeats(data)]
        findings += [Finding("file", str(path), what) for what in dict.fromkeys(found)]
    return findings


def _truth_known(state: StageState) -> bool:
    """Whether the task is still the one that the state was scanned with."""
    return load_task(state.task).digest == state.task_digest


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
