"""What SFT and GRPO share: trainer arguments, sealed checkpoints, resuming, and the step log.

A trainer's checkpoint counts only once it is sealed; after a kill the last sealed one is continued
and anything unfinished is thrown away, so that resuming gives the same weights, bit for bit.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from transformers import TrainerCallback

from bat_agent.policy.checkpoint import is_whole, save_checkpoint, seal
from bat_agent.presets import Preset
from bat_agent.steps import LOG, read_steps
from bat_env.errors import CheckpointError

StepProgress: TypeAlias = Callable[[int, int, Mapping[str, float]], None]
"""Called as ``progress(step, steps, metrics)`` after each optimiser step."""

FINAL: Final = "final"
RUN: Final = "run.json"


def common_arguments(preset: Preset, out_dir: Path, *, steps: int, seed: int) -> dict[str, Any]:
    """Trainer arguments that do not depend on the objective."""
    system, bf16 = preset.system, preset.model.dtype == "bfloat16"
    arguments: dict[str, Any] = {
        "output_dir": str(out_dir),
        "max_steps": steps,
        "seed": seed,
        "data_seed": seed,
        "use_cpu": system.use_cpu,
        "bf16": bf16,
        "gradient_checkpointing": system.gradient_checkpointing,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "logging_first_step": True,
        # A loss that is not finite must be seen, not smoothed away.
        "logging_nan_inf_filter": False,
        "save_strategy": "steps",
        "dataloader_pin_memory": False,
        "push_to_hub": False,
    }
    if system.fsdp:
        arguments |= {"fsdp": system.fsdp, "fsdp_config": dict(system.fsdp_config)}
    return arguments


def prepare_process(preset: Preset) -> None:
    """Process-wide settings of a preset: threads, and no chatter from libraries."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch
    from transformers.utils import logging

    chatter: Any = logging
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    # The trainers' own alias for one of their settings; the trl series is pinned.
    warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
    if preset.system.torch_threads is not None:
        torch.set_num_threads(preset.system.torch_threads)


