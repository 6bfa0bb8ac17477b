"""Builder and trainer of one bank, killed at random: ``killed_bank.py OUT EVENTS SEED``.

Every event gives the builder new work and the trainer a new round, and SIGKILL comes from inside,
after a random number of writes and reads that the work is sure to make: no kill meets an idle
process, however slow the machine is. All is imported once, before anything is forked.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import gymnasium as gym

import bat_agent.loop
from bat_agent.config import BankSettings
from bat_agent.curriculum import RoundPlan, TrainingHealth
from bat_agent.demo import demo_config
from bat_agent.engine import BatEngine
from bat_agent.evaluation import CellScore, Evaluation
from bat_agent.files import read_json, write_json
from bat_agent.loop import Loop, Trained
from bat_env.bank import Bank, blobs
from bat_env.bank.build import build
from bat_env.bank.index import Index
from bat_env.bank.state import workspace_digest
from bat_env.errors import BankError

TASK = "cls/skin_lesion"
STAGES = ("S1", "S2", "S3", "S4", "S5")
SURE = {"states": 20, "trajectory": 8, "round": 24}
"""Points that new work of a kind is sure to pass."""
WAIT_S = 300.0


def options(event: int) -> dict[str, Any]:
    """What the builder is asked for: a state more in each cell, or a trajectory more."""
    return {
        "tasks": [TASK],
        "stages": ["S1"],
        "per_cell": 1 + sum(n % 4 != 3 for n in range(event)),
        "trajectories": sum(n % 4 == 3 for n in range(event)),
        "demos": 0,
        "briefs": "varied",
        "suites": ["lite-mini"],
        "workers": 1,
        "backend": "local",
    }


# ------------------------------------------------------------------------------------- the deadly


def deadly(countdown: int, *places: tuple[Any, str]) -> None:
    """Kill this process at the ``countdown``-th beginning or end of one of these calls."""
    left = countdown

    def hit() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(call: Callable[..., Any]) -> Callable[..., Any]:
        def around(*args: Any, **kwargs: Any) -> Any:
            hit()
            result = call(*args, **kwargs)
            hit()
            return result

        return around

    for owner, name in places:
        setattr(owner, name, wrapped(getattr(owner, name)))


def fork(work: Callable[[], None]) -> int:
    """A child that does the work; its exit status is 0 if that came to its end."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


def builder(run: Path, event: int, countdown: int) -> None:
    """Fill the bank as far as this event asks."""
    if countdown:
        inner = ((blobs, "packed"), (blobs, "_fsync_folder"))
        deadly(countdown, (blobs.BlobStore, "put"), *inner, (Index, "write"))
    report = build(run / "bank", **options(event))
    assert not report.failed and not report.short, str(report)


# ------------------------------------------------------------------------------------ the trainer


class Reader(BatEngine):
    """The engine's own reading of the bank and its own starts; learning is left out.

    What is trained on stands in the checkpoint instead of weights.
    """

    def digest(self, checkpoint: Path) -> str:
        return sha256(checkpoint.read_bytes()).hexdigest()

    def evaluate(self, checkpoint: Path, label: str) -> Evaluation:
        stages = {stage: 0.1 * number for number, stage in enumerate(STAGES, 1)}
        cell = CellScore(TASK, "cls", 0, 0, 0, "submitted", 0.3, 0.3, 0.3, stages)
        return Evaluation("reader", "reader", "d" * 64, (cell,))

    def train(self, start: Path, plan: RoundPlan, out: Path) -> Trained:
        seen = []
        for batch in self.specs(plan):
            for spec in batch:
                state_id = spec.options["state_id"]
                with Bank.open(self.bank) as bank:
                    state = bank.get(state_id)
                    assert state.admitted and state.admission["oracle"] >= 0.8
                    files = bank.workspace(state_id)
                    assert workspace_digest(files) == state.workspace and not bank.warnings
                env = gym.make(spec.env_id, **spec.env_kwargs)
                observation, info = env.reset(seed=spec.seed, options=dict(spec.options))
                assert info["state_id"] == state_id and observation["text"] == state.brief
                there = env.unwrapped.workspace()  # type: ignore[attr-defined]
                assert {path: there[path] for path in files} == files
                env.close()
                seen.append({"state": state_id, "workspace": state.workspace})
        write_json(out / "final.json", {"schema_version": 1, "seen": seen})
        return Trained(out / "final.json", (0.5,), TrainingHealth(True, len(seen), 0))

    def divergence(self, candidate: Path, best: Path) -> float:
        return 0.01


def trainer(run: Path, rounds: int, countdown: int) -> None:
    """Run the loop as far as ``rounds``, once the bank has anything to draw."""
    end = time.monotonic() + WAIT_S
    while not states_of(run):
        assert time.monotonic() < end, "the builder admits nothing"
        time.sleep(0.2)
    if countdown:
        places = ("_row", "workspace", "query")
        deadly(countdown, (bat_agent.loop, "write_json"), *((Bank, name) for name in places))
    settings = BankSettings(tasks=(TASK,), per_cell=1, demos=1)
    config = demo_config(backend="local", bank=settings)
    Loop(
        run,
        Reader(run, config),
        config_digest="reader",
        seed=7,
        rounds=rounds,
        steps_per_round=1,
        start=run / "start.json",
        pools={"target": 3},
    ).run()


