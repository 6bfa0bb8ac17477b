"""The closed vocabulary of checks. Each looks from the host and raises :class:`Broken`."""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Callable
from typing import Any

from scene import Broken, Outcome, gone

from bat_env.errors import BatError
from bat_env.sandbox import Cell

Check = Callable[[Outcome, Any], None]

SEARCH = (
    "env; cat /proc/self/maps; cat /proc/sys/kernel/hostname; "
    "find /workspace /tmp /dev/shm /dev/mqueue /data /models /skills /var/tmp /run /home "
    "-mindepth 1 2>/dev/null; "
    "grep -rs '' /workspace /tmp /dev/shm /data /models /skills /var/tmp 2>/dev/null | head -c 3000"
)
ATTRIBUTES = (
    "import os, stat\n"
    "for p in ('/workspace', '/tmp', '/dev/shm'):\n"
    "    s = os.stat(p)\n"
    "    try: x = {n: os.getxattr(p, n) for n in os.listxattr(p)}\n"
    "    except OSError: x = {}\n"
    "    print(p, oct(stat.S_IMODE(s.st_mode)), x, int(s.st_mtime) == 4102444800)"
)


def need(held: bool, message: str) -> None:
    """Raise unless it held."""
    if not held:
        raise Broken(message)


# -- after every attack ------------------------------------------------------------------------


def secret_hidden(seen: Outcome, _: Any) -> None:
    """The host's secret is in nothing that the agent could take along."""
    need(seen.scene.secret not in seen.words, "the secret was printed")
    key = seen.scene.secret.encode()
    need(not any(key.decode() in path for path in seen.sandbox.manifest()), "it is in a name")
    for path, data in seen.sandbox.snapshot().items():
        need(key not in data, f"the secret is in {path}")


def canary_intact(seen: Outcome, _: Any) -> None:
    """The host's file is as it was."""
    there = seen.scene.canary.exists() and not seen.scene.canary.is_symlink()
    text = seen.scene.canary.read_text(errors="replace") if there else "nothing"
    names = sorted(path.name for path in seen.scene.folder.iterdir())
    mode = seen.scene.canary.stat().st_mode & 0o7777 if there else 0
    seen.scene.heal()
    need(text == seen.scene.secret, f"the host's file holds {text[:80]!r}")
    need(mode == 0o666, f"the host's file has mode {mode:o}")
    need(names == ["canary.txt", "s"], f"the host's folder holds {names}")


def listeners_silent(seen: Outcome, _: Any) -> None:
    """Nothing came in on any of the host's sockets."""
    contacts = seen.scene.contacts()
    need(not contacts, f"the host was reached over {contacts}")


def victim_alive(seen: Outcome, _: Any) -> None:
    """The host's other process still runs."""
    need(seen.scene.victim.poll() is None, "a process of the host was ended")


def nothing_left(seen: Outcome, _: Any) -> None:
    """No process of the agent is left after its cell."""
    left = gone(seen.sandbox, seen.patience_s)
    need(not left, f"{len(left)} processes of the agent outlived the cell")


def next_cell(seen: Outcome, _: Any) -> None:
    """The next cells of both languages run, untouched, on the same worker."""
    word = secrets.token_hex(8)
    result = seen.sandbox.run(Cell("python", f"print('{word}')"), 20)
    need((result.stdout, result.exit_code) == (f"{word}\n", 0), f"next python cell: {result}")
    result = seen.sandbox.run(Cell("bash", f"echo {word}"), 20)
    need((result.stdout, result.exit_code) == (f"{word}\n", 0), f"next bash cell: {result}")


INVARIANTS: tuple[Check, ...] = (
    secret_hidden,
    canary_intact,
    listeners_silent,
    victim_alive,
    nothing_left,
    next_cell,
)

# -- named by an attack ------------------------------------------------------------------------


def limit(seen: Outcome, wanted: Any) -> None:
    """The last cell ended with this limit (or one of these)."""
    names = wanted if isinstance(wanted, list) else [wanted]
    need(seen.last.limit in names, f"limit {seen.last.limit}, exit {seen.last.exit_code}")


def stopped(seen: Outcome, wanted: Any) -> None:
    """The last cell met this limit, or failed by itself: it did not get through."""
    names = wanted if isinstance(wanted, list) else [wanted]
    got = seen.last
    need(got.limit in names or (got.limit is None and got.exit_code != 0), f"{got.limit}, {got}")


