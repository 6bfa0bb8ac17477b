"""Cold start: supervised fine-tuning on scripted demonstrations of the Stage Bank.

A training row is a whole episode with loss on every response. Under a causal mask that is the same
as one row per response (history, next response) with loss on that response alone, at the price of
one forward instead of one per response. Observations and the brief never carry loss.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from bat_agent.policy.checkpoint import is_whole, load_policy, save_checkpoint
from bat_agent.policy.codec import Codec, make_codec
from bat_agent.policy.tiny import Sample
from bat_agent.presets import Preset, load_preset
from bat_agent.training import (
    RunCallback,
    StepProgress,
    claim_run,
    common_arguments,
    finished,
    last_sealed,
    limits_of,
    prepare_process,
    processes,
    quiet,
    save_final,
    together,
    write_whole,
)
from bat_env.errors import BankError, ConfigError
from bat_env.stages import Stage


@dataclass(frozen=True, slots=True)
class SftRow:
    """One episode: ``labels`` equals ``input_ids`` on response tokens and is -100 elsewhere."""

    input_ids: list[int]
    labels: list[int]
    responses: int
    source: str


def build_row(demo: Any, codec: Codec, max_tokens: int) -> tuple[SftRow | None, int]:
    """Turn a demonstration into a row.

    A response that does not fit with its whole history is rejected, never clipped; as history only
    grows, all responses after it are rejected too.

    Args:
        demo: A :class:`bat_env.bank.Demonstration`.
        codec: Renders it.
        max_tokens: Longest row.

    Returns:
        The row (``None`` if not even the first response fits) and the number of rejected responses.
    """
    first = {"stage": int(Stage.parse(demo.focus)), "text": demo.turns[0].observation}
    ids = codec.prompt_ids(first, {})
    labels = [-100] * len(ids)
    kept = 0
    for i, turn in enumerate(demo.turns):
        between = codec.observation_ids(turn.observation) if i else []
        response = codec.action_ids(turn.action)
        if len(ids) + len(between) + len(response) > max_tokens:
            break
        ids = [*ids, *between, *response]
        labels = [*labels, *[-100] * len(between), *response]
        kept += 1
    rejected = len(demo.turns) - kept
    row = SftRow(ids, labels, kept, demo.source_trajectory) if kept else None
    return row, rejected


def split_rows(
    rows: Iterable[SftRow], share: float, seed: int
) -> tuple[list[SftRow], list[SftRow]]:
    """Split into training and validation rows; slices of one trajectory stay on one side."""
    train: list[SftRow] = []
    validation: list[SftRow] = []
    for row in rows:
        digest = hashlib.blake2b(f"{seed}/{row.source}".encode(), digest_size=8).digest()
        side = validation if int.from_bytes(digest, "big") < share * 2**64 else train
        side.append(row)
    return train, validation


def row_order(lengths: Sequence[int], batch: int, steps: int, seed: int) -> list[int]:
    """Which row is used when: fresh permutations, one after the other, cut into batches.

    Inside a batch, where order does not matter, rows are sorted by length, so that micro batches
    hold little padding.

    Args:
        lengths: Tokens of each row.
        batch: Rows of an optimiser step.
        steps: Optimiser steps.
        seed: Seeds the permutations.
    """
    rng = np.random.default_rng([seed, len(lengths)])
    order: list[int] = []
    while len(order) < batch * steps:
        order += rng.permutation(len(lengths)).tolist()
    batches = (order[i * batch : (i + 1) * batch] for i in range(steps))
    return [row for one in batches for row in sorted(one, key=lambda r: (lengths[r], r))]


def tokenizer_samples(demos: Iterable[Any], states: Iterable[Any]) -> Iterable[Sample]:
    """Training-namespace texts that a tokenizer made on the spot should know."""
    for demo in demos:
        instance = f"{demo.task}/{demo.size}/{demo.index}"
        for turn in demo.turns:
            yield Sample(turn.observation, instance, written=False, task=demo.task)
            if "code" in turn.action["arguments"]:
                yield Sample(turn.action["arguments"]["code"] + "\n", instance, task=demo.task)
    for state in states:
        instance = f"{state.task}/{state.size}/{state.index}"
        yield Sample(state.brief, instance, written=False, task=state.task)


def best_demonstrations(demos: Sequence[Any], share: float) -> list[Any]:
    """The best scored ``share`` of each task and focus (one at least), in the order given."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for demo in demos:
        groups.setdefault((demo.task, str(demo.focus)), []).append(demo)
    kept: set[str] = set()
    for group in groups.values():
        ranked = sorted(group, key=lambda demo: (-demo.score, demo.demo_id))
        kept |= {demo.demo_id for demo in ranked[: max(1, round(share * len(ranked)))]}
    return [demo for demo in demos if demo.demo_id in kept]


