"""Training presets: every number of a recipe, with its unit, in one place.

All presets run the same code. They differ in the model they start from, in sizes and rates, and in
the generation backend.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bat_agent.policy.tiny import TinyModelConfig
from bat_env.errors import unknown_name


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LoraSettings(_Config):
    """Low-rank adapters instead of full weights."""

    rank: int = Field(32, ge=1)
    alpha: int = Field(64, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: str | tuple[str, ...] = "all-linear"


class ModelSettings(_Config):
    """Where the policy comes from, and how it is held.

    Exactly one of ``pretrained`` and ``tiny`` is set.
    """

    pretrained: str | None = Field(None, description="Model folder or hub id to start from.")
    tiny: TinyModelConfig | None = Field(None, description="Make a model of this shape instead.")
    codec: Literal["hermes", "line"]
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    lora: LoraSettings | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> ModelSettings:
        if (self.pretrained is None) == (self.tiny is None):
            raise ValueError("set exactly one of pretrained and tiny")
        return self


class RolloutSettings(_Config):
    """Budgets of one rollout, and how many run at once."""

    temperature: float = Field(0.7, ge=0)
    max_turn_tokens: int = Field(..., ge=1, description="One action.")
    max_completion_tokens: int = Field(..., ge=1, description="All after the prompt.")
    max_prompt_tokens: int = Field(..., ge=1)
    max_live: int = Field(16, ge=1, description="Environments (and sandboxes) at once.")
    env_threads: int | None = Field(None, ge=1, description="Default: twice the cores.")


class SftSettings(_Config):
    """Cold start: supervised on single responses of scripted experts."""

    learning_rate: float = Field(..., gt=0)
    steps: int = Field(..., ge=1)
    batch_rows: int = Field(..., ge=1, description="Episodes per optimiser step, all processes.")
    micro_batch_rows: int = Field(..., ge=1, description="Episodes per forward and process.")
    warmup_share: float = Field(0.03, ge=0, lt=1)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    max_row_tokens: int = Field(8192, ge=64)
    best_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Share of the demonstrations of each task and focus that is trained on, the "
        "best scored first.",
    )
    validation_share: float = Field(0.05, ge=0, lt=1)
    save_every_steps: int = Field(50, ge=1)


class GrpoSettings(_Config):
    """The policy update of one round; reference values where not noted."""

    learning_rate: float = Field(..., gt=0)
    groups_per_batch: int = Field(8, ge=1)
    rollouts_per_group: int = Field(4, ge=2)
    micro_batch_rows: int = Field(..., ge=1, description="Rows per forward and process.")
    kl_coefficient: float = Field(0.006, ge=0, description="In the loss, not in the reward.")
    clip: float = Field(0.2, gt=0)
    warmup_steps: int = Field(0, ge=0)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    adam_beta2: float = Field(0.999, gt=0, lt=1)
    mask_truncated_completions: bool = True
    cut_reward_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of its graded reward that a row keeps when the token budget ended it. "
        "The rubric pays what is there, so nothing else favours handing in.",
    )
    reward: Literal["rubric", "task"] = Field(
        "rubric",
        description="What a rollout is paid: the rubric's score of its stage, or the task outcome "
        "of the hand-in alone (one final reward).",
    )
    iterations: int = Field(
        1,
        ge=1,
        description="Updates from each batch of rollouts, the mu of GRPO; the clip acts from the "
        "second on.",
    )
    steps_per_round: int = Field(50, ge=1, description="Batches of rollouts.")
    save_every_steps: int = Field(5, ge=1, description="Batches from one checkpoint to the next.")
    keep_checkpoints: int = Field(3, ge=1)
    average_checkpoints: int = Field(
        1,
        ge=1,
        description="Last checkpoints whose mean the round ends with, of those that are kept; 1 "
        "takes the last weights. A mean of weights is free of much of the updates' noise.",
    )

    @model_validator(mode="after")
    def _are_kept(self) -> GrpoSettings:
        if self.average_checkpoints > max(2, self.keep_checkpoints):
            raise ValueError(
                f"Expected average_checkpoints <= keep_checkpoints, came "
                f"{self.average_checkpoints} and {self.keep_checkpoints}."
            )
        return self


class SystemSettings(_Config):
    """Hardware: passed through to accelerate, TRL and vLLM."""

    use_cpu: bool = False
    processes: int = Field(1, ge=1, description="Training processes, one a GPU.")
    torch_threads: int | None = Field(None, ge=1, description="Per process; default: torch's own.")
    gradient_checkpointing: bool = True
    use_vllm: bool = False
    vllm: Mapping[str, Any] = Field(
        default_factory=dict, description="GRPOConfig's vllm_* arguments, prefix included."
    )
    fsdp: str = Field(
        "", description="transformers' fsdp flags, for example 'full_shard auto_wrap'."
    )
    fsdp_config: Mapping[str, Any] = Field(default_factory=dict)


class Preset(_Config):
    """A whole recipe."""

    name: str
    model: ModelSettings
    rollout: RolloutSettings
    sft: SftSettings
    grpo: GrpoSettings
    system: SystemSettings = SystemSettings()

    def updated(self, **changes: Mapping[str, Any]) -> Preset:
        """A copy with some settings replaced: ``preset.updated(sft={"steps": 10})``."""
        value = self.model_dump()
        for section, change in changes.items():
            value[section] = {**value[section], **change}
        return Preset.model_validate(value)


_TINY_CPU: Final = Preset(
    name="tiny-cpu",
    model=ModelSettings(tiny=TinyModelConfig(), codec="line", dtype="float32"),
    rollout=RolloutSettings(
        max_turn_tokens=96, max_completion_tokens=768, max_prompt_tokens=1400, max_live=16
    ),
    sft=SftSettings(
        learning_rate=7e-3,
        steps=150,
        batch_rows=32,
        micro_batch_rows=8,
        max_row_tokens=2048,
        save_every_steps=100,
    ),
    grpo=GrpoSettings(
        learning_rate=4e-4,
        micro_batch_rows=16,
        save_every_steps=5,
        steps_per_round=40,
        mask_truncated_completions=False,
        cut_reward_share=0.0,
    ),
    system=SystemSettings(use_cpu=True, torch_threads=1, gradient_checkpointing=False),
)

_VLLM: Final[Mapping[str, Any]] = {
    "vllm_mode": "colocate",
    "vllm_gpu_memory_utilization": 0.4,
    # The default correction is a sum over the sequence, which would mask long episodes.
    "vllm_importance_sampling_mode": "token_truncate",
}

_QWEN_4B: Final = Preset(
    name="qwen3.5-4b-1gpu",
    model=ModelSettings(pretrained="Qwen/Qwen3.5-4B", codec="hermes", lora=LoraSettings()),
    rollout=RolloutSettings(
        max_turn_tokens=2048, max_completion_tokens=16384, max_prompt_tokens=4096, max_live=32
    ),
    sft=SftSettings(learning_rate=1e-4, steps=200, batch_rows=32, micro_batch_rows=2),
    grpo=GrpoSettings(learning_rate=2.5e-6, micro_batch_rows=2),
    system=SystemSettings(use_vllm=True, vllm=_VLLM),
)

_QWEN_9B: Final = Preset(
    name="qwen3.5-9b-8gpu",
    model=ModelSettings(pretrained="Qwen/Qwen3.5-9B", codec="hermes"),
    rollout=RolloutSettings(
        max_turn_tokens=2048, max_completion_tokens=16384, max_prompt_tokens=4096, max_live=64
    ),
    sft=SftSettings(learning_rate=2e-5, steps=200, batch_rows=64, micro_batch_rows=1),
    grpo=GrpoSettings(learning_rate=2.5e-7, micro_batch_rows=1),
    system=SystemSettings(
        processes=8,
        use_vllm=True,
        vllm=_VLLM,
        fsdp="full_shard auto_wrap",
        fsdp_config={
            "fsdp_version": 2,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "reshard_after_forward": True,
            # Checkpoints are whole models: anything that loads one loads them.
            "state_dict_type": "FULL_STATE_DICT",
        },
    ),
)

PRESETS: Final[Mapping[str, Preset]] = {p.name: p for p in (_TINY_CPU, _QWEN_4B, _QWEN_9B)}
"""Name -> preset."""


def load_preset(preset: str | Path | Preset) -> Preset:
    """A preset by name, from a JSON file, or itself.

    Raises:
        UnknownNameError: If no preset has that name and no such file exists.
    """
    if isinstance(preset, Preset):
        return preset
    if str(preset) in PRESETS:
        return PRESETS[str(preset)]
    if Path(preset).suffix == ".json" and Path(preset).is_file():
        return Preset.model_validate_json(Path(preset).read_bytes())
    raise unknown_name("preset", preset, PRESETS, "A path to a JSON file works too.")
