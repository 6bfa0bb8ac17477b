"""Backends by name, pools, sharing, deaths, and what is left afterwards: nothing."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bat_env.errors import SandboxError, SandboxUnavailableError, UnknownNameError
from bat_env.sandbox import (
    Cell,
    CellResult,
    Limits,
    Sandbox,
    SandboxPool,
    backend_names,
    make_sandbox,
    resolve_backend,
    shared_pool,
)
from bat_env.sandbox.local import LocalSandbox

LEAN: tuple[str, ...] = ()
"""No preloaded modules: a worker in a fraction of a second."""
REPOSITORY = Path(__file__).parents[2]
Run = Callable[..., CellResult]


def _workers_of(pid: int) -> list[int]:
    """Processes below ``pid``."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    parents = {int(a): int(b) for a, b in (line.split() for line in table.stdout.splitlines())}
    found, frontier = [], {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        found += sorted(frontier)
    return found


def _gone(pids: list[int], patience_s: float = 20.0) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _no_sleeper(patience_s: float = 20.0) -> bool:
    """Whether the cell's processes are gone; a container's are killed by its daemon, later."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if not subprocess.run(["pgrep", "-f", "^sleep 300.25"], capture_output=True).stdout:
            return True
        time.sleep(0.05)
    return False


def test_backends_are_registered() -> None:
    assert {"docker", "local", "process"} <= set(backend_names())
    for name in ("local", "process"):
        assert isinstance(make_sandbox(name), Sandbox)
    with pytest.raises(UnknownNameError, match="Did you mean 'local'"):
        make_sandbox("locl")


def test_auto_obeys_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BAT_SANDBOX", "process")
    assert resolve_backend("auto") == "process"
    assert resolve_backend("local") == "local"
    monkeypatch.setenv("BAT_SANDBOX", "dokcer")
    with pytest.raises(UnknownNameError, match="Did you mean 'docker'"):
        resolve_backend()


def test_auto_never_falls_to_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BAT_SANDBOX", raising=False)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/absent.sock")
    assert resolve_backend("auto") == "local"
    monkeypatch.setattr(LocalSandbox, "problem", staticmethod(lambda: "no namespaces"))
    with pytest.raises(SandboxUnavailableError, match="Install Docker") as caught:
        resolve_backend("auto")
    assert "no namespaces" in str(caught.value) and "bat-env image build" in str(caught.value)
    with pytest.raises(SandboxUnavailableError, match="local sandbox cannot run here"):
        make_sandbox("local")


@pytest.mark.docker
def test_missing_image_is_named() -> None:
    sandbox = make_sandbox("docker", image="automed-bat/no-such-image:0")
    with pytest.raises(SandboxUnavailableError, match="bat-env image build"):
        sandbox.start()
    sandbox.close()


@pytest.mark.docker
def test_no_socket_of_the_daemon_is_left_open() -> None:
    code = (
        "from bat_env.sandbox import SandboxPool\n"
        "pool = SandboxPool('docker', size=1, preload=())\n"
        "pool.release(pool.acquire())"  # closed at exit, by whoever comes first
    )
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "ResourceWarning" not in done.stderr, done.stderr


def test_close_is_final_and_idempotent() -> None:
    sandbox = make_sandbox("process", preload=LEAN)
    sandbox.start()
    sandbox.start()
    assert sandbox.run(Cell("python", "print(1)")).stdout == "1\n"
    sandbox.close()
    sandbox.close()
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run(Cell("python", "print(1)"))


def test_sessions_share_one_worker_and_run_side_by_side() -> None:
    boxes = [make_sandbox("local", preload=LEAN) for _ in range(8)]

    def episode(index: int) -> list[str]:
        box = boxes[index]
        box.reset({"data/i": str(index).encode()})
        code = "import time; time.sleep(.1); print(open('/data/i').read())"
        return [box.run(Cell("python", code)).stdout for _ in range(3)]

    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(episode, range(8)))
    assert seen == [[f"{i}\n"] * 3 for i in range(8)]
    assert len({id(box.worker) for box in boxes}) == 1  # type: ignore[attr-defined]
    for box in boxes:
        box.close()


@pytest.mark.parametrize("backend", ["local", "process"])
def test_a_dead_worker_is_an_error_and_the_next_one_works(backend: str) -> None:
    preload = ("json",)  # a worker of its own
    sandbox = make_sandbox(backend, preload=preload)
    sandbox.reset({})
    transport = sandbox.worker._transport  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(sandbox.run, Cell("python", "import time; time.sleep(30)"))
        time.sleep(0.5)
        own = [transport._process.pid, *_workers_of(transport._process.pid)]
        os.kill(transport._process.pid, signal.SIGKILL)
        with pytest.raises(SandboxError, match="died"):
            running.result(20)
    with pytest.raises(SandboxError):
        sandbox.manifest()
    sandbox.close()
    transport._process.wait(10)
    assert len(own) > 1 and _gone(own)
    again = make_sandbox(backend, preload=preload)
    assert again.run(Cell("python", "print(2)")).stdout == "2\n"
    again.close()


@pytest.mark.docker
def test_a_killed_container_is_an_error() -> None:
    sandbox = make_sandbox("docker", preload=LEAN)
    sandbox.reset({})
    container = sandbox.container  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(sandbox.run, Cell("python", "import time; time.sleep(30)"))
        time.sleep(1)
        subprocess.run(["docker", "kill", container], check=True, capture_output=True)
        with pytest.raises(SandboxError, match="died"):
            running.result(30)
    sandbox.close()
    assert _removed(container)


def _removed(container: str) -> bool:
    """Removal of a container that ended by itself goes on in the daemon."""
    deadline = time.monotonic() + 20
    while _containers(container) and time.monotonic() < deadline:
        time.sleep(0.2)
    return not _containers(container)


def _containers(needle: str) -> bool:
    seen = subprocess.run(
        ["docker", "ps", "-aq", "--no-trunc"], check=True, capture_output=True, text=True
    )
    return needle in seen.stdout


_VICTIM = """
import sys, time
from bat_env.sandbox import Cell, make_sandbox
box = make_sandbox(sys.argv[1], preload=())
box.reset({"data/x": b"1"})
print(getattr(box, "container", ""), flush=True)
box.run(Cell("bash", "(setsid sleep 300.25 &) ; sleep 300.25"))
"""


@pytest.mark.parametrize(
    "backend", ["local", "process", pytest.param("docker", marks=pytest.mark.docker)]
)
def test_sigkill_of_the_host_leaves_nothing(backend: str) -> None:
    victim = subprocess.Popen(
        [sys.executable, "-c", _VICTIM, backend], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert victim.stdout is not None
    container = victim.stdout.readline().strip()
    time.sleep(1.0)
    below = _workers_of(victim.pid)
    temporary = Path(tempfile.gettempdir())
    folders = [f for pid in below for f in temporary.glob(f"bat-process-{pid}-*")]
    assert below or backend == "docker"
    assert len(folders) == (backend == "process")
    victim.kill()
    victim.wait()
    assert _gone(below)
    assert not any(folder.exists() for folder in folders)
    if container:
        assert _removed(container)
    assert _no_sleeper()


@pytest.mark.docker
def test_reaper_removes_what_a_dead_owner_left() -> None:
    import docker

    from bat_env.sandbox import reaper
    from bat_env.sandbox.docker import default_image

    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True
    )
    client = docker.from_env()
    labels = {**reaper.labels(), f"{reaper.LABEL}.pid": dead.stdout.decode().strip()}
    left = client.api.create_container(default_image(), ["true"], labels=labels)["Id"]
    mine = client.api.create_container(default_image(), ["true"], labels=reaper.labels())["Id"]
    try:
        removed = reaper.reap(client)
        assert left in removed and mine not in removed
    finally:
        client.api.remove_container(mine)


def test_pool_hands_out_wiped_sandboxes(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = SandboxPool("process", Limits(memory_mb=300), size=1, preload=LEAN)
    with pool.lease() as first:
        first.run(Cell("bash", "echo x > left"))
    with pool.lease() as second:
        assert second is first
        assert second.manifest() == {}
        with pool.lease() as third:  # beyond the size: made on demand, closed afterwards
            assert third is not second
        with pool.lease(fresh=True) as fresh:
            assert fresh is not second
    dead = pool.acquire()
    dead.close()
    pool.release(dead)
    with pool.lease() as healthy:
        assert healthy is not dead and healthy.run(Cell("python", "print(1)")).ok
    pool.close()
    pool.close()
    with pytest.raises(SandboxError, match="closed"):
        pool.acquire()


def test_shared_pool_is_one_per_configuration() -> None:
    limits = Limits(memory_mb=301)
    assert shared_pool("process", limits) is shared_pool("process", limits)
    assert shared_pool("process", limits) is not shared_pool("process", Limits(memory_mb=302))


_FORK = """
import os, sys
from bat_env.sandbox import Cell, SandboxPool
pool = SandboxPool("local", preload=())
with pool.lease() as box:
    assert box.run(Cell("python", "print(1)")).stdout == "1\\n"
    pid = os.fork()
    if pid == 0:
        with pool.lease() as mine:
            assert mine is not box
            print(mine.run(Cell("python", "print('child')")).stdout, end="", flush=True)
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    print(box.run(Cell("python", "print('parent')")).stdout, end="")
"""


def test_a_forked_child_gets_its_own_worker() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, text=True, cwd=REPOSITORY, timeout=120
    )
    assert (done.stdout, done.returncode) == ("child\nparent\n", 0), done.stderr


def test_every_process_is_gone_after_exit() -> None:
    code = _FORK.replace("sys.exit(0)", "os._exit(0)")  # not even atexit runs in the child
    victim = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    victim.stdout.readline()
    below = _workers_of(victim.pid)
    victim.communicate(timeout=120)
    assert below and _gone(below)


_NOBODY = """
import os, sys
sys.path[:0] = sys.argv[1:]
from bat_env.sandbox.check import check_sandbox
assert os.getuid() != 0
report = check_sandbox("local", preload=("numpy",))
print(report)
sys.exit(not report.ok)
"""


def test_local_holds_for_an_ordinary_user(
    as_nobody: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = as_nobody("-", str(REPOSITORY), input=_NOBODY, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_digests_of_what_was_laid(sandbox: Sandbox) -> None:
    """The listing after a reset has each file's true digest, large and empty files included."""
    content = {
        "empty.txt": b"",
        "small.bin": bytes(range(256)),
        "deep/er/text.txt": b"plain text\n",
        "large.bin": bytes(range(251)) * 12_000,  # three frames
        "exact.bin": b"\1" * (2 << 20),
    }
    sandbox.reset({f"workspace/{name}": data for name, data in content.items()})
    seen = {path: e for path, e in sandbox.manifest().items() if e.kind == "file"}
    assert {p: (e.size, e.sha256) for p, e in seen.items()} == {
        name: (len(data), hashlib.sha256(data).hexdigest()) for name, data in content.items()
    }
    changed = sandbox.run(Cell("bash", "printf x >> small.bin; rm empty.txt; chmod 600 exact.bin"))
    assert (list(changed.delta.changed), changed.delta.deleted) == (["small.bin"], ("empty.txt",))
    assert {p: sandbox.read(p, 1 << 23) for p in ("large.bin", "exact.bin")} == {
        p: content[p] for p in ("large.bin", "exact.bin")
    }
