"""Private truth is nowhere inside the sandbox: a cell walks all it sees, the host searches."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from bat_env.env import AutoMedEnv
from bat_env.stages import Stage
from bat_env.tools import execute_call

MakeEnv = Callable[..., AutoMedEnv]
BACKENDS = ["local", pytest.param("docker", marks=pytest.mark.docker)]

WALK = """
import json, os, stat, sys
seen, files, small = set(), [], {}
SYSTEM = ("/usr", "/lib", "/bin", "/sbin", "/sys", sys.base_prefix, sys.prefix)
def walk(top):
    for root, folders, names in os.walk(top, onerror=lambda e: None):
        folders[:] = [f for f in folders if os.path.join(root, f) not in seen]
        if root.startswith("/proc/"):
            folders[:] = [f for f in folders if f not in ("task", "net", "sys", "irq")]
        for name in names:
            path = os.path.join(root, name)
            try:
                info = os.lstat(path)
                if stat.S_ISLNK(info.st_mode):
                    files.append([path + " -> " + os.readlink(path), -1])
                    continue
                files.append([path, info.st_size])
                if path.startswith(SYSTEM) or not stat.S_ISREG(info.st_mode):
                    continue
                if path.startswith("/proc/") and path.count("/") > 3:
                    continue
                if path in ("/proc/kmsg", "/proc/kcore", "/proc/kpagecount"):
                    continue
                with open(path, "rb") as stream:
                    small[path] = stream.read(8 << 20)
            except OSError:
                pass
walk("/")
bag = {
    "environ": dict(os.environ),
    "argv": sys.argv,
    "modules": sorted(sys.modules),
    "path": sys.path,
    "mounts": open("/proc/self/mountinfo").read(),
    "open": [],
    "files": files,
}
for number in range(256):
    try:
        info = os.fstat(number)
        target = os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        continue
    bag["open"].append([number, target])
    if number > 2 and stat.S_ISREG(info.st_mode):
        small[f"fd {number} {target}"] = os.pread(number, 8 << 20, 0)
import zlib
os.makedirs("walk", exist_ok=True)
index = []
blob = bytearray()
for path, data in small.items():
    index.append([path, len(data)])
    blob += data
bag["index"] = index
json.dump(bag, open("walk/bag.json", "w"))
packed = zlib.compress(bytes(blob), 1)
open("walk/blob.z", "wb").write(packed)
print(len(files), len(small))
"""

HASH = """
import hashlib, json
out = {}
for path in PATHS:
    try:
        out[path] = hashlib.sha256(open(path, "rb").read()).hexdigest()
    except OSError:
        pass
json.dump(out, open("walk/hashes.json", "w"))
"""


def _opened(data: bytes) -> Iterator[bytes]:
    """The content, and what is inside if it is compressed."""
    yield data
    if data[:2] == b"\x1f\x8b":
        yield gzip.decompress(data)


def _needles(env: AutoMedEnv) -> dict[str, bytes]:
    """What must not be found: truth bytes, digests of them, seeds, private facts."""
    instance, task = env.instance, env.task_object
    needles: dict[str, bytes] = {}
    for tree in (instance.private, instance.probe_private):
        for name, raw in tree.items():
            for depth, data in enumerate(_opened(raw)):
                path = f"{name} depth {depth}"
                middle = data[352:] if len(data) > 4096 else data
                needles[f"{path} start"] = middle[:256] if middle[:256].strip(b"\0") else data[:348]
                centre = len(middle) // 2
                part = middle[centre : centre + 64]
                if part.strip(b"\0"):
                    needles[f"{path} centre"] = part
                needles[f"{path} sha256"] = hashlib.sha256(data).hexdigest().encode()
    for order in ("big", "little"):
        needles[f"seed {order}"] = instance.seed.to_bytes(8, order)  # type: ignore[arg-type]
    needles["seed"] = str(instance.seed).encode()
    needles["seed hex"] = f"{instance.seed:x}".encode()
    needles["episode seed"] = str(env.episode.seed).encode()
    needles["instance digest"] = instance.digest.encode()
    needles["task digest"] = task.digest.encode()
    for name, value in task.probe_expected.items():
        needles[f"probe {name}"] = repr(value)[:10].encode()
    for case, value in instance.facts["pilot_truth"].items():
        needles[f"pilot truth of {case}"] = repr(float(value))[:9].encode()
    return {name: needle for name, needle in needles.items() if len(needle) >= 6}


def _walk(env: AutoMedEnv) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What a cell saw: the bag of process facts, and path -> content outside system folders."""
    text = env.step(execute_call("python", WALK))[0]["text"]
    assert text.startswith("exit code: 0"), text
    tree = env.workspace()
    bag: dict[str, Any] = json.loads(tree["walk/bag.json"])
    blob = zlib.decompress(tree["walk/blob.z"])
    files, at = {}, 0
    for path, size in bag.pop("index"):
        files[path] = blob[at : at + size]
        at += size
    files["process"] = json.dumps(bag).encode()
    return bag, files


