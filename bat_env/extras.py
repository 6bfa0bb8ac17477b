"""Optional parts of the installation: what each brings, what of it is missing, how to get it.

The project is installed from a clone, so advice never names it to a package index: nobody there
vouches for that name.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Final

from bat_env.errors import ConfigError, unknown_name

EXTRAS: Final[Mapping[str, tuple[str, ...]]] = {
    "data": ("SimpleITK", "pydicom"),
    "openenv": ("openenv", "uvicorn"),
    "ray": ("ray",),
    "sandbox-local": ("matplotlib", "monai", "SimpleITK", "torch"),
    "serve": ("mcp", "uvicorn"),
    "train": (
        "accelerate",
        "datasets",
        "huggingface_hub",
        "peft",
        "safetensors",
        "tokenizers",
        "transformers",
        "trl",
    ),
    "verifiers": ("verifiers", "datasets"),
}
"""Extra of the project -> modules that it brings."""

NEEDS: Final[Mapping[str, tuple[str, ...]]] = {"train": ("sandbox-local",)}
"""Extra -> other extras that it includes."""

DOORS: Final[Mapping[str, tuple[str, str]]] = {
    "mcp": ("serve", "bat-env serve mcp"),
    "openenv": ("openenv", "bat-env serve openenv"),
    "trl": ("train", "bat_agent.integrations.trl.BatSpec"),
    "verifiers": ("verifiers", "bat_agent.integrations.verifiers.load_environment"),
}
"""Door -> its extra, and what opens it."""

ALONE: Final = ("openenv", "verifiers")
"""Extras that move versions which other extras need: each wants an environment of its own."""

HOST_BACKENDS: Final = ("local", "process")
"""Sandboxes whose cells import the packages of this very interpreter."""


def install(extra: str = "") -> str:
    """The command that installs the project with an extra, for messages."""
    what = f"'.[{extra}]'" if extra else "."
    return f"pip install {what} (in the folder of your clone)"


def missing(extra: str) -> list[str]:
    """Modules of an extra that cannot be imported here; nothing is imported to find out.

    Raises:
        UnknownNameError: If there is no such extra.
    """
    if extra not in EXTRAS:
        raise unknown_name("extra", extra, EXTRAS)
    names = [*EXTRAS[extra], *(name for other in NEEDS.get(extra, ()) for name in EXTRAS[other])]
    return [name for name in names if not there(name)]


def require(extra: str, purpose: str) -> None:
    """Check that an extra is installed, before any work is done that needs it.

    Args:
        extra: Name of the extra.
        purpose: What needs it, as the beginning of a sentence.

    Raises:
        ConfigError: If a module of it is missing; says how to install it.
    """
    lacking = missing(extra)
    if lacking:
        raise ConfigError(
            f"{purpose} needs the extra {extra!r}; missing here: {', '.join(lacking)}. Install it: "
            f"{install(extra)}."
        )


def require_for_cells(backend: str) -> None:
    """Check that the cells of a backend can import what tasks need.

    Raises:
        ConfigError: If the backend runs cells with this interpreter, and it lacks them.
    """
    if backend in HOST_BACKENDS:
        require("sandbox-local", f"Agent code in the sandbox {backend!r}")


def there(module: str) -> bool:
    """Whether a module can be imported; it is not imported to find out."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
