"""`import bat_env` must cost little more than `import gymnasium`, and load nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAVY = ("torch", "monai", "pydantic", "nibabel", "transformers", "skimage", "docker", "matplotlib")
# CPU time: on a busy machine wall time says more about the neighbours than about the import.
CLOCK = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"


def _python(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_import_loads_nothing_heavy(repo_root: Path) -> None:
    code = f"import sys, bat_env; print(*sorted(set({HEAVY}) & set(sys.modules)))"
    assert _python(code, repo_root) == ""


def test_import_is_as_fast_as_gymnasium(repo_root: Path) -> None:
    # Alternating, and the best of each: what else the machine does hits both alike.
    times: dict[str, list[float]] = {"gymnasium": [], "bat_env": []}
    for _ in range(7):
        for module, taken in times.items():
            taken.append(float(_python(CLOCK.format(module), repo_root)))
    ratio = min(times["bat_env"]) / min(times["gymnasium"])
    assert ratio <= 1.5, f"import bat_env takes {ratio:.2f} x import gymnasium"
