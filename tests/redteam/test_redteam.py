"""Every attack of ``attacks/`` against every backend that isolates.

``make test`` runs a seeded sample (``BAT_REDTEAM_SEED`` draws another one); ``make test-all`` runs
them all. What a backend is known not to hold is listed with its reason in
``bat_env/sandbox/exceptions.yaml``; an entry there that holds after all is an error here.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from catalogue import ATTACKS, CONTROLS, Attack, sample
from scene import Broken, Outcome, Scene, agents, daemon, gone, peak_mb, watch_memory
from vocabulary import CHECKS, INVARIANTS, exam

from bat_env.errors import SandboxError
from bat_env.sandbox import Cell, Sandbox, make_sandbox
from bat_env.sandbox.exceptions import known_exceptions

BACKENDS = ("local", "docker")
SAMPLE = sample(60, int(os.environ.get("BAT_REDTEAM_SEED", "7")))
Boxes = Callable[[str], Sandbox]


def _parameters(attacks: tuple[Attack, ...], sampled: bool) -> Iterator[Any]:
    for backend in BACKENDS:
        for attack in attacks:
            marks = [pytest.mark.docker] if backend == "docker" else []
            if sampled and attack.id not in SAMPLE:
                marks.append(pytest.mark.slow)
            yield pytest.param(
                attack, backend, id=f"{backend}-{attack.group}-{attack.id}", marks=marks
            )


def carry_out(attack: Attack, box: Sandbox, scene: Scene) -> Outcome:
    """Run the attack's cells; nothing is judged yet."""
    mark = secrets.token_hex(8)
    case = exam()[2] if "@CASE@" in str((attack.cells, attack.files)) else ""

    def fill(text: str) -> str:
        return scene.fill(text, mark, box.backend, box.limits.memory_mb, case)

    files = {path: fill(data.decode()).encode() for path, data in attack.files.items()}
    scene.contacts()
    seen = Outcome(box, scene, files, mark)
    try:
        box.reset(files)
        before, started = watch_memory(), time.monotonic()
        for language, code in attack.cells:
            seen.results.append(box.run(Cell(language, fill(code), 1), attack.timeout_s))
        seen.elapsed_s = time.monotonic() - started
        box.manifest()
        seen.memory_mb = peak_mb() - before
    except SandboxError as error:
        raise Broken(f"the worker was brought down: {error}") from error
    return seen


def judge(attack: Attack, seen: Outcome) -> None:
    """All checks of the attack, and what must hold after every attack.

    Raises:
        Broken: With the name of the check that objects.
    """
    named = [(CHECKS[name], argument) for name, argument in attack.checks.items()]
    # A check that resets the sandbox comes last.
    named.sort(key=lambda item: item[0].__name__ == "gone_after_reset")
    last = [item for item in named if item[0].__name__ == "gone_after_reset"]
    first = [item for item in named if item not in last]
    for check, argument in [*first, *((check, None) for check in INVARIANTS), *last]:
        if isinstance(argument, str) and "@" in argument:
            argument = seen.scene.fill(argument, seen.mark, seen.sandbox.backend, 0, "@CASE@")
        elif isinstance(argument, list):
            argument = [
                seen.scene.fill(word, seen.mark, seen.sandbox.backend, 0, "@CASE@")
                if isinstance(word, str)
                else word
                for word in argument
            ]
        try:
            check(seen, argument)
        except Broken as error:
            raise Broken(f"{check.__name__}: {error} | {attack.holds}") from None
        except SandboxError as error:
            raise Broken(f"{check.__name__}: the worker failed: {error}") from error


@pytest.mark.parametrize(("attack", "backend"), list(_parameters(ATTACKS, sampled=True)))
def test_attack(attack: Attack, backend: str, hostile_box: Boxes, scene: Scene) -> None:
    box = hostile_box(backend)
    rows = [e for e in known_exceptions(backend) if e.attack == attack.id and e.stands(box)]
    try:
        judge(attack, carry_out(attack, box, scene))
    except Broken:
        if not rows:
            raise
        pytest.xfail(rows[0].reason)
    assert not rows, "it holds, yet bat_env/sandbox/exceptions.yaml lists it: take the entry away"


