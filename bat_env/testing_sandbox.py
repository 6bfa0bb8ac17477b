"""The suite that a sandbox backend must pass: what every implementation of ``Sandbox`` promises.

These are the promises to the environment: files, cells, results, limits, endings. What a backend
keeps hostile code from is another matter: ``bat-env sandbox check`` looks at that.

Under pytest, in the package of a backend::

    @pytest.mark.parametrize("case", sandbox_cases(), ids=str)
    def test_my_backend(case):
        case.run(lambda limits: MySandbox(limits))
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from bat_env.errors import SandboxError
from bat_env.sandbox.base import Cell, CellResult, Delta, FileEntry, Limits, Sandbox

Make: TypeAlias = Callable[[Limits], Sandbox]
"""Makes a sandbox that is not started yet."""

CASE_LIMITS: Final = Limits(
    cell_timeout_s=30.0,
    memory_mb=512,
    pids=32,
    workspace_mb=16,
    workspace_inodes=256,
    tmp_mb=8,
    output_bytes=4096,
)


@dataclass(frozen=True)
class SandboxCase:
    """One promise.

    Attributes:
        name: What it is about; the id of a parametrised test.
        check: Raises ``AssertionError`` if the promise is broken. Gets an empty, started sandbox.
        alone: Whether the check ends its sandbox or leaves it unusable.
    """

    name: str
    check: Callable[[Sandbox, Make], None]
    alone: bool = False

    def __str__(self) -> str:
        return self.name

    def run(self, make: Make, sandbox: Sandbox | None = None) -> None:
        """Check it.

        Args:
            make: The backend.
            sandbox: A started one to reuse (after a reset); made and closed here if omitted.

        Raises:
            AssertionError: Says what was expected and what came.
        """
        if sandbox is not None and not self.alone:
            sandbox.reset({})
            self.check(sandbox, make)
            return
        with _made(make) as own:
            self.check(own, make)


@contextlib.contextmanager
def _made(make: Make) -> Iterator[Sandbox]:
    sandbox = make(CASE_LIMITS)
    try:
        sandbox.start()
        sandbox.reset({})
        yield sandbox
    finally:
        sandbox.close()


def _equal(what: str, came: Any, expected: Any) -> None:
    assert came == expected, f"{what}: expected {expected!r}, got {came!r}"


def _refused(what: str, error: type[Exception], call: Callable[[], object]) -> None:
    try:
        came = call()
    except error:
        return
    except Exception as other:
        raise AssertionError(
            f"{what}: expected {error.__name__}, got {type(other).__name__}: {other}"
        ) from other
    raise AssertionError(f"{what}: expected {error.__name__}, got the result {came!r}")


def _python(sandbox: Sandbox, code: str, timeout_s: float = 20.0, seed: int = 1) -> CellResult:
    return sandbox.run(Cell("python", code, seed), timeout_s)


def _bash(sandbox: Sandbox, code: str, timeout_s: float = 20.0) -> CellResult:
    return sandbox.run(Cell("bash", code), timeout_s)


def _file(data: bytes) -> FileEntry:
    return FileEntry("file", len(data), hashlib.sha256(data).hexdigest())


# ------------------------------------------------------------------------------------ beginnings


def _protocol(sandbox: Sandbox, make: Make) -> None:
    assert isinstance(sandbox, Sandbox), f"{sandbox!r} lacks a method or attribute of Sandbox"
    assert isinstance(sandbox.backend, str) and sandbox.backend, "backend must be a name"
    _equal("limits", sandbox.limits, CASE_LIMITS)


def _start(sandbox: Sandbox, make: Make) -> None:
    _bash(sandbox, "echo x > kept")
    sandbox.start()
    _equal("files after a second start()", list(sandbox.manifest()), ["kept"])


def _close(sandbox: Sandbox, make: Make) -> None:
    sandbox.close()
    sandbox.close()
    _refused("run() after close()", SandboxError, lambda: _python(sandbox, "pass"))
    _refused("reset() after close()", SandboxError, lambda: sandbox.reset({}))
    make(CASE_LIMITS).close()  # one that was never started


# ----------------------------------------------------------------------------------------- files

_LAID: Final = {
    "data/c1/ct.bin": bytes(range(256)) * 20_000,
    "data/empty": b"",
    "models/m/metadata.json": b"{}",
    "skills/s.md": b"# skill\n",
    "workspace/a/b/c.txt": b"deep",
    "workspace/\u00fcn \u00ef.txt": b"name",
}


def _reset_lays(sandbox: Sandbox, make: Make) -> None:
    sandbox.reset(_LAID)
    code = (
        # Whole paths in the text: a backend may translate them there.
        f"import hashlib\nfor p in {['/' + path for path in sorted(_LAID)]!r}:\n"
        "    print(hashlib.sha256(open(p, 'rb').read()).hexdigest())"
    )
    seen = _python(sandbox, code)
    expected = [hashlib.sha256(_LAID[path]).hexdigest() for path in sorted(_LAID)]
    _equal("digests of the files inside", seen.stdout.split(), expected)
    wrote = _python(sandbox, "open('/workspace/a/b/c.txt', 'a').write('!')")
    assert wrote.ok, f"laid workspace files must be the agent's to change: {wrote.stderr!r}"


def _reset_refuses(sandbox: Sandbox, make: Make) -> None:
    for path in ("etc/passwd", "data", "/data/x", "data/../x", "data//x", "workspace/./x"):
        _refused(f"reset({path!r})", ValueError, partial(sandbox.reset, {path: b""}))
    sandbox.reset({"data/x": b"1"})
    _equal("a cell after refused resets", _bash(sandbox, "cat /data/x").stdout, "1")


_PLACES: Final = """\
import os, subprocess, tempfile
places = {"/workspace", os.getcwd(), tempfile.gettempdir(), os.path.expanduser("~")}
"""
_CANARY: Final = """\
for place in places:
    for name in ("canary", ".canary"): open(f"{place}/{name}", "w").write("left")
