"""Build the Docker sandbox image: base, wheels, build, and a digest that makes rebuilds no-ops.

The inputs live in ``sandbox_images/`` (beside the packages in a checkout, inside ``bat_env`` in a
wheel). Everything works without a registry and without a network where the machine can supply the
base and the wheels itself.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

from bat_env.errors import ConfigError, SandboxUnavailableError
from bat_env.extras import install

if TYPE_CHECKING:
    from bat_env._image_progress import BuildProgress

DEFAULT_BASE: Final = "python:3.11-slim"
"""Used when it is here or can be pulled; else a base is made from this machine's packages."""

_DEFAULT_SOCKET: Final = "/var/run/docker.sock"
DIGEST_LABEL: Final = "automed-bat.digest"
_INPUTS: Final = ("Dockerfile", "requirements.txt", "bootstrap_base.py")
_ARCHITECTURES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
_BUILD_TIMEOUT_S: Final = 3600

_Client: TypeAlias = Any  # the docker library ships no types


def default_tag() -> str:
    """Name of the sandbox image that belongs to this version of the suite."""
    try:
        version = metadata.version("automed-bat")
    except metadata.PackageNotFoundError:  # a checkout on the path, not installed
        version = "0.1.0"
    return f"automed-bat/sandbox:{version}"


def source_folder() -> Path:
    """The folder that holds the image's inputs.

    Raises:
        ConfigError: If the installation lacks it.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "_sandbox_images", package.parent / "sandbox_images"):
        if (folder / "Dockerfile").is_file():
            return folder
    raise ConfigError(
        "Expected sandbox_images/ beside the package or inside it; found neither. "
        "Reinstall automed-bat."
    )


def input_digest(folder: Path, base_image: str | None = None) -> str:
    """Digest of everything that decides what is in the image.

    Args:
        folder: As from :func:`source_folder`.
        base_image: The base asked for; ``None`` for the automatic choice.

    Returns:
        64 hex digits.
    """
    digest = hashlib.sha256(f"base={base_image or 'auto'}\n".encode())
    for name in _INPUTS:
        data = (folder / name).read_bytes()
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


@contextmanager
def docker_client(timeout_s: int = 60) -> Iterator[_Client]:
    """A client of the Docker daemon that ``DOCKER_HOST`` or the default socket names.

    Args:
        timeout_s: Longest silence of the daemon in one request, seconds.

    Raises:
        SandboxUnavailableError: If no daemon answers.
    """
    client = connect(timeout_s)
    try:
        yield client
    finally:
        client.close()


def connect(timeout_s: float) -> _Client:
    """As :func:`docker_client`; the caller closes it.

    Raises:
        SandboxUnavailableError: If no daemon answers, or the docker library is missing.
    """
    try:
        import docker
    except ImportError as error:
        raise SandboxUnavailableError(
            f"The docker sandbox needs the Python package 'docker': {install()}."
        ) from error
    host = daemon_host()
    try:
        _knock(host, timeout_s)
        environment = {**os.environ, "DOCKER_HOST": host}
        return docker.from_env(timeout=timeout_s, environment=environment)
    except (OSError, docker.errors.DockerException) as error:
        reason = _reason(error)
        raise SandboxUnavailableError(
            f"No Docker daemon answers at {host}{f' ({reason})' if reason else ''}. Install Docker "
            "(Debian: docker.io), start its daemon, and make sure that this user may reach it "
            "(DOCKER_HOST; Podman's socket will do), or use the sandbox 'local'."
        ) from error


def daemon_host() -> str:
    """Address of the daemon: ``DOCKER_HOST``, else ``CONTAINER_HOST``, else the first socket found.

    Docker's own socket comes first, then Podman's, of this user and of the machine.
    """
    told = os.environ.get("DOCKER_HOST", "") or os.environ.get("CONTAINER_HOST", "")
    if told:
        return told
    if sys.platform == "win32":
        return "npipe:////./pipe/docker_engine"
    runtime = os.environ.get("XDG_RUNTIME_DIR", "") or f"/run/user/{os.getuid()}"
    for path in (_DEFAULT_SOCKET, f"{runtime}/podman/podman.sock", "/run/podman/podman.sock"):
        if Path(path).exists():
            return f"unix://{path}"
    return f"unix://{_DEFAULT_SOCKET}"


def _knock(host: str, timeout_s: float) -> None:
    """Connect to a daemon's socket file once; the docker library leaks a socket if it cannot."""
    scheme, _, path = host.partition("://")
    if scheme == "unix" and path:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(timeout_s)
            probe.connect(path if path.startswith("/") else f"/{path}")


