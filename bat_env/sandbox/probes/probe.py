"""What probes are made of: cells of agent code and what the host saw of them."""

from __future__ import annotations

import json
import textwrap
from typing import Any

from ..base import Cell, CellResult, Sandbox


class Probe:
    """Runs agent code for the probes.

    Args:
        sandbox: A started sandbox; the caller resets it before each probe.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def python(self, code: str, timeout_s: float = 20.0, seed: int = 1) -> CellResult:
        """Run a Python cell."""
        return self.sandbox.run(Cell("python", textwrap.dedent(code), seed), timeout_s)

    def bash(self, code: str, timeout_s: float = 20.0) -> CellResult:
        """Run a bash cell."""
        return self.sandbox.run(Cell("bash", code), timeout_s)

    def found(self, code: str) -> Any:
        """What the code put into the list ``r``; a text where the cell failed."""
        result = self.python(
            "import json, os\nr = []\n" + textwrap.dedent(code) + "\nprint(json.dumps(r))"
        )
        if not result.ok:
            return f"exit {result.exit_code}: {(result.stderr or result.stdout).strip()[-200:]}"
        return json.loads(result.stdout.strip().splitlines()[-1])

    def nothing(self, code: str, good: str, bad: str) -> tuple[bool, str]:
        """The verdict of a probe that holds when ``r`` stays empty.

        Args:
            code: Puts into ``r`` what it got at.
            good: Detail where it got nothing.
            bad: Word before the list of what it got.
        """
        seen = self.found(code)
        return (True, good) if seen == [] else (False, f"{bad}: {str(seen)[:200]}")
