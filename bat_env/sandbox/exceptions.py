"""What a backend is known not to hold, with the reason: one list for tests, command and people."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml

from bat_env.errors import ConfigError

from .base import Sandbox


@dataclass(frozen=True, slots=True)
class KnownException:
    """One promise that one backend does not keep.

    Attributes:
        backend: Name of the backend.
        attack: The attack of ``tests/redteam`` that shows it.
        promise: What does not hold.
        reason: Why, and what it means for the user.
        when: Empty for always; ``"no cgroup"`` where the kernel limits no group of processes for
            the backend.
    """

    backend: str
    attack: str
    promise: str
    reason: str
    when: str = ""

    def stands(self, sandbox: Sandbox) -> bool:
        """Whether it is true of a started sandbox."""
        limited = str(getattr(sandbox, "enforcement", "")).startswith("cgroup")
        return not (self.when == "no cgroup" and limited)


@cache
def _all() -> tuple[KnownException, ...]:
    text = (resources.files("bat_env.sandbox") / "exceptions.yaml").read_text(encoding="utf-8")
    table = yaml.safe_load(text)
    if table["schema_version"] != 1:
        raise ConfigError(
            f"Expected schema_version 1 in exceptions.yaml, got {table['schema_version']!r}; "
            "install matching versions of the suite's files."
        )
    rows = tuple(KnownException(**row) for row in table["exceptions"] or ())
    for row in rows:
        if row.when not in ("", "no cgroup"):
            raise ConfigError(
                f"Expected when: 'no cgroup' or nothing in exceptions.yaml, got {row.when!r}; "
                f"correct the entry of {row.attack!r}."
            )
    return rows


def known_exceptions(backend: str) -> tuple[KnownException, ...]:
    """The exceptions of a backend, in the file's order; none for a backend that is not listed."""
    return tuple(row for row in _all() if row.backend == backend)
