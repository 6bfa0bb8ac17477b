"""Daemons of all kinds: a remote one, one that is killed in the middle of a cell, and Podman.

The daemons are the tests' own, beside the machine's, and hold only a small image.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bat_env.errors import SandboxError, SandboxUnavailableError
from bat_env.image import connect, daemon_host
from bat_env.sandbox import Cell, Limits, SandboxPool, make_sandbox
from bat_env.sandbox.budget import Budget
from bat_env.sandbox.docker import DockerSandbox, container_options, is_podman, podman_options
from bat_env.testing import sandbox_cases, sandbox_conformance
from bat_env.workbench import Workbench

LIMITS = Limits(memory_mb=256, workspace_mb=16, tmp_mb=8, cell_timeout_s=60)
NEED_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="a daemon of our own needs root")


def _small_image() -> str:
    seen = subprocess.run(
        ["docker", "images", "automed-bat/base", "--format", "{{.Repository}}:{{.Tag}}"],
        capture_output=True,
        text=True,
    )
    for name in seen.stdout.split():
        if not name.endswith("<none>"):
            return name
    pytest.skip("no image automed-bat/base (bootstrap of `bat-env image build`) to load elsewhere")


@pytest.fixture(scope="module")
def archive() -> Iterator[tuple[str, Path]]:
    """A small image with Python, as a file."""
    image = _small_image()
    with tempfile.TemporaryDirectory(prefix="bat-image-") as folder:
        path = Path(folder) / "image.tar"
        subprocess.run(["docker", "save", "-o", str(path), image], check=True)
        yield image, path


class Daemon:
    """A ``dockerd`` of our own, with data, sockets and containers of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.tcp = f"tcp://127.0.0.1:{probe.getsockname()[1]}"
        self.unix = f"unix://{folder}/docker.sock"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen(
            [
                "dockerd",
                *("--data-root", f"{self.folder}/data", "--exec-root", f"{self.folder}/exec"),
                *("--pidfile", f"{self.folder}/pid", "-H", self.unix, "-H", self.tcp),
                *("--bridge=none", "--iptables=false", "--ip-forward=false"),
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        deadline = time.monotonic() + 60
        while self.docker("info", check=False).returncode:
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"no second dockerd here: {(self.folder / 'log').read_text()[-300:]}")
            time.sleep(0.1)

    def docker(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", "-H", self.unix, *words], check=check, capture_output=True, text=True
        )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None:
            left = self.docker("ps", "-aq", check=False).stdout.split()
            self.docker("rm", "-f", *left, check=False)
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            place = line.split()[1]
            if place.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", place], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def daemon(archive: tuple[str, Path]) -> Iterator[Daemon]:
    if not shutil.which("dockerd"):
        pytest.skip("no dockerd on this machine")
    made = Daemon(Path(tempfile.mkdtemp(prefix="bat-dockerd-")))
    try:
        made.start()
        made.docker("load", "-i", str(archive[1]))
        yield made
    finally:
        made.stop()


@pytest.fixture
def remote(
    daemon: Daemon, archive: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Daemon]:
    """The daemon, reached over TCP as one on another machine is."""
    monkeypatch.setenv("DOCKER_HOST", daemon.tcp)
    monkeypatch.setenv("BAT_SANDBOX_IMAGE", archive[0])
    yield daemon


def _marked(marker: str) -> list[int]:
    seen = subprocess.run(["pgrep", "-f", f"^{marker}$"], capture_output=True, text=True)
    return [int(word) for word in seen.stdout.split()]


def _until(marker: str, there: bool) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if bool(_marked(marker)) is there:
            return True
        time.sleep(0.05)
    return False


@NEED_ROOT
@pytest.mark.docker
def test_a_remote_daemon_needs_no_mounts(remote: Daemon) -> None:
    assert DockerSandbox.problem() == ""
    files = {"data/big": bytes(6 << 20), "workspace/a": b"a"}
    box = make_sandbox("docker", LIMITS, preload=())
    try:
        box.reset(files)
        container = box.container  # type: ignore[attr-defined]
        assert remote.docker("ps", "-q", "--no-trunc").stdout.split() == [container]
        mounts = remote.docker("inspect", "-f", "{{json .Mounts}}", container).stdout
        assert '"bind"' not in mounts and '"volume"' not in mounts
        assert box.run(Cell("bash", "cat a; wc -c < /data/big")).stdout == f"a{6 << 20}\n"
        assert box.snapshot() == {"a": b"a"}
    finally:
        box.close()


@NEED_ROOT
@pytest.mark.docker
@pytest.mark.slow
def test_a_daemon_killed_in_a_cell_leaves_nothing(remote: Daemon) -> None:
    """The episode is invalid, the next lease works, the old container goes with the next start."""
    pool = SandboxPool("docker", LIMITS, budget=Budget(1 << 20), preload=())
    bench = Workbench("docker")
    try:
        bench._pool, bench._limits = pool, LIMITS
        bench.begin(LIMITS, {})
        old = bench.current.container  # type: ignore[attr-defined]
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(bench.run, Cell("bash", "sleep 300.31"), 60.0)
            assert _until("sleep 300.31", True)
            remote.kill()
            with pytest.raises(SandboxError, match=r"died during 'run'.*invalid"):
                running.result(60)
        with pytest.raises(SandboxError):
            bench.begin(LIMITS, {})
        remote.start()
        assert bench.begin(LIMITS, {}) == {}
        assert bench.run(Cell("python", "print(1)"), 20.0).result.stdout == "1\n"
        assert _until("sleep 300.31", False)
        new = bench.current.container  # type: ignore[attr-defined]
        left = set(remote.docker("ps", "-aq", "--no-trunc").stdout.split())
        assert new in left and old not in left
    finally:
        bench.release()
        pool.close()
    deadline = time.monotonic() + 20
    while remote.docker("ps", "-aq").stdout and time.monotonic() < deadline:
        time.sleep(0.1)
    assert remote.docker("ps", "-aq").stdout == ""


def test_sockets_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DOCKER_HOST", "CONTAINER_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("bat_env.image._DEFAULT_SOCKET", f"{tmp_path}/docker.sock")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert daemon_host() == f"unix://{tmp_path}/docker.sock"
    (tmp_path / "podman").mkdir()
    (tmp_path / "podman" / "podman.sock").touch()
    assert daemon_host() == f"unix://{tmp_path}/podman/podman.sock"
    with pytest.raises(SandboxUnavailableError, match=r"podman\.sock.*Podman's socket will do"):
        connect(2.0)
    (tmp_path / "docker.sock").touch()
    assert daemon_host() == f"unix://{tmp_path}/docker.sock"
    monkeypatch.setenv("CONTAINER_HOST", "unix:///elsewhere")
    assert daemon_host() == "unix:///elsewhere"
    monkeypatch.setenv("DOCKER_HOST", "tcp://far:1")
    assert daemon_host() == "tcp://far:1"


class _Far:
    class api:
        base_url = "http://far:2375"


def test_a_remote_podman_is_refused_with_a_reason() -> None:
    with pytest.raises(SandboxUnavailableError, match=r"got Podman at http://far:2375"):
        podman_options(_Far, container_options(LIMITS))


@pytest.fixture(scope="module")
def podman(archive: tuple[str, Path]) -> Iterator[str]:
    """The socket of a Podman of our own."""
    if not shutil.which("podman"):
        pytest.skip("no podman on this machine")
    folder = tempfile.mkdtemp(prefix="bat-podman-")
    own = ["podman", "--root", f"{folder}/root", "--runroot", f"{folder}/run"]
    own += ["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs"]
    runtime = shutil.which("runc")
    own += ["--runtime", runtime] if runtime else []
    service = None
    try:
        subprocess.run([*own, "load", "-qi", str(archive[1])], check=True, capture_output=True)
        service = subprocess.Popen(
            [*own, "system", "service", "--time", "0", f"unix://{folder}/podman.sock"],
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 30
        while not Path(f"{folder}/podman.sock").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        yield f"unix://{folder}/podman.sock"
    finally:
        if service is not None:
            service.send_signal(signal.SIGTERM)
            service.wait(20)
        subprocess.run([*own, "rm", "-fa"], check=False, capture_output=True)
        subprocess.run([*own, "rmi", "-fa"], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


@NEED_ROOT
@pytest.mark.docker
@pytest.mark.slow
def test_podman_passes_the_suite(
    podman: str, archive: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", podman)
    monkeypatch.setenv("BAT_SANDBOX_IMAGE", archive[0])
    client = connect(20.0)
    with contextlib.closing(client):
        assert is_podman(client)
    try:
        make_sandbox("docker", LIMITS, preload=()).start()
    except SandboxError as error:
        if "OCI" in str(error):
            pytest.skip(f"Podman cannot start containers here: {error}")
        raise
    report = sandbox_conformance("docker", preload=())
    assert report.ok, report
    assert len(report.rows) == len(sandbox_cases())