def _leak(attack: Attack, seen: Outcome) -> Callable[[], None]:
    """Break a promise on purpose, from the host. Returns what undoes it."""
    import socket

    scene, box = seen.scene, seen.sandbox
    if attack.leak == "canary":
        scene.canary.write_text("changed")
    elif attack.leak in ("tcp", "udp", "unix", "abstract"):
        target = scene.sockets[attack.leak]
        with socket.socket(target.family, target.type) as sock:
            sock.connect(target.getsockname())
            if target.type == socket.SOCK_DGRAM:
                sock.send(b"x")
    elif attack.leak == "victim":
        scene.victim.kill()
        scene.victim.wait()

        def revive() -> None:
            scene.victim = scene._victim()

        return revive
    elif attack.leak == "truth":
        _, instance, case = exam()
        box.reset(
            {f"workspace/outputs/{case}/dseg.nii.gz": instance.private[f"{case}/dseg.nii.gz"]}
        )
    elif attack.leak == "mark":
        seen.plant["data/left"] = seen.mark.encode()
    elif attack.leak == "process" and box.backend == "docker":
        api = daemon().api
        made = api.exec_create(box.container, ["sleep", "60"], user="1000")
        api.exec_start(made["Id"], detach=True)
        deadline = time.monotonic() + 10
        while not agents(box)[1] and time.monotonic() < deadline:
            time.sleep(0.05)
        return lambda: box.reset({})
    elif attack.leak == "process":
        process = subprocess.Popen(
            ["unshare", "-Ur", "--fork", "--kill-child", "unshare", "-Ur", "sleep", "60"]
        )
        deadline = time.monotonic() + 10
        while not agents(box)[1] and time.monotonic() < deadline:
            time.sleep(0.05)
        return lambda: (process.kill(), process.wait(), None)[2]
    return lambda: None


@pytest.mark.parametrize(("control", "backend"), list(_parameters(CONTROLS, sampled=False)))
def test_control_fires(control: Attack, backend: str, hostile_box: Boxes, scene: Scene) -> None:
    seen = carry_out(control, hostile_box(backend), scene)
    seen.patience_s = 0.5
    undo = _leak(control, seen)
    try:
        with pytest.raises(Broken, match=f"^{control.fires}: "):
            judge(control, seen)
    finally:
        undo()


@pytest.mark.parametrize("preload", [("numpy",), ("numpy", "json")], ids=["same", "other"])
def test_only_its_own_processes_count(preload: tuple[str, ...], hostile_box: Boxes) -> None:
    """What a neighbour runs, on the same worker or on another one, is the neighbour's."""
    box = hostile_box("local")
    neighbour = make_sandbox("local", box.limits, preload=preload)
    sleep = Cell("bash", "sleep 60")

    def cell() -> None:
        with contextlib.suppress(SandboxError):  # closed meanwhile
            neighbour.run(sleep)

    runner = threading.Thread(target=cell)
    try:
        for _ in range(3):
            assert box.run(Cell("bash", "true")).ok and neighbour.run(Cell("bash", "true")).ok
        runner.start()
        while neighbour.worker.request({"op": "ping"})[0]["cells"] == 0:
            assert runner.is_alive()
            time.sleep(0.01)
        # Counted from when the worker has it; seen from when its process is where cells run.
        deadline = time.monotonic() + 20.0
        while not (own := gone(neighbour, 0.0)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert own, "its own cell is not seen"
        assert gone(box, 10.0) == []
        assert runner.is_alive(), "the neighbour's cell ended too early to prove anything"
    finally:
        neighbour.close()
        if runner.ident:
            runner.join()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_sample_holds_for_an_ordinary_user(
    as_nobody: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Without any right of root outside; ``BAT_REDTEAM_SEED`` draws another sample."""
    chosen = ["-m", "not slow and not docker", "tests/redteam/test_redteam.py"]
    done = as_nobody("-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, timeout=1100)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= len(SAMPLE) + len(CONTROLS) - 5


def test_the_catalogue_is_whole() -> None:
    ids = [attack.id for attack in (*ATTACKS, *CONTROLS)]
    assert len(ids) == len(set(ids))
    assert len(ATTACKS) >= 150
    groups = {attack.group for attack in ATTACKS}
    assert {control.group for control in CONTROLS} == groups and len(groups) >= 15
    for attack in ATTACKS:
        assert attack.holds and attack.checks, attack.id
        assert "@SECRET@" not in str(attack.cells), f"{attack.id} is told what it must not know"
    assert all(control.fires for control in CONTROLS)
    known = {row.attack for backend in BACKENDS for row in known_exceptions(backend)}
    assert known <= {attack.id for attack in ATTACKS}


def test_every_class_is_in_the_sample() -> None:
    assert {a.group for a in ATTACKS if a.id in SAMPLE} == {a.group for a in ATTACKS}
    assert 50 <= len(SAMPLE) <= 75
    assert sample(60, 1) == sample(60, 1) != sample(60, 2)
