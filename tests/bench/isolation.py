"""Cells and resets on warm sandboxes, against one container per cell and per episode."""

from __future__ import annotations

import docker
from measure import Row, median_s

from bat_env.errors import SandboxError
from bat_env.sandbox import make_sandbox
from bat_env.sandbox.base import Cell, Sandbox

FILES = {f"data/c{i}/ct.nii.gz": bytes([i]) * 40_000 for i in range(3)}


def _cell_s(sandbox: Sandbox) -> float:
    cell = Cell("python", "pass", 1)
    # A model thinks longer than this between two cells; the next spare is made meanwhile.
    return median_s(lambda: sandbox.run(cell), 30, pause_s=0.05)


def _reset_s(sandbox: Sandbox) -> float:
    return median_s(lambda: sandbox.reset(FILES), 15, pause_s=0.02)


def docker_rows() -> list[Row]:
    """Warm Docker against ``docker run`` per cell; reset against create and start."""
    try:
        client = docker.from_env()
        client.ping()
        sandbox = make_sandbox("docker")
        sandbox.start()
    except (docker.errors.DockerException, SandboxError) as error:
        print(f"docker is left out: {error}")
        return []
    try:
        sandbox.reset(FILES)
        cell, reset = _cell_s(sandbox), _reset_s(sandbox)
        image = sandbox.image  # type: ignore[attr-defined]
        options = {"network_mode": "none", "read_only": True, "mem_limit": "2g"}

        def run_one() -> None:
            client.containers.run(image, ["python3", "-c", "pass"], remove=True, **options)

        def create_start() -> None:
            container = client.containers.create(image, ["sleep", "60"], **options)
            container.start()
            started.append(container)

        started: list[docker.models.containers.Container] = []
        run_s = median_s(run_one, 5)
        start_s = median_s(create_start, 5)
        for container in started:
            container.remove(force=True)
    finally:
        sandbox.close()
    return [
        Row(
            "Python cell, warm Docker, against one docker run per cell",
            1e3 * cell,
            "ms",
            1e3 * run_s,
            run_s / cell,
            ">= 50x",
            run_s / cell >= 50,
        ),
        Row(
            "Reset, warm Docker, against creating and starting a container",
            1e3 * reset,
            "ms",
            1e3 * start_s,
            start_s / reset,
            ">= 8x",
            start_s / reset >= 8,
        ),
    ]


def local_rows() -> list[Row]:
    """The same cell and reset on the local backend (no promise, for comparison)."""
    sandbox = make_sandbox("local")
    try:
        sandbox.start()
        sandbox.reset(FILES)
        return [
            Row("Python cell, local namespaces", 1e3 * _cell_s(sandbox), "ms"),
            Row("Reset, local namespaces", 1e3 * _reset_s(sandbox), "ms"),
        ]
    finally:
        sandbox.close()
