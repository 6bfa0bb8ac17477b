"""S1, plan: written first, names a model that exists, and says only true things about the data.

``plan/facts.json`` is judged in its last version, at hand-in. Facts about the data that are wrong
are false claims; declarations that differ from the model card or the task's contract are failures.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bat_env.episode import Episode
from bat_env.rubric.base import Context, Item
from bat_env.rubric.build import make_item
from bat_env.rubric.claims import (
    Fail,
    Lost,
    Record,
    as_number,
    judge,
    own_paths,
    own_text,
    same,
    shown,
)
from bat_env.tasks.spec import FactSpec, TaskSpec, TierSpec

PLAN: Final[str] = "plan/plan.md"
FACTS: Final[str] = "plan/facts.json"
IMAGE: Final[str] = "plan/plan.png"

DECLARED_ABS: Final[float] = 1e-3
"""Numbers copied from the model card may differ by this much."""
ARCHITECTURES: Final[tuple[str, ...]] = (
    *("net", "unet", "former", "transformer", "vit", "swin", "mamba", "cnn", "fcn", "resnext"),
    *("gan", "pix2pix", "diffusion", "ddpm", "flow", "autoencoder", "vae", "perceptron", "detr"),
    *("yolo", "rcnn", "retina", "ssd", "fcos", "dino", "sam", "deeplab", "vista", "clip", "blip"),
    *("llava", "bert", "gpt", "llama", "qwen", "gemma", "r2gen", "flamingo", "lstm", "vgg"),
    *("inception", "edsr", "rcan", "swinir", "bm3d", "nlmeans", "wavelet", "filter", "r2plus1d"),
    *("i3d", "atlas", "threshold", "forest", "boost", "svm", "regression", "kmeans"),
)
"""A candidate that is none of the task's own names one of these: a kind of model that exists."""
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


def _false_per_case(record: Record, key: str, fact: FactSpec, true: Mapping[str, Any]) -> list[str]:
    claimed = record.table(key)
    absent = sorted(set(true) - set(claimed))
    if absent:
        raise Fail(f"{FACTS}: key {key!r} has no entry for {', '.join(absent[:4])}.")
    false = []
    for case, value in claimed.items():
        if case not in true:
            false.append(f"there is no case {shown(case)}")
        elif not same(value, true[case], abs_tol=fact.abs_tol, rel_tol=fact.rel_tol):
            false.append(f"{key} of {case} is {true[case]}, not {shown(value)}")
    return false


def _false_extent(record: Record, key: str, fact: FactSpec, true: Mapping[str, Any]) -> list[str]:
    false = []
    for name, choose in (("min", min), ("max", max)):
        claimed = record.vector(f"{key}.{name}", fact.size)
        extreme = [float(choose(axis)) for axis in zip(*true.values(), strict=True)]
        if not same(list(claimed), extreme, abs_tol=fact.abs_tol, rel_tol=fact.rel_tol):
            false.append(f"{key}.{name} is {[round(t, 3) for t in extreme]}, not {claimed}")
    return false


def _false_range(record: Record, key: str, fact: FactSpec, true: Sequence[float]) -> list[str]:
    low, high = (float(v) for v in true)
    tolerance = max(fact.abs_tol, fact.rel_tol * (high - low))
    claimed = record.vector(key, 2)
    if same(list(claimed), [low, high], abs_tol=tolerance):
        return []
    return [f"{key} is {[low, high]}, not {claimed}"]


def facts_counts(episode: Episode, ctx: Context) -> str:
    """Case count, and what the plan says of every single case."""
    record = Record.own(episode, FACTS)
    facts = ctx.instance.facts
    false = []
    count = record.integer("case_count")
    if count != facts["case_count"]:
        false.append(f"case_count is {shown(count)}, not {facts['case_count']}")
    for key, fact in ctx.spec.facts.items():
        if fact.kind == "per_case":
            false += _false_per_case(record, key, fact, facts[key])
    return judge(false, "What the plan counts and says of single cases is true.")


def facts_ranges(episode: Episode, ctx: Context) -> str:
    """What the plan says of all cases together: extents, ranges and common values."""
    record = Record.own(episode, FACTS)
    false = []
    for key, fact in ctx.spec.facts.items():
        true: Any = ctx.instance.facts[key]
        if fact.kind == "extent":
            false += _false_extent(record, key, fact, true)
        elif fact.kind == "range":
            false += _false_range(record, key, fact, true)
        elif fact.kind == "value" and not same(
            record.get(key), true, abs_tol=fact.abs_tol, rel_tol=fact.rel_tol
        ):
            false.append(f"{key} is {true}, not {shown(record.get(key))}")
    return judge(false, "Extents and ranges are true.")


