"""How light ``import bat_env`` is, against ``import gymnasium``."""

from __future__ import annotations

import subprocess
import sys
import time

from measure import Row


def _best_s(code: str, repeats: int = 9) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        best = min(best, time.perf_counter() - start)
    return best


def rows() -> list[Row]:
    """Import time ratio, and whether torch came along."""
    bare = _best_s("pass")
    gymnasium = _best_s("import gymnasium") - bare
    ours = _best_s("import bat_env") - bare
    heavy = subprocess.run(
        [sys.executable, "-c", "import bat_env, sys; print('torch' in sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    ratio = ours / gymnasium
    return [
        Row(
            "import bat_env against import gymnasium",
            1e3 * ours,
            "ms",
            1e3 * gymnasium,
            ratio,
            "<= 1.5x",
            ratio <= 1.5,
        ),
        Row(
            "torch loaded by import bat_env",
            float(heavy == "True"),
            "",
            bound="0",
            holds=heavy == "False",
        ),
    ]
