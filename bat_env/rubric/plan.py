"""S1, plan: written first, names a model that exists, and says only true things about the data.

``plan/facts.json`` is judged in its last version, at hand-in. Facts about the data that are wrong
are false claims; declarations that differ from the model card or the task's contract are failures.
"""

from __future__ import annotations

import itertools
from typing import Any, Final

from bat_env.episode import Episode
from bat_env.rubric.base import Context, Item
from bat_env.rubric.build import make_item
from bat_env.rubric.claims import (
    Fail,
    Lost,
    Record,
    as_number,
    close,
    judge,
    own_paths,
    own_text,
    shown,
)
from bat_env.tasks.spec import TaskSpec, TierSpec

PLAN: Final[str] = "plan/plan.md"
FACTS: Final[str] = "plan/facts.json"
IMAGE: Final[str] = "plan/plan.png"

SPACING_ABS_MM: Final[float] = 0.01
SPACING_REL: Final[float] = 0.01
INTENSITY_ABS: Final[float] = 2.0
INTENSITY_REL_OF_RANGE: Final[float] = 0.01
MIN_IMAGE_SIDE: Final[int] = 64
MIN_IMAGE_COLOURS: Final[int] = 2


def prediction_calls(episode: Episode) -> list[int]:
    """Calls that wrote anything under ``outputs/`` or ``validation/pilot/``, in order."""
    calls = []
    for cell in episode.cells:
        paths = itertools.chain(cell.result.delta.created, cell.result.delta.changed)
        if any(p.startswith(("outputs/", "validation/pilot/")) for p in paths):
            calls.append(cell.call)
    return calls


def plan_first(episode: Episode, ctx: Context) -> str:
    """The plan, in its last version, is older than the first prediction."""
    own = own_paths(episode)
    missing = [path for path in (PLAN, FACTS) if path not in own]
    if missing:
        raise Fail(f"Not written in this episode: {', '.join(missing)}.")
    calls = prediction_calls(episode)
    late = [path for path in (PLAN, FACTS) if calls and own[path] >= calls[0]]
    if late:
        raise Fail(f"Written or changed after the first prediction: {', '.join(late)}.")
    return "Plan and facts were written before any prediction."


def _valid_models(spec: TaskSpec) -> dict[str, str]:
    names = (spec.model.name, *spec.model.alternatives)
    return {name.casefold(): name for name in names}


def model_named(episode: Episode, ctx: Context) -> str:
    """Text and record name one valid model."""
    models = _valid_models(ctx.spec)
    named = Record.own(episode, FACTS).text("model")
    if named.casefold() not in models:
        raise Fail(
            f"{FACTS}: key 'model' is {shown(named)}, expected one of {', '.join(models.values())}."
        )
    if named.casefold() not in own_text(episode, PLAN).casefold():
        raise Fail(f"{PLAN} does not name {named}, the model of {FACTS}.")
    return f"The plan names {models[named.casefold()]}."


def facts_counts(episode: Episode, ctx: Context) -> str:
    """Case count and the orientation of every case."""
    record = Record.own(episode, FACTS)
    facts = ctx.instance.facts
    false = []
    count = record.integer("case_count")
    if count != facts["case_count"]:
        false.append(f"case_count is {shown(count)}, not {facts['case_count']}")
    claimed = record.table("orientations")
    true = facts["orientations"]
    absent = sorted(set(true) - set(claimed))
    if absent:
        raise Fail(f"{FACTS}: key 'orientations' has no entry for {', '.join(absent[:4])}.")
    for case, value in claimed.items():
        if case not in true:
            false.append(f"there is no case {shown(case)}")
        elif not isinstance(value, str) or value.upper() != true[case]:
            false.append(f"orientation of {case} is {true[case]}, not {shown(value)}")
    return judge(false, "Case count and orientations are true.")


