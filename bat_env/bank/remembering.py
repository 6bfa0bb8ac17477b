"""What a scan has found clean, by digest: a bank is scanned before every round, and seldom changes.

What is remembered holds for one set of held-out traces, one version of the rules and one machine.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import tempfile
import threading
import zlib
from pathlib import Path
from typing import Final

from bat_env.bank.fingerprints import Fingerprint, cache_home
from bat_env.bank.needles import machine_paths
from bat_env.bank.state import canonical

RULES_VERSION: Final = 1
"""Raised with every rule of the scan that gets stricter."""

_KEPT: Final = 200_000


class ScanMemory:
    """Names of clean material. Thread-safe.

    Args:
        file: Where it is kept between scans; ``None`` keeps it in this process.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._clean: dict[str, None] = {}
        self._changed = False
        if file is not None:
            self._load(file)

    @classmethod
    def of(cls, fingerprint: Fingerprint) -> ScanMemory:
        """The memory of scans against this fingerprint, on this machine."""
        key = canonical([RULES_VERSION, fingerprint.digest, list(machine_paths())])
        name = hashlib.sha256(key).hexdigest()[:32]
        return cls(cache_home() / "scans" / f"{name}.json.gz")

    def clean(self, name: str) -> bool:
        """Whether this was found clean."""
        return name in self._clean

    def add(self, name: str) -> None:
        """It is clean."""
        with self._lock:
            self._clean[name] = None
            self._changed = True

    def save(self) -> None:
        """Keep it for the next scan. A disk that refuses costs time only."""
        if self._file is None or not self._changed:
            return
        with self._lock:
            names = list(self._clean)[-_KEPT:]
        value = {"schema_version": 1, "clean": names, "digest": _digest(names)}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._file.parent, delete=False) as file:
                file.write(gzip.compress(canonical(value), 1, mtime=0))
            os.replace(file.name, self._file)  # noqa: PTH105
        except OSError:
            return
        self._changed = False

    def _load(self, file: Path) -> None:
        try:
            value = json.loads(gzip.decompress(file.read_bytes()))
            if value["schema_version"] == 1 and value["digest"] == _digest(value["clean"]):
                self._clean = dict.fromkeys(value["clean"])
        except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error):
            return


def _digest(names: list[str]) -> str:
    return hashlib.sha256(canonical(names)).hexdigest()
