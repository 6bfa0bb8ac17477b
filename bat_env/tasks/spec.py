"""TaskSpec: the one description (task.yaml) that brief, limits, schema and scorer are made from."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bat_env.sandbox.base import Limits


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Budgets(_Frozen):
    """What one episode may spend. Defaults are the reference values of the method."""

    turns: int = Field(24, ge=1, description="Environment steps, valid or not.")
    calls: int = Field(23, ge=1, description="Valid execute_code calls.")
    cell_timeout_s: float = Field(120.0, gt=0, description="Wall time of one cell, seconds.")
    observation_chars: int = Field(2048, ge=256, description="Characters of one step observation.")
    response_tokens: int = Field(16384, ge=1, description="Policy tokens; enforced by rollouts.")
    code_chars: int = Field(65536, ge=1, description="Characters of one cell's code.")
    failed_setup_cells: int = Field(5, ge=0, description="Failed set-up cells that cost nothing.")


class Reduction(_Frozen):
    """R(lambda): how the mini instance shrinks the full one (E2E surrogates)."""

    cases: float = Field(gt=0, le=1, description="Kept fraction of the cases.")
    input_fraction: float = Field(gt=0, le=1, description="Kept fraction of the input voxels.")
    validation_passes: int = Field(1, ge=1, description="Allowed validation passes.")


class ModelSpec(_Frozen):
    """The MONAI bundle that the task hands out."""

    name: str = Field(description="Folder under /models.")
    parameters: int = Field(ge=1, description="True number of weights; private until reported.")
    probe_input: str = Field("probe.npy", description="Public probe input inside the bundle.")
    alternatives: tuple[str, ...] = Field((), description="Other model names valid in a plan.")


class OutputSpec(_Frozen):
    """What a finished case looks like."""

    path: str = Field(description="Workspace path with {case}, e.g. outputs/{case}/dseg.nii.gz.")
    format: str = Field(description="Name of the format in manifest.json, e.g. nifti-labels.")
    dtype: tuple[str, ...] = Field(description="Accepted on-disk dtypes.")
    labels: dict[int, str] = Field(default_factory=dict, description="Label value -> class name.")


class PilotSpec(_Frozen):
    """The sanity value that validation records."""

    quantity: str = Field(description="Key in pilot.json, e.g. kidney_volume_ml.")
    unit: str = Field(description="Unit of the quantity.")
    rel_tolerance: float = Field(0.05, gt=0, description="Accepted relative error of the claim.")
    max_range_ratio: float = Field(
        20.0, gt=1, description="A declared check whose upper/lower bound is wider says nothing."
    )


class MetricSpec(_Frozen):
    """Which metric scores the task and with which constants."""

    name: Literal["seg_dice"]
    params: dict[str, Any] = Field(default_factory=dict)
    rerun_tolerance: float = Field(
        0.02, ge=0, description="Largest disagreement of a re-run case (1 - Dice for seg)."
    )


class TierSpec(_Frozen):
    """What a tier grants and asks."""

    skills: tuple[str, ...] = Field((), description="Files of skills/ that are mounted.")
    model_card: bool = Field(True, description="Whether the bundle's card is mounted.")
    candidates: int = Field(0, ge=0, description="Models that the plan must compare.")
    plan_image: bool = Field(False, description="Whether plan/plan.png is asked for.")


class TaskSpec(_Frozen):
    """Everything fixed about one task. Paths inside are relative to the task folder."""

    schema_version: Literal[1] = 1
    id: str = Field(pattern=r"^(seg|enh|det|cls|vqa|report|synth)/[a-z0-9_]+$")
    version: int = Field(0, ge=0, description="The -vN whose scores are frozen.")
    title: str
    modality: str
    clinical_goal: str
    mirrors: str = Field(description="Public data set whose layout and aim this task mirrors.")
    input_file: str = Field(description="File name in every case folder.")
    output: OutputSpec
    model: ModelSpec
    pilot: PilotSpec
    metric: MetricSpec
    tiers: dict[Literal["lite", "standard", "pro"], TierSpec]
    sizes: dict[Literal["full", "mini"], dict[str, Any]]
    reduction: Reduction
    fiction: dict[Literal["train", "dev", "heldout"], list[dict[str, str]]] = Field(
        description="Fictional parameters per split; the lists must be disjoint."
    )
    budgets: Budgets = Budgets()
    limits: Limits = Limits()
    floors: dict[str, float] = Field(
        default_factory=dict, description="Task score of each trivial output, measured; <= .10."
    )

    @property
    def track(self) -> str:
        """Track name, the first part of the id."""
        return self.id.split("/", 1)[0]

    @property
    def floor(self) -> float:
        """Highest score that a trivial output reaches."""
        return max(self.floors.values(), default=0.0)
