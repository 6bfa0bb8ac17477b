"""Cells run, start fresh, and find the places they were promised."""

from __future__ import annotations

from .probe import Probe


def _runs_python(p: Probe) -> tuple[bool, str]:
    seen = p.python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    good = (seen.stdout, seen.stderr, seen.exit_code) == ("out\n", "err\n", 3)
    return good, f"exit {seen.exit_code}"


def _runs_bash(p: Probe) -> tuple[bool, str]:
    seen = p.bash("pwd; exit 4")
    return (seen.stdout, seen.exit_code) == ("/workspace\n", 4), seen.stdout.strip()


def _seeded(p: Probe) -> tuple[bool, str]:
    code = "import random; print(random.random(), hash('bat'))"
    first, again, other = (p.python(code, seed=s).stdout for s in (5, 5, 6))
    return first == again != other, "equal seeds agree" if first == again else "equal seeds differ"


def _fresh_process(p: Probe) -> tuple[bool, str]:
    p.python("import builtins; builtins.leak = 1; import os; os.environ['LEAK'] = '1'")
    code = """
        import builtins
        r = [n for n in ('leak', 'LEAK') if hasattr(builtins, n) or n in os.environ]
        """
    return p.nothing(code, "nothing carried over", "left over")


def _writable(p: Probe) -> tuple[bool, str]:
    seen = p.bash("for d in /workspace /tmp /dev/shm; do echo x > $d/w && rm $d/w || echo $d; done")
    return seen.stdout == "" and seen.ok, "/workspace /tmp /dev/shm"


CHECKS = {
    "python cells run": _runs_python,
    "bash cells run": _runs_bash,
    "cells are seeded": _seeded,
    "every cell is a fresh process": _fresh_process,
    "workspace, /tmp, /dev/shm writable": _writable,
}