PROMPT_SHARE: Final = 0.9
"""Share of the prompt budget that training prompts may take: held-out names may be longer."""


def check_prompts(demos: Iterable[Any], states: Iterable[Any], codec: Codec, limit: int) -> None:
    """Refuse briefs that would not fit, before anything is trained on them.

    Args:
        demos: Demonstrations of a bank.
        states: States of a bank.
        codec: Renders them.
        limit: ``max_prompt_tokens`` of the preset.

    Raises:
        ConfigError: If a brief takes more than :data:`PROMPT_SHARE` of ``limit``.
    """
    texts = [(demo.task, demo.focus, demo.turns[0].observation) for demo in demos]
    texts += [(state.task, state.focus, state.brief) for state in states]
    longest = (0, "", "")
    for task, focus, text in texts:
        stage = Stage.parse(focus)
        observation = {"stage": int(stage), "text": text}
        longest = max(longest, (len(codec.prompt_ids(observation, {})), task, stage.name))
    most = int(PROMPT_SHARE * limit)
    if longest[0] > most:
        raise ConfigError(
            f"Expected briefs of at most {most} tokens ({PROMPT_SHARE:.0%} of max_prompt_tokens "
            f"{limit}, as held-out names may be longer), got {longest[0]} for {longest[1]} with "
            f"focus {longest[2]}. Raise the preset's rollout.max_prompt_tokens, or shorten the "
            "task's brief."
        )


def train_sft(
    bank_path: str | Path,
    out_dir: str | Path,
    preset: str | Path | Preset,
    *,
    seed: int = 0,
    query: Mapping[str, Any] | None = None,
    resume: bool = True,
    progress: StepProgress | None = None,
    tell: Callable[[str], None] | None = None,
) -> Path:
    """Train the cold-start policy. Killed anywhere, a second call continues it.

    Args:
        bank_path: The Stage Bank.
        out_dir: Folder of the run.
        preset: Recipe.
        seed: Seeds weights, split and order.
        query: Which demonstrations to use (task, size, focus, ...); default all.
        resume: ``False`` replaces an earlier run in ``out_dir``.
        progress: Called after each step.
        tell: Called with what is done before the first step, which may take minutes.

    Returns:
        The final checkpoint.

    Raises:
        BankError: If no demonstration is usable.
        ConfigError: If a brief of the bank does not fit the preset's prompt budget.
        CheckpointError: If ``out_dir`` holds another run.
    """
    preset, out = load_preset(preset), Path(out_dir)
    say = tell or (lambda what: None)
    say("loading the training libraries")
    prepare_process(preset)
    from bat_env.bank import Bank

    say("reading the demonstrations")
    with Bank.open(bank_path) as bank:
        demos = list(bank.demonstrations(**(query or {})))
        states = bank.query()
        data_digest = bank.demonstrations_digest()
    if not demos:
        raise BankError(
            f"Expected demonstrations in the bank {bank_path} for {dict(query or {})}, found none. "
            "Run `bat-env bank build`."
        )
    with together(preset).main_process_first():
        claim_run(
            out,
            {
                "kind": "sft",
                "seed": seed,
                "query": dict(query or {}),
                "demonstrations": data_digest,
                "preset": preset.model_dump(mode="json"),
            },
            resume=resume or not together(preset).is_main_process,
        )
        done = finished(out)
        if done is not None:
            return done
        say("making the tokenizer and the untrained policy")
        # The tokenizer knows all of them: policies of all shares start from the same weights.
        base = _base(out, preset, seed, lambda: tokenizer_samples(demos, states))
    say("encoding the demonstrations")
    chosen = best_demonstrations(demos, preset.sft.best_share)
    return _train(out, base, chosen, states, preset, seed, progress)


