"""What goes into the sandbox at reset, and the public contract that tells the agent about it.

Nothing private is ever staged: neither truth, nor floors, nor the true answers of the probe.
"""

from __future__ import annotations

import json
from typing import Any, Final

from bat_env.stages import Stage
from bat_env.tasks.discovery import Task
from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import TaskSpec

SPEC_PATH: Final = "workspace/task/spec.json"
SPEC_SCHEMA_VERSION: Final = 1


def artifacts(spec: TaskSpec, tier: str) -> dict[str, Any]:
    """Workspace path -> schema of what belongs there; types are named in words."""
    quantity = spec.pilot.quantity
    three = ["number", "number", "number"]
    wanted = next(value for name, value in spec.tiers.items() if name == tier)
    plan: dict[str, Any] = {
        "plan/plan.md": f"text that names the model; the given one is {spec.model.name}",
        "plan/facts.json": {
            "case_count": "integer",
            "orientations": {"<case>": "axis codes of the file's axes, e.g. RAS"},
            "spacing_mm": {"min": three, "max": three},
            "intensity_hu": ["lowest", "highest"],
            "model": "name",
            "preprocessing": {
                "orientation": "axis codes",
                "spacing_mm": three,
                "window_hu": ["low", "high"],
            },
            "postprocessing": {"restore_grid": "true or false"},
            "output": {"path": "pattern", "dtype": "name", "labels": {"<value>": "class"}},
            "pilot_check": {"quantity": quantity, "range": ["low", "high"]},
        },
    }
    if wanted.candidates:
        plan["plan/facts.json"]["candidates"] = [f"at least {wanted.candidates} model names"]
    if wanted.plan_image:
        plan["plan/plan.png"] = "a picture of the plan, at least 64 x 64"
    return {
        **plan,
        "setup/setup.json": {
            "versions": dict.fromkeys(("python", "torch", "monai", "nibabel"), "version"),
            "inputs": {
                "dtype": "on-disk type of the inputs",
                "ndim": "integer",
                "scaled": "whether any input has a slope or intercept other than 1 and 0",
            },
            "model": {"name": "name", "parameters": "number of weights"},
            "probe": {
                "mean": f"mean of the network's raw output on {spec.model.probe_input}",
                "std": "its standard deviation",
            },
        },
        "pipeline/predict.py": "run as: python predict.py --input CASE_DIR --output OUT_DIR",
        "validation/pilot/<case>/" + spec.output.path.rsplit("/", 1)[-1]: "one case's output",
        "validation/pilot.json": {
            "case": "case id",
            "shape": ["integer", "integer", "integer"],
            "dtype": "on-disk type of the output",
            "labels": ["integers present in the output"],
            quantity: f"number, {spec.pilot.unit}",
        },
        spec.output.path.replace("{case}", "<case>"): f"{' or '.join(spec.output.dtype)} label map",
        "outputs/manifest.json": {
            "format": spec.output.format,
            "files": [{"path": "workspace path of an output", "sha256": "hex digest of the file"}],
        },
    }


def public_spec(spec: TaskSpec, tier: str = "lite", focus: Stage = Stage.E2E) -> dict[str, Any]:
    """The agent's view of the contract, as in ``task/spec.json``."""
    return {
        "schema_version": SPEC_SCHEMA_VERSION,
        "task": spec.id,
        "title": spec.title,
        "tier": tier,
        "focus": focus.name,
        "input": f"/data/{{case}}/{spec.input_file}",
        "model": {
            "name": spec.model.name,
            "path": f"/models/{spec.model.name}",
            "probe_input": f"/models/{spec.model.name}/{spec.model.probe_input}",
        },
        "output": {
            "path": spec.output.path,
            "format": spec.output.format,
            "dtype": list(spec.output.dtype),
            "labels": {str(value): name for value, name in spec.output.labels.items()},
        },
        "pilot": {"quantity": spec.pilot.quantity, "unit": spec.pilot.unit},
        "budgets": spec.budgets.model_dump(mode="json"),
        "artifacts": artifacts(spec, tier),
    }


def stage_files(task: Task, instance: Instance, tier: str, focus: Stage) -> dict[str, bytes]:
    """Everything for :meth:`Sandbox.reset <bat_env.sandbox.base.Sandbox.reset>`.

    Args:
        task: The task.
        instance: What was drawn of it.
        tier: Decides on skills and model card.
        focus: Decides on skills.

    Returns:
        Keys under ``data/``, ``models/``, ``skills/`` and ``workspace/``.
    """
    contract = json.dumps(public_spec(task.spec, tier, focus), indent=1).encode()
    return {
        **{f"data/{path}": data for path, data in instance.public.items()},
        **{f"models/{path}": data for path, data in task.model_files(tier).items()},
        **{f"skills/{path}": data for path, data in task.skills(tier, focus).items()},
        SPEC_PATH: contract,
    }
