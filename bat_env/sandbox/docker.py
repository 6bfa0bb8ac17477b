"""The ``docker`` backend: one container per sandbox, everything over its standard streams.

No bind mounts and no exec calls, so the daemon may be on another machine. The container has no
network, a read-only root, three capabilities for the supervisor (none for cells), our seccomp
profile and size-limited file systems in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from datetime import datetime
from functools import cache
from importlib import resources
from typing import Any, Final

from bat_env.errors import SandboxError, SandboxUnavailableError

from . import reaper
from .base import Limits
from .boot import BOOT, first_bytes
from .client import WorkerClient
from .embedded import PRELOAD, SKIP, START_TIMEOUT_S
from .session import WorkerSandbox, shm_mb

INPUTS_MB: Final = 512
"""Room for /data, /models and /skills together, MiB."""
WORKER_MB: Final = 768
"""Memory of supervisor, zygote and spares, MiB; on top of what the limits promise to cells."""
WORKER_PIDS: Final = 16
AGENT_UID: Final = 1000
WRITE_TIMEOUT_S: Final = 120

_DISCONNECTED: Final = (OSError, ValueError)


def default_image() -> str:
    """``BAT_SANDBOX_IMAGE``, else the image of this version of the suite."""
    from bat_env.image import default_tag

    return os.environ.get("BAT_SANDBOX_IMAGE", "") or default_tag()


_PROFILE: Final = resources.files("bat_env.sandbox") / "seccomp.json"


@cache
def seccomp_profile() -> str:
    """Our seccomp profile as compact JSON."""
    return json.dumps(json.loads(_PROFILE.read_text(encoding="utf-8")), separators=(",", ":"))


def is_podman(client: Any) -> bool:
    """Whether a Podman answers in the daemon's place."""
    parts = client.api.version().get("Components") or [{}]
    return str(parts[0].get("Name", "")).startswith("Podman")


def connect(timeout_s: float = 60.0) -> Any:
    """A client of the daemon that the environment names.

    Raises:
        SandboxUnavailableError: If none answers.
    """
    from bat_env import image

    return image.connect(timeout_s)


def container_options(limits: Limits) -> dict[str, Any]:
    """Keyword arguments of ``create_host_config``, the isolation in one place."""
    shm = shm_mb(limits)
    agent = f"uid={AGENT_UID},gid={AGENT_UID},mode=0755,exec,nosuid,nodev"
    inodes = limits.workspace_inodes + 1
    inputs = f"size={INPUTS_MB}m,mode=0755,exec,nosuid,nodev"
    memory = limits.memory_mb + limits.workspace_mb + limits.tmp_mb + shm + INPUTS_MB + WORKER_MB
    return {
        "auto_remove": True,
        "network_mode": "none",
        "read_only": True,
        "cap_drop": ["ALL"],
        "cap_add": ["SETUID", "SETGID", "KILL"],
        "security_opt": ["no-new-privileges:true", f"seccomp={seccomp_profile()}"],
        "pids_limit": limits.pids + WORKER_PIDS,
        "mem_limit": f"{memory}m",
        "memswap_limit": f"{memory}m",
        "nano_cpus": int(limits.cpus * 1e9),
        "shm_size": f"{shm}m",
        "log_config": {"type": "none", "config": {}},
        "tmpfs": {
            "/workspace": f"size={limits.workspace_mb}m,nr_inodes={inodes},{agent}",
            "/tmp": f"size={limits.tmp_mb}m,nr_inodes=65536,{agent}",
            "/data": inputs,
            "/models": inputs,
            "/skills": inputs,
        },
    }


def podman_options(client: Any, options: dict[str, Any]) -> dict[str, Any]:
    """:func:`container_options` in the words of Podman.

    It reads the seccomp profile from a file of its own machine, and knows neither owner nor inode
    limit of a tmpfs: so everybody in the container (which is the agent) may write to it, and inodes
    are left to the worker, which counts after each cell.

    Raises:
        SandboxUnavailableError: If Podman is on another machine.
    """
    if not client.api.base_url.startswith("http+docker"):
        raise SandboxUnavailableError(
            f"Expected a Docker daemon, or Podman on this machine; got Podman at "
            f"{client.api.base_url}, which reads seccomp profiles only from its own files. Use its "
            "socket file, a Docker daemon, or the sandbox 'local'."
        )
    tmpfs = {
        place: ",".join(w for w in text.split(",") if not w.startswith(("nr_inodes", "uid", "gid")))
        for place, text in options["tmpfs"].items()
    }
    for place in ("/workspace", "/tmp"):
        tmpfs[place] = tmpfs[place].replace("mode=0755", "mode=1777")
    with resources.as_file(_PROFILE) as profile:
        security = ["no-new-privileges:true", f"seccomp={profile}"]
    # Podman's own defaults are above what many machines allow, and then nothing starts.
    ulimits = [{"Name": name, "Soft": 4096, "Hard": 4096} for name in ("nofile", "nproc")]
    return {**options, "security_opt": security, "tmpfs": tmpfs, "ulimits": ulimits}


def _remove(client: Any, container: str) -> None:
    """Remove a container, now or at the next start; one that is going by itself is gone."""
    try:
        client.api.remove_container(container, force=True)
    except Exception as error:
        if getattr(getattr(error, "response", None), "status_code", 0) not in (404, 409):
            reaper.lose(container)
            return
    reaper.disown(container)