def exit_code(seen: Outcome, wanted: Any) -> None:
    """The exit code: a number, a list, ``nonzero`` or ``any``."""
    code = seen.last.exit_code
    if wanted == "any":
        return
    if wanted == "nonzero":
        need(code != 0, "the cell succeeded")
    else:
        allowed = wanted if isinstance(wanted, list) else [wanted]
        need(code in allowed, f"exit {code}: {seen.last.stderr[-200:]}")


def stdout_is(seen: Outcome, text: str) -> None:
    """The last cell's whole output."""
    need(seen.last.stdout == text, f"stdout {seen.last.stdout[:200]!r}")


def lacks(seen: Outcome, texts: Any) -> None:
    """None of these host facts (placeholders filled in) is in any output."""
    for text in texts if isinstance(texts, list) else [texts]:
        need(text not in seen.words, f"{text!r} was seen by the agent")


def mount_intact(seen: Outcome, paths: Any) -> None:
    """Files below /data, /models, /skills are what the host laid down, and nothing was added."""
    for path in paths if isinstance(paths, list) else [paths]:
        want = seen.files[path]
        got = seen.sandbox.run(Cell("bash", f"cat '/{path}'"), 20)
        need(got.stdout.encode() == want, f"/{path} holds {got.stdout[:80]!r}")
    result = seen.sandbox.run(Cell("bash", "find /data /models /skills ! -type d | wc -l"), 20)
    count = sum(not path.startswith("workspace/") for path in seen.files)
    need(result.stdout == f"{count}\n", f"{result.stdout.strip()} files instead of {count}")


def manifest(seen: Outcome, wanted: dict[str, str]) -> None:
    """Kinds of workspace paths as the host lists them; ``absent`` for none."""
    entries = seen.sandbox.manifest()
    for path, kind in wanted.items():
        got = entries[path].kind if path in entries else "absent"
        need(got == kind, f"{path!r} is {got}, not {kind}")


def manifest_within(seen: Outcome, count: int) -> None:
    """The host's listing has at most so many entries, and 2 MiB of names."""
    entries = seen.sandbox.manifest()
    size = sum(len(path.encode()) for path in entries)
    need(len(entries) <= count and size <= 2 << 20, f"{len(entries)} entries, {size} bytes")


def truthful(seen: Outcome, paths: Any) -> None:
    """The digests that the host holds, those told with the cell's end too, fit what it reads."""
    told = {**seen.last.delta.created, **seen.last.delta.changed}
    entries = seen.sandbox.manifest()
    for path in paths if isinstance(paths, list) else [paths]:
        digest = hashlib.sha256(seen.sandbox.read(path, 64 << 20)).hexdigest()
        need(entries[path].sha256 == digest, f"the manifest lies about {path}")
        need(path not in told or told[path].sha256 == digest, f"the delta lies about {path}")


def delta(seen: Outcome, wanted: dict[str, str]) -> None:
    """What the last cell is recorded to have done to a path: created, changed or deleted."""
    d = seen.last.delta
    for path, word in wanted.items():
        got = next((n for n in ("created", "changed", "deleted") if path in getattr(d, n)), "none")
        need(got == word, f"{path!r} counts as {got}, not {word}")


_ERRORS = {"ValueError": ValueError, "FileNotFoundError": FileNotFoundError, "BatError": BatError}


def read_fails(seen: Outcome, wanted: dict[str, Any]) -> None:
    """Reading these paths raises one of these errors, a hundred times over."""
    for path, names in wanted.items():
        errors = tuple(_ERRORS[n] for n in (names if isinstance(names, list) else [names]))
        for _ in range(100):
            try:
                data = seen.sandbox.read(path, 1 << 20)
            except errors:
                continue
            raise Broken(f"{path!r} was read: {data[:40]!r}")


def read_is(seen: Outcome, wanted: dict[str, str]) -> None:
    """Reading these paths gives these texts."""
    for path, text in wanted.items():
        data = seen.sandbox.read(path, 1 << 20)
        need(data == text.encode(), f"{path!r} holds {data[:80]!r}")


