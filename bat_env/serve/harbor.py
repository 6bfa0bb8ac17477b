"""Harbor: held-out instances as Harbor task folders, graded by our grader in its own container.

Harbor sees a workspace when the agent has finished, not how it came about: the reward is the Task
score of the outputs. What our rubric reads off the work itself (S1-S3) needs the environment.

The truth lies under ``tests/`` alone. That folder builds the verifier's own container, which gets
the agent's ``/workspace`` as an artifact; the agent's container never holds it.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bat_env.errors import ConfigError
from bat_env.stages import Stage
from bat_env.tasks import Suite, SuiteEntry, Task, load_suite, load_task, render_brief
from bat_env.tasks.instance import Instance
from bat_env.tasks.staging import stage_files

SCHEMA_VERSION: Final = "1.4"
"""Of Harbor's task.toml."""

TEMPLATES: Final = Path(__file__).with_name("harbor_files")
PLAIN_IMAGE: Final = "python:3.11-slim"

GRADER_NEEDS: Final = (
    "gymnasium",
    "nibabel",
    "numpy",
    "pillow",
    "pydantic",
    "scikit-image",
    "scikit-learn",
    "scipy",
)
CELLS_NEED: Final = (*GRADER_NEEDS[1:4], "matplotlib", "monai", *GRADER_NEEDS[5:], "simpleitk")
"""What cells may import besides torch, at the versions that are installed here."""

_LOADED: Final = """
import sys
from bat_env.grader import Grader, operations, server
operations.warm()
for name, module in sorted(sys.modules.items()):
    if name.split(".")[0] == "bat_env":
        print(module.__file__)
"""

_FOREWORD: Final = """\
You have a shell in a container. What this text calls `execute_code` is a command of that shell, run
in `/workspace`; `submit_results` is to stop. Only the files in `/workspace` are looked at.

"""


def export_harbor(
    suite: str | Suite, out: str | Path, *, tier: str = "lite", image: str | None = None
) -> list[Path]:
    """Write the instances of a suite as Harbor task folders.

    Args:
        suite: A frozen suite, or its name.
        out: Folder that gets one folder for each instance; must be new or empty.
        tier: Of the briefs.
        image: Docker image of the agent's container with the packages that cells need;
            ``None`` builds one from :data:`PLAIN_IMAGE`.

    Returns:
        The task folders, in the order of the suite.

    Raises:
        ConfigError: If ``out`` holds files.
        UnknownNameError: If there is no such suite, or a task has no such tier.
        TaskError: If an instance is no longer what was frozen.
    """
    frozen = load_suite(suite) if isinstance(suite, str) else suite
    target = Path(out)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"Expected a new or empty folder, {target} is none. Give another --out.")
    target.mkdir(parents=True, exist_ok=True)
    sources = _grader_sources()
    made, seen = [], Counter[str]()
    for entry in frozen.entries:
        task = load_task(entry.task)
        seen[task.id] += 1
        name = f"{task.id.replace('/', '-').replace('_', '-')}-{seen[task.id]}"
        # A folder is there as a whole, or not at all.
        draft = Path(tempfile.mkdtemp(prefix=".harbor-", dir=target))
        try:
            files = _folder(name, frozen, entry, task, tier, image)
            for path, data in {**files, **sources}.items():
                _write(draft / path, data)
            draft.chmod(0o755)
            draft.replace(target / name)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        made.append(target / name)
    return made


