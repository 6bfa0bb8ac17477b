"""Grades a workspace with the truth beside this file: ``grade.py WORKSPACE REWARD_FILE``.

The agent's files are read as regular files inside the workspace, up to a size, and parsed only in
the grader's confined process.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from bat_env.grader import Grader  # noqa: E402
from bat_env.tasks.instance import Instance  # noqa: E402
from bat_env.tasks.spec import TaskSpec  # noqa: E402

MAX_BYTES = 64 << 20


def tree(folder: Path) -> dict[str, bytes]:
    """Path -> bytes of every file below ``folder``."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def read(root: Path, relative: str) -> bytes | None:
    """A regular file below ``root`` that no link leads to, or ``None``."""
    path = root.resolve() / relative
    if path.parent.resolve() != path.parent:
        return None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode) or info.st_size > MAX_BYTES:
            return None
        return file.read(MAX_BYTES)


def main() -> None:
    """Grade, and write the reward as a whole."""
    workspace, reward_file = Path(sys.argv[1]), Path(sys.argv[2])
    head = json.loads((HERE / "truth" / "instance.json").read_text("utf-8"))
    spec = TaskSpec.model_validate(head["spec"])
    instance = Instance(
        cases=tuple(head["cases"]),
        public=tree(HERE / "truth" / "public"),
        private=tree(HERE / "truth" / "private"),
        facts=head["facts"],
        probe_case="",
        probe_public={},
        probe_private={},
    )
    paths = {spec.output.path.format(case=case) for case in instance.cases}
    found = {path: read(workspace, path) for path in paths}
    files = {path: data for path, data in found.items() if data is not None}
    grade = Grader().grade(SimpleNamespace(spec=spec), instance, files)
    valid = sum(grade.valid.values()) / len(instance.cases)
    reward_file.parent.mkdir(parents=True, exist_ok=True)
    draft = reward_file.with_name(reward_file.name + ".draft")
    draft.write_text(json.dumps({"reward": grade.score, "valid_outputs": valid}))
    draft.replace(reward_file)


if __name__ == "__main__":
    main()
