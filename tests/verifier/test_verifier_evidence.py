"""The verifier with real sandboxes, the real grader, and scripts that agents could have written."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest

from bat_env.errors import GraderError, SandboxError
from bat_env.grader import shared_grader
from bat_env.stages import Stage
from bat_env.tasks import Task
from bat_env.verifier import Verifier, alias, drawn_cases


class NoPool:
    """A pool whose sandboxes never come."""

    backend = "none"

    def lease(self, *, fresh: bool = False) -> Any:
        raise SandboxError("no sandbox could be started")


class CountingPool:
    """Counts leases of a real pool."""

    def __init__(self, pool: Any) -> None:
        self.pool = pool
        self.leases = 0

    @contextlib.contextmanager
    def lease(self, *, fresh: bool = False) -> Any:
        self.leases += 1
        with self.pool.lease() as sandbox:
            yield sandbox


@pytest.mark.parametrize("tier", ["lite", "standard"])
def test_the_oracle_passes_every_item(play, verifier, tier):
    ran = play(tier=tier).gather(verifier)
    result = ran.result()
    failed = [(v.item, v.state, v.message) for v in result.verdicts if v.state != "pass"]
    assert not failed
    assert ran.episode.evidence.lost == {}
    assert result.agentic == 1.0
    assert result.task is not None and result.task > 0.5
    assert result.false_claims == 0


def test_the_naive_script_loses_in_every_stage(play, task, verifier):
    ran = play(choices=task.naive_choices).gather(verifier)
    result = ran.result()
    assert result.score is not None and result.score <= 0.45
    assert all(s.reward is not None and s.reward <= 0.8 for s in result.stages.values())
    assert result.false_claims >= 2
    told = [ran.state(item)[1] for item in ("S2.predict_runs", "S3.plausible")]
    said = [message.partition("clean runs on")[2].strip().rstrip(".") for message in told]
    assert said[0] and said[0] == said[1], told


def test_every_focus_gathers_what_it_needs_and_no_more(play, pool, instance):
    whole = play()
    files = whole.sandbox.snapshot()
    parts = {
        Stage.S1: {},
        Stage.S2: ("plan/",),
        Stage.S3: ("plan/", "setup/", "pipeline/"),
        Stage.S4: ("plan/", "setup/", "pipeline/", "validation/"),
        Stage.S5: ("plan/", "setup/", "pipeline/", "validation/", "outputs/"),
    }
    for focus, prefixes in parts.items():
        initial = {
            p: d
            for p, d in files.items()
            if p.startswith(tuple(prefixes)) and p != "outputs/manifest.json"
        }
        counting = CountingPool(pool)
        verifier = Verifier(counting, shared_grader())
        choices = {"repair": "skip"}
        ran = play(focus, initial=initial, outcome="success", choices=choices).gather(verifier)
        result = ran.result()
        failed = [(v.item, v.state, v.message) for v in result.verdicts if v.state == "fail"]
        assert not failed, focus
        assert result.score == 1.0, focus
        assert counting.leases == (focus in (Stage.S2, Stage.S3, Stage.S4)), focus


def test_a_second_gather_asks_for_nothing(play, pool):
    counting = CountingPool(pool)
    verifier = Verifier(counting, shared_grader())
    ran = play().gather(verifier)
    before = dataclasses.asdict(ran.episode.evidence)
    assert counting.leases == 1
    ran.gather(verifier)
    assert counting.leases == 1
    assert dataclasses.asdict(ran.episode.evidence) == before


def test_equal_work_is_verified_once(play, pool):
    counting = CountingPool(pool)
    verifier = Verifier(counting, shared_grader())
    first, second = play(seed=1).gather(verifier), play(seed=1).gather(verifier)
    assert counting.leases == 1
    assert first.result() == second.result()
    third = play(seed=1, choices={"window": "minmax"}).gather(verifier)
    assert counting.leases == 2
    assert third.episode.evidence.grade != first.episode.evidence.grade


def test_infrastructure_is_null_and_can_be_gathered_again(play, verifier):
    ran = play().gather(Verifier(NoPool(), shared_grader()))
    lost = ran.episode.evidence.lost
    assert set(lost) == {"versions", "pilot", "probe_rerun", "batch_rerun"}
    assert ran.result().score is None
    assert ran.state("S2.predict_runs")[0] == "null"
    assert ran.state("S1.facts_counts")[0] == "pass"
    ran.gather(verifier)
    assert lost == {}
    assert ran.result().agentic == 1.0


class DyingPool(CountingPool):
    """Lends real sandboxes; the first ``deaths`` runs of predict.py find their sandbox dead."""

    def __init__(self, pool: Any, deaths: int) -> None:
        super().__init__(pool)
        self.deaths = deaths

    @contextlib.contextmanager
    def lease(self, *, fresh: bool = False) -> Any:
        with super().lease() as sandbox:
            yield _Dying(sandbox, self)


class _Dying:
    def __init__(self, sandbox: Any, pool: DyingPool) -> None:
        self.sandbox, self.pool = sandbox, pool

    def run(self, cell: Any, timeout_s: float | None = None) -> Any:
        if "predict.py" in cell.code and self.pool.deaths > 0:
            self.pool.deaths -= 1
            raise SandboxError("the worker died")
        return self.sandbox.run(cell, timeout_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sandbox, name)


@pytest.mark.parametrize(("deaths", "state", "leases"), [(1, "pass", 2), (2, "fail", 2)])
def test_a_clean_run_that_kills_its_sandbox_twice_is_the_agents(play, pool, deaths, state, leases):
    dying = DyingPool(pool, deaths)
    ran = play(Stage.S2).gather(Verifier(dying, shared_grader()))
    assert ran.state("S2.predict_runs")[0] == state
    assert ran.episode.evidence.lost == {}
    assert dying.leases == leases


def test_a_dead_grader_is_null(play, pool, monkeypatch):
    ran = play(Stage.S4)

    def dead(*args: Any) -> Any:
        raise GraderError("the grader is gone")

    monkeypatch.setattr(shared_grader(), "grade", dead)
    ran.gather(Verifier(pool, shared_grader()))
    assert "grade" in ran.episode.evidence.lost
    assert ran.result().score is None


def test_a_dead_sandbox_loses_the_files(play, verifier):
    ran = play(Stage.S1)

    class Dead:
        def read(self, path: str, max_bytes: int) -> bytes:
            raise SandboxError("gone")

    ran.sandbox, kept = Dead(), ran.sandbox  # type: ignore[assignment]
    ran.gather(verifier)
    assert ran.result().score is None
    ran.sandbox = kept
    assert ran.gather(verifier).result().score == 1.0


def setup_with(pipeline: str, **more: str) -> list[str]:
    """A set-up whose ``predict.py`` is the given text, and further pipeline files."""
    files = {"predict.py": pipeline, **more}
    return [
        "import os\nos.makedirs('pipeline', exist_ok=True)\nfiles = " + repr(files) + "\n"
        "for name, text in files.items():\n"
        "    open('pipeline/' + name, 'w').write(text)\n"
        "open('secret.txt', 'w').write('left in the workspace')\n"
    ]


GOOD = """
import argparse, os, nibabel as nib, numpy as np
p = argparse.ArgumentParser(); p.add_argument("--input"); p.add_argument("--output")
a = p.parse_args()
image = nib.load(os.path.join(a.input, "ct.nii.gz"))
os.makedirs(a.output, exist_ok=True)
y = (image.get_fdata() > 50).astype(np.uint8)
nib.save(nib.Nifti1Image(y, image.affine), os.path.join(a.output, "dseg.nii.gz"))
"""

BROKEN = {
    "exit": ("raise SystemExit(3)", "exit code 3"),
    "error": ("1 / 0", "ZeroDivisionError"),
    "silent": ("pass", "wrote no dseg.nii.gz"),
    "workspace": ("open('/workspace/secret.txt')\n" + GOOD, "FileNotFoundError"),
    "other cases": ("import os\nassert len(os.listdir('/data')) > 1\n" + GOOD, "AssertionError"),
    "known ids": ("import sys\nassert sys.argv[2][6:] in IDS\n" + GOOD, "AssertionError"),
    "empty": (GOOD.replace("> 50", "> 5000"), "all background"),
    "wrong dtype": (GOOD.replace("np.uint8", "np.float32"), "not valid"),
    "wrong grid": (GOOD.replace("image.affine", "np.eye(4)"), "not valid"),
    "link": (
        "import os, sys\nos.makedirs(sys.argv[4])\n"
        "os.symlink('/etc/passwd', sys.argv[4] + '/dseg.nii.gz')",
        "cannot be read",
    ),
}


@pytest.mark.parametrize("name", list(BROKEN))
def test_a_pipeline_that_only_worked_at_home_fails(play, verifier, instance, name):
    code, words = BROKEN[name]
    code = code.replace("IDS", repr(list(instance.cases)))
    ran = play(Stage.S2, cells=setup_with(code)).gather(verifier)
    state, message = ran.state("S2.predict_runs")
    assert state == "fail" and words in message
    assert ran.episode.evidence.lost == {}


def test_a_pipeline_may_import_its_own_modules_and_be_chatty(play, verifier):
    """It runs, also on further cases; a threshold is a look at the input, and worth nothing."""
    code = "import helper\nprint('x' * 100000)\n" + GOOD
    ran = play(Stage.S2, cells=setup_with(code, **{"helper.py": "x = 1"})).gather(verifier)
    state, message = ran.state("S2.predict_runs")
    assert state == "fail" and "worth no more than trivial answers" in message
    assert ran.episode.evidence.lost == {}


def test_a_pipeline_that_never_ends_meets_its_limit(play, verifier, task):
    short = Task(task.folder)
    budgets = task.spec.budgets.model_copy(update={"cell_timeout_s": 2.0})
    short.spec = task.spec.model_copy(update={"budgets": budgets})
    cells = setup_with("while True: pass")
    ran = play(Stage.S2, cells=cells, task=short).gather(verifier)
    state, message = ran.state("S2.predict_runs")
    assert state == "fail" and "timeout" in message


def test_a_pipeline_folder_that_is_too_large_is_not_taken(play, verifier):
    cells = setup_with(GOOD, **{"weights.txt": "w" * 300_000})
    ran = play(Stage.S2, cells=cells).gather(verifier)
    assert not any(p.startswith("pipeline/") for p in ran.episode.evidence.files)
    assert "256 kB" in ran.state("S2.predict_runs")[1]


def test_outputs_that_the_pipeline_does_not_make_are_not_reproducible(play, verifier):
    ran = play(choices={"batch": "edited"}).gather(verifier)
    assert ran.episode.evidence.batch_agreement is not None
    assert ran.episode.evidence.batch_agreement < 0.98
    assert ran.state("S4.reproducible")[0] == "fail"
    assert ran.result().false_claims == 0


def test_the_rerun_case_and_its_name_are_drawn_by_seed(instance):
    cases = [drawn_cases(instance, seed, instance.cases) for seed in range(40)]
    assert cases == [drawn_cases(instance, seed, instance.cases) for seed in range(40)]
    assert {case for (case,) in cases} == set(instance.cases)
    assert set(drawn_cases(instance, 1, instance.cases, 99)) == set(instance.cases)
    assert drawn_cases(instance, 1, instance.cases[1:2]) == instance.cases[1:2]
    names = {alias(instance, case) for case in (*instance.cases, instance.probe_case)}
    assert len(names) == len(instance.cases) + 1
    assert names.isdisjoint({*instance.cases, instance.probe_case})
    assert {len(name) for name in names} == {len(instance.cases[0])}


def test_inherited_outputs_are_graded_once_a_state(play, pool, instance):
    files = play().sandbox.snapshot()
    outputs = sorted(p for p in files if p.startswith("outputs/") and p.endswith(".nii.gz"))
    initial = {p: d for p, d in files.items() if p.startswith(("pipeline/", "outputs/"))}
    del initial["outputs/manifest.json"]
    initial[outputs[0]] = b"broken"
    del initial[outputs[1]]
    verifier = Verifier(pool, shared_grader())
    choices = {"repair": "skip"}
    ran = play(Stage.S4, initial=initial, outcome="failure", choices=choices).gather(verifier)
    inherited = ran.episode.evidence.inherited
    assert inherited is not None
    assert [inherited.valid[p.split("/")[1]] for p in outputs[:3]] == [False, False, True]
    assert ran.state("S4.completed") == ("pass", "2 of 2 cases are done validly.")
    again = play(Stage.S4, initial=initial, outcome="failure", choices=choices).gather(verifier)
    assert again.episode.evidence.inherited is inherited
    # Without the state's files, what was changed since counts as missing at reset.
    blind = play(Stage.S4, initial=initial, outcome="failure", choices=choices)
    blind.gather(verifier, initial=None)
    assert blind.episode.evidence.inherited is not None
    assert blind.episode.evidence.inherited.valid == inherited.valid


def test_a_cured_pilot(play, verifier):
    ill = {"orient": "none", "resample": "none"}
    files = play(choices=ill).sandbox.snapshot()
    initial = {p: d for p, d in files.items() if not p.startswith("outputs/")}
    cured = play(Stage.S3, initial=initial, outcome="recovery").gather(verifier)
    assert cured.state("S3.fault_gone")[0] == "pass"
    assert cured.result().score == 1.0
    still = play(Stage.S3, initial=initial, outcome="recovery", choices={"window": "lung"})
    assert still.gather(verifier).state("S3.fault_gone")[0] == "fail"


def test_nothing_is_gathered_without_work(play, pool):
    counting = CountingPool(pool)
    ran = play(cells=["print(1)"]).gather(Verifier(counting, shared_grader()))
    assert counting.leases == 0 and ran.episode.evidence.files == {}
    assert ran.result().score == 0.0


def test_special_files_and_giants_are_not_read(play, verifier):
    cells = [
        "import os\n"
        "os.makedirs('plan'); os.makedirs('outputs/x')\n"
        "os.symlink('/etc/passwd', 'plan/plan.md')\n"
        "os.mkfifo('plan/facts.json')\n"
        "open('outputs/manifest.json', 'wb').write(b' ' * 300000)\n"
    ]
    ran = play(cells=cells).gather(verifier)
    assert ran.episode.evidence.files == {}
    assert ran.result().score == 0.0
