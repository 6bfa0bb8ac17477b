"""What keeps a cell from the host, from other processes and from the files it was given."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .probe import Probe

# Puts into r what `look(pid)` says of every process but the cell's own.
_OTHERS: Final = """
def lives(n):
    # What is left of the cell before has no memory and no instruction to run any more.
    try: return 'VmSize' in open(f'/proc/{n}/status').read()
    except OSError: return False
for n in os.listdir('/proc'):
    if n.isdigit() and int(n) != os.getpid():
        found = look(int(n))
        if lives(n): r += found
"""


def _network(p: Probe) -> tuple[bool, str]:
    seen = p.found(
        """
        import socket
        words = []
        for a in (('192.0.2.1', 80), ('198.51.100.1', 53)):
            s = socket.socket(); s.settimeout(1)
            try: s.connect(a); words.append('connected')
            except TimeoutError: words.append('no answer')
            except OSError as e: words.append(e.strerror)
        r = [words, [n for _, n in socket.if_nameindex()]]
        """
    )
    if isinstance(seen, str):
        return False, seen
    blocked = all(word == "Network is unreachable" for word in seen[0])
    return blocked and set(seen[1]) <= {"lo"}, f"{seen[0][0]}; interfaces {', '.join(seen[1])}"


def _socket_families(p: Probe) -> tuple[bool, str]:
    code = """
        import socket
        for f in set(range(46)) - {1, 2, 10, 16}:
            for k in (1, 2, 3, 5):
                try: socket.socket(f, k).close(); r.append(f)
                except OSError: pass
        """
    return p.nothing(code, "unix, inet, inet6, netlink only", "open families")


def _root_read_only(p: Probe) -> tuple[bool, str]:
    code = """
        for d in ('/', '/etc', '/usr', '/usr/bin', '/opt', '/dev', '/data', '/models', '/skills'):
            try: open(d + '/bat-check', 'w').close(); os.unlink(d + '/bat-check'); r.append(d)
            except OSError: pass
        """
    return p.nothing(code, "nothing but the writable places", "writable")


def _inputs_read_only(p: Probe) -> tuple[bool, str]:
    code = "chmod u+w /data/in.txt; echo x > /data/in.txt; rm -f /data/in.txt; cat /data/in.txt"
    seen = p.bash(code)
    return seen.stdout == "input", f"content after attack: {seen.stdout!r}"


def _capabilities(p: Probe) -> tuple[bool, str]:
    seen = p.found(
        """
        rows = dict(l.partition(':')[::2] for l in open('/proc/self/status'))
        names = ('CapEff', 'CapPrm', 'CapInh', 'CapAmb', 'NoNewPrivs', 'Seccomp')
        r = [rows.get(k, '').strip() for k in names]
        """
    )
    if isinstance(seen, str):
        return False, seen
    none = all(int(word, 16) == 0 for word in seen[:4])
    locked = seen[4:] == ["1", "2"]
    return none and locked, f"CapEff {seen[0]}, no_new_privs {seen[4]}, seccomp {seen[5]}"


def _syscalls(p: Probe) -> tuple[bool, str]:
    code = """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        x = os.uname().machine == 'x86_64'
        calls = {'io_uring_setup': (425, 425), 'ptrace': (101, 117), 'unshare': (272, 97),
                 'mount': (165, 40), 'keyctl': (250, 219), 'bpf': (321, 280),
                 'userfaultfd': (323, 282), 'perf_event_open': (298, 241)}
        for name, numbers in calls.items():
            ctypes.set_errno(0)
            a = 0x10000000 if name == 'unshare' else 0
            done = libc.syscall(numbers[not x], a, 0, 0, 0, 0, 0) >= 0
            if done or ctypes.get_errno() not in (1, 38): r.append(name)
        """
    return p.nothing(code, "io_uring, ptrace, namespaces, bpf refused", "open")


def signals(p: Probe) -> tuple[bool, str]:
    """A cell can signal its own processes only."""
    code = f"""
