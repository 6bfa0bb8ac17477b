"""One drawn task instance: what the agent gets, and the truth that stays on the host."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from bat_env.sandbox.base import FileTree

Split: TypeAlias = Literal["train", "dev", "heldout"]
Size: TypeAlias = Literal["full", "mini"]
SPLITS: Final[tuple[str, ...]] = ("train", "dev", "heldout")
SIZES: Final[tuple[str, ...]] = ("full", "mini")


@dataclass(frozen=True)
class Generated:
    """What a task folder's ``generate(seed, size, fiction)`` returns.

    Attributes:
        cases: Random case ids, in presentation order.
        public: ``<case>/<file>`` -> bytes, mounted under ``/data``.
        private: ``<case>/<file>`` -> bytes: the truth of each case. Never enters a sandbox.
        facts: JSON-able private facts of the instance (true orientation, spacing, volumes, ...).
        probe_case: Id of one further, unseen case on which the verifier re-runs ``predict.py``.
        probe_public: Its files, ``<file>`` -> bytes.
        probe_private: Its truth, ``<file>`` -> bytes.
    """

    cases: tuple[str, ...]
    public: FileTree
    private: FileTree
    facts: Mapping[str, Any]
    probe_case: str
    probe_public: FileTree
    probe_private: FileTree


@dataclass(frozen=True)
class Instance(Generated):
    """A :class:`Generated` with its coordinates.

    Attributes:
        task: Task id, ``<track>/<name>``.
        split: Seed namespace it was drawn from.
        index: Position in that namespace (0 <= index < 2**31).
        seed: The 64-bit generator seed made of task, split and index.
        size: ``"full"`` or the reduced ``"mini"``.
        fiction: Fictional parameters (institution, naming, ...), disjoint between splits.
    """

    task: str = ""
    split: Split = "train"
    index: int = 0
    seed: int = 0
    size: Size = "full"
    fiction: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def canaries(self) -> tuple[str, str]:
        """A word and a number that stand for this instance and for nothing else.

        They travel with its private truth (a trajectory's frozen evidence holds them), and no agent
        ever sees them: where one turns up in training material, held-out truth has got there.
        """
        name = f"canary\0{self.task}\0{self.split}\0{self.index}\0{self.seed}"
        digest = hashlib.blake2b(name.encode(), digest_size=16).digest()
        return f"canary-{digest[:10].hex()}", str(10**14 + int.from_bytes(digest[10:], "big"))

    @functools.cached_property
    def digest(self) -> str:
        """sha256 over all public and private content, as hex.

        Compressed files count by what they hold: compressors differ between machines.
        """
        h = hashlib.sha256()
        for name, tree in (
            ("public", self.public),
            ("private", self.private),
            ("probe_public", self.probe_public),
            ("probe_private", self.probe_private),
        ):
            for path in sorted(tree):
                content = tree[path]
                if path.endswith(".gz"):
                    content = gzip.decompress(content)
                h.update(f"{name}/{path}\0{len(content)}\0".encode())
                h.update(content)
        h.update(json.dumps([self.cases, self.facts, self.fiction], sort_keys=True).encode())
        return h.hexdigest()