def _base(out: Path, preset: Preset, seed: int, texts: Any) -> Path:
    """The checkpoint that SFT starts from, made once per run."""
    base = out / "base"
    if is_whole(base):
        return base
    if preset.model.tiny is not None:
        from bat_agent.policy.tiny import build_model, train_tokenizer

        tokenizer = train_tokenizer(texts(), preset.model.tiny)
        model = build_model(tokenizer, preset.model.tiny, seed=seed)
    else:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        origin = str(preset.model.pretrained)
        tokenizer = AutoTokenizer.from_pretrained(origin)
        model = AutoModelForCausalLM.from_pretrained(origin, dtype=preset.model.dtype)

    def write(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    return save_checkpoint(
        base,
        write,
        codec=preset.model.codec,
        limits=limits_of(preset),
        extra={"preset": preset.name, "dtype": preset.model.dtype},
    )


def with_adapter(model: Any, preset: Preset) -> Any:
    """Wrap ``model`` in fresh LoRA adapters if the preset asks for them."""
    lora = preset.model.lora
    if lora is None or hasattr(model, "peft_config"):
        return model
    from peft import LoraConfig, get_peft_model

    targets = lora.target_modules
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def _train(
    out: Path,
    base: Path,
    demos: list[Any],
    states: list[Any],
    preset: Preset,
    seed: int,
    progress: StepProgress | None,
) -> Path:
    import torch
    from datasets import Dataset
    from transformers import set_seed
    from trl.trainer.sft_config import SFTConfig

    from bat_agent.sft_trainer import ResponseTrainer

    settings = preset.sft
    policy = load_policy(base, trainable=True)
    codec = make_codec(preset.model.codec, policy.tokenizer)
    check_prompts(demos, states, codec, preset.rollout.max_prompt_tokens)
    built = [build_row(demo, codec, settings.max_row_tokens) for demo in demos]
    rejected = sum(n for _, n in built)
    rows = [row for row, _ in built if row is not None]
    train, validation = split_rows(rows, settings.validation_share, seed)
    if not train:
        raise BankError(
            f"No demonstration fits {settings.max_row_tokens} tokens ({rejected} responses "
            "rejected). Raise sft.max_row_tokens."
        )
    set_seed(seed)
    model = with_adapter(policy.model, preset)
    model.train()
    accumulate = max(1, settings.batch_rows // (settings.micro_batch_rows * processes()))
    batch = accumulate * settings.micro_batch_rows * processes()
    order = row_order([len(r.input_ids) for r in train], batch, settings.steps, seed)
    arguments = SFTConfig(
        **common_arguments(preset, out, steps=settings.steps, seed=seed),
        per_device_train_batch_size=settings.micro_batch_rows,
        per_device_eval_batch_size=settings.micro_batch_rows,
        gradient_accumulation_steps=accumulate,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=int(settings.warmup_share * settings.steps),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        save_steps=settings.save_every_steps,
        save_total_limit=2,
        max_length=None,
        train_sampling_strategy="sequential",
        dataset_kwargs={"skip_prepare_dataset": True},
    )

    def dataset(part: list[SftRow]) -> Any:
        return Dataset.from_dict(
            {"input_ids": [r.input_ids for r in part], "labels": [r.labels for r in part]}
        )

    callback = RunCallback(out, preset, str(policy.meta["digest"]), progress)
    trainer = ResponseTrainer(
        model=model,
        args=arguments,
        train_dataset=dataset(train).select(order),
        eval_dataset=dataset(validation) if validation else None,
        processing_class=policy.tokenizer,
        callbacks=[callback],
    )
    quiet(trainer)
    with together(preset).main_process_first():
        sealed = last_sealed(out)
    trainer.train(resume_from_checkpoint=None if sealed is None else str(sealed))
    with torch.no_grad():
        loss = trainer.evaluate()["eval_loss"] if validation else None
    facts = {
        "rows": len(train),
        "validation_rows": len(validation),
        "responses": sum(r.responses for r in rows),
        "rejected_responses": rejected,
        "validation_loss": loss,
        "longest_row_tokens": max(len(r.input_ids) for r in rows),
    }
    if trainer.is_world_process_zero():
        write_whole(out / "sft.json", json.dumps({"schema_version": 1, **facts}, indent=1))
    return save_final(out, trainer, preset, str(policy.meta["digest"]), {"sft": facts})
