"""The conformance suite: our backends pass it, so does a third party's, and broken ones do not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bat_env.errors import ConfigError
from bat_env.sandbox import Limits, Sandbox, backend_names, make_sandbox, resolve_backend
from bat_env.testing import SandboxCase, sandbox_cases, sandbox_conformance
from bat_env.testing_sandbox import CASE_LIMITS

DOCKER = pytest.param("docker", marks=pytest.mark.docker)
BROKEN = {
    "limits": "is a Sandbox",
    "restart": "start is idempotent",
    "undead": "close is final and idempotent",
    "forgets": "reset lays files",
    "anywhere": "reset refuses other places",
    "keeps": "reset wipes",
    "amnesia": "state lives in files",
    "deltas": "delta",
    "unsorted": "manifest",
    "greedy": "read is bounded and follows no link",
    "torn": "snapshot",
    "exits": "results of cells",
    "stale": "every cell is a fresh process",
    "seeds": "cells are seeded",
    "polyglot": "cells that cannot run",
    "text": "output is text",
    "cuts": "output is clipped",
    "timeout": "limit: wall time",
    "memory": "limit: memory",
    "pids": "limit: processes",
    "disk": "limit: disk",
    "daemons": "processes end with their cell",
    "shared": "two sandboxes are two",
}


@pytest.fixture(scope="module", params=["local", "process", DOCKER])
def own(request: pytest.FixtureRequest) -> Iterator[tuple[str, Sandbox]]:
    box = make_sandbox(request.param, CASE_LIMITS, preload=())
    box.start()
    yield request.param, box
    box.close()


@pytest.mark.parametrize("case", sandbox_cases(), ids=str)
def test_our_backends_pass(case: SandboxCase, own: tuple[str, Sandbox]) -> None:
    backend, box = own
    case.run(lambda limits: make_sandbox(backend, limits, preload=()), box)


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """An installed package with a backend of its own."""
    source = Path(__file__).parent / "acme" / "acme_sandbox.py"
    (tmp_path / "acme_sandbox.py").write_bytes(source.read_bytes())
    info = tmp_path / "acme_sandbox-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-sandbox\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[bat_env.sandboxes]\nacme = acme_sandbox:AcmeSandbox\nbroken = no_such_package:Box\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import acme_sandbox  # type: ignore[import-not-found]

    yield acme_sandbox.AcmeSandbox
    sys.modules.pop("acme_sandbox")


def test_a_backend_of_a_third_party_passes(acme: Any) -> None:
    assert "acme" in backend_names() and resolve_backend("ACME") == "acme"
    assert isinstance(make_sandbox("acme"), acme)
    report = sandbox_conformance("acme")
    assert report.ok, report
    assert [row.name for row in report.rows] == [case.name for case in sandbox_cases()]
    assert sandbox_conformance(acme).backend == "AcmeSandbox"


@pytest.mark.parametrize(("fault", "name"), BROKEN.items())
def test_a_broken_backend_fails(
    acme: Any, fault: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(case for case in sandbox_cases() if case.name == name)
    case.run(acme)
    monkeypatch.setattr(acme, "fault", fault)
    with pytest.raises(AssertionError, match=r"\w{3}"):
        case.run(acme)
    if acme.shared is not None:
        acme.shared.close()


def test_every_case_can_fail() -> None:
    assert sorted(BROKEN.values()) == sorted(case.name for case in sandbox_cases())


def test_a_report_of_a_broken_backend_goes_on(acme: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acme, "fault", "exits")
    report = sandbox_conformance(acme)
    assert not report.ok and len(report.rows) == len(sandbox_cases())
    assert "expected" in report.failures()[0].detail
    with pytest.raises(ConfigError, match="Name the backend"):
        sandbox_conformance("auto")


def test_limits_reach_a_third_party(acme: Any) -> None:
    assert make_sandbox("acme", Limits(pids=7)).limits.pids == 7
