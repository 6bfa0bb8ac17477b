"""The report of a run: one self-contained HTML page."""

from __future__ import annotations

from bat_agent.report.page import REPORT_NAME, write_report

__all__ = ["REPORT_NAME", "write_report"]