def processes() -> int:
    """Number of training processes."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def together(preset: Preset) -> Any:
    """The processes of this training: barriers, and who writes. One process makes up its own."""
    from accelerate import PartialState

    return PartialState(cpu=preset.system.use_cpu)


def claim_run(out_dir: Path, fingerprint: Mapping[str, Any], *, resume: bool) -> None:
    """Make sure that ``out_dir`` holds this run and no other one.

    Raises:
        CheckpointError: If it holds a run with other settings.
    """
    if not resume and out_dir.exists():
        shutil.rmtree(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"schema_version": 1, **fingerprint}, indent=1, sort_keys=True)
    file = out_dir / RUN
    if file.is_file():
        if file.read_text(encoding="utf-8") != text:
            raise CheckpointError(
                f"Expected {out_dir} to hold this very run or nothing; it holds a run with other "
                "settings, data or start. Give another folder, or pass resume=False to replace it."
            )
        return
    write_whole(file, text)


def write_whole(file: Path, text: str) -> None:
    """Write a text file so that it is there whole or not at all."""
    part = file.with_name(f".{file.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)


def finished(out_dir: Path) -> Path | None:
    """The final checkpoint of a run that is over already."""
    final = out_dir / FINAL
    return final if is_whole(final) else None


def last_sealed(out_dir: Path) -> Path | None:
    """The newest whole trainer checkpoint; unfinished ones are deleted."""
    best: Path | None = None
    for folder in sorted(out_dir.glob("checkpoint-*"), key=_step):
        if is_whole(folder):
            best = folder
        else:
            shutil.rmtree(folder)
    return best


def _step(folder: Path) -> int:
    tail = folder.name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else -1


def limits_of(preset: Preset) -> dict[str, int]:
    """Token budgets recorded in checkpoints."""
    rollout = preset.rollout
    return {
        "max_turn_tokens": rollout.max_turn_tokens,
        "max_completion_tokens": rollout.max_completion_tokens,
        "max_prompt_tokens": rollout.max_prompt_tokens,
    }


def last_checkpoints(out_dir: Path, count: int) -> list[Path]:
    """The newest ``count`` whole trainer checkpoints, or as many as there are, oldest first."""
    whole = [f for f in sorted(out_dir.glob("checkpoint-*"), key=_step) if is_whole(f)]
    return whole[-count:]


def average_weights(folder: Path, checkpoints: Sequence[Path]) -> None:
    """Replace the weights in ``folder`` by their mean over checkpoints, made in double precision.

    Raises:
        CheckpointError: If a checkpoint holds other weights than ``folder``.
    """
    from safetensors.torch import load_file, save_file

    for file in sorted(folder.glob("*.safetensors")):
        there = [checkpoint / file.name for checkpoint in checkpoints]
        if not all(path.is_file() for path in there):
            raise CheckpointError(
                f"Expected {file.name} in each of the last {len(checkpoints)} checkpoints of "
                f"{folder.parent} to average them, one lacks it. Set average_checkpoints to 1."
            )
        mean = {name: tensor.double() for name, tensor in load_file(there[0]).items()}
        kinds = {name: tensor.dtype for name, tensor in load_file(file).items()}
        for path in there[1:]:
            for name, tensor in load_file(path).items():
                mean[name] += tensor.double()
        weights = {name: (mean[name] / len(there)).to(kind) for name, kind in kinds.items()}
        save_file(weights, file, metadata={"format": "pt"})


def save_final(
    out_dir: Path,
    trainer: Any,
    preset: Preset,
    parent: str | None,
    extra: Mapping[str, Any],
    average: Sequence[Path] = (),
) -> Path:
    """Write the run's final checkpoint: model and tokenizer, sealed.

    Args:
        out_dir: Folder of the run.
        trainer: After its last step.
        preset: Recipe.
        parent: Digest of the checkpoint that the run began with.
        extra: More for the seal.
        average: Checkpoints whose mean weights are taken instead of the last ones.
    """

    def write(folder: Path) -> None:
        trainer.save_model(str(folder))
        if len(average) > 1:
            average_weights(folder, average)
        trainer.processing_class.save_pretrained(folder)
        # Holds the output path and a time stamp: equal runs must give equal digests.
        (folder / "training_args.bin").unlink(missing_ok=True)

    final, state = out_dir / FINAL, together(preset)
    if state.is_main_process:
        save_checkpoint(
            final,
            write,
            codec=preset.model.codec,
            limits=limits_of(preset),
            parent=parent,
            extra={"preset": preset.name, "dtype": preset.model.dtype, **extra},
        )
    else:  # A sharded model is gathered by all of its processes; one of them writes.
        trainer.save_model(str(out_dir / f".{FINAL}.unused"))
    state.wait_for_everyone()
    return final


class RunCallback(TrainerCallback):
    """Seals checkpoints, logs steps, and stops a run whose loss is no longer finite.

    Args:
        out_dir: The run's folder.
        preset: Recorded in seals.
        parent: Digest of the start checkpoint.
        progress: Called after each step.
    """

    def __init__(
        self, out_dir: Path, preset: Preset, parent: str | None, progress: StepProgress | None
    ) -> None:
        self.out_dir, self.preset, self.parent, self.progress = out_dir, preset, parent, progress
        self._clock = (time.perf_counter(), time.process_time())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget logged steps that a resumed run will make again."""
        if not state.is_world_process_zero:
            return
        kept = [m for m in read_steps(self.out_dir) if m["step"] <= state.global_step]
        lines = "".join(json.dumps(m, sort_keys=True) + "\n" for m in kept)
        write_whole(self.out_dir / LOG, lines)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Append the metrics of one step."""
        if not logs or "loss" not in logs:
            return
        wall, cpu = time.perf_counter(), time.process_time()
        metrics: dict[str, float] = {
            k: float(v) for k, v in logs.items() if isinstance(v, int | float)
        }
        metrics |= {
            "step": state.global_step,
            "wall_s": round(wall - self._clock[0], 3),
            "cpu_s": round(cpu - self._clock[1], 3),
        }
        self._clock = (wall, cpu)
        if state.is_world_process_zero:
            with (self.out_dir / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(metrics, sort_keys=True) + "\n")
        if not all(math.isfinite(metrics.get(k, 0.0)) for k in ("loss", "grad_norm", "kl")):
            control.should_training_stop = True
        if self.progress is not None and state.is_world_process_zero:
            self.progress(state.global_step, state.max_steps, metrics)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Seal what the trainer has just written."""
        together(self.preset).wait_for_everyone()  # Each process adds a file of its own.
        if state.is_world_process_zero:
            seal(
                self.out_dir / f"checkpoint-{state.global_step}",
                codec=self.preset.model.codec,
                limits=limits_of(self.preset),
                parent=self.parent,
                extra={"preset": self.preset.name, "dtype": self.preset.model.dtype},
            )


def quiet(trainer: Any) -> Any:
    """Take the printing callback off a trainer; progress is reported by :class:`RunCallback`."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    return trainer