def facts_ranges(episode: Episode, ctx: Context) -> str:
    """Spacing range per array axis, and the intensity range in physical units."""
    record = Record.own(episode, FACTS)
    spacings = list(ctx.instance.facts["spacing_mm"].values())
    false = []
    for name, choose in (("min", min), ("max", max)):
        claimed = record.vector(f"spacing_mm.{name}", 3)
        true = [float(choose(axis)) for axis in zip(*spacings, strict=True)]
        if not all(
            close(c, t, abs_tol=SPACING_ABS_MM, rel_tol=SPACING_REL)
            for c, t in zip(claimed, true, strict=True)
        ):
            false.append(f"spacing_mm.{name} is {[round(t, 3) for t in true]}, not {claimed}")
    low, high = (float(v) for v in ctx.instance.facts["intensity_hu"])
    tolerance = max(INTENSITY_ABS, INTENSITY_REL_OF_RANGE * (high - low))
    claimed = record.vector("intensity_hu", 2)
    if not (
        close(claimed[0], low, abs_tol=tolerance) and close(claimed[1], high, abs_tol=tolerance)
    ):
        false.append(f"intensity_hu is {[low, high]}, not {claimed}")
    return judge(false, "Spacing and intensity ranges are true.")


def _same_numbers(claimed: tuple[float, ...], wanted: Any, tolerance: float = 1e-3) -> bool:
    want = [float(v) for v in wanted]
    return len(want) == len(claimed) and all(
        close(c, w, abs_tol=tolerance) for c, w in zip(claimed, want, strict=True)
    )


def processing_declared(episode: Episode, ctx: Context) -> str:
    """Pre- and post-processing equal to what the model card asks for."""
    record = Record.own(episode, FACTS)
    card = ctx.instance.facts["model_card"]
    wrong = []
    orientation = record.text("preprocessing.orientation")
    if orientation.upper() != card["orientation"]:
        wrong.append(f"orientation {shown(orientation)}, the card says {card['orientation']}")
    for key in ("spacing_mm", "window_hu"):
        claimed = record.vector(f"preprocessing.{key}", len(card[key]))
        if not _same_numbers(claimed, card[key]):
            wrong.append(f"{key} {list(claimed)}, the card says {list(card[key])}")
    if not record.flag("postprocessing.restore_grid"):
        wrong.append("postprocessing.restore_grid must be true: outputs live on the input's grid")
    if wrong:
        raise Fail(f"{FACTS}: " + "; ".join(wrong) + ".")
    return "Pre- and post-processing equal the model card."


def output_declared(episode: Episode, ctx: Context) -> str:
    """Output path, dtype and label map equal to the task's contract."""
    record = Record.own(episode, FACTS)
    out = ctx.spec.output
    wrong = []
    path = record.text("output.path")
    if path.removeprefix("/workspace/") != out.path:
        wrong.append(f"path {shown(path)}, expected {out.path}")
    dtype = record.text("output.dtype")
    if dtype not in out.dtype:
        wrong.append(f"dtype {shown(dtype)}, expected {' or '.join(out.dtype)}")
    labels = record.table("output.labels")
    if labels != {str(value): name for value, name in out.labels.items()}:
        wrong.append(f"labels {shown(labels)}, expected {out.labels}")
    if wrong:
        raise Fail(f"{FACTS}: " + "; ".join(wrong) + ".")
    return "The output contract is declared as the task states it."


def pilot_check(episode: Episode, ctx: Context) -> str:
    """One check on the pilot that would notice a broken output and accepts a true one."""
    record = Record.own(episode, FACTS)
    pilot = ctx.spec.pilot
    quantity = record.text("pilot_check.quantity")
    if quantity != pilot.quantity:
        raise Fail(f"{FACTS}: pilot_check.quantity is {shown(quantity)}, not {pilot.quantity}.")
    low, high = record.vector("pilot_check.range", 2)
    if not 0 < low < high:
        raise Fail(f"{FACTS}: pilot_check.range must be 0 < low < high, got {[low, high]}.")
    if high > low * pilot.max_range_ratio:
        raise Fail(
            f"{FACTS}: pilot_check.range {[low, high]} is wider than 1:{pilot.max_range_ratio:g} "
            "and says nothing."
        )
    for case, value in ctx.instance.facts["pilot_truth"].items():
        if not low <= float(value) <= high:
            raise Fail(
                f"{FACTS}: pilot_check.range {[low, high]} leaves out the true "
                f"{float(value):.4g} {pilot.unit} of {case}."
            )
    return "The pilot check holds for every case and is narrow enough to say something."