"""
_FIND: Final = """\
for place in places | {"/data", "/models", "/skills"}:
    for name in ("canary", ".canary", "old"):
        if os.path.lexists(f"{place}/{name}"): print(f"{place}/{name}")
print(os.listdir("/data"))
"""


def _reset_wipes(sandbox: Sandbox, make: Make) -> None:
    places = ("data", "models", "skills", "workspace")
    sandbox.reset({f"{place}/old": b"old" for place in places})
    planted = _python(sandbox, _PLACES + _CANARY)
    assert planted.ok, f"the agent's places must be writable: {planted.stderr!r}"
    sandbox.reset({"data/new": b"new"})
    _equal("manifest after a reset", dict(sandbox.manifest()), {})
    _equal("left after a reset", _python(sandbox, _PLACES + _FIND).stdout, "['new']\n")


def _state_in_files(sandbox: Sandbox, make: Make) -> None:
    _python(sandbox, "open('n', 'w').write('7')")
    _equal("what the next cell reads", _bash(sandbox, "cat /workspace/n").stdout, "7")
    _equal("what the host reads", sandbox.read("n", 10), b"7")


def _delta(sandbox: Sandbox, make: Make) -> None:
    sandbox.reset({"workspace/a": b"1", "workspace/b": b"2", "workspace/c": b"3"})
    seen = _bash(
        sandbox, "printf 9 > a; rm b; mkdir d; printf x > d/e; ln -s /etc/passwd l; mkfifo p"
    ).delta
    created = {
        "d": FileEntry("dir"),
        "d/e": _file(b"x"),
        "l": FileEntry("symlink"),
        "p": FileEntry("special"),
    }
    _equal("created", dict(seen.created), created)
    _equal("changed", dict(seen.changed), {"a": _file(b"9")})
    _equal("deleted", tuple(seen.deleted), ("b",))
    _equal("delta of a cell that only reads", _bash(sandbox, "cat a").delta, Delta())
    same_size = _python(sandbox, "open('c', 'w').write('4')").delta.changed
    _equal("a change of equal size", dict(same_size), {"c": _file(b"4")})


def _manifest(sandbox: Sandbox, make: Make) -> None:
    sandbox.reset({"workspace/z/y": b"zy", "workspace/a": b"", "data/d": b"d"})
    expected = {"a": _file(b""), "z": FileEntry("dir"), "z/y": _file(b"zy")}
    _equal("manifest", list(sandbox.manifest().items()), list(expected.items()))
    _bash(sandbox, "rm -r /workspace/* ; touch q")
    _equal("manifest after a cell", dict(sandbox.manifest()), {"q": _file(b"")})


def _read(sandbox: Sandbox, make: Make) -> None:
    sandbox.reset({"workspace/a/b": b"12345", "data/x": b"x"})
    _bash(sandbox, "ln -s b a/l; ln -s a d; ln -s /etc e; mkfifo p; ln a/b hard")
    _equal("read at exactly max_bytes", sandbox.read("a/b", 5), b"12345")
    for path in ("none", "a/none", "a/b/c"):
        _refused(f"read({path!r})", FileNotFoundError, partial(sandbox.read, path, 9))
    for path in ("a", "a/l", "d/b", "e/passwd", "p", "../data/x", "/etc/passwd", "", "a//b"):
        _refused(f"read({path!r})", ValueError, partial(sandbox.read, path, 9))
    _refused("read of more than max_bytes", ValueError, lambda: sandbox.read("a/b", 4))


def _snapshot(sandbox: Sandbox, make: Make) -> None:
    tree = {"workspace/b": b"\xff\x00" * 3_000_000, "workspace/a/c": b"c", "data/d": b"d"}
    sandbox.reset(tree)
    _bash(sandbox, "ln -s a/c l; mkfifo p; mkdir empty")
    seen = sandbox.snapshot()
    _equal("paths of the snapshot", list(seen), ["a/c", "b"])
    assert seen["b"] == tree["workspace/b"] and seen["a/c"] == b"c", "contents must be equal"


# ----------------------------------------------------------------------------------------- cells


def _results(sandbox: Sandbox, make: Make) -> None:
    seen = _python(sandbox, "import sys; print('o'); print('e', file=sys.stderr); sys.exit(3)")
    came = (seen.stdout, seen.stderr, seen.exit_code, seen.limit, seen.ok)
    _equal("a cell's result", came, ("o\n", "e\n", 3, None, False))
    _equal("bash", (_bash(sandbox, "pwd; exit 4").exit_code), 4)
    _equal("working directory", _bash(sandbox, "pwd").stdout, "/workspace\n")
    signalled = _python(sandbox, "import os; os.kill(os.getpid(), 9)")
    _equal("exit code of signal 9", signalled.exit_code, 137)
    error = _python(sandbox, "1 / 0")
    assert error.exit_code == 1 and "ZeroDivisionError" in error.stderr, "a traceback on stderr"


def _fresh_process(sandbox: Sandbox, make: Make) -> None:
    _python(sandbox, "import builtins, os; builtins.leak = 1; os.environ['LEAK'] = '1'; leaked = 1")
    code = (
        "import builtins, os\n"
        "print(hasattr(builtins, 'leak'), 'LEAK' in os.environ, 'leaked' in globals(), __name__)"
    )
    _equal("left of an earlier cell", _python(sandbox, code).stdout, "False False False __main__\n")


def _seeds(sandbox: Sandbox, make: Make) -> None:
    code = "import random; print(random.random(), hash('bat'))"
    one, again, other = (_python(sandbox, code, seed=seed).stdout for seed in (5, 5, 6))
    assert one == again, f"equal seeds must give equal results: {one!r}, {again!r}"
    assert one != other, f"another seed must give another result: {one!r}"


def _bad_cells(sandbox: Sandbox, make: Make) -> None:
    _refused("language 'perl'", ValueError, lambda: sandbox.run(Cell("perl", "1")))  # type: ignore[arg-type]
    _refused("code with NUL", ValueError, lambda: sandbox.run(Cell("python", "a\0")))
    assert _python(sandbox, "syntax error").exit_code != 0, "a syntax error is a failed cell"
    assert _python(sandbox, "").ok, "an empty cell runs"


def _text(sandbox: Sandbox, make: Make) -> None:
    seen = _python(sandbox, "import sys; sys.stdout.buffer.write(b'a\\xffb\\0'); print('\u00fc')")
    _equal("bytes that are not UTF-8", seen.stdout, "a\ufffdb\0\u00fc\n")
    assert _python(sandbox, "# \ud800\nprint(1)").limit is None, "an unpaired surrogate in code"


def _output(sandbox: Sandbox, make: Make) -> None:
    seen = _python(sandbox, "print('first'); print('x' * 100_000); print('last')")
    kept = len(seen.stdout.encode())
    assert kept <= CASE_LIMITS.output_bytes, f"kept {kept} bytes, over output_bytes"
    _equal("kept + dropped bytes", kept + seen.stdout_dropped, 100_000 + 12)
    assert seen.stdout.startswith("first\n") and seen.stdout.endswith("last\n"), "head and tail"
    _equal("a short stream", (seen.stderr, seen.stderr_dropped), ("", 0))


# ---------------------------------------------------------------------------------------- limits


def _alive(sandbox: Sandbox) -> None:
    _equal("the cell after a breach", _python(sandbox, "print('up')").stdout, "up\n")


def _timeout(sandbox: Sandbox, make: Make) -> None:
    began = time.monotonic()
    seen = _python(sandbox, "print('begun', flush=True)\nwhile True: pass", timeout_s=1.0)
    took = time.monotonic() - began
    _equal("limit of an endless cell", seen.limit, "timeout")
    assert 0.9 < took < 12.0, f"a cell with 1 s took {took:.1f} s"
    assert not seen.ok and seen.exit_code != 0, "a breach is no success"
    _equal("output until then", seen.stdout, "begun\n")
    _alive(sandbox)


def _memory(sandbox: Sandbox, make: Make) -> None:
    seen = _python(sandbox, "b = []\nwhile True: b.append(bytearray(32 << 20))")
    _equal("limit of a cell that fills the memory", seen.limit, "memory")
    _alive(sandbox)


def _pids(sandbox: Sandbox, make: Make) -> None:
    code = "import subprocess, time\np = [subprocess.Popen(['sleep', '9']) for _ in range(80)]\n"
    seen = _python(sandbox, code + "time.sleep(5)")
    _equal("limit of a cell with 80 children", seen.limit, "pids")
    _alive(sandbox)


def _disk(sandbox: Sandbox, make: Make) -> None:
    code = "f = open('/workspace/big', 'wb')\nfor _ in range(64): f.write(bytes(1 << 20))"
    seen = _python(sandbox, code)
    _equal("limit of a cell that fills the workspace", seen.limit, "disk")
    sandbox.reset({})
    _alive(sandbox)


def _processes_end(sandbox: Sandbox, make: Make) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        for _ in range(100): open('alive', 'a').write('x'); time.sleep(.05)\n"
        "    os._exit(0)\n"
        "time.sleep(.3)"
    )
    _python(sandbox, code)
    before = sandbox.manifest().get("alive")
    time.sleep(0.3)
    assert before is not None, "the daemon of a cell could not write at all"
    _equal("a file that a daemon of the last cell wrote", sandbox.manifest().get("alive"), before)


def _two(sandbox: Sandbox, make: Make) -> None:
    with _made(make) as other, ThreadPoolExecutor(2) as threads:
        boxes = (sandbox, other)
        for number, box in enumerate(boxes):
            box.reset({"data/n": str(number).encode()})
        code = "import time; time.sleep(.2); open('n', 'w').write(open('/data/n').read())"
        try:
            results = list(threads.map(lambda box: _python(box, code), boxes))
        except SandboxError as error:
            raise AssertionError(f"two sandboxes must run side by side: {error}") from error
        assert all(result.ok for result in results), f"side by side: {results!r}"
        _equal("files of two sandboxes", [box.read("n", 9) for box in boxes], [b"0", b"1"])
    _alive(sandbox)  # closing one does not end the other


_CASES: Final = (
    SandboxCase("is a Sandbox", _protocol),
    SandboxCase("start is idempotent", _start),
    SandboxCase("close is final and idempotent", _close, alone=True),
    SandboxCase("reset lays files", _reset_lays),
    SandboxCase("reset refuses other places", _reset_refuses),
    SandboxCase("reset wipes", _reset_wipes),
    SandboxCase("state lives in files", _state_in_files),
    SandboxCase("delta", _delta),
    SandboxCase("manifest", _manifest),
    SandboxCase("read is bounded and follows no link", _read),
    SandboxCase("snapshot", _snapshot),
    SandboxCase("results of cells", _results),
    SandboxCase("every cell is a fresh process", _fresh_process),
    SandboxCase("cells are seeded", _seeds),
    SandboxCase("cells that cannot run", _bad_cells),
    SandboxCase("output is text", _text),
    SandboxCase("output is clipped", _output),
    SandboxCase("limit: wall time", _timeout),
    SandboxCase("limit: memory", _memory),
    SandboxCase("limit: processes", _pids),
    SandboxCase("limit: disk", _disk),
    SandboxCase("processes end with their cell", _processes_end),
    SandboxCase("two sandboxes are two", _two),
)


def sandbox_cases() -> tuple[SandboxCase, ...]:
    """All cases, in order."""
    return _CASES
