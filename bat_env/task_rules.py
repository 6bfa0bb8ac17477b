"""The rules that every task folder must keep, one function each, with and without episodes.

A rule raises ``AssertionError`` with a sentence that says what is broken. ``FOLDER_RULES`` need no
sandbox; ``EPISODE_RULES`` play whole episodes on the reduced size.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from bat_env.env import AutoMedEnv
from bat_env.grader import shared_grader
from bat_env.grader.preview import FORMATS
from bat_env.metrics import load_metric
from bat_env.stages import WORK_STAGES, Stage
from bat_env.tasks import Task, public_spec, render_brief, stage_files
from bat_env.tasks.instance import SPLITS, Instance, Size, Split
from bat_env.tasks.scripts import Mistake
from bat_env.tools import execute_call, submit_call

INDEX: Final = 11
"""Training instance on which scripts are played."""
MAX_FLOOR: Final = 0.10
MIN_OVERALL: Final = 0.80
MIN_TASK: Final = 0.65
MAX_NAIVE: Final = 0.45
MIN_STAGE_LOSS: Final = 0.2
MIN_COST: Final = 0.05
MAX_BUNDLE_BYTES: Final = 1_000_000

FolderRule = Callable[[Task], None]


def _drawn(task: Task, split: Split = "dev", count: int = 6, size: Size = "mini") -> list[Instance]:
    return [task.instance(split, index, size) for index in range(count)]


# -------------------------------------------------------------------------------- the contract


def contract(task: Task) -> None:
    """task.yaml fits its metric, its bundle and what the generator gives."""
    spec = task.spec
    load_metric(spec.metric.name).check(spec)
    assert spec.output.format in FORMATS, (
        f"output.format {spec.output.format!r} must be one of {', '.join(FORMATS)}."
    )
    if spec.output.is_table:
        assert spec.output.columns[:1] == ("case",), "A table's first column must be case."
    card = task.model_card
    absent = sorted(set(spec.model.preprocessing) - set(card))
    assert not absent, f"metadata.json's preprocessing lacks {', '.join(absent)}."
    for split in SPLITS:
        _facts(task, task.instance(split, 0, "mini"))  # type: ignore[arg-type]


def _facts(task: Task, drawn: Instance) -> None:
    spec, facts = task.spec, drawn.facts
    wanted = {"case_count", "inputs", "pilot_truth", *spec.facts}
    absent = sorted(wanted - set(facts))
    assert not absent, f"generate() gives no fact {', '.join(absent)}."
    assert facts["case_count"] == len(drawn.cases), "case_count must be the number of cases."
    for key in ("pilot_truth", *(k for k, f in spec.facts.items() if f.kind in _BY_CASE)):
        assert set(facts[key]) == set(drawn.cases), f"Fact {key} must have one entry a case."
    assert set(facts["inputs"]) == set(spec.inputs), "Fact inputs must have the keys of `inputs`."
    json.dumps(dict(facts))
    for case in (*drawn.cases, drawn.probe_case):
        probe = case == drawn.probe_case
        public = drawn.probe_public if probe else drawn.public
        private = drawn.probe_private if probe else drawn.private
        start = "" if probe else f"{case}/"
        assert start + spec.input_file in public, f"{case} has no {spec.input_file}."
        assert start + spec.truth_name in private, f"{case} has no private {spec.truth_name}."


_BY_CASE: Final = ("per_case", "extent")


def splits(task: Task) -> None:
    """train, dev and heldout share no seed, no fictional value and no case id."""
    fiction = {
        split: {value for row in rows for value in row.values()}
        for split, rows in task.spec.fiction.items()
    }
    seeds = {split: {task.seed(split, i) for i in range(500)} for split in SPLITS}  # type: ignore[arg-type]
    ids = {
        split: set(chain(*(d.cases for d in _drawn(task, split, 4))))  # type: ignore[arg-type]
        for split in SPLITS
    }
    for what, groups in (("fictional value", fiction), ("seed", seeds), ("case id", ids)):
        total = set().union(*groups.values())
        assert len(total) == sum(map(len, groups.values())), f"Two splits share a {what}."


def variety(task: Task) -> None:
    """Instances differ; case ids are random and carry the prefix; the probe is unseen."""
    tails = set()
    for drawn in _drawn(task):
        assert drawn.probe_case not in drawn.cases, "The probe case must not be a case."
        assert len(set(drawn.cases)) == len(drawn.cases) >= 2, "At least two different cases."
        prefix = drawn.fiction["prefix"] + "-"
        for case in drawn.cases:
            assert case.startswith(prefix), f"Case id {case} must start with {prefix}."
            tails.add(case.removeprefix(prefix))
    assert len(tails) >= 12, "Case ids must be random."
    assert len({d.digest for d in _drawn(task)}) == 6, "Two indices give one instance."
    for key in task.spec.facts:
        values = {json.dumps(d.facts[key], sort_keys=True) for d in _drawn(task)}
        assert len(values) > 1, f"Fact {key} is the same in every instance."


def normal_cases(task: Task) -> None:
    """Cases without any finding exist, where the track has findings."""
    spec = task.spec
    lesion = spec.metric.params.get("lesion")
    free = diseased = False
    for drawn in _drawn(task):
        for case in drawn.cases:
            if spec.track == "seg" and lesion:
                found = bool(drawn.facts["volumes_ml"][case][lesion])
            elif spec.track in ("det", "report"):
                truth = json.loads(drawn.private[f"{case}/{spec.truth_name}"])
                found = bool(truth["boxes" if spec.track == "det" else "findings"])
            else:
                return
            free, diseased = free or not found, diseased or found
    assert free and diseased, "Cases with and without a finding must exist."


_DIGESTS: Final = """\
import sys
from bat_env.tasks import load_task
task = load_task(sys.argv[1])
print([task.instance("dev", i, s).digest for i, s in ((0, "mini"), (3, "mini"), (0, "full"))])
"""


def determinism(task: Task) -> None:
    """The same instance comes out of another process, whatever its hash seed."""
    wanted = (("mini", 0), ("mini", 3), ("full", 0))
    here = str([task.instance("dev", i, s).digest for s, i in wanted])  # type: ignore[arg-type]
    places = [str(task.folder.parent.parent), os.environ.get("BAT_TASKS_PATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", _DIGESTS, task.id],
        env={
            **os.environ,
            "PYTHONHASHSEED": "7",
            "BAT_TASKS_PATH": os.pathsep.join(filter(None, places)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == here, (
        f"generate() is not deterministic across processes. {done.stderr[-300:]}"
    )


# ------------------------------------------------------------------------------------- privacy


def privacy(task: Task) -> None:
    """Nothing private is staged or briefed."""
    drawn = task.instance("heldout", 0, "mini")
    truths = {*drawn.private.values(), *drawn.probe_private.values(), *drawn.probe_public.values()}
    secrets = [f"{task.probe_expected['std']:.6g}"[:7], str(drawn.seed), drawn.probe_case]
    for tier in task.spec.tiers:
        for focus in (Stage.E2E, Stage.S1):
            for path, data in stage_files(task, drawn, tier, focus).items():
                assert data not in truths, f"{path} holds private truth."
                text = data.decode("latin-1")
                assert not any(s in text for s in secrets), f"{path} holds a private value."
            brief = render_brief(task, drawn, tier=tier, focus=focus)
            assert not any(s in brief for s in secrets), "The brief holds a private value."
    public = json.dumps(public_spec(task.spec))
    assert "floor" not in public and "fiction" not in public, "spec.json shows private keys."


def bundle(task: Task) -> None:
    """The bundle is small, its configurations agree, and its card names every value."""
    files = task.model_files()
    size = sum(map(len, files.values()))
    assert size <= MAX_BUNDLE_BYTES, f"The bundle has {size} bytes, at most {MAX_BUNDLE_BYTES}."
    name = task.spec.model.name
    meta = json.loads(files[f"{name}/configs/metadata.json"])
    inference = json.loads(files[f"{name}/configs/inference.json"])
    network = {k: v for k, v in inference["network_def"].items() if k != "_target_"}
    assert network == meta["network"], "inference.json and metadata.json name other networks."
    card = files[f"{name}/docs/README.md"].decode()
    for key in task.spec.model.preprocessing:
        value = meta["preprocessing"][key]
        for part in value if isinstance(value, list) else [value]:
            shown = {str(part), f"{part:g}" if isinstance(part, (int, float)) else str(part)}
            assert any(text in card for text in shown), f"The card does not name {key} {part}."
    for number, channel in enumerate(meta.get("channels", [])):
        assert f"{number} {channel}" in card, f"The card does not name channel {number} {channel}."
    text = (task.folder / "README.md").read_text("utf-8")
    assert task.spec.mirrors in text, "README.md must name what the task mirrors."
    assert "Not for clinical use" in text, "README.md must say: Not for clinical use."


# -------------------------------------------------------------------------------------- briefs


def briefs(task: Task) -> None:
    """Briefs take numbers and paths from the contract, and vary in few short lines."""
    spec = task.spec
    changed = Task(task.folder)
    output = spec.output.name
    other = f"other{output[output.index('.') :]}"
    budgets = spec.budgets.model_copy(update={"turns": 91, "calls": 87, "cell_timeout_s": 77.0})
    moved = spec.output.model_copy(update={"path": spec.output.path.replace(output, other)})
    changed.spec = spec.model_copy(
        update={"budgets": budgets, "output": moved, "input_file": "scan.raw"}
    )
    one, two = (task.instance("train", i, "mini") for i in (0, 1))
    for tier in spec.tiers:
        text = render_brief(changed, one, tier=tier, focus=Stage.E2E)
        for wanted in ("91 turns", "87 cells", "77 s", other, "scan.raw"):
            assert wanted in text, f"The {tier} brief takes {wanted!r} not from the contract."
        stale = [w for w in (" 24 turns", " 23 cells", "120 s", f"/{output}") if w in text]
        assert not stale, f"The {tier} brief holds {stale[0]!r} of its own."
        for focus in Stage:
            foreign = _foreign(task, one, tier, focus)
            assert not foreign, f"The {tier} brief holds {foreign[0]!r}, which no contract names."
            a, b = (render_brief(task, d, tier=tier, focus=focus).splitlines() for d in (one, two))
            assert max(map(len, a)) <= 140, f"The {tier} brief has a line of over 140 characters."
            assert all(case in "\n".join(a) for case in one.cases), "The brief must name the cases."
            starts = tuple(f"{key.capitalize()}:" for key in one.fiction)
            odd = [x for x in a if x not in b and not x.startswith((*starts, "- "))]
            assert not odd, f"This line of the {tier} brief differs between instances: {odd[0]!r}"


def _foreign(task: Task, drawn: Instance, tier: str, focus: Stage) -> list[str]:
    """Numbers and paths of a brief that stand neither in the contract nor in the instance."""
    spec = task.spec
    skills = [f"/skills/{name}" for name in task.skills(tier, focus)]
    words = (spec.title, spec.modality, spec.clinical_goal, str(dict(spec.tiers)), *drawn.cases)
    known = "\n".join(
        (
            json.dumps(public_spec(spec, tier, focus), ensure_ascii=False),
            "/workspace/task/spec.json",
            *words,
            *drawn.fiction.values(),
            *skills,
        )
    ).replace("{case}", "<case>")
    known += known.replace("<case>", "{case}")
    numbers = {float(n) for n in _NUMBER.findall(known)}
    text = render_brief(task, drawn, tier=tier, focus=focus)
    paths = [word.strip(".,;:()") for word in text.split() if "/" in word]
    return [n for n in _NUMBER.findall(text) if float(n) not in numbers] + [
        path for path in paths if path not in known
    ]


_NUMBER: Final = re.compile(r"(?<![A-Za-z0-9_.])[0-9]+(?:\.[0-9]+)?")


# ------------------------------------------------------------------------------------- scripts


def scripts(task: Task) -> None:
    """Every wrong option is a listed mistake; cells are short, name no case and differ."""
    options = {d.id: d.options for d in task.decisions}
    assert len(options) >= 12, f"At least 12 decisions, got {len(options)}."
    assert len(task.mistakes) >= 14, f"At least 14 mistakes, got {len(task.mistakes)}."
    listed = {(d, o) for m in task.mistakes for d, o in m.choices.items()}
    wrong = {(d, o) for d, every in options.items() for o in every[1:]}
    assert listed == wrong, f"Options without a mistake, or the reverse: {listed ^ wrong}."
    assert set(task.naive_choices.items()) <= listed, "The naive script makes unlisted mistakes."
    for mistake in task.mistakes:
        assert mistake.title and mistake.source, f"Mistake {mistake.id} needs title and source."
        low = [p for p, cost in mistake.costs.items() if cost < MIN_COST]
        assert mistake.costs and not low, f"Mistake {mistake.id} must cost >= {MIN_COST}."
        compile(mistake.check, mistake.id, "exec")
    cases = [case for drawn in _drawn(task, count=3) for case in drawn.cases]
    for choices in ({}, task.naive_choices, *(m.choices for m in task.mistakes)):
        for focus in Stage:
            for tier in task.spec.tiers:
                cells = task.script(choices, focus=focus, tier=tier)
                assert 1 <= len(cells) <= 8, f"{focus.name} has {len(cells)} cells."
                for cell in cells:
                    compile(cell.code, "cell", "exec")
                    lines = cell.code.split("\n")
                    assert len(lines) <= 50, f"A cell of {focus.name} has {len(lines)} lines."
                    long = [line for line in lines if len(line) > 110]
                    assert not long, f"This line has over 110 characters: {long[0]!r}"
                    assert not any(case in cell.code for case in cases), "A cell names a case."
    for focus in Stage:
        stages = {cell.stage for cell in task.script(focus=focus)}
        wanted = {focus} if focus is not Stage.E2E else set(WORK_STAGES)
        assert stages == wanted, f"The script of {focus.name} has cells of {stages}."


def floors(task: Task) -> None:
    """Trivial outputs score at most .10, and what task.yaml says of them."""
    grader = shared_grader()
    totals: dict[str, list[float]] = {}
    for drawn in _drawn(task):
        for method, files in task.trivial_outputs(drawn).items():
            totals.setdefault(method, []).append(grader.grade(task, drawn, files).score)
    means = {method: sum(values) / len(values) for method, values in totals.items()}
    shown = {method: round(value, 3) for method, value in means.items()}
    assert set(means) == set(task.spec.floors), f"floors in task.yaml must be measured: {shown}"
    for method, value in means.items():
        assert value <= MAX_FLOOR, f"Trivial output {method} scores {value:.3f}."
        stated = task.spec.floors[method]
        assert value <= stated + 0.02, f"{method} scores {value:.3f}, floors says {stated}."
        assert stated <= MAX_FLOOR, f"Floor {method} is {stated}, more than {MAX_FLOOR}."


FOLDER_RULES: Final[tuple[FolderRule, ...]] = (
    contract,
    splits,
    variety,
    normal_cases,
    determinism,
    privacy,
    bundle,
    briefs,
    scripts,
    floors,
)
"""Rules that need no sandbox."""


# ------------------------------------------------------------------------------------ episodes


@dataclass(frozen=True)
class Played:
    """The result of a scripted episode.

    Attributes:
        score: Episode score.
        parts: ``"S1"`` .. ``"S5"`` and ``"task"`` -> score.
        failed_cells: Cells that ended with an error.
        valid: Whether every output is valid.
        notes: Messages of the items that are not met.
        cpu_s: Host CPU seconds of the episode, children that ended included.
    """

    score: float
    parts: Mapping[str, float]
    failed_cells: int
    valid: bool
    notes: str
    cpu_s: float


class Player:
    """Plays scripts of one task; one environment is open at a time.

    Args:
        task: The task.
        sandbox: Backend name.
    """

    def __init__(self, task: Task, sandbox: str = "auto") -> None:
        self.task = task
        self._sandbox = sandbox
        self._env: tuple[tuple[str, str], AutoMedEnv] | None = None
        self._careful: dict[tuple[str, str], Played] = {}

    def play(self, choices: Mapping[str, str], size: str = "mini", tier: str = "lite") -> Played:
        """Play a whole episode."""
        env = self._opened(size, tier)
        env.reset(seed=1, options={"index": INDEX})
        began = time.process_time()
        cells = self.task.script(choices, tier=tier)
        info: dict[str, Any] = {}
        for action in [*(execute_call(c.language, c.code) for c in cells), submit_call()]:
            _, _, terminated, truncated, info = env.step(action)
            if terminated or truncated:
                break
        result = info["result"]
        grade = env.episode.evidence.grade
        verdicts = env.rubric.verdicts if env.rubric is not None else ()
        errors = [c.result.stderr[-300:] for c in env.episode.cells if not c.result.ok]
        return Played(
            score=float(result["score"]),
            parts={**result["stages"], "task": float(result["task"] or 0.0)},
            failed_cells=int(result["errors"]["failed_cells"]),
            valid=grade is not None and all(grade.valid.values()),
            notes="; ".join(
                [*errors, *(f"{v.item}: {v.message}" for v in verdicts if v.state != "pass")]
            )[:1500],
            cpu_s=time.process_time() - began,
        )

    def _opened(self, size: str, tier: str) -> AutoMedEnv:
        """The environment of this size and tier; another one gives its sandbox back first."""
        if self._env is None or self._env[0] != (size, tier):
            self.close()
            made = AutoMedEnv(
                track=self.task.spec.track,
                task=self.task.id,
                size=size,
                tier=tier,
                sandbox=self._sandbox,
            )
            self._env = ((size, tier), made)
        return self._env[1]

    def careful(self, size: str = "mini", tier: str = "lite") -> Played:
        """The oracle's episode, played once."""
        key = (size, tier)
        if key not in self._careful:
            self._careful[key] = self.play({}, size, tier)
        return self._careful[key]

    def close(self) -> None:
        """Close the environment, if one is open."""
        if self._env is not None:
            self._env[1].close()
        self._env = None


