"""Metric name -> metric. Only the module of the metric that is asked for is imported."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Final, cast

from bat_env.errors import unknown_name
from bat_env.metrics.base import Metric

_METRICS: Final[Mapping[str, str]] = {
    "seg_dice": "bat_env.metrics.seg:SegDice",
    "image_ssim": "bat_env.metrics.images:ImageSsim",
    "det_map": "bat_env.metrics.det:DetMap",
    "cls_balanced_accuracy": "bat_env.metrics.cls:ClsBalancedAccuracy",
    "vqa_accuracy": "bat_env.metrics.vqa:VqaAccuracy",
    "report_findings": "bat_env.metrics.report:ReportFindings",
}


def metric_names() -> tuple[str, ...]:
    """Names that ``metric.name`` of a task may have."""
    return tuple(_METRICS)


def load_metric(name: str) -> Metric:
    """The metric of that name.

    Raises:
        UnknownNameError: If there is none.
    """
    if name not in _METRICS:
        raise unknown_name("metric", name, _METRICS)
    module, _, attribute = _METRICS[name].partition(":")
    return cast(Metric, getattr(importlib.import_module(module), attribute)())
