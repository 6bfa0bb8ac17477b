"""What `bat-env sandbox check` says about promises that do not hold."""

from __future__ import annotations

import json

from bat_env.sandbox.check import CheckReport, CheckRow
from bat_env.sandbox.exceptions import known_exceptions
from bat_env.sandbox.probes import CHECKS, NEED_WALLS


def test_the_report_prints_rows_and_exceptions_with_their_reasons() -> None:
    known = known_exceptions("local")
    report = CheckReport("local", (CheckRow("root read-only", False, "writable: /"),), known)
    text = " ".join(str(report).split())
    assert "FAILS root read-only writable: /" in text
    for row in known:
        assert row.promise in text and " ".join(row.reason.split()) in text
    assert not report.ok and [row.name for row in report.failures()] == ["root read-only"]
    table = json.loads(json.dumps(report.as_dict()))
    assert [row["attack"] for row in table["exceptions"]] == [row.attack for row in known]


def test_exceptions_do_not_fail_the_check() -> None:
    report = CheckReport("local", (CheckRow("x", True, ""),), known_exceptions("local"))
    assert report.ok and known_exceptions("local")
    assert known_exceptions("docker") == () and known_exceptions("third-party") == ()


def test_every_probe_that_needs_walls_exists() -> None:
    assert set(CHECKS) >= NEED_WALLS and len(CHECKS) >= 25