def _reason(error: BaseException) -> str:
    """What the operating system said, without the library's wrapping."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return str(cause.strerror)
        cause = cause.__cause__ or cause.__context__
    return ""


def image_exists(tag: str | None = None) -> bool:
    """Whether the daemon holds the image.

    Args:
        tag: Image name; default :func:`default_tag`.

    Raises:
        SandboxUnavailableError: If no daemon answers.
    """
    with docker_client() as client:
        return _find(client, tag or default_tag()) is not None


def build(
    tag: str | None = None,
    base_image: str | None = None,
    wheelhouse: Path | None = None,
    force: bool = False,
) -> str:
    """Build the sandbox image, unless an image with equal inputs is already there.

    Args:
        tag: Name of the image; default :func:`default_tag`.
        base_image: An image with ``python3`` and its ``venv`` module. Default: ``python:3.11-slim``
            if it is here or can be pulled, else one made from this machine's Debian packages.
        wheelhouse: A folder of wheels that satisfies ``requirements.txt``; the build then needs no
            network. Default: pip fills one; if it cannot, the build downloads by itself.
        force: Build even if nothing changed.

    Returns:
        The tag.

    Raises:
        SandboxUnavailableError: If no daemon answers, no base can be had, or the build fails.
        ConfigError: If ``wheelhouse`` holds no wheels.
    """
    from bat_env._image_progress import BuildProgress

    tag = tag or default_tag()
    folder = source_folder()
    digest = input_digest(folder, base_image)
    if wheelhouse is not None and not any(wheelhouse.glob("*.whl")):
        raise ConfigError(f"Expected a folder with .whl files; {wheelhouse} has none.")
    with docker_client(_BUILD_TIMEOUT_S) as client, BuildProgress(tag) as progress:
        present = _find(client, tag)
        if present is not None and present.labels.get(DIGEST_LABEL) == digest and not force:
            progress.done("up to date")
            return tag
        progress.step("base image")
        base = base_image or _automatic_base(client, folder)
        with tempfile.TemporaryDirectory(prefix="bat-image-") as scratch:
            if wheelhouse is None:
                progress.step("wheels")
                wheelhouse = Path(scratch, "wheelhouse")
                wheelhouse.mkdir()
                problem = _fill_wheelhouse(client, base, folder, wheelhouse)
                if problem:
                    progress.note(f"no wheels from pip here ({problem}); the build downloads them")
            wheels = sorted(wheelhouse.glob("*.whl"))
            if any(wheel.name.startswith("nvidia_") for wheel in wheels):
                progress.note(
                    "pip chose the GPU build of torch: the image grows by gigabytes that the "
                    "sandbox never uses; point pip at an index with the CPU build to avoid it"
                )
            with tempfile.TemporaryFile(dir=scratch) as context:
                _write_context(context, folder, wheels)
                events = client.api.build(
                    fileobj=context,
                    custom_context=True,
                    tag=tag,
                    rm=True,
                    forcerm=True,
                    decode=True,
                    buildargs={"BASE_IMAGE": base},
                    labels={DIGEST_LABEL: digest},
                    # Host, since a daemon may run without a bridge and the recipe is ours.
                    network_mode="none" if wheels else "host",
                )
                _follow(client, events, progress)
        if present is not None:
            _remove(client, present.id)
        progress.done(f"{client.images.get(tag).attrs['Size'] / 1e6:,.0f} MB")
    return tag


def _find(client: _Client, tag: str) -> _Client | None:
    from docker.errors import ImageNotFound

    try:
        return client.images.get(tag)
    except ImageNotFound:
        return None


def _automatic_base(client: _Client, folder: Path) -> str:
    from docker.errors import APIError

    recipe = hashlib.sha256((folder / "bootstrap_base.py").read_bytes()).hexdigest()[:12]
    own = f"automed-bat/base:{recipe}"
    for name in (DEFAULT_BASE, own):
        if _find(client, name) is not None:
            return name
    reasons = []
    try:
        client.images.pull(DEFAULT_BASE)
    except APIError as error:
        reasons.append(f"pull {DEFAULT_BASE}: {error.explanation or error}")
    else:
        return DEFAULT_BASE
    bootstrap = _load_bootstrap(folder)
    for way, write in bootstrap.WAYS.items():
        with tempfile.TemporaryFile(prefix="bat-base-") as archive:
            try:
                write(archive)
            except bootstrap.BootstrapError as error:
                reasons.append(f"{way}: {error}")
                continue
            archive.seek(0)
            repository, _, version = own.partition(":")
            client.api.import_image_from_data(
                archive, repository=repository, tag=version, changes=['CMD ["python3"]']
            )
            return own
    raise SandboxUnavailableError(
        "Expected a base image with Python, but got none: "
        + "; ".join(reasons)
        + ". Install the Debian package mmdebstrap, or name an image with --base-image."
    )


def _load_bootstrap(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_bat_base", folder / "bootstrap_base.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _fill_wheelhouse(client: _Client, base: str, folder: Path, wheelhouse: Path) -> str:
    """Let pip collect the wheels for the *image's* Python. Returns why it could not, or ``""``."""
    from docker.errors import DockerException

    script = "import sys; print(*sys.version_info[:2], sep='.')"
    try:
        answer = client.containers.run(
            base, ["python3", "-c", script], network_mode="none", remove=True
        )
    except DockerException as error:
        raise SandboxUnavailableError(f"Base image {base} cannot run python3: {error}") from error
    python = answer.decode().strip()
    machine = _ARCHITECTURES.get(client.images.get(base).attrs["Architecture"])
    if machine is None:
        return "unknown processor"
    abi = "cp" + python.replace(".", "")
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in range(36, 16, -1)]
    platforms.append(f"manylinux2014_{machine}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--python-version", python]
    command += ["--implementation", "cp", "--abi", abi, "--abi", "abi3", "--abi", "none"]
    command += [part for name in platforms for part in ("--platform", name)]
    command += ["--dest", str(wheelhouse), "-r", str(folder / "requirements.txt")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode == 0:
        return ""
    for partial in wheelhouse.iterdir():
        partial.unlink()
    lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
    return lines[-1] if lines else "pip failed"


def _write_context(stream: IO[bytes], folder: Path, wheels: Iterable[Path]) -> None:
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name in ("Dockerfile", "requirements.txt"):
            archive.add(folder / name, arcname=name)
        house = tarfile.TarInfo("wheelhouse")
        house.type, house.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(house)
        for wheel in wheels:
            archive.add(wheel, arcname=f"wheelhouse/{wheel.name}")
    stream.seek(0)


def _follow(client: _Client, events: Iterable[dict[str, Any]], progress: BuildProgress) -> None:
    """Read the builder's events to the end, and leave no intermediate image behind."""
    tail: list[str] = []
    stages = 0
    layer = leftover = ""
    try:
        for event in events:
            text = str(event.get("stream", "")).rstrip()
            if text.startswith("Step "):
                progress.step(text)
                if " : FROM " in text:
                    stages += 1
                    leftover = layer if stages > 1 else ""
            elif match := re.fullmatch(r"\s*---> ([0-9a-f]{12,64})", text):
                layer = match[1]
            if text:
                tail = [*tail[-14:], text]
            if "error" in event:
                leftover = leftover or layer
                raise SandboxUnavailableError(
                    f"The image build failed: {event['error']}. Last output:\n" + "\n".join(tail)
                )
    finally:
        if leftover:
            _remove(client, leftover)


def _remove(client: _Client, image_id: str) -> None:
    """Remove one image of ours; one that is named or in use stays."""
    from docker.errors import APIError

    try:
        if not client.images.get(image_id).tags:
            client.images.remove(image_id)
    except APIError:
        return
