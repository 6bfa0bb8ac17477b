"""The policy update of one round: GRPO on fresh rollouts, through TRL's ``rollout_func``.

TRL owns the objective and the optimiser. What is ours: which rollouts are made in which order, that
they are token-exact and repeatable, that an invalid one trains nothing, and that a killed round
continues to the same weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bat_agent.policy.checkpoint import Policy, load_policy
from bat_agent.policy.codec import Codec
from bat_agent.policy.limits import TokenLimits
from bat_agent.policy.sampling import ModelSampler, SampledTurn, Sampler, TurnRequest
from bat_agent.presets import Preset, load_preset
from bat_agent.rollout.episodes import EnvPool, ResetSpec
from bat_agent.rollout.waves import RolloutRow, WaveStats, run_rows
from bat_agent.steps import read_steps
from bat_agent.training import (
    RunCallback,
    StepProgress,
    claim_run,
    common_arguments,
    finished,
    last_checkpoints,
    last_sealed,
    prepare_process,
    processes,
    quiet,
    save_final,
    together,
    write_whole,
)
from bat_env.errors import ConfigError

HEALTH: Final = "health.json"


class TrainerSampler:
    """Samples on whatever backend a TRL trainer is configured with (vLLM, sharded models).

    The one place that touches the trainer's private single-turn method, which is why the trl series
    is pinned. With several processes all of them make the same number of calls: a process without a
    live row samples one throw-away token.
    """

    def __init__(self, trainer: Any, stop_ids: Sequence[int]) -> None:
        self._trainer = trainer
        self._stop = frozenset(stop_ids)
        self._filler = [next(iter(stop_ids))]

    def sample(self, requests: Sequence[TurnRequest], temperature: float) -> list[SampledTurn]:
        """One turn per request. The temperature is the trainer's own."""
        contexts = [list(r.context) for r in requests] or [self._filler]
        ids, logprobs = self._trainer._generate_single_turn(contexts, None, {}, 1)
        turns = []
        for i, request in enumerate(requests):
            tokens = list(ids[i][: request.max_new_tokens])
            values = None if logprobs is None else list(logprobs[i][: len(tokens)])
            turns.append(SampledTurn(tokens, values, bool(tokens) and tokens[-1] in self._stop))
        return turns

    def any_live(self, live: int) -> bool:
        """Whether any process still has a live row."""
        import torch

        accelerator = self._trainer.accelerator
        count = torch.tensor([live], device=accelerator.device)
        return bool(accelerator.gather(count).sum().item() > 0)

    def forget(self) -> None:
        """Nothing is kept here."""


def episode_reward(prompts: Sequence[str], **kwargs: Any) -> list[float | None]:
    """The reward function given to TRL: scores were computed by the environment already.

    ``None`` marks an invalid rollout; TRL leaves it out of the group's baseline.
    """
    log_metric: Callable[[str, float], None] = kwargs["log_metric"]
    for name in ("aborted", "cut", "malformed_share", "turns"):
        values = kwargs[name]
        log_metric(name, sum(values) / len(values))
    rewards: list[float | None] = list(kwargs["episode_score"])
    return rewards


class RolloutFunction:
    """What TRL calls for each batch of prompts; a prompt is a :class:`ResetSpec` as JSON.

    Rollouts are functions of (seed, optimiser step, row): a resumed run makes the same ones.
    """

    def __init__(self, codec: Codec, preset: Preset, seed: int, pool: EnvPool) -> None:
        self.codec, self.preset, self.seed, self.pool = codec, preset, seed, pool
        rollout = preset.rollout
        self.limits = TokenLimits(
            turn=rollout.max_turn_tokens,
            completion=rollout.max_completion_tokens,
            prompt=rollout.max_prompt_tokens,
        )
        self.stats = WaveStats()
        self.last: list[RolloutRow] = []

    def __call__(self, prompts: list[str], trainer: Any) -> dict[str, Any]:
        """See :class:`trl.GRPOTrainer`'s ``rollout_func``."""
        specs = [ResetSpec.from_json(prompt) for prompt in prompts]
        first = trainer.accelerator.process_index * len(specs)
        rows = run_rows(
            self._sampler(trainer),
            self.codec,
            specs,
            limits=self.limits,
            temperature=self.preset.rollout.temperature,
            seed=(self.seed, int(trainer.state.global_step)),
            row_ids=range(first, first + len(specs)),
            max_live=self.preset.rollout.max_live,
            env_threads=self.preset.rollout.env_threads,
            pool=self.pool,
            stats=self.stats,
        )
        self.last = rows
        known = all(row.logprobs is not None for row in rows)
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": [row.logprobs for row in rows] if known else None,
            "env_mask": [row.env_mask for row in rows],
            "episode_score": [self._score(row) for row in rows],
            "aborted": [float(row.episode.reward is None) for row in rows],
            "cut": [float(row.cut) for row in rows],
            "malformed_share": [row.malformed / max(1, row.episode.turns) for row in rows],
            "turns": [float(row.episode.turns) for row in rows],
        }

    def _score(self, row: RolloutRow) -> float | None:
        score = row.episode.reward
        if score is not None and self.preset.grpo.reward == "task":
            score = (row.episode.result or {}).get("task")
        if score is None or not row.cut:
            return score
        return score * self.preset.grpo.cut_reward_share

    def _sampler(self, trainer: Any) -> Sampler:
        if self.preset.system.use_vllm or self.preset.system.fsdp:
            return TrainerSampler(trainer, self.codec.stop_ids)
        model = trainer.accelerator.unwrap_model(trainer.model)
        return ModelSampler(model, self.codec.stop_ids, self.codec.pad_id)