def _folder(
    name: str, suite: Suite, entry: SuiteEntry, task: Task, tier: str, image: str | None
) -> dict[str, bytes]:
    instance = entry.instance(task)
    brief = render_brief(task, instance, tier=tier, focus=Stage.E2E)
    staged = stage_files(task, instance, tier, Stage.E2E)
    files = {
        "task.toml": _config(name, suite, task, tier).encode(),
        "instruction.md": (_FOREWORD + brief + "\n").encode(),
        **{f"environment/files/{path}": data for path, data in staged.items()},
        "environment/Dockerfile": _dockerfile("environment", image or PLAIN_IMAGE, image is None),
        "tests/Dockerfile": _dockerfile("tests", PLAIN_IMAGE, True),
        "tests/requirements.txt": _pins(GRADER_NEEDS),
        **{f"tests/{name}": (TEMPLATES / name).read_bytes() for name in ("test.sh", "grade.py")},
        **{f"tests/truth/{path}": data for path, data in _truth(task, instance).items()},
        "solution/solve.sh": (TEMPLATES / "solve.sh").read_bytes(),
        **dict(_solution(task, tier)),
    }
    if image is None:
        files["environment/requirements.txt"] = _pins((*CELLS_NEED, "torch"))
    return files


def _config(name: str, suite: Suite, task: Task, tier: str) -> str:
    """The task.toml; JSON strings are TOML strings."""
    spec, budgets = task.spec, task.spec.budgets
    sections: dict[str, Mapping[str, Any]] = {
        "task": {"name": f"automed-bat/{name}", "description": spec.title},
        "metadata": {
            "track": spec.track,
            "task": task.id,
            "tier": tier,
            "suite": suite.name,
            "note": "Synthetic data. Not for clinical use.",
        },
        "agent": {"timeout_sec": budgets.calls * budgets.cell_timeout_s},
        "verifier": {"timeout_sec": 900.0, "environment_mode": "separate"},
        "environment": {
            "build_timeout_sec": 3600.0,
            "cpus": 2,
            "memory_mb": max(4096, spec.limits.memory_mb),
            "workdir": "/workspace",
        },
    }
    lines = [f'schema_version = "{SCHEMA_VERSION}"', 'artifacts = ["/workspace"]']
    for section, values in sections.items():
        lines += ["", f"[{section}]"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _dockerfile(kind: str, base: str, install: bool) -> bytes:
    lines = [f"FROM {base}"]
    if install:
        lines += [
            "COPY requirements.txt /requirements.txt",
            "RUN pip install --no-cache-dir -r /requirements.txt",
        ]
    if kind == "tests":
        lines += ["COPY . /tests"]
    else:
        lines += ["USER root", "COPY files/ /", "RUN chmod -R a+rX /data /models /skills"]
        lines += ["WORKDIR /workspace"]
    return ("\n".join(lines) + "\n").encode()


def _pins(names: tuple[str, ...]) -> bytes:
    pins = []
    for name in names:
        try:
            pins.append(f"{name}=={importlib.metadata.version(name).partition('+')[0]}\n")
        except importlib.metadata.PackageNotFoundError:
            pins.append(f"{name}\n")
    return "".join(pins).encode()


def _truth(task: Task, instance: Instance) -> dict[str, bytes]:
    """Everything that the grader needs, and nothing that it does not."""
    head = {
        "schema_version": 1,
        "spec": task.spec.model_dump(mode="json"),
        "cases": list(instance.cases),
        "facts": instance.facts,
    }
    return {
        "instance.json": json.dumps(head, sort_keys=True).encode(),
        **{f"private/{path}": data for path, data in instance.private.items()},
        **{f"public/{path}": data for path, data in instance.public.items()},
    }


def _solution(task: Task, tier: str) -> Iterator[tuple[str, bytes]]:
    for number, cell in enumerate(task.script(tier=tier)):
        suffix = "py" if cell.language == "python" else "sh"
        yield f"solution/cells/{number:02d}.{suffix}", cell.code.encode() + b"\n"


def _grader_sources() -> dict[str, bytes]:
    """The modules that grading loads, found out by loading them."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True, cwd=root
    )
    paths = [Path(line).resolve() for line in done.stdout.split("\n") if line]
    return {f"tests/{path.relative_to(root).as_posix()}": path.read_bytes() for path in paths}


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    if path.suffix == ".sh":
        path.chmod(0o755)
