"""The pool: turns, a bound that holds, second leases, health, and wipes that leave nothing."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bat_env.env import AutoMedEnv
from bat_env.errors import SandboxError
from bat_env.sandbox import Cell, Limits, SandboxPool, budget
from bat_env.sandbox.budget import Budget, available_mb, footprint_mb
from bat_env.sandbox.docker import DockerSandbox
from bat_env.tools import execute_call, submit_call

LIMITS = Limits(memory_mb=512, workspace_mb=16, tmp_mb=8, cell_timeout_s=30)
WALLED = ["local", pytest.param("docker", marks=pytest.mark.docker)]
MakePool = Callable[..., SandboxPool]


@pytest.fixture
def make_pool() -> Iterator[MakePool]:
    """A pool over lean sandboxes whose budget holds ``bound`` of them."""
    pools: list[SandboxPool] = []

    def make(bound: int, backend: str = "local", size: int = 1, **more: Any) -> SandboxPool:
        given = more.pop("budget", None)
        pool = SandboxPool(
            backend, LIMITS, size, budget=given or Budget(1, watch=False), preload=(), **more
        )
        if given is None:
            pool._budget.total_mb = bound * pool.need_mb
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()


def _until(seen: Callable[[], bool], patience_s: float = 20.0) -> None:
    deadline = time.monotonic() + patience_s
    while not seen():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.01)


def _waiting(pool: SandboxPool) -> int:
    return len(pool._budget.tickets)


def test_waiting_acquirers_are_served_in_order(make_pool: MakePool) -> None:
    pool = make_pool(bound=1)
    order: list[int] = []

    def episode(number: int) -> None:
        with pool.lease():
            order.append(number)

    held = pool.acquire()
    with ThreadPoolExecutor(8) as threads:
        for number in range(8):
            threads.submit(episode, number)
            _until(lambda number=number: _waiting(pool) == number + 1)  # type: ignore[misc]
        assert order == []
        pool.release(held)
    assert order == list(range(8))
    assert pool._budget.used_mb == pool.need_mb and not pool._leased


def test_a_bound_that_holds_is_explained(make_pool: MakePool) -> None:
    pool = make_pool(bound=2)
    one, two = pool.acquire(), pool.acquire()
    began = time.monotonic()
    with pytest.raises(SandboxError) as caught:
        pool.acquire(timeout_s=0.3)
    assert 0.25 < time.monotonic() - began < 5
    text = str(caught.value)
    for word in ("Expected a free sandbox", "2 on lease", "MainThread for", "close()", "_MB"):
        assert word in text, text
    assert f"{2 * pool.need_mb} of {2 * pool.need_mb} MiB" in text
    assert _waiting(pool) == 0
    pool.release(one)
    pool.release(two)


def test_a_slow_start_is_not_laid_on_memory(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, go = make_pool(bound=8), threading.Event()
    start = pool._make
    monkeypatch.setattr(pool, "_make", lambda: go.wait(20) and start())
    pool.warm()
    _until(lambda: pool.coming == 1)
    with pytest.raises(SandboxError, match="is being started for it") as caught:
        pool.acquire(timeout_s=0.2)
    go.set()
    assert "MiB" not in str(caught.value) and "memory" not in str(caught.value)


def test_two_who_need_two_each_do_not_block(make_pool: MakePool) -> None:
    """As many environments as there is room for, all of which want to verify at once."""
    pool = make_pool(bound=3)
    barrier = threading.Barrier(3)

    def episode(number: int) -> str:
        with pool.lease() as mine:
            barrier.wait(30)
            with pool.beside.lease() as second:
                assert second is not mine
                return second.run(Cell("python", f"print({number})")).stdout

    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(episode, range(3))) == ["0\n", "1\n", "2\n"]
    assert pool._budget.beside_out == 0
    assert pool._budget.used_mb <= 3 * pool.need_mb


def test_second_leases_come_before_new_ones(make_pool: MakePool) -> None:
    pool = make_pool(bound=1)
    order: list[str] = []
    mine = pool.acquire()
    first_beside = pool.acquire(beside=True)  # overdraws by one, and only by one

    def want(name: str, beside: bool) -> None:
        sandbox = pool.acquire(beside=beside)
        order.append(name)
        pool.release(sandbox)

    with ThreadPoolExecutor(3) as threads:
        threads.submit(want, "new", False)
        _until(lambda: _waiting(pool) == 1)
        threads.submit(want, "beside", True)
        _until(lambda: _waiting(pool) == 2)
        time.sleep(0.2)
        assert order == []
        pool.release(first_beside)
        _until(lambda: order[:1] == ["beside"])
        pool.release(mine)
    assert order == ["beside", "new"]


def test_an_environment_lives_with_room_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_process", Budget(1, watch=False))
    env = AutoMedEnv(sandbox="local", size="mini", stage=None, limits={"memory_mb": 1027})
    try:
        env.reset(seed=3)
        code = "import os; os.makedirs('pipeline'); open('pipeline/predict.py', 'w').write('1')"
        env.step(execute_call("python", code))
        *_, terminated, _, info = env.step(submit_call())
        assert terminated and info["status"] == "submitted"
    finally:
        env.close()
        env._bench.pool.close()


def test_pools_share_the_memory(make_pool: MakePool) -> None:
    first = make_pool(bound=1)
    first.release(first.acquire())
    assert len(first._ready) == 1
    second = make_pool(bound=1, backend="process", budget=first._budget)
    other = second.acquire(timeout_s=20)  # the idle one makes room
    assert first._ready == [] and first._budget.used_mb == second.need_mb
    with pytest.raises(SandboxError, match="1 on lease"):
        first.acquire(timeout_s=0.2)
    second.release(other)
    first.release(first.acquire(timeout_s=20))


def test_the_bound_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < available_mb() < 1 << 24
    monkeypatch.delenv(budget.VARIABLE, raising=False)
    assert Budget().total_mb <= available_mb()
    monkeypatch.setenv(budget.VARIABLE, "1234")
    told = Budget()
    assert (told.total_mb, told.watch, told.source) == (1234, False, budget.VARIABLE)
    small, large = (footprint_mb(DockerSandbox, Limits(memory_mb=m)) for m in (512, 4096))
    assert DockerSandbox.WORKER_SHARE_MB < small < large
    assert Budget(1 << 30, watch=True).short(1 << 40)


def test_short_machines_make_acquirers_wait(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(bound=4)
    pool._budget.watch = True
    monkeypatch.setattr(budget, "available_mb", lambda: 0)
    with pytest.raises(SandboxError, match="the machine itself is short of memory"):
        pool.acquire(timeout_s=0.2)
    monkeypatch.undo()
    pool.release(pool.acquire(timeout_s=20))


def test_a_closed_pool_wakes_those_who_wait(make_pool: MakePool) -> None:
    pool = make_pool(bound=1)
    pool.acquire()
    with ThreadPoolExecutor(1) as threads:
        waiter = threads.submit(pool.acquire)
        _until(lambda: _waiting(pool) == 1)
        pool.close()
        with pytest.raises(SandboxError, match="closed"):
            waiter.result(10)
    assert pool._budget.used_mb == 0


def test_many_threads_lose_nothing(make_pool: MakePool) -> None:
    pool = make_pool(bound=3, size=2)

    def episode(number: int) -> bool:
        with pool.lease(fresh=number % 5 == 0) as box:
            ok = box.manifest() == {} and box.run(Cell("bash", f"echo {number} > f")).ok
            if number % 7 == 0:
                box.close()  # as the environment does with one that died
            if number % 3 == 0:
                with pool.beside.lease() as second:
                    ok &= second.manifest() == {}
            return ok

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(episode, range(40)))
    _until(lambda: pool._starting == 0)
    shared = pool._budget
    assert (shared.beside_out, shared.tickets, pool._leased) == (0, [], {})
    assert shared.used_mb == len(pool._ready) * pool.need_mb
    pool.close()
    assert shared.used_mb == 0 and shared.pools == []


@pytest.mark.docker
def test_a_sandbox_that_hangs_is_replaced(make_pool: MakePool) -> None:
    pool = make_pool(bound=3, backend="docker")
    pool.ping_s = 1.5
    hung = pool.acquire()
    container = hung.container  # type: ignore[attr-defined]
    pool.release(hung)
    subprocess.run(["docker", "pause", container], check=True, capture_output=True)
    with pool.lease() as box:
        assert box is not hung and box.run(Cell("python", "print(1)")).ok
    left = subprocess.run(
        ["docker", "ps", "-aq", "--no-trunc"], check=True, capture_output=True, text=True
    )
    assert container not in left.stdout


class Foreign:
    """A backend without ``ping`` that hangs."""

    hangs = threading.Event()
    ping = None

    def __init__(self, limits: Limits) -> None:
        self.backend, self.limits = "foreign", limits

    def __getattr__(self, name: str) -> Any:
        return lambda *_: {}

    def manifest(self) -> dict[str, Any]:
        time.sleep(5 if self.hangs.is_set() else 0)
        return {}


def test_a_foreign_sandbox_that_hangs_is_replaced(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_pool(bound=3)
    monkeypatch.setattr(pool, "_make", lambda: Foreign(LIMITS))
    pool.ping_s = 0.3
    one = pool.acquire()
    pool.release(one)
    with pool.lease() as again:
        assert again is one
    Foreign.hangs.set()
    with pool.lease() as other:
        assert other is not one


_CANARY = r"""
import ctypes, ctypes.util, os, socket, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
done = []
def attempt(name, call):
    try: call(); done.append(name)
    except Exception as error: print(name, error, file=sys.stderr)
