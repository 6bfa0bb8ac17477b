"""The chat agent with a real server and a small model: opt-in, with a model on this disk.

    BAT_JUDGE_MODEL=/path/to/model pytest tests/agent/test_chat_real_model.py

The path is a folder that `from_pretrained` reads, with a chat template. Of a small model nothing
is expected but this: the episode ends with a score, and the books are those of the server.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bat_agent.agents.chat import chat_source, make_chat_config
from bat_agent.evaluate import evaluate
from bat_env.trajectory import read_trajectory

MODEL = os.environ.get("BAT_JUDGE_MODEL", "")
SERVING = ("transformers", "fastapi", "uvicorn", "openai")


def problem() -> str | None:
    """Why there is no such server, or ``None``."""
    if not Path(MODEL or "/none").is_dir():
        return "opt-in: BAT_JUDGE_MODEL names no folder of a small chat model"
    lacking = [name for name in SERVING if importlib.util.find_spec(name) is None]
    return f"pip install 'transformers[serving]': no {', '.join(lacking)}" if lacking else None


pytestmark = [
    pytest.mark.slow,
    pytest.mark.judge_model,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(problem() is not None, reason=str(problem())),
]


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
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


@pytest.mark.parametrize("tools", ["auto", "text"])
def test_a_small_model_plays_an_episode(real_server: str, tools: str, tmp_path: Path) -> None:
    config = make_chat_config(
        {
            "base_url": real_server,
            "model": MODEL,
            "tools": tools,
            "timeout_s": 400,
            "max_tokens": 32,
            "context_tokens": 16384,
            "tries": 2,
        }
    )
    settings = {"suite": "seg-mini", "repeats": 1, "sandbox": "local", "trajectory_dir": tmp_path}
    played = evaluate(chat_source(config), **settings)
    [cell] = played.cells
    assert cell.valid and cell.status in ("submitted", "truncated"), cell.error
    [path] = tmp_path.glob("*.json")
    said = [step for step in read_trajectory(path).steps if "policy" in step.get("extra", {})]
    written = sum(step["extra"]["policy"]["completion_tokens"] for step in said)
    print(played.usage, said[0]["message"][:200])
    assert written == cell.tokens == played.usage["completion_tokens"] > 0
