"""A full disk ends a command in one line that names it, and leaves nothing half-written."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bat_env.bank import Bank
from bat_env.disk import is_full, named_if_full
from bat_env.errors import BankError, DiskFullError

# A mount namespace of its own: nobody else sees the small disk, and it goes with the process.
UNSHARE = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-U", "-r", "-m"]
SETUP = """
import os, subprocess, sys
folder, size, free, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], check=True)
with open(os.path.join(folder, "filler"), "wb", buffering=0) as stream:
    while True:
        try:
            stream.write(bytes(1 << 12))
        except OSError:
            break
    stream.truncate(max(0, stream.tell() - int(free)))
code = subprocess.run([sys.executable, "-m", *command]).returncode
print(*sorted(os.listdir(folder)), sep=",")
raise SystemExit(code)
"""


def on_full_disk(
    folder: Path, *command: str, free: int = 0, size: str = "2m"
) -> subprocess.CompletedProcess[str]:
    probe = subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)],
        capture_output=True,
        check=False,
    )
    if shutil.which("unshare") is None or probe.returncode:
        pytest.skip("no mount namespace for this user")
    return subprocess.run(
        [*UNSHARE, sys.executable, "-c", SETUP, str(folder), size, str(free), *command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "full").mkdir()
    return tmp_path / "full"


@pytest.mark.parametrize(
    ("command", "free"),
    [
        ("bat_agent.cli demo --quiet --backend local --out {}/run", 8192),
        ("bat_env.cli bank build --backend local --path {}/bank", 0),
        ("bat_env.cli bank build --backend local --path {}/bank", 65536),
    ],
)
def test_a_full_disk_is_one_line(command: str, free: int, folder: Path) -> None:
    done = on_full_disk(folder, *command.format(folder).split(), free=free)
    lines = [x for x in done.stderr.splitlines() if x.startswith("error: ")]
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert len(lines) == 1 and f"The disk that holds {folder}" in lines[0], done.stderr
    assert lines[0].endswith("is full; free space there and run the same command again.")
    assert "tmp" not in done.stdout.splitlines()[-1]


def test_an_error_without_a_number_is_explained_by_the_disk(folder: Path) -> None:
    with pytest.raises(DiskFullError, match="holds x is full"), named_if_full("x"):
        try:
            raise OSError(errno.ENOSPC, "No space left on device")
        except OSError as error:
            raise BankError("Cannot store a blob.") from error
    assert is_full(RuntimeError("I/O error: No space left on device (os error 28)"))
    assert not is_full(sqlite3.OperationalError("disk I/O error"), folder)
    with pytest.raises(KeyError), named_if_full(folder):
        raise KeyError("other errors pass")


def test_a_bank_that_could_not_be_made_is_no_bank(folder: Path) -> None:
    (folder / "index.sqlite").touch()
    with pytest.raises(BankError, match="bat-env bank build"):
        Bank.open(folder)
    Bank.open(folder, create=True).close()
    Bank.open(folder).close()
