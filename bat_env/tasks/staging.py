"""What goes into the sandbox at reset, and the public contract that tells the agent about it.

Nothing private is ever staged: neither truth, nor floors, nor the true answers of the probe.
"""

from __future__ import annotations

import json
from typing import Any, Final

from bat_env.stages import Stage
from bat_env.tasks.discovery import Task
from bat_env.tasks.instance import Instance
from bat_env.tasks.spec import FactSpec, TaskSpec

SPEC_PATH: Final = "workspace/task/spec.json"
SPEC_SCHEMA_VERSION: Final = 1


def artifacts(spec: TaskSpec, tier: str) -> dict[str, Any]:
    """Workspace path -> schema of what belongs there; types are named in words."""
    quantity = spec.pilot.quantity
    wanted = next(value for name, value in spec.tiers.items() if name == tier)
    output: dict[str, Any] = {"path": "pattern"}
    if spec.output.dtype:
        output["dtype"] = "name"
    if spec.output.labels:
        output["labels"] = {"<value>": "class"}
    if spec.output.columns:
        output["columns"] = ["names"]
    plan: dict[str, Any] = {
        "plan/plan.md": f"text that names the model; the given one is {spec.model.name}",
        "plan/facts.json": {
            "case_count": "integer",
            **{key: _fact_schema(fact) for key, fact in spec.facts.items()},
            "model": "name",
            "preprocessing": dict(spec.model.preprocessing),
            "postprocessing": {key: said.help for key, said in spec.postprocessing.items()},
            "output": output,
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
            "versions": dict.fromkeys(("python", *spec.packages), "version"),
            "inputs": dict(spec.inputs),
            "model": {"name": "name", "parameters": "number of weights"},
            "probe": {
                "mean": f"mean of the network's raw output on {spec.model.probe_input}",
                "std": "its standard deviation",
            },
        },
        "pipeline/predict.py": "run as: python predict.py --input CASE_DIR --output OUT_DIR",
        f"validation/pilot/<case>/{spec.output.name}": "one case's output",
        "validation/pilot.json": {
            "case": "case id",
            **spec.pilot.record,
            quantity: f"number, {spec.pilot.unit}",
        },
        spec.output.path.replace("{case}", "<case>"): _output_schema(spec),
        "outputs/manifest.json": {
            "format": spec.output.format,
            "files": [{"path": "workspace path of an output", "sha256": "hex digest of the file"}],
        },
    }


def _fact_schema(fact: FactSpec) -> Any:
    if fact.kind == "per_case":
        return {"<case>": fact.help}
    if fact.kind == "extent":
        vector = ["number"] * fact.size
        return {"min": vector, "max": vector}
    return ["lowest", "highest"] if fact.kind == "range" else fact.help


def _output_schema(spec: TaskSpec) -> str:
    if spec.output.help:
        return spec.output.help
    if spec.output.is_table:
        return f"one row a case; columns {', '.join(spec.output.columns)}"
    kind = "label map" if spec.output.format == "nifti-labels" else "image"
    return f"{' or '.join(spec.output.dtype)} {kind}"


def public_spec(spec: TaskSpec, tier: str = "lite", focus: Stage = Stage.E2E) -> dict[str, Any]:
    """The agent's view of the contract, as in ``task/spec.json``."""
    return {
        "schema_version": SPEC_SCHEMA_VERSION,
        "task": spec.id,
        "title": spec.title,
        "tier": tier,
        "focus": focus.name,
        "input": f"/data/{{case}}/{spec.input_file}",
        **(
            {"extra_inputs": [f"/data/{{case}}/{name}" for name in spec.extra_inputs]}
            if spec.extra_inputs
            else {}
        ),
        "model": {
            "name": spec.model.name,
            "path": f"/models/{spec.model.name}",
            "probe_input": f"/models/{spec.model.name}/{spec.model.probe_input}",
        },
        "output": {
            "path": spec.output.path,
            "format": spec.output.format,
            **({"dtype": list(spec.output.dtype)} if spec.output.dtype else {}),
            **(
                {"labels": {str(value): name for value, name in spec.output.labels.items()}}
                if spec.output.labels
                else {}
            ),
            **({"columns": list(spec.output.columns)} if spec.output.columns else {}),
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
