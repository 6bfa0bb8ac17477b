"""Self-check of a sandbox backend: what holds on this machine and what does not.

Every check runs agent code that tries to break one promise and looks at what the host saw. Run it
with ``bat-env sandbox check --backend NAME`` on any backend, a plug-in's too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .base import Cell, CellResult, Limits, Sandbox
from .registry import make_sandbox

CHECK_LIMITS = Limits(
    cell_timeout_s=30.0,
    memory_mb=512,
    pids=32,
    workspace_mb=16,
    workspace_inodes=256,
    tmp_mb=8,
    output_bytes=4096,
)


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One promise: its name, whether it holds, and what was seen."""

    name: str
    holds: bool
    detail: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All rows of one backend."""

    backend: str
    rows: tuple[CheckRow, ...]

    @property
    def ok(self) -> bool:
        """Whether every promise holds."""
        return all(row.holds for row in self.rows)

    def failures(self) -> tuple[CheckRow, ...]:
        """The rows that do not hold."""
        return tuple(row for row in self.rows if not row.holds)

    def __str__(self) -> str:
        width = max(len(row.name) for row in self.rows)
        lines = [
            f"{'holds' if row.holds else 'FAILS'}  {row.name:<{width}}  {row.detail}"
            for row in self.rows
        ]
        return "\n".join([f"sandbox backend {self.backend}", *lines])


class _Probe:
    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def python(self, code: str, timeout_s: float = 20.0, seed: int = 1) -> CellResult:
        return self.sandbox.run(Cell("python", code, seed), timeout_s)

    def bash(self, code: str, timeout_s: float = 20.0) -> CellResult:
        return self.sandbox.run(Cell("bash", code), timeout_s)

    def value(self, code: str) -> Any:
        """What the cell printed last, as JSON."""
        result = self.python(code)
        if not result.ok:
            return f"exit {result.exit_code}: {(result.stderr or result.stdout).strip()[-200:]}"
        return json.loads(result.stdout.strip().splitlines()[-1])


def _runs_python(p: _Probe) -> tuple[bool, str]:
    seen = p.python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    good = (seen.stdout, seen.stderr, seen.exit_code) == ("out\n", "err\n", 3)
    return good, f"exit {seen.exit_code}"


def _runs_bash(p: _Probe) -> tuple[bool, str]:
    seen = p.bash("pwd; exit 4")
    return (seen.stdout, seen.exit_code) == ("/workspace\n", 4), seen.stdout.strip()


def _seeded(p: _Probe) -> tuple[bool, str]:
    code = "import random; print(random.random(), hash('bat'))"
    first, again, other = (p.python(code, seed=s).stdout for s in (5, 5, 6))
    return first == again != other, "equal seeds agree" if first == again else "equal seeds differ"


def _fresh_process(p: _Probe) -> tuple[bool, str]:
    p.python("import builtins; builtins.leak = 1; import os; os.environ['LEAK'] = '1'")
    seen = p.value(
        "import builtins, os; print('[%d, %d]' % (hasattr(builtins, 'leak'), 'LEAK' in os.environ))"
    )
    return seen == [0, 0], f"left over: {seen}"


def _network(p: _Probe) -> tuple[bool, str]:
    seen = p.value(
        "import json, socket\nr = []\n"
        "for a in (('192.0.2.1', 80), ('198.51.100.1', 53)):\n"
        "    s = socket.socket(); s.settimeout(1)\n"
        "    try: s.connect(a); r.append('connected')\n"
        "    except TimeoutError: r.append('no answer')\n"
        "    except OSError as e: r.append(e.strerror)\n"
        "print(json.dumps([r, [n for _, n in socket.if_nameindex()]]))"
    )
    if isinstance(seen, str):
        return False, seen
    blocked = all(word == "Network is unreachable" for word in seen[0])
    return blocked and set(seen[1]) <= {"lo"}, f"{seen[0][0]}; interfaces {', '.join(seen[1])}"


def _root_read_only(p: _Probe) -> tuple[bool, str]:
    seen = p.value(
        "import json, os\nr = []\n"
        "for d in ('/', '/etc', '/usr', '/usr/bin', '/opt', '/dev', '/data', '/models', '/skills'):"
        "\n    try: open(d + '/bat-check', 'w').close(); os.unlink(d + '/bat-check'); r.append(d)\n"
        "    except OSError: pass\n"
        "print(json.dumps(r))"
    )
    return seen == [], "nothing but the writable places" if seen == [] else f"writable: {seen}"


def _inputs_read_only(p: _Probe) -> tuple[bool, str]:
    code = "chmod u+w /data/in.txt; echo x > /data/in.txt; rm -f /data/in.txt; cat /data/in.txt"
    seen = p.bash(code)
    return seen.stdout == "input", f"content after attack: {seen.stdout!r}"


def _writable(p: _Probe) -> tuple[bool, str]:
    seen = p.bash("for d in /workspace /tmp /dev/shm; do echo x > $d/w && rm $d/w || echo $d; done")
    return seen.stdout == "" and seen.ok, "/workspace /tmp /dev/shm"


def _capabilities(p: _Probe) -> tuple[bool, str]:
    seen = p.value(
        "import json\nrows = dict(l.partition(':')[::2] for l in open('/proc/self/status'))\n"
        "print(json.dumps([rows.get(k, '').strip() for k in "
        "('CapEff', 'CapPrm', 'CapInh', 'CapAmb', 'NoNewPrivs', 'Seccomp')]))"
    )
    if isinstance(seen, str):
        return False, seen
    none = all(int(word, 16) == 0 for word in seen[:4])
    locked = seen[4:] == ["1", "2"]
    return none and locked, f"CapEff {seen[0]}, no_new_privs {seen[4]}, seccomp {seen[5]}"


def _syscalls(p: _Probe) -> tuple[bool, str]:
    seen = p.value(
        "import ctypes, json, os\nlibc = ctypes.CDLL(None, use_errno=True)\nr = []\n"
        "x = os.uname().machine == 'x86_64'\n"
        "calls = {'io_uring_setup': (425, 425), 'ptrace': (101, 117), 'unshare': (272, 97),\n"
        "         'mount': (165, 40), 'keyctl': (250, 219), 'bpf': (321, 280),\n"
        "         'userfaultfd': (323, 282), 'perf_event_open': (298, 241)}\n"
        "for name, numbers in calls.items():\n"
        "    ctypes.set_errno(0)\n"
        "    a = 0x10000000 if name == 'unshare' else 0\n"
        "    if libc.syscall(numbers[not x], a, 0, 0, 0, 0, 0) >= 0 or "
        "ctypes.get_errno() not in (1, 38): r.append(name)\n"
        "print(json.dumps(r))"
    )
    return (
        seen == [],
        "io_uring, ptrace, namespaces, bpf refused" if seen == [] else f"open: {seen}",
    )


def _signals(p: _Probe) -> tuple[bool, str]:
    seen = p.value(
        "import json, os, time\nr = []\n"
        "for n in os.listdir('/proc'):\n"
        "    if n.isdigit() and int(n) != os.getpid():\n"
        "        try: os.kill(int(n), 0); r.append(int(n))\n"
        "        except OSError: pass\n"
        # The first process of a PID namespace may share the agent's uid; the kernel shields it.
        "if r == [1]:\n"
        "    for s in (9, 15, 19): os.kill(1, s)\n"
        "    time.sleep(.1)\n"
        "    r = [] if 'sleeping' in open('/proc/1/status').read() else [1]\n"
        "print(json.dumps(r))"
    )
    return seen == [], "none but its own" if seen == [] else f"can signal {str(seen)[:60]}"


def _other_memory(p: _Probe) -> tuple[bool, str]:
    seen = p.value(
        "import json, os\nr = []\n"
        "for n in os.listdir('/proc'):\n"
        "    if n.isdigit() and int(n) != os.getpid():\n"
        "        for f in ('mem', 'environ', 'fd/0', 'maps', 'root/etc/passwd'):\n"
        "            q = f'/proc/{n}/{f}'\n"
        "            try: os.close(os.open(q, os.O_NONBLOCK)); r.append(q)\n"
        "            except OSError: pass\n"
        "print(json.dumps(r))"
    )
    return seen == [], "no other process can be looked into" if seen == [] else f"readable: {seen}"


def _descriptors(p: _Probe) -> tuple[bool, str]:
    seen = p.value(
        "import json, os\nf = [int(n) for n in os.listdir('/proc/self/fd')]\n"
        "live = []\n"
        "for n in f:\n"
        "    try: os.fstat(n); live.append(n)\n"
        "    except OSError: pass\n"
        "print(json.dumps(sorted(live)))"
    )
    return seen == [0, 1, 2], f"open: {seen}"


def _environment(p: _Probe) -> tuple[bool, str]:
    seen = p.value("import json, os; print(json.dumps(sorted(os.environ)))")
    words = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PROXY", "BAT_")
    bad = (
        [n for n in seen if any(w in n.upper() for w in words)]
        if isinstance(seen, list)
        else [seen]
    )
    return not bad, f"{len(seen)} variables" if not bad else f"leaks {bad}"


def _suite_invisible(p: _Probe) -> tuple[bool, str]:
    seen = p.value(
        "import importlib.util, json, os\n"
        "r = [n for n in ('bat_env', 'bat_agent') if importlib.util.find_spec(n)]\n"
        "for top, folders, names in os.walk('/'):\n"
        "    if top in ('/proc', '/sys'): folders[:] = []; continue\n"
        "    for n in list(folders):\n"
        "        if n in ('bat_env', 'bat_agent') or n.startswith('automed_bat'):\n"
        "            try: r += [os.path.join(top, n)] if os.listdir(os.path.join(top, n)) else []\n"
        "            except OSError: pass\n"
        "    folders[:] = [n for n in folders if not n.startswith('torch')]\n"
        "print(json.dumps(r))"
    )
    return seen == [], "no file of the suite" if seen == [] else f"visible: {seen}"


def _host_invisible(p: _Probe) -> tuple[bool, str]:
    paths = (
        __file__,
        "/etc/shadow",
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/home",
        "/var/log",
    )
    code = (
        f"import json, os\nr = []\nfor q in {list(paths)!r}:\n"
        "    try: os.listdir(q) if os.path.isdir(q) else open(q, 'rb').close(); r.append(q)\n"
        "    except OSError: pass\n"
        "print(json.dumps([q for q in r if not (os.path.isdir(q) and not os.listdir(q))]))"
    )
    seen = p.value(code)
    return seen == [], "host files absent" if seen == [] else f"visible: {seen}"


def _timeout(p: _Probe) -> tuple[bool, str]:
    started = time.monotonic()
    seen = p.python("while True: pass", timeout_s=1.0)
    took = time.monotonic() - started
    return seen.limit == "timeout" and took < 6, f"limit {seen.limit} after {took:.1f} s"


def _memory(p: _Probe) -> tuple[bool, str]:
    seen = p.python("b = []\nwhile True: b.append(bytearray(32 << 20))")
    return seen.limit == "memory", f"limit {seen.limit}"


def _memory_children(p: _Probe) -> tuple[bool, str]:
    child = "import time; b = bytearray(300 << 20); time.sleep(15)"
    seen = p.python(
        "import subprocess, sys\n"
        f"ps = [subprocess.Popen([sys.executable, '-c', {child!r}]) for _ in range(3)]\n"
        "print([q.wait() for q in ps]); sys.exit(any(q.returncode for q in ps))"
    )
    return seen.limit == "memory", f"limit {seen.limit}"


def _pids(p: _Probe) -> tuple[bool, str]:
    seen = p.python(
        "import subprocess, time\nps = [subprocess.Popen(['sleep', '15']) for _ in range(80)]\n"
        "time.sleep(10)"
    )
    return seen.limit == "pids", f"limit {seen.limit}"


def _disk(p: _Probe) -> tuple[bool, str]:
    seen = p.python("f = open('/workspace/big', 'wb')\nfor _ in range(64): f.write(bytes(1 << 20))")
    p.bash("rm -f /workspace/big")
    return seen.limit == "disk", f"limit {seen.limit}"


def _inodes(p: _Probe) -> tuple[bool, str]:
    seen = p.python(
        "import os\nos.mkdir('/workspace/many')\n"
        "for i in range(2000): open(f'/workspace/many/{i}', 'w').close()"
    )
    p.bash("rm -rf /workspace/many")
    return seen.limit == "disk", f"limit {seen.limit}"


def _output(p: _Probe) -> tuple[bool, str]:
    seen = p.python("print('a'); print('x' * (8 << 20)); print('z')")
    kept = len(seen.stdout.encode())
    good = kept <= CHECK_LIMITS.output_bytes and seen.stdout_dropped > 0
    good &= seen.stdout.startswith("a\n") and seen.stdout.endswith("z\n")
    return good, f"kept {kept}, dropped {seen.stdout_dropped}"


def _output_flood(p: _Probe) -> tuple[bool, str]:
    seen = p.bash("yes", timeout_s=15.0)
    return seen.limit == "output", f"limit {seen.limit} after {seen.wall_s:.1f} s"


_DAEMON = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        for _ in range(100):\n"
    "            open('/workspace/alive', 'a').write('x'); time.sleep(.05)\n"
    "    os._exit(0)\n"
    "time.sleep(.3)\n"
)


def _daemons(p: _Probe) -> tuple[bool, str]:
    p.python(_DAEMON)
    before = p.sandbox.manifest().get("alive")
    time.sleep(0.3)
    after = p.sandbox.manifest().get("alive")
    p.bash("rm -f /workspace/alive")
    return before is not None and before == after, "a double-forked daemon died with its cell"


def _survives_sigkill_all(p: _Probe) -> tuple[bool, str]:
    seen = p.bash("kill -9 -1; exit 1")
    again = p.python("print('up')")
    return again.stdout == "up\n", f"after kill -9 -1 (exit {seen.exit_code}) the next cell ran"


def _links(p: _Probe) -> tuple[bool, str]:
    p.bash("ln -s /etc/passwd /workspace/l; mkfifo /workspace/f; ln -s /etc /workspace/d")
    kinds = {name: entry.kind for name, entry in p.sandbox.manifest().items()}
    refused = 0
    for path in ("l", "f", "d/passwd", "../etc/passwd", "/etc/passwd"):
        try:
            p.sandbox.read(path, 4096)
        except (ValueError, FileNotFoundError):
            refused += 1
    p.bash("rm -f /workspace/l /workspace/f /workspace/d")
    good = kinds == {"l": "symlink", "f": "special", "d": "symlink"} and refused == 5
    return good, f"{refused} of 5 reads refused"


def _wipe(p: _Probe) -> tuple[bool, str]:
    p.bash(
        "cd /workspace; mkdir -p a/b; echo x > a/b/c; chmod 000 a; touch .h; "
        "echo x > /tmp/t; mkdir /tmp/.d; echo x > /dev/shm/s; "
        "for i in $(seq 60); do mkdir ddddddddddddddddddddddddddddddddddddddddddddd; "
        "cd ddddddddddddddddddddddddddddddddddddddddddddd; done"
    )
    p.sandbox.reset({"data/in.txt": b"input"})
    seen = p.bash("find /workspace /tmp /dev/shm /models /skills -mindepth 1 | head; ls -A /data")
    return seen.stdout == "in.txt\n", f"left: {seen.stdout.split()}"


def _walls(p: _Probe) -> bool:
    """Whether agent code is kept from the host, as far as harmless looks can tell."""
    return _host_invisible(p)[0] and _signals(p)[0]


# What would hurt the machine itself where nothing keeps the cell from it: in a plain process of
# root, `kill -9 -1` ends every process there is. Tried only behind walls that were seen to stand.
_NEED_WALLS = frozenset(
    {
        "cannot read other processes",
        "suite invisible",
        "root read-only",
        "dangerous system calls refused",
        "limit: memory of all processes",
        "survives kill -9 -1",
        "wipe complete",
    }
)

_CHECKS: dict[str, Callable[[_Probe], tuple[bool, str]]] = {
    "python cells run": _runs_python,
    "bash cells run": _runs_bash,
    "cells are seeded": _seeded,
    "every cell is a fresh process": _fresh_process,
    "network blocked": _network,
    "root read-only": _root_read_only,
    "inputs read-only": _inputs_read_only,
    "workspace, /tmp, /dev/shm writable": _writable,
    "no capabilities, no_new_privs, seccomp": _capabilities,
    "dangerous system calls refused": _syscalls,
    "cannot signal other processes": _signals,
    "cannot read other processes": _other_memory,
    "no foreign descriptors": _descriptors,
    "no secrets in the environment": _environment,
    "suite invisible": _suite_invisible,
    "host files invisible": _host_invisible,
    "links never followed": _links,
    "limit: wall time": _timeout,
    "limit: memory": _memory,
    "limit: memory of all processes": _memory_children,
    "limit: processes": _pids,
    "limit: workspace bytes": _disk,
    "limit: workspace inodes": _inodes,
    "output clipped": _output,
    "limit: output": _output_flood,
    "daemons die with the cell": _daemons,
    "survives kill -9 -1": _survives_sigkill_all,
    "wipe complete": _wipe,
}


def check_sandbox(backend: str, **options: Any) -> CheckReport:
    """Run the self-check suite against a backend.

    Args:
        backend: A registered name.
        options: Further keyword arguments of the backend.

    Returns:
        One row for each promise.

    Raises:
        SandboxError: If the backend cannot start here, or died during a check.
    """
    sandbox = make_sandbox(backend, CHECK_LIMITS, **options)
    rows = []
    try:
        sandbox.start()
        probe = _Probe(sandbox)
        walls = _walls(probe)
        for name, check in _CHECKS.items():
            if name in _NEED_WALLS and not walls:
                rows.append(CheckRow(name, False, "not tried: cells can reach the host"))
                continue
            sandbox.reset({"data/in.txt": b"input"})
            holds, detail = check(probe)
            rows.append(CheckRow(name, holds, detail))
    finally:
        sandbox.close()
    return CheckReport(sandbox.backend, tuple(rows))
