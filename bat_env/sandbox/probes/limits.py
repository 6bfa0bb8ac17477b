"""What ends a cell that takes too much, and what is left after it."""

from __future__ import annotations

import time
from typing import Final

from .probe import Probe


def _timeout(p: Probe) -> tuple[bool, str]:
    started = time.monotonic()
    seen = p.python("while True: pass", timeout_s=1.0)
    took = time.monotonic() - started
    return seen.limit == "timeout" and took < 6, f"limit {seen.limit} after {took:.1f} s"


def _python_meets(p: Probe, limit: str, code: str) -> tuple[bool, str]:
    seen = p.python(code)
    return seen.limit == limit, f"limit {seen.limit}"


def _memory(p: Probe) -> tuple[bool, str]:
    return _python_meets(p, "memory", "b = []\nwhile True: b.append(bytearray(32 << 20))")


def _memory_children(p: Probe) -> tuple[bool, str]:
    child = "import time; b = bytearray(300 << 20); time.sleep(15)"
    code = (
        "import subprocess, sys\n"
        f"ps = [subprocess.Popen([sys.executable, '-c', {child!r}]) for _ in range(3)]\n"
        "print([q.wait() for q in ps]); sys.exit(any(q.returncode for q in ps))"
    )
    return _python_meets(p, "memory", code)


def _pids(p: Probe) -> tuple[bool, str]:
    code = (
        "import subprocess, time\nps = [subprocess.Popen(['sleep', '15']) for _ in range(80)]\n"
        "time.sleep(10)"
    )
    return _python_meets(p, "pids", code)


def _disk(p: Probe) -> tuple[bool, str]:
    code = "f = open('/workspace/big', 'wb')\nfor _ in range(64): f.write(bytes(1 << 20))"
    return _python_meets(p, "disk", code)


def _inodes(p: Probe) -> tuple[bool, str]:
    code = "for i in range(2000): open(f'/workspace/{i}', 'w').close()"
    return _python_meets(p, "disk", code)


def _output(p: Probe) -> tuple[bool, str]:
    seen = p.python("print('a'); print('x' * (8 << 20)); print('z')")
    kept = len(seen.stdout.encode())
    good = kept <= p.sandbox.limits.output_bytes and seen.stdout_dropped > 0
    good &= seen.stdout.startswith("a\n") and seen.stdout.endswith("z\n")
    return good, f"kept {kept}, dropped {seen.stdout_dropped}"


def _output_flood(p: Probe) -> tuple[bool, str]:
    seen = p.bash("yes", timeout_s=15.0)
    return seen.limit == "output", f"limit {seen.limit} after {seen.wall_s:.1f} s"


_DAEMON: Final = """
    import os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for _ in range(100):
                open('/workspace/alive', 'a').write('x'); time.sleep(.05)
        os._exit(0)
    time.sleep(.3)
"""


def _daemons(p: Probe) -> tuple[bool, str]:
    p.python(_DAEMON)
    before = p.sandbox.manifest().get("alive")
    time.sleep(0.3)
    after = p.sandbox.manifest().get("alive")
    return before is not None and before == after, "a double-forked daemon died with its cell"


def _survives_sigkill_all(p: Probe) -> tuple[bool, str]:
    seen = p.bash("kill -9 -1; exit 1")
    again = p.python("print('up')")
    return again.stdout == "up\n", f"after kill -9 -1 (exit {seen.exit_code}) the next cell ran"


def _wipe(p: Probe) -> tuple[bool, str]:
    p.bash(
        "cd /workspace; mkdir -p a/b; echo x > a/b/c; chmod 000 a; touch .h; "
        "echo x > /tmp/t; mkdir /tmp/.d; echo x > /dev/shm/s; touch /dev/mqueue/q; "
        "for i in $(seq 60); do mkdir ddddddddddddddddddddddddddddddddddddddddddddd; "
        "cd ddddddddddddddddddddddddddddddddddddddddddddd; done; chmod 500 /workspace /tmp"
    )
    p.sandbox.reset({"data/in.txt": b"input"})
    seen = p.bash(
        "find /workspace /tmp /dev/shm /models /skills -mindepth 1 | head; ls -A /data; "
        "ls -A /dev/mqueue 2>/dev/null; touch /workspace/w /tmp/w || echo locked"
    )
    return seen.stdout == "in.txt\n", f"left: {seen.stdout.split()}"


CHECKS = {
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
NEED_WALLS = frozenset({"limit: memory of all processes", "survives kill -9 -1", "wipe complete"})