def grpo_arguments(preset: Preset, out: Path, *, steps: int, seed: int) -> dict[str, Any]:
    """The reference recipe in TRL's names.

    Raises:
        ConfigError: If the batch does not divide over micro batches and processes.
    """
    grpo, rollout = preset.grpo, preset.rollout
    rows = grpo.groups_per_batch * grpo.rollouts_per_group
    share, rest = divmod(rows, grpo.micro_batch_rows * processes())
    if rest or not share:
        raise ConfigError(
            f"Expected {rows} rows per step to divide into micro batches of "
            f"{grpo.micro_batch_rows} on {processes()} process(es). Change micro_batch_rows."
        )
    updates = steps * grpo.iterations
    arguments = common_arguments(preset, out, steps=updates, seed=seed) | {
        "per_device_train_batch_size": grpo.micro_batch_rows,
        "gradient_accumulation_steps": share,
        "steps_per_generation": share,
        "num_generations": grpo.rollouts_per_group,
        "num_iterations": grpo.iterations,
        "shuffle_dataset": False,
        "max_completion_length": rollout.max_completion_tokens,
        "temperature": rollout.temperature,
        "learning_rate": grpo.learning_rate,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": grpo.warmup_steps,
        "weight_decay": grpo.weight_decay,
        "max_grad_norm": grpo.max_grad_norm,
        "adam_beta2": grpo.adam_beta2,
        "beta": grpo.kl_coefficient,
        "epsilon": grpo.clip,
        "scale_rewards": "none",
        # Mean over the tokens of a sequence, then over sequences.
        "loss_type": "grpo",
        "use_bias_correction_kl": False,
        "mask_truncated_completions": grpo.mask_truncated_completions,
        # Between two batches: what is resumed makes its next rollouts, and does not lack its last.
        "save_steps": grpo.save_every_steps * grpo.iterations,
        # Two at least: the older one goes before the newer one is sealed.
        "save_total_limit": max(2, grpo.keep_checkpoints),
        "remove_unused_columns": False,
    }
    if preset.system.use_vllm:
        caps = {"max_tokens": rollout.max_turn_tokens}
        arguments |= {"use_vllm": True, "generation_kwargs": caps, **preset.system.vllm}
    else:
        arguments["generation_kwargs"] = {"max_new_tokens": rollout.max_turn_tokens}
    return arguments


def check_specs(batches: Sequence[Sequence[ResetSpec]], groups_per_batch: int) -> None:
    """Refuse a plan that does not fit the preset, or that touches held-out instances.

    Raises:
        ConfigError: Naming the batch.
    """
    if not batches:
        raise ConfigError("Expected at least one batch of groups, got none.")
    for i, batch in enumerate(batches):
        if len(batch) != groups_per_batch:
            raise ConfigError(
                f"Expected {groups_per_batch} groups in every batch, batch {i} has {len(batch)}."
            )
        for spec in batch:
            if "heldout" in (spec.env_kwargs.get("split"), spec.options.get("split")):
                raise ConfigError(f"Batch {i} asks for held-out instances: {spec.to_json()}.")


