"""Cells on every backend: what they print, leave behind, and how they end."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable

import pytest

from bat_env.sandbox import Cell, CellResult, Sandbox

Run = Callable[..., CellResult]


def test_streams_and_exit_codes(sandbox: Sandbox, python: Run, bash: Run) -> None:
    seen = python(sandbox, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (seen.stdout, seen.stderr, seen.exit_code, seen.limit) == ("out\n", "err\n", 3, None)
    assert not seen.ok and python(sandbox, "pass").ok
    assert python(sandbox, "raise SystemExit").exit_code == 0
    assert python(sandbox, "raise SystemExit('no')").stderr == "no\n"
    assert python(sandbox, "import os, signal; os.kill(os.getpid(), 15)").exit_code == 143
    assert bash(sandbox, "pwd; echo e >&2; exit 4").exit_code == 4
    assert bash(sandbox, "pwd").stdout == "/workspace\n"
    assert bash(sandbox, "kill -9 $$").exit_code == 137


def test_traceback_shows_only_the_cells_frames(sandbox: Sandbox, python: Run) -> None:
    seen = python(sandbox, "def f():\n    return [][1]\nf()\n")
    assert seen.exit_code == 1
    assert seen.stderr.splitlines()[:5] == [
        "Traceback (most recent call last):",
        '  File "<cell>", line 3, in <module>',
        "    f()",
        '  File "<cell>", line 2, in f',
        "    return [][1]",
    ]
    assert "bat_worker" not in seen.stderr
    assert python(sandbox, "x = (").stderr.startswith('  File "<cell>", line 1')


def test_cells_are_fresh_processes(sandbox: Sandbox, python: Run) -> None:
    python(sandbox, "import builtins, os; builtins.x = 1; os.environ['X'] = '1'; os.umask(0)")
    code = "import builtins, os; print(hasattr(builtins, 'x'), 'X' in os.environ, __name__)"
    assert python(sandbox, code).stdout == "False False __main__\n"


def test_seed_fixes_every_generator(sandbox: Sandbox, python: Run) -> None:
    code = (
        "import random, numpy, torch\n"
        "print(random.random(), numpy.random.rand(), torch.rand(1).item(), hash('a'))"
    )
    first, again, other = (python(sandbox, code, seed=s).stdout for s in (5, 5, 6))
    assert first == again != other


def test_backends_print_the_same(warm: Callable[[str], Sandbox], python: Run) -> None:
    code = (
        "import os, random, tempfile, torch\n"
        "open('note.txt', 'w').write(os.path.abspath('/workspace/a'))\n"
        "print(os.getcwd(), os.listdir('/data'), open('/data/t.txt').read())\n"
        "print(random.random(), torch.rand(2), torch.get_num_threads())\n"
        "open('/data/none')"
    )
    seen = []
    for backend in ("local", "process"):
        box = warm(backend)
        box.reset({"data/t.txt": b"see /models/unet"})
        result = python(box, code)
        seen.append((result.stdout, result.stderr, result.delta, box.snapshot()))
    assert seen[0] == seen[1]
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/data/none'" in seen[0][1]


def test_delta_says_what_changed(sandbox: Sandbox, python: Run, bash: Run) -> None:
    sandbox.reset({"workspace/old.txt": b"1", "workspace/gone/x": b"2", "workspace/same": b"3"})
    seen = bash(
        sandbox, "printf 22 > old.txt; rm -r gone; mkdir -p new/d; printf a > new/d/f; ln -s f l"
    )
    assert sorted(seen.delta.created) == ["l", "new", "new/d", "new/d/f"]
    assert seen.delta.created["l"].kind == "symlink"
    entry = seen.delta.created["new/d/f"]
    assert (entry.kind, entry.size, entry.sha256) == ("file", 1, hashlib.sha256(b"a").hexdigest())
    assert list(seen.delta.changed) == ["old.txt"]
    assert seen.delta.deleted == ("gone", "gone/x")
    assert not bash(sandbox, "cat old.txt").delta
    # A rewrite that keeps size and modification time is seen all the same.
    trick = "import os; s = os.stat('old.txt'); open('old.txt', 'w').write('33')\n"
    trick += "os.utime('old.txt', ns=(s.st_atime_ns, s.st_mtime_ns))"
    assert list(python(sandbox, trick).delta.changed) == ["old.txt"]


def test_reset_lays_files_and_wipes(sandbox: Sandbox, bash: Run) -> None:
    big = bytes(range(256)) * 40_000  # over one frame
    files = {
        "data/c1/ct.bin": big,
        "models/m/a.json": b"{}",
        "skills/S1/SKILL.md": b"#",
        "workspace/task/spec.json": b"[]",
        "workspace/empty": b"",
    }
    sandbox.reset(files)
    seen = bash(
        sandbox, "sha256sum < /data/c1/ct.bin; cat /models/m/a.json /workspace/task/spec.json"
    )
    assert seen.stdout == f"{hashlib.sha256(big).hexdigest()}  -\n{{}}[]"
    assert sandbox.snapshot() == {"empty": b"", "task/spec.json": b"[]"}
    bash(sandbox, "echo x > a; echo x >> task/spec.json")
    sandbox.reset({})
    assert sandbox.manifest() == {}
    assert bash(sandbox, "ls -A /data /models /skills").stdout == "/data:\n\n/models:\n\n/skills:\n"


@pytest.mark.parametrize(
    "path", ["x", "etc/x", "data", "tmp/x", "data/../../x", "/data/x", "data//x"]
)
def test_reset_refuses_paths_outside(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        sandbox.reset({path: b""})
    sandbox.reset({})


def test_read_is_bounded_and_never_follows(sandbox: Sandbox, bash: Run) -> None:
    bash(
        sandbox, "echo abc > f; mkdir d; ln -s /etc/passwd l; ln -s /etc up; mkfifo p; echo x > d/g"
    )
    assert sandbox.read("f", 4) == b"abc\n"
    assert sandbox.read("d/g", 10) == b"x\n"
    for path in ("l", "up/passwd", "p", "d", "../f", "/etc/passwd", ""):
        with pytest.raises(ValueError, match=r"."):
            sandbox.read(path, 100)
    with pytest.raises(ValueError, match="larger than 3"):
        sandbox.read("f", 3)
    for path in ("none", "f/x", "d/none"):
        with pytest.raises(FileNotFoundError):
            sandbox.read(path, 10)


def test_output_keeps_head_and_tail(sandbox: Sandbox, python: Run) -> None:
    seen = python(sandbox, "print('first'); print('x' * 300_000); print('last')")
    assert seen.ok and len(seen.stdout) == 4096
    assert seen.stdout.startswith("first\n") and seen.stdout.endswith("last\n")
    assert seen.stdout_dropped == 6 + 300_001 + 5 - 4096
    assert seen.stderr_dropped == 0


def test_timeout_ends_the_whole_tree(sandbox: Sandbox, python: Run) -> None:
    code = (
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['sh', '-c', 'while :; do echo x >> alive; sleep .05; done'],"
        " start_new_session=True)\n"
        "print('on', flush=True)\nwhile True: time.sleep(1)"
    )
    started = time.monotonic()
    seen = python(sandbox, code, timeout_s=1.0)
    assert time.monotonic() - started < 8
    assert (seen.limit, seen.exit_code, seen.stdout) == ("timeout", 137, "on\n")
    size = sandbox.manifest()["alive"].size
    time.sleep(0.3)
    assert sandbox.manifest()["alive"].size == size


def test_daemons_die_with_the_cell(sandbox: Sandbox, python: Run) -> None:
    code = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        while True: open('alive', 'a').write('x'); time.sleep(.02)\n"
        "    os._exit(0)\n"
        "time.sleep(.3)"
    )
    assert python(sandbox, code).ok
    size = sandbox.manifest()["alive"].size
    time.sleep(0.3)
    assert sandbox.manifest()["alive"].size == size > 0


def test_limits_are_named(sandbox: Sandbox, python: Run) -> None:
    assert python(sandbox, "b = []\nwhile True: b.append(bytearray(16 << 20))").limit == "memory"
    many = "import subprocess, time\n[subprocess.Popen(['sleep', '9']) for _ in range(60)]"
    many += "\ntime.sleep(9)"
    assert python(sandbox, many).limit == "pids"
    assert python(sandbox, "open('b', 'wb').write(bytes(40 << 20))").limit == "disk"
    sandbox.reset({})
    assert python(sandbox, "[open(f'f{i}', 'w').close() for i in range(999)]").limit == "disk"
    assert python(sandbox, "print('next cell is fine', end='')").stdout == "next cell is fine"


def test_the_imaging_stack_works(sandbox: Sandbox, python: Run) -> None:
    code = (
        "import torch, monai, nibabel, numpy as np\n"
        "from monai.networks.nets import BasicUNet\n"
        "from torch.utils.data import DataLoader\n"
        "net = BasicUNet(3, 1, 2, features=(4,) * 6)\n"
        "print(tuple(net(torch.zeros(1, 1, 32, 32, 32)).shape))\n"
        "nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4), 'u1'), np.eye(4)), 'a.nii.gz')\n"
        "print(sum(b.sum().item() for b in DataLoader(list(range(9)), num_workers=2)))"
    )
    seen = python(sandbox, code)
    assert (seen.stdout, seen.exit_code) == ("(1, 2, 32, 32, 32)\n36\n", 0), seen.stderr
    assert list(seen.delta.created) == ["a.nii.gz"]


def test_bad_cells_are_refused_before_anything_runs(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="NUL"):
        sandbox.run(Cell("python", "print(1)\0"))
    with pytest.raises(ValueError, match="language"):
        sandbox.run(Cell("ruby", "puts 1"))  # type: ignore[arg-type]


def test_large_bash_cell(sandbox: Sandbox, bash: Run) -> None:
    assert bash(sandbox, "# " + "x" * 200_000 + "\necho done").stdout == "done\n"
