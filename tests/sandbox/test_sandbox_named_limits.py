"""The limit that a cell met is named, also where the cell ends well."""

from __future__ import annotations

import collections
import io
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from bat_env.sandbox import make_sandbox
from bat_env.sandbox.base import Cell, Sandbox
from bat_env.sandbox.embedded import _Pipes

FILL = """
with open({path!r}, "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(1 << 20))
    except OSError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    sandbox = make_sandbox("local")
    sandbox.start()
    yield sandbox
    sandbox.close()


@pytest.mark.parametrize("path", ["/tmp/x", "/dev/shm/x", "/workspace/x"])
def test_a_full_place_is_named_once(box: Sandbox, path: str) -> None:
    box.reset({})
    filled = box.run(Cell("python", FILL.format(path=path)))
    assert (filled.exit_code, filled.limit) == (0, "disk"), filled
    after = box.run(Cell("bash", "echo fine"))
    assert (after.stdout, after.limit) == ("fine\n", None)


def test_a_shell_that_cannot_fork_is_named(box: Sandbox) -> None:
    box.reset({})
    result = box.run(Cell("bash", ":(){ :|:& };:"), 20)
    assert result.limit == "pids", result


def test_a_program_that_could_not_fork_is_named(box: Sandbox) -> None:
    box.reset({})
    code = (
        "import os, time\n"
        "try:\n"
        "    while True:\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(30)\n"
        "            os._exit(0)\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
    )
    result = box.run(Cell("python", code), 30)
    assert (result.stdout, result.limit) == ("11\n", "pids"), result
    assert box.run(Cell("bash", "sleep 0.2; echo fine")).limit is None


def test_the_streams_of_a_cell_are_fresh_text_streams(box: Sandbox) -> None:
    box.reset({})
    code = (
        "import sys\n"
        "print(sys.stdout.name, sys.stdout.encoding, sys.stdout.line_buffering)\n"
        "print(sys.stderr.name, sys.stderr.encoding, file=sys.stderr)\n"
        "sys.stdout.reconfigure(line_buffering=True, errors='replace')\n"
        "sys.stderr.reconfigure(errors='replace')\n"
        "print(sys.stdout is sys.__stdout__, sys.stdout.fileno())\n"
    )
    result = box.run(Cell("python", code))
    assert result.ok, result.stderr
    assert result.stdout == "<stdout> utf-8 False\nTrue 1\n"
    assert result.stderr == "<stderr> utf-8\n"


def test_missing_fonts_are_no_cause_of_death() -> None:
    said = b"Fontconfig error: Cannot load default config file\nKilled: out of memory\n"
    pipes: Any = object.__new__(_Pipes)
    pipes._process = types.SimpleNamespace(stderr=io.BytesIO(said))
    pipes._said = collections.deque(maxlen=32)
    pipes._listener = threading.Thread(target=pipes._listen)
    pipes._listener.start()
    assert pipes.obituary() == "Killed: out of memory"
