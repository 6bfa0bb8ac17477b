"""How the worker's sources get into a fresh interpreter: a few lines of bootstrap, then frames."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

BOOT = """\
import importlib.machinery as m, importlib.util as u, json, os, sys
def r(n):
    b = b""
    while len(b) < n:
        c = os.read(0, n - len(b))
        if not c: os._exit(0)
        b += c
    return b
def f(): return r(int.from_bytes(r(4), "big"))
C, T = json.loads(f())["config"], f()
S = json.loads(T)
class F:
    @staticmethod
    def find_spec(name, path=None, target=None):
        k = name.partition(".")[2] or "__init__"
        if name.partition(".")[0] == "bat_worker" and k in S:
            return m.ModuleSpec(name, F, is_package=k == "__init__")
    @staticmethod
    def create_module(spec): return None
    @staticmethod
    def exec_module(module):
        k = module.__name__.partition(".")[2] or "__init__"
        exec(compile(S[k], "<bat_worker." + k + ">", "exec"), module.__dict__)
sys.meta_path.insert(0, F)
if C["role"] == "zygote":
    from bat_worker.heap import settle
    settle()
    from bat_worker.zygote import main
    main(C, C["control"])
from bat_worker.supervisor import main
main(C, C["boot"], T)
"""


@cache
def sources() -> dict[str, str]:
    """The worker's modules: name without package -> source text."""
    folder = resources.files("bat_env.sandbox") / "worker"
    return {
        entry.name[:-3]: entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".py")
    }


def first_bytes(config: dict[str, Any]) -> bytes:
    """What the host writes first: the configuration and the sources, each length-prefixed."""
    parts = [
        json.dumps({"config": {"role": "supervisor", "boot": BOOT, **config}}).encode(),
        json.dumps(sources()).encode(),
    ]
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)