def processing_declared(episode: Episode, ctx: Context) -> str:
    """Pre- and post-processing equal to what the model card and the task ask for."""
    record = Record.own(episode, FACTS)
    card = ctx.instance.facts["model_card"]
    wrong = []
    for key in ctx.spec.model.preprocessing:
        claimed = record.get(f"preprocessing.{key}")
        if not same(claimed, card[key], abs_tol=DECLARED_ABS):
            wrong.append(f"{key} {shown(claimed)}, the card says {card[key]}")
    for key, declared in ctx.spec.postprocessing.items():
        claimed = record.get(f"postprocessing.{key}")
        if not same(claimed, declared.value):
            wrong.append(f"postprocessing.{key} is {shown(claimed)}, the task needs another value")
    if wrong:
        raise Fail(f"{FACTS}: " + "; ".join(wrong) + ".")
    return "Pre- and post-processing equal the model card and the task."


def output_declared(episode: Episode, ctx: Context) -> str:
    """Output path, type, labels and columns equal to the task's contract."""
    record = Record.own(episode, FACTS)
    out = ctx.spec.output
    wrong = []
    path = record.text("output.path")
    if path.removeprefix("/workspace/") != out.path:
        wrong.append(f"path {shown(path)}, expected {out.path}")
    if out.dtype:
        dtype = record.text("output.dtype")
        if dtype not in out.dtype:
            wrong.append(f"dtype {shown(dtype)}, expected {' or '.join(out.dtype)}")
    if out.labels:
        labels = record.table("output.labels")
        if labels != {str(value): name for value, name in out.labels.items()}:
            wrong.append(f"labels {shown(labels)}, expected {out.labels}")
    if out.columns:
        columns = record.items("output.columns")
        if columns != list(out.columns):
            wrong.append(f"columns {shown(columns)}, expected {list(out.columns)}")
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
    width = pilot.max_range_width
    if not low < high or (width is None and low <= 0):
        least = "0 < " if width is None else ""
        raise Fail(f"{FACTS}: pilot_check.range must be {least}low < high, got {[low, high]}.")
    if high - low > width if width is not None else high > low * pilot.max_range_ratio:
        most = f"1:{pilot.max_range_ratio:g}" if width is None else f"{width:g}"
        raise Fail(f"{FACTS}: pilot_check.range {[low, high]} is wider than {most}: too wide.")
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
    known = {_letters(name) for name in _valid_models(ctx.spec).values()}
    given = _letters(ctx.spec.model.name)
    names: dict[str, str] = {}
    for entry in record.items("candidates"):
        name = entry.get("name") if isinstance(entry, dict) else entry
        if not isinstance(name, str) or not name.strip():
            continue
        key = _letters(name)
        if key in known or any(word in key for word in ARCHITECTURES):
            # Another spelling or number of the given model is the given model.
            names.setdefault(given if key.startswith(given) else key, name.strip())
    if len(names) < tier.candidates:
        raise Fail(
            f"{FACTS}: {len(names)} different models compared, at least {tier.candidates} asked."
        )
    text = own_text(episode, PLAN).casefold()
    unnamed = [name for name in names.values() if name.casefold() not in text]
    if unnamed:
        raise Fail(f"{PLAN} does not discuss the candidate {shown(unnamed[0])}.")
    if _letters(record.text("model")) not in names:
        raise Fail(f"{FACTS}: the chosen model is not among the candidates.")
    return f"{len(names)} candidates compared."


def _letters(name: str) -> str:
    """A name without case, blanks and signs."""
    return "".join(c for c in name.casefold() if c.isalnum())


def plan_image(episode: Episode, ctx: Context) -> str:
    """The plan's diagram is a real picture."""
    if IMAGE not in own_paths(episode):
        raise Fail(f"{IMAGE} was not written in this episode.")
    lost = episode.evidence.lost.get("plan_image")
    if lost is not None:
        raise Lost(lost)
    image = episode.evidence.plan_image
    if image is not None and image.get("copied"):
        raise Fail(f"{IMAGE} is a copy of {image['copied']}, no picture of a plan.")
    if image is None or not image.get("readable"):
        why = "" if image is None else str(image.get("message", ""))
        raise Fail(f"{IMAGE} is not a PNG that can be decoded. {why}".strip())
    side = min(as_number(image.get(key)) or 0.0 for key in ("width", "height"))
    if side < MIN_IMAGE_SIDE or (as_number(image.get("colours")) or 0.0) < MIN_IMAGE_COLOURS:
        raise Fail(f"{IMAGE} must be at least {MIN_IMAGE_SIDE} pixels a side and not one colour.")
    return "The plan's diagram is a real picture."


def _tier(episode: Episode, spec: TaskSpec) -> TierSpec:
    return next((t for name, t in spec.tiers.items() if name == episode.tier), TierSpec())


def _keys(spec: TaskSpec, *, per_case: bool) -> list[str]:
    return [key for key, fact in spec.facts.items() if (fact.kind == "per_case") == per_case]


def _listed(names: list[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"


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
        make_item(
            "S1.facts_counts",
            f"{_listed(['case_count', *_keys(spec, per_case=True)])} true",
            facts_counts,
        ),
        make_item("S1.facts_ranges", f"{_listed(_keys(spec, per_case=False))} true", facts_ranges),
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
