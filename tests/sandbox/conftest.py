"""Sandboxes of every backend, one warm sandbox each for the whole session."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from bat_env.sandbox import Cell, CellResult, Limits, Sandbox, make_sandbox

LIMITS = Limits(
    cell_timeout_s=120.0,
    memory_mb=512,
    pids=32,
    workspace_mb=16,
    workspace_inodes=256,
    tmp_mb=8,
    output_bytes=4096,
)
DOCKER = pytest.param("docker", marks=pytest.mark.docker)


@pytest.fixture(scope="session")
def warm() -> Iterator[Callable[[str], Sandbox]]:
    """Backend name -> the session's sandbox of that backend."""
    made: dict[str, Sandbox] = {}

    def get(backend: str) -> Sandbox:
        # Some tests end the workers of this process, or kill them.
        if backend in made and not made[backend].ping(10.0):  # type: ignore[attr-defined]
            made.pop(backend).close()
        if backend not in made:
            made[backend] = make_sandbox(backend, LIMITS)
            made[backend].start()
        return made[backend]

    yield get
    for sandbox in made.values():
        sandbox.close()


@pytest.fixture(params=["local", "process", DOCKER])
def sandbox(request: pytest.FixtureRequest, warm: Callable[[str], Sandbox]) -> Sandbox:
    """A wiped sandbox of every backend."""
    box = warm(request.param)
    box.reset({})
    return box


@pytest.fixture(params=["local", DOCKER])
def walled(request: pytest.FixtureRequest, warm: Callable[[str], Sandbox]) -> Sandbox:
    """A wiped sandbox of every backend that isolates: the only place for hostile cells."""
    box = warm(request.param)
    assert box.backend != "process"
    box.reset({})
    return box


@pytest.fixture
def python() -> Callable[..., CellResult]:
    """Run a Python cell: ``python(sandbox, code)``."""

    def run(box: Sandbox, code: str, timeout_s: float = 20.0, seed: int = 1) -> CellResult:
        return box.run(Cell("python", code, seed), timeout_s)

    return run


@pytest.fixture
def bash() -> Callable[..., CellResult]:
    """Run a bash cell: ``bash(sandbox, code)``."""

    def run(box: Sandbox, code: str, timeout_s: float = 20.0) -> CellResult:
        return box.run(Cell("bash", code), timeout_s)

    return run