class _Attached:
    """The hijacked attach stream of a container."""

    def __init__(self, client: Any, container: str) -> None:
        self._client = client
        self._container = container
        stream = client.api.attach_socket(
            container, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
        )
        self._stream = stream
        self._socket = getattr(stream, "_sock", stream)
        with contextlib.suppress(AttributeError, OSError):
            self._socket.settimeout(None)
            # A worker that stops reading must not hold a writing host for ever.
            patience = struct.pack("ll", WRITE_TIMEOUT_S, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
        self._buffer = bytearray()
        self._said = b""
        self._closed = False
        self._closing = threading.Lock()

    def read(self) -> bytes:
        """Standard output; standard error, which shares the stream, is kept for the obituary."""
        while True:
            head = self._exactly(8)
            if len(head) < 8:
                return b""
            data = self._exactly(int.from_bytes(head[4:], "big"))
            if head[0] == 2:
                self._said = (self._said + data)[-4000:]
            elif data:
                return data

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            try:
                data = self._socket.recv(1 << 18)
            except _DISCONNECTED:
                data = b""
            if not data:
                return b""
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        with contextlib.suppress(Exception):
            self._socket.close()
            self._stream.close()
        _remove(self._client, self._container)
        with contextlib.suppress(Exception):
            self._client.close()

    def abandon(self) -> None:
        self._closed = True
        with contextlib.suppress(Exception):
            os.close(self._socket.detach())

    def obituary(self) -> str:
        said = self._said.decode("utf-8", "replace").strip()
        with contextlib.suppress(Exception):
            state = self._client.api.inspect_container(self._container)["State"]
            said += f" [container {state['Status']}, exit code {state['ExitCode']}]"
        return said[-1500:]

    def oom_within(self, seconds: float) -> bool:
        """Ask the daemon's own log: the container, its counters included, may be gone."""
        with contextlib.suppress(Exception):
            now = datetime.fromisoformat(self._client.info()["SystemTime"]).timestamp()
            seen = self._client.api.events(
                since=int(now - seconds),
                until=int(now) + 1,
                filters={"container": self._container, "event": "oom"},
                decode=True,
            )
            with contextlib.closing(seen):
                return any(True for _ in seen)
        return False


def _not_started(error: Exception) -> SandboxError:
    return SandboxError(
        f"Expected the sandbox container to start, the daemon says: {error}. Run `bat-env sandbox "
        "check --backend docker`, look into the daemon's log, or use the sandbox 'local'."
    )


class DockerSandbox(WorkerSandbox):
    """A sandbox in a container of its own.

    Args:
        limits: Limits of the sandbox. The container's memory is their sum plus the worker's share.
        image: Image name; :func:`default_image` if omitted.
        preload: Modules that the zygote imports once.
        runtime: Container runtime that the daemon knows, such as gVisor's ``runsc`` or a Kata one;
            ``BAT_DOCKER_RUNTIME`` if omitted, else the daemon's default.
    """

    WORKER_SHARE_MB: Final = 320
    """What supervisor, zygote and spares hold, MiB; for the pool's budget."""

    def __init__(
        self,
        limits: Limits | None = None,
        image: str | None = None,
        preload: tuple[str, ...] = PRELOAD,
        runtime: str | None = None,
    ) -> None:
        self.image = image or default_image()
        self.runtime = runtime or os.environ.get("BAT_DOCKER_RUNTIME", "") or None
        self.container = ""
        self._preload = preload
        super().__init__("docker", limits or Limits(), self._boot, lambda client: client.close())

    @staticmethod
    def problem() -> str:
        """Why this backend cannot work here; empty when it should."""
        try:
            client = connect(timeout_s=10.0)
        except SandboxUnavailableError as error:
            return str(error).rstrip(".")
        try:
            client.ping()
            client.images.get(default_image())
        except Exception as error:
            missing = type(error).__name__ == "ImageNotFound"
            what = f"image {default_image()!r} is missing" if missing else f"daemon says {error}"
            return f"{what} (build it with `bat-env image build`)" if missing else what
        finally:
            client.close()
        return ""

    def _boot(self) -> WorkerClient:
        client = connect()
        try:
            reaper.reap(client)
            self.container = self._create(client)
            reaper.own(self.container)
            stream = _Attached(client, self.container)
        except BaseException as error:
            if self.container:
                _remove(client, self.container)
            client.close()
            if isinstance(error, Exception) and not isinstance(error, SandboxError):
                raise _not_started(error) from error
            raise
        try:
            client.api.start(self.container)
            config = {
                "isolation": "container",
                "host_pid": 0,
                "preload": list(self._preload),
                "skip": list(SKIP),
                "parallel": 1,
                "spares": 2,
                "uid": AGENT_UID,
                "python": "",
                "view": None,
            }
            stream.write(first_bytes(config))
            worker = WorkerClient(stream, "docker")
            worker.hello(START_TIMEOUT_S)
        except SandboxError:
            stream.close()
            raise
        except Exception as error:
            stream.close()
            raise _not_started(error) from error
        return worker

    def _create(self, client: Any) -> str:
        import docker

        options = container_options(self.limits) | {"runtime": self.runtime}
        if is_podman(client):
            options = podman_options(client, options)
        try:
            made = client.api.create_container(
                self.image,
                entrypoint=["python3", "-I", "-S", "-c", BOOT],
                command=[],
                user="0:0",
                stdin_open=True,
                hostname="sandbox",
                working_dir="/",
                labels=reaper.labels(),
                host_config=client.api.create_host_config(**options),
            )
        except docker.errors.ImageNotFound as error:
            raise SandboxUnavailableError(
                f"Expected the sandbox image {self.image!r}; the Docker daemon does not have it. "
                "Build it with `bat-env image build`."
            ) from error
        except docker.errors.DockerException as error:
            raise SandboxError(
                f"The Docker daemon refused the sandbox container: {error}"
            ) from error
        return str(made["Id"])
