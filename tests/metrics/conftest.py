"""Task specs for metrics whose tasks are not needed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bat_env.tasks import load_task
from bat_env.tasks.spec import TaskSpec

SpecOf = Callable[..., TaskSpec]


@pytest.fixture(scope="session")
def spec_of() -> SpecOf:
    """Make a spec: metric name, output path, and what differs from the kidney task."""
    base = load_task("kidney_tumor").spec

    def make(
        metric: str,
        path: str,
        params: dict[str, Any] | None = None,
        *,
        labels: list[str] | dict[int, str] | None = None,
        input_file: str = "input.png",
        dtype: tuple[str, ...] = ("float32",),
        quantity: str = "rows",
    ) -> TaskSpec:
        named = dict(enumerate(labels)) if isinstance(labels, list) else (labels or {})
        output = {"path": path, "labels": named, "dtype": dtype}
        return base.model_copy(
            update={
                "input_file": input_file,
                "output": base.output.model_copy(update=output),
                "metric": base.metric.model_copy(update={"name": metric, "params": params or {}}),
                "pilot": base.pilot.model_copy(update={"quantity": quantity}),
            }
        )

    return make
