"""The ``docker`` backend: one container per sandbox, everything over its standard streams.

No bind mounts and no exec calls, so the daemon may be on another machine. The container has no
network, a read-only root, three capabilities for the supervisor (none for cells), our seccomp
profile and size-limited file systems in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
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

_DISCONNECTED: Final = (OSError, ValueError)


def default_image() -> str:
    """``BAT_SANDBOX_IMAGE``, else the image of this version of the suite."""
    from bat_env.image import default_tag

    return os.environ.get("BAT_SANDBOX_IMAGE", "") or default_tag()


@cache
def seccomp_profile() -> str:
    """Our seccomp profile as compact JSON."""
    text = (resources.files("bat_env.sandbox") / "seccomp.json").read_text(encoding="utf-8")
    return json.dumps(json.loads(text), separators=(",", ":"))


def connect(timeout_s: float = 60.0) -> Any:
    """A client of the daemon that the environment names.

    Raises:
        SandboxUnavailableError: If none answers.
    """
    from bat_env import image

    return image.connect(timeout_s)


def container_options(limits: Limits, image: str) -> dict[str, Any]:
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
        reaper.disown(self._container)
        with contextlib.suppress(Exception):
            self._socket.close()
            self._stream.close()
        with contextlib.suppress(Exception):
            self._client.api.remove_container(self._container, force=True)
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


class DockerSandbox(WorkerSandbox):
    """A sandbox in a container of its own.

    Args:
        limits: Limits of the sandbox. The container's memory is their sum plus the worker's share.
        image: Image name; :func:`default_image` if omitted.
        preload: Modules that the zygote imports once.
    """

    WORKER_SHARE_MB: Final = 320
    """What supervisor, zygote and spares hold, MiB; for the pool's budget."""

    def __init__(
        self,
        limits: Limits | None = None,
        image: str | None = None,
        preload: tuple[str, ...] = PRELOAD,
    ) -> None:
        self.image = image or default_image()
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
        except BaseException:
            if self.container:
                with contextlib.suppress(Exception):
                    client.api.remove_container(self.container, force=True)
            client.close()
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
            raise SandboxError(f"The sandbox container did not start: {error}") from error
        return worker

    def _create(self, client: Any) -> str:
        import docker

        options = container_options(self.limits, self.image)
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