def oracle_scores(player: Player, size: str = "mini") -> None:
    """Careful work finishes without an error and scores high, in every tier."""
    for tier in player.task.spec.tiers if size == "mini" else ("lite",):
        done = player.careful(size, tier)
        assert done.failed_cells == 0 and done.valid, f"{size} {tier}: {done.notes}"
        assert done.score >= MIN_OVERALL, f"{size} {tier}: Overall {done.score:.3f}. {done.notes}"
        task = done.parts["task"]
        assert task >= MIN_TASK, f"{size} {tier}: Task {task:.3f}. {done.notes}"
        low = [stage.name for stage in WORK_STAGES if done.parts[stage.name] < 1.0]
        assert not low, f"{size} {tier}: the oracle loses in {', '.join(low)}: {done.notes}"


def naive_scores(player: Player, size: str = "mini") -> None:
    """Careless work finishes with valid outputs and loses in every stage."""
    done, good = player.play(player.task.naive_choices, size), player.careful(size)
    assert done.failed_cells == 0 and done.valid, f"naive must finish validly: {done.notes}"
    assert done.score <= MAX_NAIVE, f"naive scores {done.score:.3f}, at most {MAX_NAIVE}."
    for stage in WORK_STAGES:
        lost = good.parts[stage.name] - done.parts[stage.name]
        assert lost >= MIN_STAGE_LOSS, f"naive loses only {lost:.2f} in {stage.name}."