def train_grpo(
    start_checkpoint: str | Path,
    specs: Sequence[Sequence[ResetSpec]],
    out_dir: str | Path,
    preset: str | Path | Preset,
    *,
    seed: int = 0,
    resume: bool = True,
    progress: StepProgress | None = None,
) -> Path:
    """Run one round. Killed anywhere, a second call continues it to identical weights.

    Args:
        start_checkpoint: Where the round starts; also the reference of the KL term.
        specs: One list of groups per optimiser step, in the order in which they are used.
        out_dir: Folder of the round.
        preset: Recipe.
        seed: Seeds the rollouts.
        resume: ``False`` replaces an earlier run in ``out_dir``.
        progress: Called after each step.

    Returns:
        The final checkpoint; ``health.json`` and ``steps.jsonl`` lie in ``out_dir``.

    Raises:
        ConfigError: If the plan does not fit the preset or asks for held-out instances.
        CheckpointError: If the start is not a whole checkpoint, or ``out_dir`` holds another run.
        GroupMismatchError: If rollouts of a group did not start from the same state.
    """
    preset, out = load_preset(preset), Path(out_dir)
    prepare_process(preset)
    check_specs(specs, preset.grpo.groups_per_batch)
    policy = load_policy(Path(start_checkpoint).resolve(), trainable=True)
    lines = [spec.to_json() for batch in specs for spec in batch]
    with together(preset).main_process_first():
        claim_run(
            out,
            {
                "kind": "grpo",
                "seed": seed,
                "start": policy.digest,
                "specs": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
                "preset": preset.model_dump(mode="json"),
            },
            resume=resume or not together(preset).is_main_process,
        )
        done, sealed = finished(out), last_sealed(out)
    if done is not None:
        return done
    pool = EnvPool()
    try:
        trainer = make_trainer(policy, lines, out, preset, seed=seed, pool=pool, progress=progress)
        trainer.train(resume_from_checkpoint=None if sealed is None else str(sealed))
    finally:
        pool.close()
    together(preset).wait_for_everyone()
    health = health_of(out, len(specs) * preset.grpo.iterations)
    if trainer.is_world_process_zero():
        write_whole(out / HEALTH, json.dumps(health, indent=1, sort_keys=True))
    average = last_checkpoints(out, preset.grpo.average_checkpoints)
    return save_final(out, trainer, preset, policy.digest, {"health": health}, average)


def make_trainer(
    policy: Policy,
    prompts: Sequence[str],
    out: Path,
    preset: Preset,
    *,
    seed: int,
    pool: EnvPool,
    progress: StepProgress | None = None,
) -> Any:
    """A TRL trainer over our rollouts, for one round.

    TRL reloads the reference model from the path that the policy was loaded from, which is the
    round's start.
    """
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig

    from bat_agent.sft import with_adapter
    from bat_agent.trimmed import TrimmedTrainer

    steps = len(prompts) // preset.grpo.groups_per_batch
    model = with_adapter(policy.model, preset)
    model.train()
    trainer = TrimmedTrainer(
        model=model,
        reward_funcs=[episode_reward],
        args=GRPOConfig(**grpo_arguments(preset, out, steps=steps, seed=seed)),
        train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
        processing_class=policy.tokenizer,
        rollout_func=RolloutFunction(policy.codec, preset, seed, pool),
        callbacks=[RunCallback(out, preset, policy.digest, progress)],
    )
    return quiet(trainer)


def health_of(out_dir: str | Path, planned_steps: int) -> dict[str, Any]:
    """Summary of a round for the promotion gate, from its step log.

    Returns:
        ``finite`` (loss, gradient norm and KL were finite in every step and no step is missing),
        ``aborted_share`` of rollouts, mean and greatest ``kl``, and the reward per step.
    """
    steps = read_steps(out_dir)

    def column(name: str) -> list[float]:
        return [float(s[name]) for s in steps if s.get(name) is not None]

    watched: Mapping[str, list[float]] = {n: column(n) for n in ("loss", "grad_norm", "kl")}
    finite = len(steps) == planned_steps and all(
        math.isfinite(value) for values in watched.values() for value in values
    )
    kl, aborted = watched["kl"], column("aborted")
    return {
        "schema_version": 1,
        "steps": len(steps),
        "planned_steps": planned_steps,
        "finite": finite,
        "aborted_share": sum(aborted) / len(aborted) if aborted else 0.0,
        "malformed_share": _mean(column("malformed_share")),
        "kl_mean": _mean(kl),
        "kl_max": max(kl, default=0.0),
        "reward": column("reward"),
        "wall_s": sum(column("wall_s")),
        "cpu_s": sum(column("cpu_s")),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
