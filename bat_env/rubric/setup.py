"""S2, set-up: versions and inputs as they are, the model really run, a pipeline that works."""

from __future__ import annotations

from typing import Final, get_args

from bat_env.episode import Episode
from bat_env.rubric.base import Context, Item
from bat_env.rubric.build import make_item
from bat_env.rubric.claims import Fail, Lost, Record, close, judge, own_paths, same, shown
from bat_env.rubric.validate import first_pilot_call
from bat_env.tasks.spec import Package, TaskSpec

SETUP: Final[str] = "setup/setup.json"
PREDICT: Final[str] = "pipeline/predict.py"
PACKAGES: Final[tuple[str, ...]] = get_args(Package)
"""Everything that a task may ask the version of."""
PROBE_TOLERANCE: Final[float] = 1e-3


def _plain(version: str) -> str:
    """A version without the build tag and without what ``sys.version`` adds."""
    return version.split()[0].split("+", 1)[0] if version.split() else ""


def versions(episode: Episode, ctx: Context) -> str:
    """Reported versions are those inside the sandbox image."""
    record = Record.own(episode, SETUP)
    claimed = {name: record.text(f"versions.{name}") for name in ("python", *ctx.spec.packages)}
    true = episode.evidence.versions
    if true is None:
        raise Lost(episode.evidence.lost.get("versions", "The image was not asked for versions."))
    return judge(
        [
            f"{name} is {true.get(name, 'absent')}, not {shown(value)}"
            for name, value in claimed.items()
            if _plain(value) != _plain(true.get(name, "absent"))
        ],
        "The reported versions are the image's.",
    )


def inputs(episode: Episode, ctx: Context) -> str:
    """What is recorded of the input files is true of them."""
    record = Record.own(episode, SETUP)
    true = ctx.instance.facts["inputs"]
    false = []
    for key in ctx.spec.inputs:
        claimed = _typed(record, f"inputs.{key}", true[key])
        if not same(claimed, true[key], abs_tol=1e-6):
            false.append(f"inputs.{key} is {true[key]}, not {shown(claimed)}")
    return judge(false, f"{', '.join(ctx.spec.inputs)} of the inputs are true.")


def _typed(record: Record, key: str, true: object) -> object:
    """The recorded value; one of another type than the true one fails, and is no false claim."""
    if isinstance(true, bool):
        return record.flag(key)
    if isinstance(true, int):
        return record.integer(key)
    if isinstance(true, float):
        return record.number(key)
    return record.text(key) if isinstance(true, str) else record.items(key)


def model_run(episode: Episode, ctx: Context) -> str:
    """The network was loaded and run: parameter count, and its output on the probe input."""
    record = Record.own(episode, SETUP)
    name = record.text("model.name")
    parameters = record.integer("model.parameters")
    probe = {key: record.number(f"probe.{key}") for key in ("mean", "std")}
    true = episode.evidence.probe_expected
    if true is None:
        raise Lost(episode.evidence.lost.get("probe_expected", "No probe truth was gathered."))
    false = []
    if name != ctx.spec.model.name:
        false.append(f"model.name is {ctx.spec.model.name}, not {shown(name)}")
    if parameters != ctx.spec.model.parameters:
        false.append(f"model.parameters {shown(parameters)} is not the network's count")
    for key, value in probe.items():
        if not close(value, float(true[key]), abs_tol=PROBE_TOLERANCE):
            false.append(f"probe.{key} {value:.6g} is not the network's output")
    return judge(false, "The model was loaded and run.")


def predict_runs(episode: Episode, ctx: Context) -> str:
    """``predict.py`` works in a clean sandbox on a case that nobody has seen."""
    if PREDICT not in own_paths(episode):
        raise Fail(f"{PREDICT} was not written in this episode.")
    rerun = episode.evidence.probe_rerun
    if rerun is None:
        raise Lost(episode.evidence.lost.get("probe_rerun", "predict.py was not re-run."))
    if not rerun.ok:
        raise Fail(f"Clean run on an unseen case: {rerun.message}")
    return "predict.py gives a valid output on an unseen case in a clean sandbox."


def few_failures(episode: Episode, ctx: Context) -> str:
    """At most the allowed number of failed cells before the pilot."""
    pilot = first_pilot_call(episode, ctx)
    failed = sum(1 for c in episode.cells if not c.result.ok and (pilot is None or c.call < pilot))
    allowed = ctx.spec.budgets.failed_setup_cells
    if failed > allowed:
        raise Fail(f"{failed} set-up cells failed, at most {allowed} are free.")
    return f"{failed} set-up cells failed, {allowed} are free."


def items(spec: TaskSpec) -> tuple[Item, ...]:
    """The items of S2."""
    return (
        make_item("S2.versions", "Reported versions are the image's", versions, evidence=(SETUP,)),
        make_item("S2.inputs", "Input claims are true", inputs),
        make_item("S2.model_run", "The model was really loaded and run", model_run),
        make_item(
            "S2.predict_runs",
            "predict.py runs clean on an unseen case",
            predict_runs,
            evidence=(PREDICT,),
        ),
        make_item(
            "S2.few_failures",
            f"At most {spec.budgets.failed_setup_cells} failed set-up cells",
            few_failures,
            at_hand_in=False,
        ),
    )