def look(n):
    try: os.kill(n, 0)
    except OSError: return []
    return [n]
{_OTHERS}
# The first process of a PID namespace may share the agent's uid; the kernel shields it.
if r == [1]:
    import time
    for s in (9, 15, 19): os.kill(1, s)
    time.sleep(.1)
    r = [] if 'sleeping' in open('/proc/1/status').read() else [1]
"""
    return p.nothing(code, "none but its own", "can signal")


def _other_memory(p: Probe) -> tuple[bool, str]:
    code = f"""
def look(n):
    got = []
    for f in ('mem', 'environ', 'fd/0', 'maps', 'root/etc/passwd'):
        try: os.close(os.open(f'/proc/{{n}}/{{f}}', os.O_NONBLOCK)); got.append(f'{{n}}/{{f}}')
        except OSError: pass
    return got
{_OTHERS}
"""
    return p.nothing(code, "no other process can be looked into", "readable")


def _descriptors(p: Probe) -> tuple[bool, str]:
    code = """
        for n in map(int, os.listdir('/proc/self/fd')):
            try: os.fstat(n)
            except OSError: continue
            if n > 2: r.append(n)
        """
    return p.nothing(code, "its three streams only", "open")


def _environment(p: Probe) -> tuple[bool, str]:
    code = """
        words = ('KEY', 'TOKEN', 'SECRET', 'PASSWORD', 'PROXY', 'BAT_')
        r = [n for n in sorted(os.environ) if any(w in n.upper() for w in words)]
        """
    return p.nothing(code, "nothing that looks like one", "leaks")


def _suite_invisible(p: Probe) -> tuple[bool, str]:
    code = """
        import importlib.util
        names = ('bat_env', 'bat_agent')
        def holds(s):  # an empty folder in its place is found, too, and gives nothing
            return s and (s.origin or any(os.listdir(q) for q in s.submodule_search_locations))
        r = [n for n in names if holds(importlib.util.find_spec(n))]
        for top, folders, _ in os.walk('/'):
            if top in ('/proc', '/sys'): folders[:] = []; continue
            for n in folders:
                if n in names or n.startswith('automed_bat'):
                    try: r += [os.path.join(top, n)] if os.listdir(os.path.join(top, n)) else []
                    except OSError: pass
            folders[:] = [n for n in folders if not n.startswith('torch')]
        """
    return p.nothing(code, "no file of the suite", "visible")


def host_invisible(p: Probe) -> tuple[bool, str]:
    """Files of the host that no cell needs are not there."""
    here = str(Path(__file__).resolve())
    paths = (here, "/etc/shadow", "/var/run/docker.sock", "/run/docker.sock", "/home", "/var/log")
    code = f"""
        for q in {list(paths)!r}:
            try:
                if os.path.isdir(q):
                    r += [q] if os.listdir(q) else []
                else: open(q, 'rb').close(); r.append(q)
            except OSError: pass
        """
    return p.nothing(code, "host files absent", "visible")


def _links(p: Probe) -> tuple[bool, str]:
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


CHECKS = {
    "network blocked": _network,
    "socket families outside a namespace refused": _socket_families,
    "root read-only": _root_read_only,
    "inputs read-only": _inputs_read_only,
    "no capabilities, no_new_privs, seccomp": _capabilities,
    "dangerous system calls refused": _syscalls,
    "cannot signal other processes": signals,
    "cannot read other processes": _other_memory,
    "no foreign descriptors": _descriptors,
    "no secrets in the environment": _environment,
    "suite invisible": _suite_invisible,
    "host files invisible": host_invisible,
    "links never followed": _links,
}
NEED_WALLS = frozenset(
    {
        "cannot read other processes",
        "suite invisible",
        "root read-only",
        "dangerous system calls refused",
    }
)
