"""Backends by name: found through entry points, chosen by ``auto``."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final

from bat_env.errors import ConfigError, SandboxUnavailableError, unknown_name

from .base import Limits, Sandbox

GROUP: Final = "bat_env.sandboxes"
"""Entry-point group. A backend is a callable ``(limits) -> Sandbox``; it may have a static method
``problem() -> str`` that says why it cannot work here, empty when it should."""

_BUILTIN: Final[dict[str, str]] = {
    "docker": "bat_env.sandbox.docker:DockerSandbox",
    "local": "bat_env.sandbox.local:LocalSandbox",
    "process": "bat_env.sandbox.process:ProcessSandbox",
}
_AUTO: Final = ("docker", "local")


def _points() -> dict[str, metadata.EntryPoint]:
    known = {name: metadata.EntryPoint(name, value, GROUP) for name, value in _BUILTIN.items()}
    return known | _plugged_in(tuple((folder, _changed(folder)) for folder in sys.path))


@functools.lru_cache(maxsize=1)
def _plugged_in(installed: tuple[tuple[str, int], ...]) -> dict[str, metadata.EntryPoint]:
    """Reading what all installed packages offer takes longer than a lease of a sandbox."""
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0


def backend_names() -> list[str]:
    """Names of all registered backends, sorted."""
    return sorted(_points())


def backend_name(name: str) -> str:
    """``name`` as it is registered, or ``"auto"``; upper and lower case count the same.

    Raises:
        UnknownNameError: If the name is not registered.
    """
    known = ["auto", *backend_names()]
    if name in known:
        return name
    for other in known:
        if other.casefold() == name.casefold():
            return other
    raise unknown_name("sandbox backend", name, known, f"Plug-ins: entry-point group {GROUP!r}.")


def load_backend(name: str) -> Callable[..., Sandbox]:
    """The factory behind a backend name.

    Raises:
        UnknownNameError: If the name is not registered.
        SandboxUnavailableError: If its package cannot be imported.
    """
    points = _points()
    if name not in points:
        raise unknown_name(
            "sandbox backend", name, ["auto", *points], f"Plug-ins: entry-point group {GROUP!r}."
        )
    try:
        factory: Callable[..., Sandbox] = points[name].load()
    except ImportError as error:
        raise SandboxUnavailableError(
            f"The sandbox backend {name!r} ({points[name].value}) cannot be imported: {error}. "
            "Install the package that it needs."
        ) from error
    return factory


def _problem(name: str) -> str:
    try:
        probe = getattr(load_backend(name), "problem", None)
    except SandboxUnavailableError as error:
        return str(error)
    return str(probe()) if probe is not None else ""


def resolve_backend(name: str = "auto") -> str:
    """Turn ``"auto"`` into the backend that will be used here.

    ``auto`` is the environment variable ``BAT_SANDBOX`` if set, else docker where a daemon answers
    and has the image, else local. It never falls to ``process``.

    Raises:
        UnknownNameError: If the name is not registered.
        SandboxUnavailableError: If ``auto`` finds nothing; names what to install.
    """
    name = backend_name(name)
    if name == "auto":
        name = backend_name(os.environ.get("BAT_SANDBOX", "") or "auto")
    if name != "auto":
        load_backend(name)
        return name
    reasons = []
    for candidate in _AUTO:
        reason = _problem(candidate)
        if not reason:
            return candidate
        reasons.append(f"{candidate}: {reason}")
    raise SandboxUnavailableError(
        "No sandbox can run here. " + "; ".join(reasons) + ". Install Docker (or start its daemon) "
        "and run `bat-env image build`, or use Linux with unprivileged user namespaces. "
        "sandbox='process' runs without isolation and must be asked for by name."
    )


def make_sandbox(backend: str = "auto", limits: Limits | None = None, **options: Any) -> Sandbox:
    """Make a sandbox; :meth:`~bat_env.sandbox.base.Sandbox.start` boots it.

    Args:
        backend: ``"auto"`` or a registered name.
        limits: Limits; the defaults of :class:`~bat_env.sandbox.base.Limits` if omitted.
        options: Further keyword arguments of the backend.

    Raises:
        UnknownNameError: If the name is not registered.
        SandboxUnavailableError: If it cannot run here; names what to install.
    """
    if not isinstance(backend, str):
        raise ConfigError(f"Expected a backend name, got {backend!r}.")
    factory = load_backend(resolve_backend(backend))
    return factory(limits or Limits(), **options)
