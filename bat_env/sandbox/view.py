"""What a ``local`` cell can see of the host: the allowlist, and what is hidden inside it."""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import Any

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_VENV = "/opt/venv"
_HIDDEN_NAMES = ("bat_env", "bat_agent", "envs")
_PLUGIN_GROUPS = ("bat_env.tasks", "bat_env.sandboxes", "bat_agent.agents", "bat_agent.engines")


def host_view() -> dict[str, Any]:
    """The plan that the worker mounts.

    Returns:
        ``trees`` shown at their own path, ``binds`` as (source, target), ``hide`` as paths inside,
        ``files`` and ``links`` to make, ``python`` as the interpreter inside.
    """
    prefix = os.path.realpath(sys.base_prefix)
    trees = [*_SYSTEM]
    if not _below(prefix, "/usr"):
        trees.append(prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sites = _site_folders()
    binds: list[tuple[str, str]] = []
    files = _account_files()
    links: dict[str, str] = {}
    python = os.path.realpath(sys.executable)
    if not any(_below(python, os.path.realpath(tree)) for tree in trees):
        python = os.path.join(prefix, "bin", version)
    links[f"{_VENV}/bin/python"] = python
    links[f"{_VENV}/bin/python3"] = "python"
    home = os.path.dirname(python)
    files[f"{_VENV}/pyvenv.cfg"] = f"home = {home}\ninclude-system-site-packages = false\n"
    for index, site in enumerate(sites):
        inside = f"{_VENV}/lib/{version}/site-packages" if index == 0 else f"{_VENV}/site{index}"
        binds.append((site, inside))
    seen = [(tree, tree) for tree in map(os.path.realpath, trees)] + binds
    hide = sorted({target for path in _private_paths(sites) for target in _inside(path, seen)})
    return {
        "trees": trees,
        "binds": binds,
        "hide": hide,
        "files": files,
        "links": links,
        "python": f"{_VENV}/bin/python",
        "paths": [target for _, target in binds[1:]],
    }


def _site_folders() -> list[str]:
    """Folders with installed packages of the running interpreter, most specific first."""
    paths = sysconfig.get_paths()
    candidates = [paths["purelib"], paths["platlib"]]
    candidates += [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages")]
    found: list[str] = []
    for path in map(os.path.realpath, candidates):
        if os.path.isdir(path) and path not in found:
            found.append(path)
    return found


def _private_paths(sites: list[str]) -> set[str]:
    """Host paths that no cell may see, wherever an allowed tree contains them."""
    hidden: set[str] = set()
    plugins = {
        point.module.partition(".")[0]
        for group in _PLUGIN_GROUPS
        for point in metadata.entry_points(group=group)
    }
    for site in sites:
        for entry in os.listdir(site):
            stem = entry.partition(".")[0].partition("-")[0]
            project = stem in _HIDDEN_NAMES or stem in plugins
            ours = stem.lower().startswith(("automed_bat", "__editable__"))
            if project or ours or entry.endswith((".pth", ".egg-link")):
                hidden.add(os.path.join(site, entry))
    checkout = Path(__file__).resolve().parents[2]
    hidden |= {str(checkout / name) for name in _HIDDEN_NAMES if (checkout / name).exists()}
    return hidden


def _inside(path: str, seen: list[tuple[str, str]]) -> list[str]:
    return [target + path[len(source) :] for source, target in seen if _below(path, source)]


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _account_files() -> dict[str, str]:
    return {
        "/etc/passwd": (
            "root:x:0:0:root:/:/usr/sbin/nologin\nagent:x:1000:1000:agent:/tmp:/bin/bash\n"
        ),
        "/etc/group": "root:x:0:\nagent:x:1000:\n",
        "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
        "/etc/hosts": "127.0.0.1 localhost sandbox\n",
        "/etc/hostname": "sandbox\n",
    }