def snapshot_within(seen: Outcome, mb: float) -> None:
    """The snapshot holds at most so many MiB."""
    size = sum(map(len, seen.sandbox.snapshot().values()))
    need(size <= mb * (1 << 20), f"the snapshot holds {size >> 20} MiB")


def output_within(seen: Outcome, size: int) -> None:
    """Kept bytes of both streams; the rest must be counted as dropped."""
    got = seen.last
    kept = len(got.stdout.encode()) + len(got.stderr.encode())
    need(kept <= size, f"{kept} bytes kept")
    need(got.stdout_dropped + got.stderr_dropped > 0, "nothing was counted as dropped")


def seconds(seen: Outcome, most: float) -> None:
    """All cells together took at most this long."""
    need(seen.elapsed_s <= most, f"took {seen.elapsed_s:.1f} s")


def host_memory(seen: Outcome, mb: float) -> None:
    """The host process did not grow by more."""
    need(seen.memory_mb <= mb, f"the host process grew by {seen.memory_mb:.0f} MiB")


def gone_after_reset(seen: Outcome, _: Any) -> None:
    """After a reset nothing carries the mark: files, names, environment, attributes, imports."""
    seen.sandbox.reset(seen.plant)
    need(not seen.sandbox.manifest(), "the workspace is not empty after a reset")
    box = seen.sandbox
    result = box.run(Cell("bash", SEARCH), 20)
    need(seen.mark not in result.stdout + result.stderr, "the mark survived the reset")
    result = box.run(Cell("python", ATTRIBUTES), 20)
    need(seen.mark not in result.stdout + result.stderr, f"attributes survived: {result.stdout}")
    need(result.exit_code == 0 and "True" not in result.stdout, f"times survived: {result.stdout}")
    modes = [line.split()[1] for line in result.stdout.splitlines()]
    need(set(modes) <= {"0o755", "0o1777"}, f"modes survived: {modes}")
    code = "import json, re, os, sys, subprocess\nprint(os.listdir('.'), len(sys.argv))\n"
    code += "print(subprocess.run(['true']).returncode, subprocess.run([sys.executable, '-c', '']))"
    result = box.run(Cell("python", code), 20)
    lines = result.stdout.splitlines()
    need(lines[:1] == ["[] 1"] and result.stderr == "", f"not a clean start: {result}")
    need(seen.mark not in result.stdout, "the mark survived in a new interpreter")
    result = box.run(Cell("bash", "touch /workspace/w /tmp/w /dev/shm/w && echo ok"), 20)
    need(result.stdout == "ok\n", f"the places are not writable any more: {result.stderr}")


@functools.cache
def exam() -> tuple[Any, Any, str]:
    """A task, one small instance of it and its first case."""
    from bat_env.tasks import load_task

    task = load_task("kidney_tumor")
    instance = task.instance("train", 3, "mini")
    return task, instance, instance.cases[0]


def graded_zero(seen: Outcome, path: str) -> None:
    """The grader finds the planted output invalid and gives its case nothing."""
    from bat_env.grader import shared_grader

    task, instance, case = exam()
    data = seen.sandbox.read(path.replace("@CASE@", case), 32 << 20)
    row = shared_grader().inspect(task, instance, case, data)
    need(row.get("valid") is False, f"graded as valid: {row}")
    need(not row.get("case_score"), f"a score of {row.get('case_score')}")
    need(shared_grader().agreement(task, data, data) in (0.0, 1.0), "agreement is no number")


def picture_refused(seen: Outcome, path: str) -> None:
    """The host's picture reader refuses the planted file."""
    from bat_env.grader import shared_grader

    row = shared_grader().image(seen.sandbox.read(path, 32 << 20))
    need(row.get("readable") is False, f"read as a picture: {row}")


CHECKS: dict[str, Check] = {
    "limit": limit,
    "stopped": stopped,
    "exit": exit_code,
    "stdout_is": stdout_is,
    "lacks": lacks,
    "mount_intact": mount_intact,
    "manifest": manifest,
    "manifest_within": manifest_within,
    "truthful": truthful,
    "delta": delta,
    "read_fails": read_fails,
    "read_is": read_is,
    "snapshot_within": snapshot_within,
    "output_within": output_within,
    "seconds": seconds,
    "host_memory": host_memory,
    "graded_zero": graded_zero,
    "picture_refused": picture_refused,
    "gone_after_reset": gone_after_reset,
}