def _finds(env: AutoMedEnv, files: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Place -> names of the private things that it holds."""
    needles = _needles(env)
    assert len(needles) > 12
    found: dict[str, list[str]] = {}
    for where, raw in files.items():
        for data in _opened(raw):
            names = [name for name, needle in needles.items() if needle in data]
            if names:
                found.setdefault(where, []).extend(names)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_truth_is_nowhere_in_the_sandbox(make_env: MakeEnv, backend: str) -> None:
    env = make_env(sandbox=backend)
    env.reset(seed=8)
    bag, files = _walk(env)
    case = env.instance.cases[0]
    assert any(path.startswith(f"/data/{case}/") for path in files), "the walk saw the inputs"
    assert any(path.startswith("/models/") for path in files)
    assert bag["environ"]["PATH"] and bag["mounts"] and bag["open"]
    assert not _finds(env, files)

    own = ("/data/", "/models/", "/skills/", "/workspace/")
    known = [p for p, _ in bag["files"] if not p.startswith(own) and "/proc/" not in p]
    assert len(known) > 1000, "the walk saw the system"
    ours = ("/bat_env/", "/bat_agent/", f"/{env.task_object.folder.name}/")
    found = [p for p in known if any(o in p for o in ours)]
    assert not found, found[:5]
    sources = {f.name: f.stat().st_size for f in env.task_object.folder.glob("*.py")}
    same = [p for p, size in bag["files"] if sources.get(p.rpartition("/")[2]) == size]
    assert not same, same
    assert not [m for m in bag["modules"] if m.split(".")[0] in ("bat_env", "bat_agent")]
    code = "import importlib.util as u\nprint([u.find_spec(n) for n in ('bat_env', 'bat_agent')])"
    assert "[None, None]" in env.step(execute_call("python", code))[0]["text"]

    private = [*env.instance.private.values(), *env.instance.probe_private.values()]
    sizes = {len(data) for data in private}
    suspects = [path for path, size in bag["files"] if size in sizes and "/proc/" not in path]
    env.step(execute_call("python", HASH.replace("PATHS", repr(suspects))))
    hashes = json.loads(env.workspace()["walk/hashes.json"])
    assert not {hashlib.sha256(data).hexdigest() for data in private} & set(hashes.values())


def test_the_search_finds_what_is_planted(make_env: MakeEnv) -> None:
    env = make_env()
    env.reset(seed=8)
    truth = next(iter(env.instance.private.values()))
    opened = [*_opened(truth)][-1]
    planted = {
        "data/a.nii.gz": truth,
        "models/b.bin": b"x" * 100 + opened,
        "workspace/c.txt": f"seed={env.instance.seed}".encode(),
        "skills/d.gz": gzip.compress(hashlib.sha256(truth).hexdigest().encode()),
    }
    env._bench.current.reset({**env._begun.files(), **planted})
    _, files = _walk(env)
    assert set(_finds(env, files)) == {"/" + path for path in planted}


def test_briefs_and_skills_hold_no_truth(make_env: MakeEnv) -> None:
    env = make_env()
    observation, info = env.reset(seed=8)
    texts = [observation["text"].encode(), json.dumps(info).encode()]
    texts += env.task_object.skills("lite", Stage.E2E).values()
    allowed = {"instance digest"}  # in info for grouping; a hash that nothing inside can use
    for name, needle in _needles(env).items():
        assert name in allowed or not any(needle in text for text in texts), name
