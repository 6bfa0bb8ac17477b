"""Hostile cells against the backends that isolate. None of these may ever run without walls."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bat_env.sandbox import CellResult, Sandbox
from bat_env.sandbox.check import check_sandbox

Run = Callable[..., CellResult]


@pytest.mark.parametrize("backend", ["local", pytest.param("docker", marks=pytest.mark.docker)])
def test_self_check_holds(backend: str) -> None:
    report = check_sandbox(backend, preload=("numpy",))
    assert report.ok, str(report)
    assert len(report.rows) >= 25


def test_self_check_is_honest_about_plain_processes() -> None:
    report = check_sandbox("process")
    rows = {row.name: row for row in report.rows}
    assert not report.ok
    assert rows["python cells run"].holds and rows["daemons die with the cell"].holds
    # What could hurt the machine is not even tried there.
    for name in ("survives kill -9 -1", "root read-only", "cannot read other processes"):
        assert rows[name].detail.startswith("not tried")


def test_a_cell_cannot_forge_its_result(walled: Sandbox, python: Run) -> None:
    code = (
        "import os\n"
        "for fd in range(3, 1024):\n"
        "    try: os.write(fd, b'\\0' * 64)\n"
        "    except OSError: pass\n"
        'os.write(1, b\'\\0\\0\\0\\x20\\0\\0\\0\\x10{"id":1,"ok":true}\')\n'
        "os._exit(9)"
    )
    assert python(walled, code).exit_code == 9
    assert python(walled, "print('up')").stdout == "up\n"


def test_fork_bomb(walled: Sandbox, bash: Run, python: Run) -> None:
    code = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    # How long the verdict takes hangs on what else the machine does; that it comes does not.
    seen = python(walled, code, 100.0)
    assert seen.limit == "pids"
    bash(walled, "f() { f | f & }; f; sleep 1")
    assert python(walled, "print('up')").stdout == "up\n"


def test_killing_everything_kills_only_the_cell(walled: Sandbox, bash: Run, python: Run) -> None:
    bash(walled, "kill -9 -1")
    bash(walled, "kill -9 1 2 3 4 5; kill -STOP -1")
    assert python(walled, "print('up')").stdout == "up\n"


def test_output_flood_does_not_hurt(walled: Sandbox, bash: Run) -> None:
    seen = bash(walled, "yes")
    assert seen.limit == "output" and len(seen.stdout) <= 4096 and seen.wall_s < 15


def test_sparse_files_are_not_read(walled: Sandbox, bash: Run) -> None:
    seen = bash(walled, "for i in $(seq 40); do truncate -s 16M s$i; done; truncate -s 1T huge")
    assert seen.limit == "disk"
    kinds = [entry.kind for entry in walled.manifest().values()]
    assert kinds.count("unread") >= 39
    assert sum(map(len, walled.snapshot().values())) <= 16 << 20


def test_hostile_trees_are_listed_and_wiped(walled: Sandbox, python: Run) -> None:
    code = (
        "import os\n"
        "open(b'/workspace/\\xff\\n', 'w').close()\n"
        "os.mkdir('locked'); open('locked/f', 'w').close(); os.chmod('locked', 0)\n"
        "open('unreadable', 'w').close(); os.chmod('unreadable', 0)\n"
        "for _ in range(100):\n"
        "    os.mkdir('d' * 200); os.chdir('d' * 200)\n"
    )
    seen = python(walled, code)
    assert seen.exit_code == 0, seen.stderr
    assert {"\\xff\n", "locked", "locked/f", "unreadable"} <= set(walled.manifest())
    assert "unreadable" in walled.snapshot()
    walled.reset({})
    assert walled.manifest() == {}
    assert python(walled, "import os; print(os.listdir('.'))").stdout == "[]\n"


def test_inputs_cannot_be_changed(walled: Sandbox, bash: Run) -> None:
    walled.reset({"data/a/b": b"1", "models/m": b"2"})
    seen = bash(walled, "echo x > /data/a/b; touch /data/new; mv /data/a /tmp; rm /models/m; true")
    assert seen.ok
    assert bash(walled, "cat /data/a/b /models/m; ls /data").stdout == "12a\n"


def test_sessions_do_not_see_each_other(walled: Sandbox, bash: Run) -> None:
    from bat_env.sandbox import make_sandbox

    bash(walled, "echo secret > /workspace/s; echo secret > /tmp/s; echo secret > /dev/shm/s")
    other = make_sandbox(walled.backend, walled.limits, preload=())
    try:
        other.reset({})
        seen = bash(
            other, "ls -A /workspace /tmp /dev/shm; grep -rs secret /workspace /tmp /dev/shm"
        )
        assert "s\n" not in seen.stdout.splitlines() and "secret" not in seen.stdout
    finally:
        other.close()


def test_system_v_ipc_cannot_carry_over(walled: Sandbox, python: Run) -> None:
    code = "import ctypes; print(ctypes.CDLL(None).shmget(1234, 4096, 0o1666))"
    assert python(walled, code).stdout == "-1\n"