def text(path):
    open(path, "w").write("canary")
def shm():
    assert libc.shmget(0x6261741, 4096, 0o1666) >= 0
def message_queue():
    assert libc.msgget(0x6261741, 0o1666) >= 0
def semaphore():
    assert libc.semget(0x6261741, 1, 0o1666) >= 0
def posix_queue():
    rt = ctypes.CDLL("librt.so.1")
    assert rt.mq_open(b"/canary", os.O_CREAT | os.O_RDWR, 0o666, None) >= 0
def abstract():
    s = socket.socket(socket.AF_UNIX); s.bind("\0canary"); s.listen()
    os.set_inheritable(s.fileno(), True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            import time; time.sleep(60)
        os._exit(0)
for place in ("/workspace", "/tmp", "/dev/shm", os.path.expanduser("~"), "/var/tmp", "/run",
              "/dev/mqueue", "/var/lock", "/home/agent", "/data", "/models", "/skills", "/"):
    attempt(place, lambda: text(place + "/canary"))
    attempt(place + " hidden folder", lambda: os.makedirs(place + "/.c/canary"))
    attempt(place + " mode", lambda: os.chmod(place, 0o777))
    attempt(place + " xattr", lambda: os.setxattr(place, "user.canary", b"1"))
    attempt(place + " time", lambda: os.utime(place, (1, 1)))
for call in (shm, message_queue, semaphore, posix_queue, abstract):
    attempt(call.__name__, call)
attempt("process", lambda: subprocess.Popen(["sleep", "61"], start_new_session=True))
print("\n".join(done))
"""
_LOOK = r"""
import ctypes, os, socket
libc = ctypes.CDLL(None)
rt = ctypes.CDLL("librt.so.1")
for top in ("/workspace", "/tmp", "/dev", "/run", "/var", "/home", "/data", "/models", "/skills"):
    for folder, folders, names in os.walk(top):
        for name in folders + names:
            if "canary" in name or name == ".c": print("found", folder, name)
for place in ("/", "/workspace", "/tmp", "/dev/shm", "/data", "/models", "/skills"):
    if os.path.exists(place + "/canary"): print("found", place)
    if os.listxattr(place): print("xattr", place)
    if os.stat(place).st_mtime == 1: print("time", place)
    mode = os.stat(place).st_mode
    if mode & 0o1022 in (0o022, 0o002): print("mode", place, oct(mode))
for name, number in (("shm", libc.shmget(0x6261741, 0, 0)), ("msg", libc.msgget(0x6261741, 0)),
                     ("sem", libc.semget(0x6261741, 0, 0)),
                     ("mq", rt.mq_open(b"/canary", os.O_RDONLY))):
    if number >= 0: print("ipc", name)
s = socket.socket(socket.AF_UNIX)
try: s.connect("\0canary"); print("abstract socket")
except OSError: pass
if "canary" in open("/proc/net/unix").read(): print("abstract socket listed")
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if b"sleep" in open(f"/proc/{pid}/cmdline", "rb").read(): print("process", pid)
    except OSError: pass
"""


@pytest.mark.parametrize("backend", WALLED)
def test_nothing_of_a_lease_reaches_the_next(backend: str, make_pool: MakePool) -> None:
    pool = make_pool(bound=1, backend=backend)
    with pool.lease() as first:
        planted = set(first.run(Cell("python", _CANARY)).stdout.splitlines())
    assert {"/workspace", "/tmp", "/dev/shm", "abstract", "process"} <= planted, planted
    assert not {"/data", "/models", "/skills", "/", "/data mode"} & planted
    with pool.lease() as second:
        assert second is first, "the same sandbox, wiped"
        seen = second.run(Cell("python", _LOOK))
        assert (seen.stdout, seen.stderr, seen.exit_code) == ("", "", 0)
        assert second.manifest() == {}


def test_waits_are_not_busy(make_pool: MakePool) -> None:
    pool = make_pool(bound=1)
    pool.release(pool.acquire())
    held = pool.acquire()
    before = os.times()
    with pytest.raises(SandboxError):
        pool.acquire(timeout_s=1.0)
    after = os.times()
    assert after.user + after.system - before.user - before.system < 0.5
    pool.release(held)