def mistake_costs(player: Player, mistake: Mistake) -> None:
    """A mistake costs where it says, and hardly anywhere else."""
    if mistake.outcome:
        return
    done, good = player.play(mistake.choices, tier=mistake.tier), player.careful(tier=mistake.tier)
    lost = {part: round(good.parts[part] - done.parts[part], 3) for part in good.parts}
    for part, least in mistake.costs.items():
        assert lost[part] >= least, f"{mistake.id} must cost {least} in {part}, it costs {lost}."
    assert good.score > done.score, f"{mistake.id}: the episode must pay too."
    for part, loss in lost.items():
        expected = part in mistake.costs or part in ("S5", "task")
        assert expected or loss < 0.3, f"{mistake.id} also costs {loss} in {part}: list it."


def all_mistakes(player: Player) -> None:
    """Each listed mistake costs where it should."""
    wrong = []
    for mistake in player.task.mistakes:
        try:
            mistake_costs(player, mistake)
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n".join(wrong)


def run_rules(
    task: Task, *, episodes: bool = True, sandbox: str = "auto"
) -> Iterator[tuple[str, str]]:
    """Check everything; yields ``(rule, what is wrong or "")`` as it goes.

    Args:
        task: The task.
        episodes: Whether to play episodes too (about a minute).
        sandbox: Backend for them.
    """
    for rule in FOLDER_RULES:
        yield rule.__name__, _wrong(rule, task)
    if not episodes:
        return
    player = Player(task, sandbox)
    try:
        for check in (oracle_scores, naive_scores, all_mistakes):
            yield check.__name__, _wrong(check, player)
        yield "oracle_scores full", _wrong(lambda p: oracle_scores(p, "full"), player)
        yield "naive_scores full", _wrong(lambda p: naive_scores(p, "full"), player)
    finally:
        player.close()


def _wrong(rule: Callable[[Any], None], subject: Any) -> str:
    try:
        rule(subject)
    except AssertionError as error:
        return str(error).split("\nassert ")[0] or f"{rule.__name__} failed"
    return ""
