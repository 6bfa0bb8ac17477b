"""One scene and one warm sandbox of each backend for all attacks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scene import Scene

from bat_env.errors import SandboxError
from bat_env.sandbox import Limits, Sandbox, make_sandbox

LIMITS = Limits(
    cell_timeout_s=30.0,
    memory_mb=256,
    pids=24,
    workspace_mb=16,
    workspace_inodes=512,
    tmp_mb=8,
    output_bytes=8192,
)


@pytest.fixture(scope="session")
def scene() -> Iterator[Scene]:
    """The host's secret, sockets and process."""
    made = Scene()
    yield made
    made.close()


@pytest.fixture(scope="session")
def hostile_box() -> Iterator[Callable[[str], Sandbox]]:
    """Backend name -> its sandbox; a new one where an attack broke the last."""
    made: dict[str, Sandbox] = {}

    def get(backend: str) -> Sandbox:
        assert backend != "process", "hostile cells never run without walls"
        box = made.get(backend)
        if box is not None:
            try:
                box.reset({})
            except SandboxError:
                box.close()
                box = None
        if box is None:
            box = made[backend] = make_sandbox(backend, LIMITS, preload=("numpy",))
            box.start()
        return box

    yield get
    for box in made.values():
        box.close()
