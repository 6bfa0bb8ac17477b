"""Training in several processes: the command that starts them, and what it is given.

One process runs the loop, the bank and the evaluations; only the updates are shared out. What a
process does is what a single one would: :func:`~bat_agent.sft.train_sft` or
:func:`~bat_agent.grpo.train_grpo`, named by a job file.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from bat_agent.files import read_json, write_json, write_text
from bat_agent.presets import Preset
from bat_agent.steps import read_steps
from bat_env.errors import ConfigError

JOB: Final = "job.json"
ACCELERATE: Final = "accelerate.yaml"
JOB_SCHEMA: Final = 1
LOG_TAIL: Final = 500
_LOOK_S: Final = 0.5

StepProgress = Callable[[int, int, Mapping[str, float]], None]


def accelerate_config(preset: Preset) -> dict[str, Any]:
    """Accelerate's settings for a preset: what ``accelerate launch --config_file`` reads.

    Sharding itself (FSDP's version, what is wrapped) comes from the preset through the trainer's
    arguments, so that it is said once.
    """
    system = preset.system
    kind = "NO"
    if system.processes > 1:
        kind = "MULTI_CPU" if system.use_cpu else "FSDP" if system.fsdp else "MULTI_GPU"
    value: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": kind,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "bf16" if preset.model.dtype == "bfloat16" else "no",
        "num_machines": 1,
        "num_processes": system.processes,
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": system.use_cpu,
    }
    if kind == "FSDP":
        value["fsdp_config"] = {
            f"fsdp_{key.removeprefix('fsdp_')}": setting
            for key, setting in system.fsdp_config.items()
        }
    return value


def accelerate_yaml(preset: Preset) -> str:
    """:func:`accelerate_config` as YAML."""
    head = f"# For `accelerate launch --config_file`: preset {preset.name}.\n"
    return head + yaml.safe_dump(accelerate_config(preset), sort_keys=True)


def command(preset: Preset, folder: Path) -> list[str]:
    """The command that runs ``folder``'s job in the preset's number of processes."""
    worker = ["-m", "bat_agent.worker", str(folder / JOB)]
    count = str(preset.system.processes)
    if preset.system.use_cpu:
        # `accelerate launch` starts one process on a CPU whatever it is told.
        launcher = ["-m", "torch.distributed.run", "--nproc_per_node", count]
        return [sys.executable, *launcher, "--master_port", str(_free_port()), *worker]
    launcher = ["-m", "accelerate.commands.launch", "--config_file", str(folder / ACCELERATE)]
    return [sys.executable, *launcher, "--main_process_port", str(_free_port()), *worker]


def train_in_processes(
    kind: str,
    preset: Preset,
    out: Path,
    arguments: Mapping[str, Any],
    *,
    steps: int,
    progress: StepProgress | None = None,
) -> Path:
    """Run ``train_sft`` or ``train_grpo`` in the preset's number of processes.

    Killed anywhere, a second call continues, as with one process.

    Args:
        kind: ``"sft"`` or ``"grpo"``.
        preset: Recipe.
        out: Folder of the run; the job, its settings and its log lie beside it.
        arguments: The function's other arguments, JSON-able.
        steps: Steps that the run has, for ``progress``.
        progress: Called as steps appear in the run's log.

    Returns:
        The final checkpoint.

    Raises:
        ConfigError: If the processes fail; the message says what one of them raised last.
    """
    folder = out.with_name(f"{out.name}.launch")
    folder.mkdir(parents=True, exist_ok=True)
    job = {
        "schema_version": JOB_SCHEMA,
        "kind": kind,
        "out": str(out.resolve()),
        "preset": preset.model_dump(mode="json"),
        "arguments": dict(arguments),
    }
    write_json(folder / JOB, job)
    write_text(folder / ACCELERATE, accelerate_yaml(preset))
    environment = {**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1"}
    if preset.system.use_cpu:
        environment |= {"ACCELERATE_USE_CPU": "true"}
        environment.setdefault("OMP_NUM_THREADS", "1")
    log = folder / "log.txt"
    with log.open("ab") as stream:
        begin = stream.tell()
        # A session of their own: they are stopped as a whole.
        running = subprocess.Popen(
            command(preset, folder),
            stdout=stream,
            stderr=stream,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            _watch(running, out, steps, progress)
        finally:
            _stop(running)
    if running.returncode:
        said = _reason(log.read_bytes()[begin:].decode("utf-8", "replace"))
        raise ConfigError(
            f"Expected {preset.system.processes} training processes to end well, they ended with "
            f"status {running.returncode}: {said}. The whole log is {log}."
        )
    return out / "final"


def run_job(file: Path) -> None:
    """What each process does: read the job, train."""
    job = read_json(file, schema_version=JOB_SCHEMA)
    preset, arguments = Preset.model_validate(job["preset"]), dict(job["arguments"])
    if job["kind"] == "sft":
        bank = arguments.pop("bank_path")
        from bat_agent.sft import train_sft

        train_sft(bank, job["out"], preset, **arguments)
        return
    start, texts = arguments.pop("start_checkpoint"), arguments.pop("specs")
    for name in arguments.pop("modules", ()):  # Environments that a package registers itself.
        importlib.import_module(name)
    from bat_agent.grpo import train_grpo
    from bat_agent.rollout import ResetSpec

    specs = [[ResetSpec.from_json(text) for text in batch] for batch in texts]
    train_grpo(start, specs, job["out"], preset, **arguments)


def _watch(
    running: subprocess.Popen[bytes], out: Path, steps: int, progress: StepProgress | None
) -> None:
    seen = 0
    while True:
        try:
            running.wait(_LOOK_S)
            return
        except subprocess.TimeoutExpired:
            pass
        if progress is None:
            continue
        there = read_steps(out)
        for metrics in there[seen:]:
            progress(int(metrics["step"]), steps, metrics)
        seen = max(seen, len(there))


def _reason(log: str) -> str:
    """The last exception of a log that is not the launcher's own summary, else its last line."""
    told = [
        match[1]
        for match in re.finditer(r"^(?:\[rank\d+\]: ?)?([\w.]*(?:Error|Exception)\b.*)$", log, re.M)
        if "ChildFailedError" not in match[1] and "CalledProcessError" not in match[1]
    ]
    lines = log.strip().splitlines() or ["they said nothing"]
    return (told or lines)[-1][:LOG_TAIL]


def _stop(running: subprocess.Popen[bytes]) -> None:
    if running.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.killpg(running.pid, number)
        try:
            running.wait(20)
            return
        except subprocess.TimeoutExpired:
            continue


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
