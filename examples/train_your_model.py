"""Train a model of yours with a stock TRL trainer: `python train_your_model.py Qwen/Qwen3-0.6B`.

Without a name it trains a tiny untrained one for a step, to show that everything fits together.
"""

from __future__ import annotations

import sys
from typing import Any

from trl import GRPOConfig, GRPOTrainer

from bat_agent.integrations.trl import BatSpec


def tiny() -> tuple[Any, Any]:
    """A model of a few thousand weights, and a tokenizer with Qwen's chat template."""
    from trl.chat_template_utils import qwen3_chat_template

    from bat_agent.policy.tiny import TinyModelConfig, build_model, train_tokenizer

    config = TinyModelConfig(hidden_size=32, layers=1, context_tokens=8192)
    tokenizer = train_tokenizer(["print(1)\n"] * 3, config)
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>"})
    tokenizer.add_tokens(["<|im_start|>", "<tool_call>", "</tool_call>", "<think>", "</think>"])
    tokenizer.chat_template = qwen3_chat_template
    return build_model(tokenizer, config), tokenizer


def main() -> None:
    named = sys.argv[1] if len(sys.argv) > 1 else None
    model, tokenizer = (named, None) if named else tiny()
    with BatSpec("AutoMed-Seg-v0", starts=16 if named else 1, env_kwargs={"size": "mini"}) as spec:
        small: dict[str, Any] = {"use_cpu": True, "bf16": False, "max_steps": 1}
        small |= {"per_device_train_batch_size": 2, "generation_kwargs": {"max_new_tokens": 8}}
        arguments = spec.trainer_arguments(
            output_dir="grpo", num_generations=4 if named else 2, **({} if named else small)
        )
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            args=GRPOConfig(report_to=[], **arguments),
            train_dataset=spec.train_dataset,
            environment_factory=spec.environment_factory,
            reward_funcs=spec.reward_funcs,
        )
        trainer.train()
        print("steps:", trainer.state.global_step)


if __name__ == "__main__":
    main()
