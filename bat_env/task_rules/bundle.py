"""The MONAI bundle and what is written about it."""

from __future__ import annotations

import json

from bat_env.tasks import Task
from bat_env.tasks.training import MAX_BUNDLE_BYTES


def bundle(task: Task) -> None:
    """The bundle is small, its configurations agree, and its card names every value."""
    files = task.model_files()
    size = sum(map(len, files.values()))
    assert size <= MAX_BUNDLE_BYTES, f"The bundle has {size} bytes, at most {MAX_BUNDLE_BYTES}."
    name = task.spec.model.name
    meta = json.loads(files[f"{name}/configs/metadata.json"])
    inference = json.loads(files[f"{name}/configs/inference.json"])
    network = {k: v for k, v in inference["network_def"].items() if k != "_target_"}
    assert network == meta["network"], "inference.json and metadata.json name other networks."
    card = files[f"{name}/docs/README.md"].decode()
    for key in task.spec.model.preprocessing:
        value = meta["preprocessing"][key]
        for part in value if isinstance(value, list) else [value]:
            shown = {str(part), f"{part:g}" if isinstance(part, (int, float)) else str(part)}
            assert any(text in card for text in shown), f"The card does not name {key} {part}."
    for number, channel in enumerate(meta.get("channels", [])):
        assert f"{number} {channel}" in card, f"The card does not name channel {number} {channel}."
    text = (task.folder / "README.md").read_text("utf-8")
    assert task.spec.mirrors in text, "README.md must name what the task mirrors."
    assert "Not for clinical use" in text, "README.md must say: Not for clinical use."
