"""What Ctrl-C does to a build, and how a replay tells what came out."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bat_env.bank.fingerprints import Fingerprint
from bat_env.bank.replaying import ReplayReport
from bat_env.bank.workers import Crew, Outcome
from bat_env.errors import SandboxInterruptedError
from bat_env.sandbox import Cell, shared_pool


def test_an_interrupt_ends_the_cells_of_the_jobs_at_work() -> None:
    running, ended = threading.Event(), []

    def work(station: Any, job: int) -> Outcome:
        with shared_pool("local").lease() as sandbox:
            sandbox.reset({})
            running.set()
            try:
                sandbox.run(Cell("bash", "sleep 300", 0), 300)
            except SandboxInterruptedError:
                ended.append(job)
                raise
        return Outcome(job, "done")

    began = time.monotonic()
    with (
        pytest.raises(KeyboardInterrupt),
        Crew("local", Fingerprint(), 1, lambda *_: None) as crew,
    ):
        threading.Thread(
            target=lambda: (running.wait(), time.sleep(0.3), signal.raise_signal(signal.SIGUSR2)),
            daemon=True,
        ).start()
        before = signal.signal(signal.SIGUSR2, signal.default_int_handler)
        try:
            list(crew.run("jobs", [[1], [2]], work))
        finally:
            signal.signal(signal.SIGUSR2, before)
    assert ended == [1], "the job at work is not ended, or is tried again, or another one begins"
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_build_says_how_to_go_on(number: int, status: int, tmp_path: Path) -> None:
    command = "bank build --task kidney_tumor --stage S1 --target 2 --demos 0 --trajectories 0"
    where = ["--path", str(tmp_path / "bank"), "--backend", "local", "--workers", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "bat_env.cli", *command.split(), *where],
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background ignores SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    until = time.monotonic() + 120
    while not (tmp_path / "bank" / "writer.lock").exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert process.returncode == status and "Traceback" not in err
    assert "the same command goes on" in err


def test_a_replay_says_what_differs() -> None:
    report = ReplayReport("docker", states=5, identical=5)
    assert report.told() == "5 states replayed on docker: 5 to the byte"
    report = ReplayReport("docker", states=5, identical=2, close=3, largest=2e-8)
    report.differing = {"setup/setup.json": 3, "outputs/a.npy": 1}
    assert report.told() == (
        "5 states replayed on docker: 2 to the byte, 3 with other bytes and the same values "
        "(largest difference 2.0e-08; setup/setup.json in 3, outputs/a.npy in 1)"
    )
    report.differing |= {f"outputs/{n}.npy": 1 for n in range(5)}
    assert "and 3 more files)" in report.told()
    assert report.to_json()["differing"]["setup/setup.json"] == 3
