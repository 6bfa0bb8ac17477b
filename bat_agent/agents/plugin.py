"""Agents that are not installed: a class of a module, or of a file."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from bat_env.errors import ConfigError, unknown_name

METHODS: Final = ("reset", "act")


def plugged_class(text: str) -> Callable[[], Any]:
    """The class that ``module:Class`` or ``path/to/file.py:Class`` names; its code is run.

    Raises:
        UnknownNameError: If the module has no such class; the message suggests the nearest.
        ConfigError: If the module cannot be imported, or the class is no agent.
    """
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise ConfigError(
            f"Expected module:Class or path/to/file.py:Class, came {text!r}. Name both."
        )
    module = _from_file(Path(where)) if where.endswith(".py") else _from_path(where)
    made = getattr(module, name, None)
    if made is None:
        agents = (n for n, value in vars(module).items() if _is_agent(value))
        raise unknown_name(f"agent class of {where}", name, agents)
    return checked_class(made, text)


def checked_class(made: Any, text: str) -> Callable[[], Any]:
    """``made`` if it is the class of an agent that is made without arguments.

    Args:
        made: The class.
        text: How it was named.

    Raises:
        ConfigError: If it is none.
    """
    if not inspect.isclass(made) or not _is_agent(made):
        raise ConfigError(
            f"Expected {text} to be a class with the methods reset and act, came "
            f"{made!r:.80}. See examples/custom_agent.py."
        )
    try:
        inspect.signature(made).bind()
    except TypeError as error:
        raise ConfigError(
            f"Expected {text} to be made without arguments: {error}. Give them defaults."
        ) from None
    except ValueError:
        pass  # Built-in constructors tell no signature.
    agent: Callable[[], Any] = made
    return agent


def _is_agent(value: Any) -> bool:
    return inspect.isclass(value) and all(callable(getattr(value, m, None)) for m in METHODS)


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        there = [str(p) for p in sorted(file.parent.glob("*.py"))] if file.parent.is_dir() else []
        raise unknown_name("agent file", str(file), there[:20])
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"Expected Python code in {file}; it cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    # As when Python runs the file: what lies beside it can be imported.
    sys.path.insert(0, str(file.parent.resolve()))
    sys.modules.setdefault(file.stem, module)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _broken(str(file), error) from error
    return module


def _from_path(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109  (sys.path holds text)
    if here not in sys.path:
        # A console script does not see the current directory by itself.
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(where: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"The agent's module {where!r} cannot be imported ({type(error).__name__}: {error}). Check "
        "its name, and that it lies in the current directory or an installed package."
    )
