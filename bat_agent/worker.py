"""One of several training processes: ``python -m bat_agent.worker JOB``."""

from __future__ import annotations

import sys
from pathlib import Path

from bat_agent.launch import run_job

if __name__ == "__main__":
    run_job(Path(sys.argv[1]))