def states_of(run: Path) -> dict[str, str]:
    """What a reader is shown: id of each state -> its row."""
    try:
        with Bank.open(run / "bank") as bank:
            return {state.state_id: state.model_dump_json() for state in bank.query()}
    except BankError:
        return {}


# -------------------------------------------------------------------------------------- the checks


class Watch:
    """What must hold after every event: rows only come, whole, and rounds keep what they drew."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.rows: dict[str, str] = {}
        self.jobs: dict[str, Any] = {}
        self.rounds: dict[str, str] = {}

    def look(self) -> None:
        """Compare with what was there before."""
        rows = states_of(self.run)
        if rows or (self.run / "bank" / "index.sqlite").exists():
            with Bank.open(self.run / "bank") as bank:
                assert bank.verify().ok, bank.verify().problems
                demos = {row[0]: "|".join(row) for row in bank.demonstration_rows()}
                jobs = bank.jobs()
            made = {d.get("state_id") or d.get("demo_id") for s, d in jobs.values() if s[0] != "r"}
            assert made <= {*rows, *demos}, "a finished job lacks its row"
            assert len({*rows, *demos} - made) <= 1, "more than the row that was just written"
            rows |= demos
            kept(self.rows, rows, "row")
            kept(self.jobs, jobs, "job")
            self.rows, self.jobs = rows, jobs
        done = {}
        for record in sorted((self.run / "rounds").glob("*/record.json")):
            folder = record.parent
            seen = read_json(folder / "train" / "final.json", schema_version=1)["seen"]
            plan = RoundPlan.from_json(read_json(folder / "plan.json", schema_version=1))
            assert [row["state"] for row in seen] == [d.state.state_id for d in plan.draws]
            assert {row["state"] for row in seen} <= rows.keys(), "trained on what is not admitted"
            done[folder.name] = f"{plan.digest} {sha256(record.read_bytes()).hexdigest()}"
        assert list(done) == [f"{n:04d}" for n in range(1, len(done) + 1)]
        kept(self.rounds, done, "round")
        self.rounds = done


def kept(before: Mapping[str, Any], after: Mapping[str, Any], what: str) -> None:
    """Nothing of before is gone or another."""
    wrong = [key for key, value in before.items() if after.get(key) != value]
    assert not wrong, f"{what} lost or changed: {wrong[:3]}"


def ended(pid: int, victim: bool) -> None:
    """Wait for a child: a victim died of the kill, another came to its end."""
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == (-signal.SIGKILL if victim else 0), (code, victim)


def main(out: Path, events: int, seed: int) -> None:
    """Kill, watch, finish, compare."""
    run, rng, counts = out / "run", random.Random(seed), Counter[str]()
    run.mkdir(parents=True)
    (run / "start.json").write_text("{}")
    watch, began = Watch(run), time.monotonic()
    for event in range(events):
        there = bool(states_of(run))
        victims = rng.choice(("builder", "trainer", "both")) if there else "builder"
        new = "trajectory" if event and (event - 1) % 4 == 3 else "states"
        points = {"builder": rng.randint(1, SURE[new]), "trainer": rng.randint(1, SURE["round"])}
        if victims != "both":
            points["trainer" if victims == "builder" else "builder"] = 0
        pids = {"builder": fork(functools.partial(builder, run, event, points["builder"]))}
        if there:
            pids["trainer"] = fork(functools.partial(trainer, run, event + 1, points["trainer"]))
        for name, pid in pids.items():
            ended(pid, bool(points[name]))
        counts[victims] += 1
        watch.look()
        print(f"event {event}: {victims} {points}, {len(watch.rows)} rows", file=sys.stderr)
    ended(fork(functools.partial(builder, run, events, 0)), victim=False)
    ended(fork(functools.partial(trainer, run, events + 1, 0)), victim=False)
    watch.look()
    killed_s = time.monotonic() - began

    other = out / "other"
    ended(fork(functools.partial(builder, other, events, 0)), victim=False)
    files = []
    for folder in (run, other):
        with Bank.open(folder / "bank") as bank:
            swept = bank.collect()
            assert swept.removed == swept.leftovers == 0, f"orphans: {swept}"
            bank.export(folder / "bank.bat")
            files.append((folder / "bank.bat").read_bytes())
            wanted = options(events)
            assert len(bank.query()) == 3 * wanted["per_cell"]
            assert len(bank.demonstration_rows()) == wanted["trajectories"]
    assert files[0] == files[1], "the bank differs from one that nobody disturbed"
    told = {
        "kills": dict(counts),
        "processes_killed": sum(counts.values()) + counts["both"],
        "states": 3 * wanted["per_cell"],
        "trajectories": wanted["trajectories"],
        "rounds": len(watch.rounds),
        "killed_s": round(killed_s),
        "undisturbed_s": round(time.monotonic() - began - killed_s),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