def candidates(episode: Episode, ctx: Context) -> str:
    """Several models are compared by name, the chosen one among them."""
    tier = _tier(episode, ctx.spec)
    record = Record.own(episode, FACTS)
    names: dict[str, str] = {}
    for entry in record.items("candidates"):
        name = entry.get("name") if isinstance(entry, dict) else entry
        if isinstance(name, str) and name.strip():
            names[name.strip().casefold()] = name.strip()
    if len(names) < tier.candidates:
        raise Fail(f"{FACTS}: {len(names)} candidates compared, at least {tier.candidates} asked.")
    text = own_text(episode, PLAN).casefold()
    unnamed = [name for key, name in names.items() if key not in text]
    if unnamed:
        raise Fail(f"{PLAN} does not discuss the candidate {shown(unnamed[0])}.")
    if record.text("model").casefold() not in names:
        raise Fail(f"{FACTS}: the chosen model is not among the candidates.")
    return f"{len(names)} candidates compared."


def plan_image(episode: Episode, ctx: Context) -> str:
    """The plan's diagram is a real picture."""
    if IMAGE not in own_paths(episode):
        raise Fail(f"{IMAGE} was not written in this episode.")
    lost = episode.evidence.lost.get("plan_image")
    if lost is not None:
        raise Lost(lost)
    image = episode.evidence.plan_image
    if image is None or not image.get("readable"):
        why = "" if image is None else str(image.get("message", ""))
        raise Fail(f"{IMAGE} is not a PNG that can be decoded. {why}".strip())
    side = min(as_number(image.get(key)) or 0.0 for key in ("width", "height"))
    if side < MIN_IMAGE_SIDE or (as_number(image.get("colours")) or 0.0) < MIN_IMAGE_COLOURS:
        raise Fail(f"{IMAGE} must be at least {MIN_IMAGE_SIDE} pixels a side and not one colour.")
    return "The plan's diagram is a real picture."


def _tier(episode: Episode, spec: TaskSpec) -> TierSpec:
    return next((t for name, t in spec.tiers.items() if name == episode.tier), TierSpec())


def items(spec: TaskSpec, tier: TierSpec) -> tuple[Item, ...]:
    """The items of S1 for a tier."""
    found = [
        make_item(
            "S1.plan_first",
            "Plan and facts are written before any prediction",
            plan_first,
            evidence=(PLAN, FACTS),
            at_hand_in=False,
        ),
        make_item("S1.model_named", "The plan names the given model or a valid one", model_named),
        make_item("S1.facts_counts", "Case count and orientations are true", facts_counts),
        make_item("S1.facts_ranges", "Spacing and intensity ranges are true", facts_ranges),
        make_item(
            "S1.processing_declared",
            "Declared pre- and post-processing equal the model card",
            processing_declared,
        ),
        make_item(
            "S1.output_declared", "Declared output contract equals the task's", output_declared
        ),
        make_item(
            "S1.pilot_check",
            "The declared pilot check contains the true value and is not too wide",
            pilot_check,
        ),
    ]
    if tier.candidates:
        found.append(
            make_item("S1.candidates", f"At least {tier.candidates} models compared", candidates)
        )
    if tier.plan_image:
        found.append(
            make_item("S1.plan_image", "plan.png is a real picture", plan_image, evidence=(IMAGE,))
        )
    return tuple(found)
