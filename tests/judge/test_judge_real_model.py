"""A real small model behind `transformers serve`: opt-in, with a model that is on this disk.

    BAT_JUDGE_MODEL=/path/to/model pytest tests/judge/test_judge_real_model.py

The path is a folder that `from_pretrained` reads. Of a small model nothing is expected but
this: whatever it says, an item is decided with a citation that holds, or it is null.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from bat_env.judge import make_judge
from bat_env.judge.example import example_findings

MODEL = os.environ.get("BAT_JUDGE_MODEL", "")
SERVING = ("transformers", "fastapi", "uvicorn", "openai")


def problem() -> str | None:
    """Why there is no such server, or ``None``."""
    if not MODEL:
        return "opt-in: BAT_JUDGE_MODEL names no folder of a small chat model"
    if not Path(MODEL).is_dir():
        return f"BAT_JUDGE_MODEL={MODEL} is no folder"
    lacking = [name for name in SERVING if importlib.util.find_spec(name) is None]
    return f"pip install 'transformers[serving]': no {', '.join(lacking)}" if lacking else None


pytestmark = [
    pytest.mark.slow,
    pytest.mark.judge_model,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(problem() is not None, reason=str(problem())),
]


@pytest.fixture(scope="module")
def real_server(tmp_path_factory):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("serve") / "log"
    argv = ["serve", MODEL, "--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "transformers.cli.transformers", *argv],
            stdout=stream,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    try:
        end = time.monotonic() + 600
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except OSError:
                assert process.poll() is None, log.read_text(errors="replace")[-3000:]
                assert time.monotonic() < end, log.read_text(errors="replace")[-3000:]
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_what_a_small_model_says_holds_or_is_null(real_server):
    judge = make_judge(
        {
            "base_url": real_server,
            "model": MODEL,
            "timeout_s": 400,
            "deadline_s": 500,
            "tries": 1,
            "max_tokens": 200,
        }
    )
    found = example_findings(judge)
    assert len(found) == 2
    for findings in found.values():
        assert len(findings) == 2
        for finding in findings.values():
            print(finding)
            assert finding.state in ("met", "unmet", "null")
            if finding.state == "null":
                # The server answered: what is wrong is the model's answer.
                assert "cannot be reached" not in finding.message
                assert "HTTP" not in finding.message
            else:
                assert finding.file == "plan/plan.md" and finding.quote
