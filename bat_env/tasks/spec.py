"""TaskSpec: the one description (task.yaml) that brief, limits, schema and scorer are made from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from bat_env.sandbox.base import Limits
from bat_env.tasks.tracks import TRACK_DEFAULTS

Package = Literal["torch", "monai", "nibabel", "numpy", "pillow", "scipy", "scikit-image"]
"""Distributions that a task may ask the versions of; the sandbox image has all of them."""


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


class FactSpec(_Frozen):
    """One thing about the inputs that a plan must state truly.

    The truth is ``Instance.facts[<key>]``. Numbers count as true within ``max(abs_tol, rel_tol x
    size)``, the size being the true value, or of a ``range`` its width.
    """

    kind: Literal["per_case", "extent", "range", "value"] = Field(
        description="per_case: {case: value}. extent: {min: [...], max: [...]} over the cases' "
        "vectors. range: [lowest, highest]. value: one value of the whole instance."
    )
    help: str = Field("", description="What to write, in words; shown in the contract.")
    size: int = Field(3, ge=1, description="Length of the vectors of an extent.")
    abs_tol: float = Field(0.0, ge=0)
    rel_tol: float = Field(0.0, ge=0)


class DeclaredSpec(_Frozen):
    """One declaration of a plan whose right value is fixed by the task."""

    value: bool | int | float | str
    help: str = Field("true or false", description="What to write, in words.")


class ModelSpec(_Frozen):
    """The MONAI bundle that the task hands out."""

    name: str = Field(description="Folder under /models.")
    parameters: int = Field(ge=1, description="True number of weights; private until reported.")
    probe_input: str = Field("probe.npy", description="Public probe input inside the bundle.")
    alternatives: tuple[str, ...] = Field((), description="Other model names valid in a plan.")
    preprocessing: dict[str, Any] = Field(
        description="Keys of the card's preprocessing -> what to write, in words."
    )


class OutputSpec(_Frozen):
    """What a finished case looks like."""

    path: str = Field(
        description="Workspace path with {case}, e.g. outputs/{case}/dseg.nii.gz; or of one table "
        "for all cases, e.g. outputs/predictions.csv."
    )
    format: str = Field(description="Name of the format in manifest.json, e.g. nifti-labels.")
    dtype: tuple[str, ...] = Field((), description="Accepted on-disk dtypes; none for text.")
    labels: dict[int, str] = Field(default_factory=dict, description="Label value -> class name.")
    columns: tuple[str, ...] = Field((), description="Columns of a table, the case id first.")
    help: str = Field("", description="What the file is, in words; shown in the contract.")

    @property
    def is_table(self) -> bool:
        """Whether one file holds the outputs of all cases, a row each."""
        return "{case}" not in self.path

    @property
    def name(self) -> str:
        """File name: what ``predict.py`` writes into its output folder."""
        return PurePosixPath(self.path).name


class PilotSpec(_Frozen):
    """The sanity value that validation records."""

    quantity: str = Field(description="Key in pilot.json, e.g. kidney_volume_ml.")
    unit: str = Field(description="Unit of the quantity.")
    rel_tolerance: float = Field(0.05, gt=0, description="Accepted relative error of the claim.")
    abs_tolerance: float = Field(1e-3, ge=0, description="Accepted absolute error of the claim.")
    max_range_ratio: float = Field(
        20.0, gt=1, description="A declared check whose upper/lower bound is wider says nothing."
    )
    max_range_width: float | None = Field(
        None,
        gt=0,
        description="Bounds the width instead of the ratio: for quantities that may be 0.",
    )
    plausible_ratio: float = Field(
        3.0, gt=1, description="The pilot's value may differ from the truth by this factor."
    )
    plausible_abs: float = Field(0.0, ge=0, description="Or by this much, whatever the factor.")
    cured_score: float = Field(
        0.72, gt=0, le=1, description="Case score from which a recovered pilot counts as good."
    )
    record: dict[str, Any] = Field(
        description="Further keys of pilot.json -> what to write; the host measures each of them."
    )


class MetricSpec(_Frozen):
    """Which metric scores the task and with which constants."""

    name: str = Field(description="A metric of bat_env.metrics, e.g. seg_dice.")
    params: dict[str, Any] = Field(default_factory=dict)
    rerun_tolerance: float = Field(
        0.02, ge=0, description="Largest disagreement of a re-run case (1 - agreement)."
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
    lite: bool = Field(False, description="Whether this is the track's Lite task, its default.")
    input_file: str = Field(description="File name in every case folder.")
    extra_inputs: tuple[str, ...] = Field(
        (), description="Further files of a case folder; glob patterns may be used."
    )
    truth_file: str = Field(
        "", description="Name of a case's truth; empty: that of the output, of a table truth.json."
    )
    facts: dict[str, FactSpec] = Field(description="What facts.json must state of the inputs.")
    inputs: dict[str, str] = Field(description="Keys of setup.json's inputs -> what to write.")
    packages: tuple[Package, ...] = Field(description="Packages whose versions setup.json states.")
    postprocessing: dict[str, DeclaredSpec] = Field(description="What facts.json must declare.")
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

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        """Fill in what the track's tasks have in common, where task.yaml says nothing."""
        if not isinstance(data, dict):
            return data
        defaults = TRACK_DEFAULTS.get(str(data.get("id", "")).split("/", 1)[0], {})
        return _filled(data, defaults)

    @property
    def truth_name(self) -> str:
        """File name of a case's private truth."""
        return self.truth_file or ("truth.json" if self.output.is_table else self.output.name)

    @property
    def track(self) -> str:
        """Track name, the first part of the id."""
        return self.id.split("/", 1)[0]

    @property
    def floor(self) -> float:
        """Highest score that a trivial output reaches."""
        return max(self.floors.values(), default=0.0)


def _filled(given: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` with absent keys from ``defaults``; only `model` and `pilot` are merged inside."""
    merged = {**{key: value for key, value in defaults.items() if key not in given}, **given}
    for key in ("model", "pilot"):
        if isinstance(given.get(key), dict) and key in defaults:
            merged[key] = {**defaults[key], **given[key]}
    return merged
