"""The task folder inside a staged folder: contract, briefs, skills, model, README."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from bat_env.data.floors import floors, image_params
from bat_env.data.layout import Layout
from bat_env.data.manifest import Manifest, write_whole
from bat_env.data.model import Bundle
from bat_env.data.task import StagedTask
from bat_env.errors import TaskError
from bat_env.metrics import load_metric

_ASSETS: Final = Path(__file__).with_name("assets")
_TIERS: Final = ("lite", "standard", "pro")
_MEASURED: Final = 3
"""Training cases that a careful reference is measured on."""
_DRAFT: Final = ".task"


def write_task(
    root: Path, manifest: Manifest, spec: dict[str, Any], layout: Layout, bundle: Bundle
) -> dict[str, bytes]:
    """Write ``root/task`` whole, with what must be measured on the staged cases.

    Args:
        root: The staged folder, its cases written.
        manifest: Of the cases; its own digest may still be missing.
        spec: Content of ``task.yaml`` without floors.
        layout: Where the data come from.
        bundle: The model to hand out.

    Returns:
        Path in the folder -> bytes.

    Raises:
        TaskError: If the contract does not fit the metric.
    """
    if spec["metric"]["name"] == "image_ssim":
        spec["metric"]["params"] = image_params(
            spec["id"].split("/")[0], _pairs(root, manifest, spec)
        )
    files = _files(manifest, spec, layout, bundle)
    draft = root / _DRAFT
    shutil.rmtree(draft, ignore_errors=True)
    # Floors are measured on the finished contract, and become part of it.
    _lay(draft / "task", files)
    task = StagedTask(draft, manifest)
    task.root = root
    load_metric(task.spec.metric.name).check(task.spec)
    spec["floors"] = floors(task)
    files = _files(manifest, spec, layout, bundle)
    shutil.rmtree(draft)
    _lay(draft, files)
    shutil.rmtree(root / "task", ignore_errors=True)
    draft.replace(root / "task")
    return files


def _lay(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        write_whole(folder / name, data)


def _files(
    manifest: Manifest, spec: Mapping[str, Any], layout: Layout, bundle: Bundle
) -> dict[str, bytes]:
    files = {"task.yaml": yaml.safe_dump(dict(spec), sort_keys=False, width=100).encode()}
    template = (_ASSETS / "brief.md.j2").read_text("utf-8")
    note = bundle.origin
    files |= {
        f"briefs/{tier}.md.j2": template.replace("@MODEL_NOTE@", note).encode() for tier in _TIERS
    }
    files |= {
        f"skills/{path.name}": path.read_bytes() for path in sorted((_ASSETS / "skills").iterdir())
    }
    files |= {f"model/{bundle.name}/{path}": data for path, data in bundle.files.items()}
    probe = {"schema_version": 1, "mean": bundle.probe["mean"], "std": bundle.probe["std"]}
    files["private/probe.json"] = json.dumps(probe, indent=1).encode()
    files["README.md"] = _readme(manifest, spec, layout, bundle).encode()
    return files


def _readme(manifest: Manifest, spec: Mapping[str, Any], layout: Layout, bundle: Bundle) -> str:
    return f"""# {spec["title"]}

{layout.goal}

Staged from `{layout.name}`, {len(manifest.cases)} cases. Source: {layout.source}

Licence of the data: {manifest.licence}. Terms: {layout.terms}. They bind whoever uses this folder;
it must not be shared where they forbid it.

Model: `{bundle.name}`. {bundle.origin}

For research on agents. Not for clinical use.
"""


def _pairs(
    root: Path, manifest: Manifest, spec: Mapping[str, Any]
) -> list[tuple[bytes, bytes, bytes | None]]:
    """Input, truth and mask of some training cases."""
    output = spec["output"]["path"].rsplit("/", 1)[-1]
    pairs = []
    for row in [row for row in manifest.cases if row.split == "train"][:_MEASURED]:
        given = root / "public" / row.key / spec["input_file"]
        truth = root / "private" / row.key / output
        mask = root / "private" / row.key / "mask.nii.gz"
        if not given.is_file() or not truth.is_file():
            raise TaskError(f"Expected the staged files of {row.key} in {root}.")
        pairs.append(
            (given.read_bytes(), truth.read_bytes(), mask.read_bytes() if mask.is_file() else None)
        )
    return pairs
